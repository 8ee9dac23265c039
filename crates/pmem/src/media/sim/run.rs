//! The run of a workload, as the workload sees it.

use super::cost::Cost;
use super::history::Mark;
use super::image::Sim;
use super::log::Event;
use super::schedule::{self, Threads};
use crate::space::Space;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A workload's interface to the simulator: the spaces, and the marks of acknowledged operations.
#[derive(Debug)]
pub struct Run<'a, Op> {
    sim: &'a Sim,
    marks: &'a Mutex<Vec<Mark<Op>>>,
    seed: u64,
    /// The number of threads started, and (in `forced`) how often the clock took the baton from one.
    threads: AtomicUsize,
    forced: AtomicU64,
}

/// An operation that was called.
#[derive(Debug)]
#[must_use = "say how it ended: `returned` or `refused`"]
pub struct Call<'a, Op> {
    run: &'a Run<'a, Op>,
    number: usize,
}

impl<'a, Op> Run<'a, Op> {
    pub(super) fn new(sim: &'a Sim, marks: &'a Mutex<Vec<Mark<Op>>>, seed: u64) -> Self {
        // Number 0 is the thread of the workload itself.
        Self { sim, marks, seed, threads: AtomicUsize::new(1), forced: AtomicU64::new(0) }
    }

    /// The space of the run; the first of several.
    pub fn space(&self) -> &Arc<Space> {
        self.sim.space()
    }

    /// All spaces of the run.
    pub fn spaces(&self) -> &[Arc<Space>] {
        self.sim.spaces()
    }

    /// The simulated machine.
    pub fn sim(&self) -> &Sim {
        self.sim
    }

    /// Marks that `op` is called now. Drop the result if the outcome never becomes known.
    pub fn began(&self, op: Op) -> Call<'_, Op> {
        let mut marks = self.marks.lock();
        let number = marks.len();
        marks.push(Mark::Began(number, op));
        self.sim.mark(Event::Mark { marks: marks.len(), cut: false });
        Call { run: self, number }
    }

    /// Calls `operation`, which is `op`; it is acknowledged when it returns.
    pub fn acknowledged<R>(&self, op: Op, operation: impl FnOnce() -> R) -> R {
        let call = self.began(op);
        let result = operation();
        call.returned();
        result
    }

    /// Runs `operation` and counts the accesses of this thread.
    pub fn cost_of<R>(&self, operation: impl FnOnce() -> R) -> (R, Cost) {
        self.sim.cost_of(operation)
    }

    /// How often the clock had to take the baton from a thread.
    pub(super) fn forced_switches(&self) -> u64 {
        self.forced.load(Ordering::Relaxed)
    }

    /// Runs threads, one at a time in an order that the seed decides (switching at accesses to
    /// the space and in [`spin`](crate::spin)), and returns when all have ended:
    ///
    /// ```text
    /// run.threads(|threads| {
    ///     threads.spawn(|| put(run, 1));
    ///     threads.spawn(|| put(run, 2));
    /// });
    /// ```
    ///
    /// The workload's own thread waits meanwhile and must hold no lock that they need. A panic in
    /// one of them is resumed here.
    pub fn threads<'env>(&self, spawns: impl for<'scope> FnOnce(&Threads<'scope, 'env>)) {
        let first = self.threads.load(Ordering::Relaxed);
        let (count, forced) = schedule::together(self.seed, first, spawns);
        self.threads.fetch_add(count, Ordering::Relaxed);
        self.forced.fetch_add(forced, Ordering::Relaxed);
    }

    fn ended(&self, mark: Mark<Op>) {
        let mut marks = self.marks.lock();
        marks.push(mark);
        self.sim.mark(Event::Mark { marks: marks.len(), cut: true });
    }
}

impl<Op> Call<'_, Op> {
    /// The operation was acknowledged as durable. The power is cut here, too.
    pub fn returned(self) {
        self.run.ended(Mark::Returned(self.number));
    }

    /// The operation was refused, and must have had no effect. The power is cut here, too.
    pub fn refused(self) {
        self.run.ended(Mark::Refused(self.number));
    }
}
