//! Cuts the power at every place and checks the recovery.

use super::choice::{self, Kept, Pending};
use super::history::{History, Mark};
use super::image::Sim;
use super::log::{Event, Log};
use super::machine::{EarlyRead, Machine};
use super::options::SimOptions;
use super::recorder::Rules;
use super::report::{Report, Violation};
use super::rng::{Rng, mix};
use super::run::Run;
use super::sample::{is_cut, left_out};
use super::shrink;
use crate::space::{Space, set_thread_number};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt::Debug;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A program under test: its work, its recovery, and the check of the result.
pub trait Subject: Sync {
    /// An operation, as the history names it.
    type Op: Clone + Debug + Send + Sync;
    /// The program after recovery.
    type Store;
    /// The state of the program that a caller can see.
    type Contents: PartialEq + Debug;

    /// Does the work on `run.space()`, or on all of `run.spaces()` (initially zero), and marks the
    /// acknowledged operations. It must do the same each time, except for the order of threads,
    /// which the run schedules.
    fn work(&self, run: &Run<'_, Self::Op>);

    /// Recovers. The power is cut within this, too.
    ///
    /// # Errors
    /// If it cannot: a violation.
    fn recover(&self, space: &Arc<Space>) -> Result<Self::Store, String>;

    /// As [`Subject::recover`], for a run over several spaces; by default, recovers the first.
    ///
    /// # Errors
    /// If it cannot: a violation.
    fn recover_all(&self, spaces: &[Arc<Space>]) -> Result<Self::Store, String> {
        self.recover(&spaces[0])
    }

    /// Reads everything. A second recovery must find the same.
    ///
    /// # Errors
    /// If the contents are wrong with any history: a violation.
    fn contents(&self, store: &Self::Store) -> Result<Self::Contents, String>;

    /// Compares the contents with the operations acknowledged, refused or in flight at the cut.
    ///
    /// # Errors
    /// What is wrong: a violation.
    fn check(
        &self,
        contents: &Self::Contents,
        history: &History<'_, Self::Op>,
    ) -> Result<(), String>;
}

/// A recorded run.
pub(super) struct Recorded<Op> {
    pub(super) log: Log,
    pub(super) before: Vec<u8>,
    pub(super) marks: Vec<Mark<Op>>,
    forced_switches: u64,
}

/// Numbers threads from 0 while it exists.
struct Numbered(usize);

impl Numbered {
    fn new() -> Self {
        Self(set_thread_number(0))
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        set_thread_number(self.0);
    }
}

fn no_panic<R>(what: &str, action: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(action)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("{what} panicked: {}", text.unwrap_or("without a message")))
    })
}

pub(super) fn record<S: Subject>(
    options: &SimOptions,
    subject: &S,
) -> Result<Recorded<S::Op>, String> {
    let sim = Sim::new(options).map_err(|error| error.to_string())?;
    let marks = Mutex::new(Vec::new());
    let numbered = Numbered::new();
    let run = Run::new(&sim, &marks, options.seed);
    no_panic("the workload", || {
        subject.work(&run);
        Ok(())
    })?;
    let forced_switches = run.forced_switches();
    drop(numbered);
    let (log, before) = (sim.log(), sim.before().to_vec());
    Ok(Recorded { log, before, marks: marks.into_inner(), forced_switches })
}

/// Runs the workload once, cuts the power before every fence, at every return and at the end
/// (before every store, too, if requested), and recovers from the images of each cut.
pub fn explore<S: Subject>(options: &SimOptions, subject: &S) -> Report {
    let recorded = match record(options, subject) {
        Ok(recorded) => recorded,
        Err(message) => {
            let story = String::new();
            let token = "none: the workload itself failed".to_owned();
            let seed = options.seed;
            let failed = Violation { seed, cut: 0, cut_in_recovery: None, message, story, token };
            return Report { violations: vec![failed], ..Report::default() };
        }
    };
    let next = AtomicUsize::new(0);
    let violations = AtomicUsize::new(0);
    let mut report = Report {
        events: recorded.log.events.len() as u64,
        early_reads: early_reads(options, &recorded),
        forced_switches: recorded.forced_switches,
        ..Report::default()
    };
    let left_out = left_out(options, &recorded.log.events);
    let explorer =
        Explorer { options, subject, recorded: &recorded, left_out: &left_out, found: &violations };
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let checkers: Vec<_> = (0..options.checkers.max(1))
            .map(|_| scope.spawn(|| explorer.check_spans(&next)))
            .collect();
        checkers
            .into_iter()
            .map(|checker| checker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    reports.into_iter().for_each(|part| report.merge(part));
    report.violations.sort_by_key(|it| (it.cut, it.cut_in_recovery));
    // Different images may have been shrunk to the same one.
    report.violations.dedup_by(|one, other| one.token == other.token);
    report
}

/// The early reads of a run, except the allowed ones; each place once.
fn early_reads<Op>(options: &SimOptions, recorded: &Recorded<Op>) -> Vec<EarlyRead> {
    if !options.early_reads {
        return Vec::new();
    }
    let mut machine = Machine::new(options.model, recorded.before.clone(), options.spaces);
    let mut early = Vec::new();
    for event in &recorded.log.events {
        machine.step(&recorded.log, event, &mut early);
    }
    early.retain(|it| !options.early_reads_allowed.iter().any(|range| range.contains(&it.offset)));
    early.sort_unstable();
    early.dedup_by_key(|it| (it.offset, it.thread, it.stored_by));
    early
}

/// Checks the images of one recorded run.
pub(super) struct Explorer<'a, S: Subject> {
    pub(super) options: &'a SimOptions,
    pub(super) subject: &'a S,
    pub(super) recorded: &'a Recorded<S::Op>,
    /// Cuts whose images are not checked.
    pub(super) left_out: &'a HashSet<usize>,
    pub(super) found: &'a AtomicUsize,
}

/// A failing image, before it is shrunk and reported.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) message: String,
    /// The second cut and its choice, if the image of that cut fails.
    pub(super) second: Option<Second>,
}

#[derive(Debug)]
pub(super) struct Second {
    pub(super) cut: usize,
    pub(super) text: String,
    pub(super) story: String,
}

/// The counts of one checker, and the images it has seen with the current history.
#[derive(Default)]
struct Tally {
    report: Report,
    seen: HashSet<u64>,
}

impl<S: Subject> Explorer<'_, S> {
    /// The medium before the run.
    fn machine(&self) -> Machine {
        Machine::new(self.options.model, self.recorded.before.clone(), self.options.spaces)
    }

    /// Checks the spans (the cuts between two marks) that no other checker has taken.
    fn check_spans(&self, next: &AtomicUsize) -> Report {
        let _numbered = Numbered::new();
        let log = &self.recorded.log;
        let mut machine = self.machine();
        let mut tally = Tally::default();
        let mut mine = next.fetch_add(1, Ordering::Relaxed);
        let mut span = 0;
        let mut returned = false;
        for at in 0..=log.events.len() {
            let event = log.events.get(at);
            while mine < span {
                mine = next.fetch_add(1, Ordering::Relaxed);
                tally.seen.clear();
            }
            let is_cut = returned || is_cut(event, self.options.cut_at_stores);
            if mine == span && is_cut && !self.left_out.contains(&at) {
                self.check_cut(&machine, at, span, &mut tally);
            }
            if self.found.load(Ordering::Relaxed) >= self.options.max_violations {
                break;
            }
            returned = matches!(event, Some(Event::Mark { cut: true, .. }));
            if let Some(Event::Mark { marks, .. }) = event {
                span = *marks;
            }
            if let Some(event) = event {
                machine.step(log, event, &mut Vec::new());
            }
        }
        tally.report
    }

    fn check_cut(&self, machine: &Machine, cut: usize, marks: usize, tally: &mut Tally) {
        let options = self.options;
        let pending = choice::pending(machine);
        tally.report.cuts += 1;
        tally.report.sync_cuts.count(machine.stage());
        let mut rng = Rng::of(options.seed, cut as u64);
        let _stopped = choice::visit(&pending, &mut rng, options.images_per_cut, |kept| {
            let hash = choice::hash(machine, &pending, kept);
            if !tally.seen.insert(hash) {
                tally.report.duplicates += 1;
                return ControlFlow::Continue(());
            }
            tally.report.images += 1;
            let again = options.recovery_cut_in > 0
                && mix(hash ^ options.seed).is_multiple_of(options.recovery_cut_in as u64);
            let image = choice::bytes(machine, &pending, kept);
            let Err(wrong) = self.examine(image, marks, again, &mut tally.report) else {
                return ControlFlow::Continue(());
            };
            let violation = self.tell(machine, &pending, kept, (cut, marks), wrong);
            tally.report.violations.push(violation);
            if self.found.fetch_add(1, Ordering::Relaxed) + 1 >= options.max_violations {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
    }

    fn history(&self, marks: usize) -> History<'_, S::Op> {
        History::new(&self.recorded.marks[..marks])
    }

    /// Recovers and checks; returns the contents if they are right.
    fn recover_and_check(&self, sim: &Sim, marks: usize) -> Result<S::Contents, String> {
        let store = no_panic("recovery", || self.subject.recover_all(sim.spaces()))?;
        sim.mark(Event::Recovered);
        let contents = no_panic("reading", || self.subject.contents(&store))?;
        no_panic("the check", || self.subject.check(&contents, &self.history(marks)))?;
        Ok(contents)
    }

    fn start(&self, image: Vec<u8>, record: bool) -> Result<Sim, String> {
        let rules = Rules::of_recovery(self.options);
        Sim::over(image, self.options, rules, record).map_err(|error| error.to_string())
    }

    /// Recovers from `image`; `again`: cuts the power within recovery, too.
    pub(super) fn examine(
        &self,
        image: Vec<u8>,
        marks: usize,
        again: bool,
        report: &mut Report,
    ) -> Result<(), Wrong> {
        let (sim, contents) = self
            .first_time(image, marks, again)
            .map_err(|message| Wrong { message, second: None })?;
        if !again {
            return Ok(());
        }
        let log = sim.log();
        let mut machine = Machine::new(sim.model(), sim.before().to_vec(), sim.spaces().len());
        let mut seen = HashSet::new();
        for (cut, event) in log.events.iter().enumerate() {
            if is_cut(Some(event), self.options.cut_at_stores) {
                let wrong = self.check_second(&machine, cut, marks, &contents, &mut seen, report);
                if let Some(second) = wrong {
                    return Err(second);
                }
            }
            if matches!(event, Event::Recovered) {
                break;
            }
            machine.step(&log, event, &mut Vec::new());
        }
        Ok(())
    }

    /// Recovers from a cut of the run.
    pub(super) fn first_time(
        &self,
        image: Vec<u8>,
        marks: usize,
        record: bool,
    ) -> Result<(Sim, S::Contents), String> {
        let sim = self.start(image, record)?;
        let contents = self.recover_and_check(&sim, marks)?;
        Ok((sim, contents))
    }

    /// The medium after `cut` events of the run, and the number of marks so far.
    pub(super) fn machine_at(&self, cut: usize) -> Option<(Machine, usize)> {
        let log = &self.recorded.log;
        let mut machine = self.machine();
        let mut reached = 0;
        for event in log.events.get(..cut)? {
            if let Event::Mark { marks, .. } = event {
                reached = *marks;
            }
            machine.step(log, event, &mut Vec::new());
        }
        Some((machine, reached))
    }

    fn check_second(
        &self,
        machine: &Machine,
        cut: usize,
        marks: usize,
        contents: &S::Contents,
        seen: &mut HashSet<u64>,
        report: &mut Report,
    ) -> Option<Wrong> {
        let pending = choice::pending(machine);
        let mut wrong = None;
        let mut rng = Rng::of(self.options.seed, mix(cut as u64));
        let limit = self.options.images_per_recovery_cut;
        let _stopped = choice::visit(&pending, &mut rng, limit, |kept| {
            if !seen.insert(choice::hash(machine, &pending, kept)) {
                report.duplicates += 1;
                return ControlFlow::Continue(());
            }
            report.images += 1;
            report.recovery_images += 1;
            let fails = |kept: &[Kept]| {
                self.second_time(choice::bytes(machine, &pending, kept), marks, contents).err()
            };
            let Some(message) = fails(kept) else {
                return ControlFlow::Continue(());
            };
            let (kept, message) = self.shrunk(&pending, kept, message, fails);
            let text = choice::to_text(&pending, &kept);
            let second = Second { cut, text, story: shrink::tell(&pending, &kept) };
            wrong = Some(Wrong { message, second: Some(second) });
            ControlFlow::Break(())
        });
        wrong
    }

    /// Recovers from a cut within recovery: the result must be right, and the same as the first time.
    pub(super) fn second_time(
        &self,
        image: Vec<u8>,
        marks: usize,
        first: &S::Contents,
    ) -> Result<(), String> {
        let sim = self.start(image, false)?;
        let contents = self.recover_and_check(&sim, marks)?;
        if contents == *first {
            return Ok(());
        }
        Err(format!("recovery found {first:?} at first and {contents:?} when it was repeated"))
    }

    fn shrunk(
        &self,
        pending: &[Pending<'_>],
        kept: &[Kept],
        message: String,
        fails: impl Fn(&[Kept]) -> Option<String>,
    ) -> (Vec<Kept>, String) {
        if self.options.shrink {
            return shrink::smallest(pending, kept, message, fails);
        }
        (kept.to_vec(), message)
    }

    fn tell(
        &self,
        machine: &Machine,
        pending: &[Pending<'_>],
        kept: &[Kept],
        (cut, marks): (usize, usize),
        wrong: Wrong,
    ) -> Violation {
        let (kept, message) = if wrong.second.is_some() {
            (kept.to_vec(), wrong.message)
        } else {
            self.shrunk(pending, kept, wrong.message, |kept| {
                let image = choice::bytes(machine, pending, kept);
                let wrong = self.examine(image, marks, false, &mut Report::default());
                wrong.err().map(|wrong| wrong.message)
            })
        };
        let seed = self.options.seed;
        let mut token = format!("sim1:{seed:x}:{cut:x}:{}", choice::to_text(pending, &kept));
        let mut story = shrink::tell(pending, &kept);
        if let Some(second) = &wrong.second {
            // Writing to a string cannot fail.
            let _written = write!(token, ":{:x}:{}", second.cut, second.text).is_ok();
            story = format!("{story}  then, within recovery:\n{}", second.story);
        }
        for (op, standing) in self.history(marks).operations().iter().rev().take(8).rev() {
            let _written = writeln!(story, "  {standing:?}: {op:?}").is_ok();
        }
        let cut_in_recovery = wrong.second.map(|second| second.cut);
        Violation { seed, cut, cut_in_recovery, message, story, token }
    }
}
