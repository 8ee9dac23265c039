//! Several threads make things ahead of the query's own thread, which takes them in order.
//!
//! ```text
//!   all items, in order   ▏ taken ▏ made ahead: held ▏ not made yet            ▏
//!                                 └─ the next batch, when all of it is taken ─▶
//!   threads                 each takes the next item that nobody has
//!   the query's own thread  takes what was made, in order
//! ```
//!
//! # What holds
//!
//! - The answer, and any error, is that of one thread, bit by bit: items are taken in their order by the query's own thread. Where
//!   another thread finds an error, or no room, the batch ends; the query's thread then makes that item itself, and finds the
//!   error itself.
//! - What is made ahead is a part of what the budget has left, is held there, and is given up before the query ends for want of
//!   memory.
//! - A panic of a thread ends the query.
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

/// Items from which on more than one thread makes them.
pub(super) const ITEMS_MIN: usize = 64;
/// Items of a batch at most.
const BATCH: usize = 1024;
/// Bytes of a batch at most.
const BATCH_BYTES: usize = 32 << 20;
/// A batch has at most one of so many parts of what the budget has left.
const PARTS: usize = 4;
/// Items of a batch at least, or they are not made ahead any more: the budget is too small, or most must be made by the query's
/// own thread.
const BATCH_MIN: usize = 8;

/// What was made of an item.
pub(super) trait Made: Debug + Send + 'static {
    /// Bytes that it holds, about.
    fn bytes(&self) -> usize;
}

/// Makes an item with at most so many bytes; none if the query's own thread has to make it.
pub(super) type Make<'a, I, M> = Box<dyn Fn(&I, usize) -> Option<M> + Sync + 'a>;

/// How many threads may work for a query.
pub(super) fn threads_of(limits: &Limits) -> usize {
    let all = || QueryThreads::get().threads() + 1;
    match limits.threads_max {
        0 => all(),
        1 => 1,
        most => most.min(all()),
    }
}

/// What was made ahead.
#[derive(Debug)]
struct Queue<M> {
    made: RefCell<VecDeque<M>>,
    /// The number of its first item.
    first: Cell<usize>,
    bytes: Cell<usize>,
    /// Nothing is made ahead any more.
    is_over: Cell<bool>,
}

impl<M: Made> Spare for Queue<M> {
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
    /// Bytes of all that is made, and of one item while it is made.
    bytes_max: usize,
    part_max: usize,
    bytes: AtomicUsize,
    next: AtomicUsize,
    is_over: AtomicBool,
}

impl<I: Sync, M: Made> Batch<'_, '_, I, M> {
    /// Makes items that nobody has yet, until there is none or the batch is over.
    fn work(&self) -> Vec<(usize, M)> {
        let mut done = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = self.all.get(at) else { break };
            match (self.make)(item, self.part_max).filter(|made| self.has_room(made.bytes())) {
                Some(made) => done.push((at, made)),
                None => self.is_over.store(true, Ordering::Relaxed),
            }
        }
        done
    }

    fn has_room(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        before.saturating_add(bytes) <= self.bytes_max
    }

    /// Makes them by so many threads at most, of which this one is one.
    fn run(&self, threads: usize) -> Fallible<Vec<(usize, M)>> {
        let parts = QueryThreads::get().work(threads - 1, || self.work());
        let parts = parts.map_err(|_| "a thread of the query panicked".to_owned())?;
        let mut all: Vec<_> = parts.into_iter().flatten().collect();
        all.sort_unstable_by_key(|(at, _)| *at);
        Ok(all)
    }
}

/// Items in their order, of which some are made ahead. See the module.
pub(super) struct InOrder<'a, I, M: Made> {
    budget: &'a Budget<'a>,
    items: Vec<I>,
    make: Make<'a, I, M>,
    threads: usize,
    queue: Rc<Queue<M>>,
    /// The number of the item at which a batch ended.
    refused: Cell<Option<usize>>,
}

impl<'a, I: Sync, M: Made> InOrder<'a, I, M> {
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
        let (threads, refused) = (threads_of(budget.limits()), Cell::new(None));
        Self { budget, items, make, threads, queue, refused }
    }

    /// What was made of an item, by its number. None if the query's own thread is to make it.
    ///
    /// # Errors
    /// That the query has to end; a panic of a thread.
    pub(super) fn take(&self, at: usize) -> Fallible<Option<M>> {
        if let Some(made) = self.next(at) {
            return Ok(Some(made));
        }
        let rest = self.items.get(at..).unwrap_or_default();
        let is_one = self.queue.is_over.get() || self.refused.get() == Some(at);
        if is_one || rest.len() < ITEMS_MIN {
            return Ok(None);
        }
        self.fill(at, rest.get(..BATCH).unwrap_or(rest))?;
        Ok(self.next(at))
    }

    /// What was made of an item, if it is the next one that was made ahead.
    fn next(&self, at: usize) -> Option<M> {
        if self.queue.first.get() != at {
            return None;
        }
        let made = self.queue.made.borrow_mut().pop_front()?;
        self.queue.first.set(at + 1);
        let bytes = made.bytes().min(self.queue.bytes.get());
        self.queue.bytes.set(self.queue.bytes.get() - bytes);
        self.budget.release(bytes);
        Some(made)
    }

    /// Makes a batch: these items, the first of which has this number.
    fn fill(&self, first: usize, all: &[I]) -> Fallible<()> {
        self.budget.release(self.queue.bytes.take());
        self.queue.made.borrow_mut().clear();
        let bytes_max = BATCH_BYTES.min(self.budget.bytes_left() / PARTS);
        let batch = Batch {
            all,
            make: &self.make,
            bytes_max,
            part_max: bytes_max / self.threads,
            bytes: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        };
        let found = batch.run(self.threads)?;
        self.budget.check()?;
        // Up to the first one that is missing.
        let in_order = found.into_iter().enumerate().take_while(|(count, (at, _))| count == at);
        let made: VecDeque<M> = in_order.map(|(_, (_, made))| made).collect();
        if made.len() < all.len() {
            self.refused.set(Some(first + made.len()));
            self.queue.is_over.set(made.len() < BATCH_MIN);
        }
        let bytes = made.iter().map(Made::bytes).sum();
        self.budget.hold(bytes)?;
        self.queue.first.set(first);
        self.queue.bytes.set(bytes);
        *self.queue.made.borrow_mut() = made;
        Ok(())
    }
}

impl<I, M: Made> Drop for InOrder<'_, I, M> {
    fn drop(&mut self) {
        self.budget.spare(None);
        self.budget.release(self.queue.give_up());
    }
}
