//! Several threads work ahead of the query's own thread, which takes the results in order.
//!
//! ```text
//!   all items, in order   ▏ taken ▏ made ahead: held ▏ not made yet            ▏
//!                                 └─ the next batch, when all of it is taken ─▶
//!   threads                 each takes the next free item
//!   the query's own thread  takes the results, in order
//! ```
//!
//! # What holds
//!
//! - The answer, and any error, is that of one thread, bit by bit: the query's own thread takes the items in their
//!   order. Where another thread meets an error, or has no room, the query's thread makes that item again, and
//!   meets the error itself.
//! - Results made ahead take a part of the remaining budget, are held there, and are given up before the query ends
//!   for lack of memory. Results in the making take as much again at most.
//! - A panic of a thread is a panic of the query.
//!
//! The other threads are those of [`threads`](super::threads), which live as long as the process.

use super::Limits;
use super::budget::{Budget, Fallible, Spare};
use super::threads::QueryThreads;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The number of items from which on more than one thread makes them.
pub(super) const ITEMS_MIN: usize = 64;
/// The maximum number of items of a batch.
const BATCH: usize = 1024;
/// The maximum number of bytes of a batch.
const BATCH_BYTES: usize = 32 << 20;
/// A batch takes at most one of so many parts of the remaining budget, and its results in the making take as much
/// again.
const PARTS: usize = 4;
/// When so many more items are refused than made, the batch ends, and no more items are made ahead.
const REFUSED_MAX: usize = 8;

/// The result of an item.
pub(super) trait Held: Debug + Send + 'static {
    /// Bytes that it holds, about.
    fn bytes(&self) -> usize;
}

/// Makes an item within limits of its own; none if the query's own thread has to make it.
pub(super) type Make<'a, I, M> = Box<dyn Fn(&I, &Limits) -> Option<M> + Sync + 'a>;

/// The number of threads that may work for a query.
pub(super) fn threads_of(limits: &Limits) -> usize {
    let all = || QueryThreads::get().threads() + 1;
    match limits.threads_max {
        0 => all(),
        1 => 1,
        most => most.min(all()),
    }
}

/// The results made ahead; none for an item that the query's own thread has to make.
#[derive(Debug)]
struct Queue<M> {
    made: RefCell<VecDeque<Option<M>>>,
    /// The number of its first item.
    first: Cell<usize>,
    bytes: Cell<usize>,
    /// True once no more items are made ahead.
    is_over: Cell<bool>,
}

impl<M: Held> Spare for Queue<M> {
    fn give_up(&self) -> usize {
        self.is_over.set(true);
        self.made.borrow_mut().clear();
        self.bytes.take()
    }
}

/// Items that are made by several threads.
struct Batch<'b, 'a, I, M> {
    all: &'b [I],
    make: &'b Make<'a, I, M>,
    /// The limits of one item while it is made.
    limits: Limits,
    /// The maximum bytes of all results.
    bytes_max: usize,
    bytes: AtomicUsize,
    next: AtomicUsize,
    made: AtomicUsize,
    refused: AtomicUsize,
    /// True if most items are refused.
    is_in_vain: AtomicBool,
    is_over: AtomicBool,
}

/// Ends a batch whose thread panics.
struct EndOnPanic<'b>(&'b AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl<I: Sync, M: Held> Batch<'_, '_, I, M> {
    /// Makes free items, until there are none or the batch is over.
    fn work(&self) -> Vec<(usize, Option<M>)> {
        let _end = EndOnPanic(&self.is_over);
        let mut done = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = self.all.get(at) else { break };
            let made = (self.make)(item, &self.limits);
            match &made {
                Some(made) => self.note_made(made.bytes()),
                None => self.note_refused(),
            }
            done.push((at, made));
        }
        done
    }

    /// Counts a result: once there is no room for more, no more items are begun.
    fn note_made(&self, bytes: usize) {
        self.made.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.bytes_max {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a refused item: once most are refused, no more items are begun.
    fn note_refused(&self) {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused >= REFUSED_MAX + self.made.load(Ordering::Relaxed) {
            self.is_in_vain.store(true, Ordering::Relaxed);
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// Makes the items with at most `threads` threads, this one included. Returns the results in the order of the
    /// items, for all items that were begun; these are the first ones.
    fn run(&self, threads: usize) -> VecDeque<Option<M>> {
        let parts = QueryThreads::get().work(threads - 1, || self.work());
        let mut all: Vec<_> = parts.into_iter().flatten().collect();
        all.sort_unstable_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, made)| made).collect()
    }
}

/// Items in their order, some of which are made ahead. See the module.
pub(super) struct InOrder<'a, I, M: Held> {
    budget: &'a Budget<'a>,
    items: Vec<I>,
    make: Make<'a, I, M>,
    threads: usize,
    queue: Rc<Queue<M>>,
}

impl<'a, I: Sync, M: Held> InOrder<'a, I, M> {
    /// Nothing is made yet.
    pub(super) fn new(budget: &'a Budget<'a>, items: Vec<I>, make: Make<'a, I, M>) -> Self {
        let queue = Rc::new(Queue {
            made: RefCell::default(),
            first: Cell::new(0),
            bytes: Cell::new(0),
            is_over: Cell::new(false),
        });
        let spare: Rc<dyn Spare> = Rc::<Queue<M>>::clone(&queue);
        budget.spare(Some(spare));
        let threads = threads_of(budget.limits());
        Self { budget, items, make, threads, queue }
    }

    /// The result of an item, by its number. None if the query's own thread has to make it.
    ///
    /// # Errors
    /// An error if the query has to end.
    pub(super) fn take(&self, at: usize) -> Fallible<Option<M>> {
        if let Some(next) = self.next(at) {
            return Ok(next);
        }
        let rest = self.items.get(at..).unwrap_or_default();
        if self.queue.is_over.get() || rest.len() < ITEMS_MIN {
            return Ok(None);
        }
        self.fill(at, rest.get(..BATCH).unwrap_or(rest))?;
        Ok(self.next(at).flatten())
    }

    /// The result of an item, if it is the next one of those that threads have made.
    fn next(&self, at: usize) -> Option<Option<M>> {
        if self.queue.first.get() != at {
            return None;
        }
        let made = self.queue.made.borrow_mut().pop_front()?;
        self.queue.first.set(at + 1);
        let bytes = made.as_ref().map_or(0, Held::bytes).min(self.queue.bytes.get());
        self.queue.bytes.set(self.queue.bytes.get() - bytes);
        self.budget.release(bytes);
        Some(made)
    }

    /// A batch of these items, none of which is made yet.
    fn batch<'b>(&'b self, all: &'b [I]) -> Batch<'b, 'a, I, M> {
        let part = self.budget.bytes_left() / PARTS;
        Batch {
            all,
            make: &self.make,
            limits: self.budget.limits_of_part(part / self.threads),
            bytes_max: BATCH_BYTES.min(part),
            bytes: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            is_in_vain: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Makes a batch of these items, the first of which has number `first`.
    fn fill(&self, first: usize, all: &[I]) -> Fallible<()> {
        self.budget.release(self.queue.bytes.take());
        self.queue.made.borrow_mut().clear();
        let batch = self.batch(all);
        let made = batch.run(self.threads);
        self.budget.check()?;
        self.queue.is_over.set(batch.is_in_vain.into_inner());
        let bytes = made.iter().flatten().map(Held::bytes).sum();
        if bytes > self.budget.bytes_left() {
            // The budget is too small even for the list of the results.
            self.queue.is_over.set(true);
            return Ok(());
        }
        self.budget.hold(bytes)?;
        self.queue.first.set(first);
        self.queue.bytes.set(bytes);
        *self.queue.made.borrow_mut() = made;
        Ok(())
    }
}

impl<I, M: Held> Drop for InOrder<'_, I, M> {
    fn drop(&mut self) {
        self.budget.spare(None);
        self.budget.release(self.queue.give_up());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::{Duration, Instant};

    #[derive(Debug)]
    struct Number(usize);

    impl Held for Number {
        fn bytes(&self) -> usize {
            10
        }
    }

    fn limits(bytes_max: usize) -> Limits {
        let deadline = Instant::now() + Duration::from_secs(100);
        let (rows_max, buckets_max) = (usize::MAX, usize::MAX);
        Limits { rows_max, buckets_max, bytes_max, deadline, cancel: None, threads_max: 0 }
    }

    fn numbers<'a>(
        budget: &'a Budget<'a>,
        count: usize,
        make: impl Fn(usize) -> Option<Number> + Sync + 'a,
    ) -> InOrder<'a, usize, Number> {
        InOrder::new(budget, (0..count).collect(), Box::new(move |at, _| make(*at)))
    }

    /// The numbers of the items that were made ahead.
    fn ahead(all: &InOrder<'_, usize, Number>) -> Vec<usize> {
        let take = |at| all.take(at).unwrap().map(|it| (it.0 == at).then_some(at).unwrap());
        (0..all.items.len()).filter_map(take).collect()
    }

    #[test]
    fn all_of_several_batches_are_made_ahead_up_to_the_last_few() {
        let limits = limits(1 << 20);
        let budget = Budget::new(&limits);
        let count = 2 * BATCH + ITEMS_MIN;
        let all = numbers(&budget, count + ITEMS_MIN - 1, |at| Some(Number(at)));
        assert_eq!(ahead(&all), (0..all.items.len()).collect::<Vec<_>>());
        let few = numbers(&budget, ITEMS_MIN - 1, |_| unreachable!());
        assert_eq!(ahead(&few), []);
        drop((all, few));
        assert_eq!(budget.bytes_left(), 1 << 20);
    }

    #[test]
    fn what_is_refused_is_left_to_the_query_and_the_rest_is_not() {
        let limits = limits(1 << 20);
        let budget = Budget::new(&limits);
        let all = numbers(&budget, 500, |at| (at % 5 != 3).then_some(Number(at)));
        assert_eq!(ahead(&all), (0..500).filter(|at| at % 5 != 3).collect::<Vec<_>>());
        // If most items are refused, making them ahead stops.
        let tries = AtomicUsize::new(0);
        let all = numbers(&budget, 5000, |_| {
            tries.fetch_add(1, Ordering::Relaxed);
            None
        });
        assert_eq!(ahead(&all), []);
        assert!(tries.load(Ordering::Relaxed) < REFUSED_MAX + threads_of(&limits), "{tries:?}");
    }

    #[test]
    fn a_batch_has_a_part_of_what_is_left_and_is_given_up() {
        let limits = limits(1000);
        let budget = Budget::new(&limits);
        let all = numbers(&budget, 100, |at| Some(Number(at)));
        assert!(all.take(0).unwrap().is_some());
        assert!(budget.bytes_left() <= 750, "{budget:?}");
        assert!(budget.hold(900).is_ok());
        assert!(all.take(1).unwrap().is_none() && budget.bytes_left() == 100);
        drop(all);
        budget.release(900);
        // Items that do not fit come in the next batch.
        let made = ahead(&numbers(&budget, 200, |at| Some(Number(at))));
        assert!(made.len() > 200 - ITEMS_MIN && made == (0..made.len()).collect::<Vec<_>>());
        assert_eq!(budget.bytes_left(), 1000);
    }

    #[test]
    fn a_panic_ends_the_batch_and_is_the_query_s() {
        let limits = limits(1 << 20);
        let budget = Budget::new(&limits);
        let all = numbers(&budget, 1000, |at| {
            assert!(at < 10, "on purpose");
            Some(Number(at))
        });
        assert!(catch_unwind(AssertUnwindSafe(|| all.take(0).is_ok())).is_err());
        let batch = all.batch(&all.items);
        assert!(catch_unwind(AssertUnwindSafe(|| batch.work().len())).is_err());
        assert!(batch.is_over.load(Ordering::Relaxed));
        drop(all);
        assert_eq!(budget.bytes_left(), 1 << 20);
    }
}
