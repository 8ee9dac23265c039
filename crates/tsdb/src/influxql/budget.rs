//! The remaining budget of a query.
//!
//! Every loop over points, buckets or series asks here ([`Budget::tick`]), and memory that stays in use is counted
//! here before it is taken ([`Budget::hold`]): so every query that exceeds its limits ends with an error.
//!
//! A budget belongs to the thread of its query. Other threads that read for the query ask [`end_of`], or have a
//! budget of their own, and their results are charged here ([`Budget::charge`]). Results that are made ahead are
//! given up ([`Spare`]) before a query ends for lack of memory: so a query ends at the same place, however many
//! threads read for it. Code that reads the points of a series checks the limits itself ([`Ends`]), every few
//! thousand points.

use super::Limits;
use crate::catalogue::{Matched, Work};
use crate::error::{Error, Result as Read};
use crate::pace::Ends;
use regex::Regex;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A value, or the error of the statement.
pub(super) type Fallible<T> = Result<T, String>;

/// Ticks between two checks of the clock, and of whether the query is still wanted.
const TICKS: usize = 512;

/// Held memory that can be given up, since its content can be made again.
pub(super) trait Spare: std::fmt::Debug {
    /// Gives the memory up, and returns the bytes that were held.
    fn give_up(&self) -> usize;
}

/// Nanoseconds to read a point in one go with many others, about.
const POINT_NS: u64 = 10;

/// Bytes of a point that is read together with others, at least: a time and a value.
const POINT_BYTES: usize = 16;

/// Bytes of points that may always be read together: those of two chunks.
const FEW_BYTES: usize = 64 << 10;

/// Nanoseconds to list a series and assign it to its group, about.
const GROUPED_NS: u64 = 500;

/// Nanoseconds to list a series, or to look at a value of a tag, about, and bytes that it then takes.
const SERIES_NS: u64 = 100;
const SERIES_BYTES: usize = 8;
const VALUE_BYTES: usize = 32;

/// Nanoseconds to look for an expression in a byte of a text: mostly far fewer, and more for a large expression in a
/// text that was made for it.
const MATCH_NS: u64 = 100;

/// The reason why a query has to end within a time: its client has disconnected, or the deadline will have passed.
fn why_ended(limits: &Limits, within: Duration) -> Option<&'static str> {
    if limits.cancel.as_ref().is_some_and(|it| it.load(Ordering::Relaxed)) {
        return Some("query interrupted");
    }
    (Instant::now() + within >= limits.deadline).then_some("query-timeout limit exceeded")
}

/// An error if a query has to end now.
pub(super) fn end_of(limits: &Limits) -> Fallible<()> {
    why_ended(limits, Duration::ZERO).map_or(Ok(()), |why| Err(why.to_owned()))
}

impl Ends for Limits {
    fn look(&self, points: usize) -> Read<()> {
        let bytes = points.saturating_mul(POINT_BYTES);
        if bytes > self.bytes_max.max(FEW_BYTES) {
            let max = self.bytes_max;
            return Err(Error::Limit(format!("max-select-bytes limit exceeded: ({bytes}/{max})")));
        }
        let within = Duration::from_nanos(POINT_NS.saturating_mul(points as u64));
        why_ended(self, within).map_or(Ok(()), |why| Err(Error::Ended(why)))
    }
}

/// The amounts that were counted against a budget.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    rows: usize,
    /// Bytes that are still held.
    pub(super) bytes: usize,
    /// The peak of the bytes held at a time.
    bytes_peak: usize,
    answers: usize,
    buckets: usize,
    /// The peak of the buckets that were asked for; some are asked for and not counted.
    buckets_peak: usize,
}

/// The remaining limits of a query.
#[derive(Debug)]
pub(super) struct Budget<'q> {
    limits: &'q Limits,
    rows: Cell<usize>,
    bytes: Cell<usize>,
    bytes_peak: Cell<usize>,
    /// Bytes of the rows of answers, which stay until the query is answered.
    answers: Cell<usize>,
    buckets: Cell<usize>,
    buckets_peak: Cell<usize>,
    ticks_left: Cell<usize>,
    matched: Matched,
    spare: RefCell<Option<Rc<dyn Spare>>>,
}

impl<'q> Budget<'q> {
    /// A full budget.
    pub(super) fn new(limits: &'q Limits) -> Self {
        Self {
            limits,
            rows: Cell::new(0),
            bytes: Cell::new(0),
            bytes_peak: Cell::new(0),
            answers: Cell::new(0),
            buckets: Cell::new(0),
            buckets_peak: Cell::new(0),
            ticks_left: Cell::new(0),
            matched: Matched::default(),
            spare: RefCell::new(None),
        }
    }

    /// Checks now and then whether the query has to end, the first time at once.
    pub(super) fn tick(&self) -> Fallible<()> {
        self.tick_by(1)
    }

    /// The same, before work that counts as so many ticks.
    pub(super) fn tick_by(&self, ticks: usize) -> Fallible<()> {
        if let Some(left) = self.ticks_left.get().checked_sub(ticks) {
            self.ticks_left.set(left);
            return Ok(());
        }
        self.ticks_left.set(TICKS - 1);
        self.check()
    }

    /// Checks whether the query has to end.
    pub(super) fn check(&self) -> Fallible<()> {
        end_of(self.limits)
    }

    /// Refuses a step of a search for series if time or memory do not suffice.
    pub(super) fn may_list(&self, work: Work) -> Fallible<()> {
        self.may_list_in(work, SERIES_NS)
    }

    /// The same, for series that are also assigned to their groups.
    pub(super) fn may_group(&self, work: Work) -> Fallible<()> {
        self.may_list_in(work, GROUPED_NS)
    }

    fn may_list_in(&self, work: Work, each_ns: u64) -> Fallible<()> {
        let (of, each_ns, each_bytes) = match work {
            Work::Look(values) => (values, SERIES_NS, VALUE_BYTES),
            Work::Match(bytes) => (bytes, MATCH_NS, 0),
            Work::List(series) => (series, each_ns, SERIES_BYTES),
        };
        let within = Duration::from_nanos(each_ns.saturating_mul(of as u64));
        why_ended(self.limits, within).map_or(Ok(()), |why| Err(why.to_owned()))?;
        let bytes = of.saturating_mul(each_bytes);
        self.hold(bytes)?;
        self.release(bytes);
        Ok(())
    }

    /// Whether an expression is found in a text; an error if there is no time to look for it.
    pub(super) fn finds(&self, regex: &Regex, text: &str) -> Fallible<bool> {
        self.matched.add(text).map_or(Ok(()), |work| self.may_list(work))?;
        Ok(regex.is_match(text))
    }

    /// The limits.
    pub(super) fn limits(&self) -> &'q Limits {
        self.limits
    }

    /// Bytes that may still be held.
    pub(super) fn bytes_left(&self) -> usize {
        self.limits.bytes_max.saturating_sub(self.bytes.get())
    }

    /// Sets the memory that can be given up from now on; a later call replaces it.
    pub(super) fn spare(&self, spare: Option<Rc<dyn Spare>>) {
        *self.spare.borrow_mut() = spare;
    }

    /// Counts bytes that stay in memory.
    pub(super) fn hold(&self, bytes: usize) -> Fallible<()> {
        let max = self.limits.bytes_max;
        if self.bytes.get().saturating_add(bytes) > max
            && let Some(spare) = &*self.spare.borrow()
        {
            self.release(spare.give_up());
        }
        let held = self.bytes.get().saturating_add(bytes);
        if held > max {
            return Err(format!("max-select-bytes limit exceeded: ({held}/{max})"));
        }
        self.bytes.set(held);
        self.bytes_peak.set(held.max(self.bytes_peak.get()));
        Ok(())
    }

    /// Limits for a part of the query that another thread does: `bytes_max` bytes, and the remaining rows and
    /// buckets.
    pub(super) fn limits_of_part(&self, bytes_max: usize) -> Limits {
        let limits = self.limits.clone();
        Limits {
            rows_max: limits.rows_max.saturating_sub(self.rows.get()),
            buckets_max: limits.buckets_max.saturating_sub(self.buckets.get()),
            bytes_max,
            threads_max: 1,
            ..limits
        }
    }

    /// The amounts that were counted so far.
    pub(super) fn cost(&self) -> Cost {
        Cost {
            rows: self.rows.get(),
            bytes: self.bytes.get(),
            bytes_peak: self.bytes_peak.get(),
            answers: self.answers.get(),
            buckets: self.buckets.get(),
            buckets_peak: self.buckets_peak.get(),
        }
    }

    /// Counts the cost of a result that another thread has made with a budget of its own. False, and nothing is
    /// counted, if it could not have been made within this budget.
    pub(super) fn charge(&self, cost: &Cost) -> bool {
        let Limits { rows_max, bytes_max, buckets_max, .. } = *self.limits;
        let rows = self.rows.get().saturating_add(cost.rows);
        let buckets_peak = self.buckets.get().saturating_add(cost.buckets_peak);
        let bytes_peak = self.bytes.get().saturating_add(cost.bytes_peak);
        if rows > rows_max || buckets_peak > buckets_max || bytes_peak > bytes_max {
            return false;
        }
        self.rows.set(rows);
        self.buckets.set(self.buckets.get().saturating_add(cost.buckets));
        self.bytes.set(self.bytes.get().saturating_add(cost.bytes));
        self.answers.set(self.answers.get().saturating_add(cost.answers));
        true
    }

    /// Counts bytes that are free again.
    pub(super) fn release(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Counts a row of the answer.
    pub(super) fn row(&self, bytes: usize) -> Fallible<()> {
        let rows = self.rows.get() + 1;
        if rows > self.limits.rows_max {
            return Err(format!("max-row-limit exceeded: ({rows}/{})", self.limits.rows_max));
        }
        self.rows.set(rows);
        self.tick()?;
        self.hold(bytes)?;
        self.answers.set(self.answers.get().saturating_add(bytes));
        Ok(())
    }

    /// Counts bytes of the answer beside its rows: of the names and tags of a table.
    pub(super) fn table(&self, bytes: usize) -> Fallible<()> {
        self.tick()?;
        self.hold(bytes)?;
        self.answers.set(self.answers.get().saturating_add(bytes));
        Ok(())
    }

    /// Forgets the cost of the statement before: only its answer is still held.
    pub(super) fn begin_statement(&self) {
        self.buckets.set(0);
        self.bytes.set(self.answers.get());
    }

    /// Counts buckets of time.
    pub(super) fn buckets(&self, more: usize) -> Fallible<()> {
        self.may_have_buckets(more)?;
        self.buckets.set(self.buckets.get().saturating_add(more));
        Ok(())
    }

    /// Refuses so many more buckets of time, while they are made.
    pub(super) fn may_have_buckets(&self, more: usize) -> Fallible<()> {
        let buckets = self.buckets.get().saturating_add(more);
        if buckets > self.limits.buckets_max {
            let max = self.limits.buckets_max;
            return Err(format!("max-select-buckets limit exceeded: ({buckets}/{max})"));
        }
        self.buckets_peak.set(buckets.max(self.buckets_peak.get()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn limits(deadline: Instant) -> Limits {
        Limits {
            rows_max: 2,
            buckets_max: 10,
            bytes_max: 100,
            deadline,
            cancel: None,
            threads_max: 1,
        }
    }

    #[test]
    fn each_limit_ends_a_query() {
        let limits = limits(Instant::now() + Duration::from_secs(1000));
        let budget = Budget::new(&limits);
        assert!(budget.row(10).is_ok() && budget.row(10).is_ok());
        assert!(budget.row(10).is_err_and(|it| it.contains("3/2")));
        assert!(budget.hold(80).is_ok());
        assert!(budget.hold(1).is_err());
        budget.release(80);
        assert!(budget.hold(1).is_ok());
        assert!(budget.buckets(10).is_ok() && budget.buckets(1).is_err());
        budget.begin_statement();
        assert!(budget.buckets(1).is_ok());
        // Only the rows are still held.
        assert!(budget.hold(81).is_err() && budget.hold(80).is_ok());
    }

    #[test]
    fn what_was_made_apart_is_counted_if_it_could_have_been_made_here() {
        let limits = limits(Instant::now() + Duration::from_secs(1000));
        let (budget, apart) = (Budget::new(&limits), Budget::new(&limits));
        assert!(apart.hold(60).is_ok() && apart.row(10).is_ok() && apart.buckets(6).is_ok());
        apart.release(60);
        let cost = apart.cost();
        assert_eq!((cost.bytes, cost.bytes_peak, cost.buckets_peak), (10, 70, 6));
        // Seventy bytes are held while it is made.
        assert!(budget.hold(31).is_ok() && !budget.charge(&cost));
        budget.release(1);
        assert!(budget.charge(&cost) && budget.bytes_left() == 60);
        budget.release(30);
        // Six more buckets are too many, and then nothing is counted.
        assert!(!budget.charge(&cost) && budget.bytes_left() == 90);
        budget.begin_statement();
        assert!(budget.charge(&cost) && !budget.charge(&cost));
        budget.begin_statement();
        // Two rows are there, and no third.
        assert!(!budget.charge(&cost) && budget.hold(80).is_ok() && budget.hold(1).is_err());
        // Buckets that are asked for and not counted must fit, too.
        let (budget, apart) = (Budget::new(&limits), Budget::new(&limits));
        assert!(apart.may_have_buckets(9).is_ok() && apart.buckets(1).is_ok());
        let cost = apart.cost();
        assert!(budget.charge(&cost) && budget.charge(&cost) && !budget.charge(&cost));
    }

    #[derive(Debug)]
    struct Ahead(Cell<usize>);

    impl Spare for Ahead {
        fn give_up(&self) -> usize {
            self.0.take()
        }
    }

    #[test]
    fn what_is_spare_is_given_up_before_a_query_ends() {
        let limits = limits(Instant::now() + Duration::from_secs(1000));
        let budget = Budget::new(&limits);
        let ahead = Rc::new(Ahead(Cell::new(60)));
        assert!(budget.hold(60).is_ok());
        budget.spare(Some(ahead.clone()));
        assert!(budget.hold(40).is_ok() && ahead.0.get() == 60);
        assert!(budget.hold(60).is_ok() && ahead.0.get() == 0);
        assert!(budget.hold(1).is_err_and(|it| it.contains("101/100")));
    }

    #[test]
    fn what_is_read_in_one_go_is_not_begun_without_the_time_for_it() {
        let mut limits = limits(Instant::now() + Duration::from_secs(1000));
        assert!(limits.look(4096).is_ok());
        assert!(limits.look(4097).is_err_and(|it| it.to_string().contains("max-select-bytes")));
        limits.bytes_max = usize::MAX;
        assert!(limits.look(1_000_000).is_ok());
        let too_many = usize::try_from(1_000_000_000_000 / POINT_NS).unwrap();
        assert!(limits.look(too_many).is_err_and(|it| it.to_string().contains("timeout")));
        limits.cancel = Some(Arc::new(AtomicBool::new(true)));
        assert!(limits.look(1).is_err_and(|it| it.to_string() == "query interrupted"));
    }

    #[test]
    fn series_are_not_listed_without_the_time_and_the_memory_for_them() {
        let mut limits = limits(Instant::now() + Duration::from_secs(1000));
        assert!(Budget::new(&limits).may_list(Work::List(12)).is_ok());
        let refused = Budget::new(&limits).may_list(Work::List(13));
        assert!(refused.is_err_and(|it| it.contains("104/100")));
        assert!(Budget::new(&limits).may_list(Work::Look(3)).is_ok());
        let refused = Budget::new(&limits).may_list(Work::Look(4));
        assert!(refused.is_err_and(|it| it.contains("128/100")));
        limits.bytes_max = usize::MAX;
        assert!(Budget::new(&limits).may_list(Work::List(1_000_000)).is_ok());
        let too_many = usize::try_from(1_000_000_000_000 / SERIES_NS).unwrap();
        let too_long = usize::try_from(1_000_000_000_000 / MATCH_NS).unwrap();
        assert!(Budget::new(&limits).may_list(Work::Match(1_000_000)).is_ok());
        for work in [Work::List(too_many), Work::Look(too_many), Work::Match(too_long)] {
            let refused = Budget::new(&limits).may_list(work);
            assert!(refused.is_err_and(|it| it.contains("timeout")), "{work:?}");
        }
    }

    #[test]
    fn the_deadline_ends_a_query() {
        let limits = limits(Instant::now());
        assert!(Budget::new(&limits).tick().is_err());
    }

    #[test]
    fn a_query_that_nobody_wants_ends_within_some_ticks() {
        let cancel = Arc::new(AtomicBool::new(false));
        let mut limits = limits(Instant::now() + Duration::from_secs(1000));
        limits.cancel = Some(Arc::clone(&cancel));
        let budget = Budget::new(&limits);
        assert!((0..TICKS * 3 + 1).all(|_| budget.tick().is_ok()));
        cancel.store(true, Ordering::Relaxed);
        let ended = (0..TICKS).find_map(|_| budget.tick().err());
        assert_eq!(ended.as_deref(), Some("query interrupted"));
        // And within some texts, or before a long one.
        let regex = Regex::new("x").unwrap();
        let ended = (0..TICKS).find_map(|_| budget.finds(&regex, "x").err());
        assert_eq!(ended.as_deref(), Some("query interrupted"));
        assert!(
            budget.finds(&regex, "x") == Ok(true)
                && budget.finds(&regex, &"x".repeat(2000)).is_err()
        );
    }
}
