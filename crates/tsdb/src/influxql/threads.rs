//! Many series are read by several threads, ahead of the groups that they are members of.
//!
//! ```text
//!   members of all groups, in order   ▏ taken ▏ made ahead: held ▏ not read yet            ▏
//!                                             └─ the next batch, when all of it is taken ─▶
//!   threads                             each takes the next member that nobody has
//!   the query's own thread              takes the tallies in order, and adds them up
//! ```
//!
//! # What holds
//!
//! - The answer, and any error, is that of one thread, bit by bit: tallies are added up in the order of members by the query's
//!   own thread. Where another thread finds an error, or no room, the batch ends; the query's thread then reads that member
//!   itself, and finds the error itself.
//! - What is made ahead is a part of what the budget has left, is held there, and is given up before the query ends for want of
//!   memory.
//! - Every thread looks before each series, and within long ones, whether the query has to end. A panic of one ends the query.
//!
//! Threads live for a batch: to make one costs about as much as to read ten series.

use super::Limits;
use super::ast::Cast;
use super::budget::{Fallible, Spare, end_of};
use super::group::{Group, Member};
use super::interval::Interval;
use super::plan::{Plan, Range};
use super::series::{Fields, HELD, Reading, Tallies, direct, fields_of};
use super::stream::Context;
use crate::read::Scope;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Series from which on more than one thread reads.
const SERIES_MIN: usize = 64;
/// Series of a batch at most.
const BATCH: usize = 1024;
/// Bytes of a batch at most.
const BATCH_BYTES: usize = 32 << 20;
/// A batch has at most one of so many parts of what the budget has left.
const PARTS: usize = 4;
/// Series of a batch at least, or they are not read ahead any more: the budget is too small, or points must be looked at.
const BATCH_MIN: usize = 8;

/// The tallies of a member, and how many buckets the budget has to be asked for.
#[derive(Debug)]
pub(super) struct Made {
    /// By fields.
    pub(super) tallies: Vec<Tallies>,
    /// Buckets of all fields.
    pub(super) buckets: usize,
}

impl Made {
    fn bytes(&self) -> usize {
        let tallies: usize = self.tallies.iter().map(Vec::len).sum();
        tallies.saturating_mul(HELD).saturating_add(size_of::<Self>())
    }
}

/// What was made ahead.
#[derive(Debug, Default)]
struct Queue {
    made: RefCell<VecDeque<Made>>,
    /// The number of its first member.
    first: Cell<usize>,
    bytes: Cell<usize>,
    /// Nothing is read ahead any more.
    is_over: Cell<bool>,
}

impl Spare for Queue {
    fn give_up(&self) -> usize {
        self.is_over.set(true);
        self.made.borrow_mut().clear();
        self.bytes.take()
    }
}

/// Members in their order, and what is read of them. All threads have it.
#[derive(Clone, Copy)]
struct Members<'b, 's> {
    limits: &'b Limits,
    scopes: &'b [&'b Scope<'s>],
    /// With their numbers in their groups.
    all: &'b [(&'b Member<'b>, u32)],
    fields: &'b Fields<'b>,
    range: Range,
    interval: Option<Interval>,
    is_last: bool,
}

/// Members that are read by several threads.
struct Batch<'b, 's> {
    of: Members<'b, 's>,
    bytes_max: usize,
    bytes: AtomicUsize,
    next: AtomicUsize,
    is_over: AtomicBool,
}

impl Batch<'_, '_> {
    /// Reads members that nobody has yet, until there is none or the batch is over.
    fn read(&self) -> Vec<(usize, Made)> {
        let mut done = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((member, number)) = self.of.all.get(at) else { break };
            match self.made(member, *number) {
                Some(made) => done.push((at, made)),
                None => self.is_over.store(true, Ordering::Relaxed),
            }
        }
        done
    }

    /// The tallies of a member; none if the query's own thread has to read it.
    fn made(&self, member: &Member<'_>, number: u32) -> Option<Made> {
        let of = &self.of;
        end_of(of.limits).ok()?;
        let direct = direct(member, of.fields)?;
        let scope = of.scopes.get(direct.of.reader)?;
        let buckets = Cell::new(0);
        let most = |count: usize| {
            buckets.set(count.max(buckets.get()));
            let bytes = count.saturating_mul(HELD);
            if bytes > self.bytes_max { Err(String::new()) } else { Ok(()) }
        };
        let Members { limits, range, interval, is_last, .. } = *of;
        let reading = Reading { scope, range, interval, is_last, limits };
        let tallies = direct.tallies(reading, number, &most).ok()?;
        let made = Made { tallies, buckets: buckets.get() };
        let bytes = made.bytes();
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (before.saturating_add(bytes) <= self.bytes_max).then_some(made)
    }

    /// Reads by so many threads, of which this one is one.
    fn run(&self, threads: usize) -> Fallible<Vec<(usize, Made)>> {
        let work = || self.read();
        thread::scope(|scope| {
            let spawned = |_| {
                let builder = thread::Builder::new().name("ts-query".to_owned());
                // Without another thread the query takes longer.
                builder.spawn_scoped(scope, work).ok()
            };
            let others: Vec<_> = (1..threads).filter_map(spawned).collect();
            let mut all = self.read();
            let ends: Vec<_> = others.into_iter().map(thread::ScopedJoinHandle::join).collect();
            for end in ends {
                all.extend(end.map_err(|_| "a thread of the query panicked".to_owned())?);
            }
            all.sort_unstable_by_key(|(at, _)| *at);
            Ok(all)
        })
    }
}

/// See the module.
pub(super) struct ReadAhead<'a, 's> {
    context: Context<'a, 's>,
    scopes: Vec<&'a Scope<'s>>,
    members: Vec<(&'a Member<'a>, u32)>,
    fields: Vec<(&'a str, Cast)>,
    range: Range,
    interval: Option<Interval>,
    is_last: bool,
    threads: usize,
    queue: Rc<Queue>,
    /// The number of the member at which a batch ended.
    refused: Cell<Option<usize>>,
}

/// How many threads may read for a query.
fn threads_of(limits: &Limits) -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
    if limits.threads_max == 0 { cores } else { limits.threads_max.min(cores) }
}

impl<'a, 's: 'a> ReadAhead<'a, 's> {
    /// Nothing is read yet. None if one thread is to read all.
    pub(super) fn new(
        context: Context<'a, 's>,
        plan: &'a Plan,
        groups: &'a [Group<'a>],
    ) -> Option<Self> {
        let count: usize = groups.iter().map(|it| it.members.len()).sum();
        let threads = threads_of(context.budget.limits());
        let range = plan.calls().first().map(|it| plan.range_before(it.buckets_before()))?;
        let fields = fields_of(plan, range);
        if threads < 2 || count < SERIES_MIN || fields.is_empty() || range.start > range.end {
            return None;
        }
        let members = groups.iter().flat_map(|it| it.members.iter().zip(0..)).collect();
        let queue = Rc::new(Queue::default());
        let spare: Rc<dyn Spare> = Rc::<Queue>::clone(&queue);
        context.budget.spare(Some(spare));
        let (scopes, interval) = (context.inputs.scopes(), plan.interval);
        let (is_last, refused) = (plan.is_last(), Cell::new(None));
        Some(Self {
            context,
            scopes,
            members,
            fields,
            range,
            interval,
            is_last,
            threads,
            queue,
            refused,
        })
    }

    /// The tallies of a member of all groups, by its number, for calls of a range. None if they are to be made where they
    /// are asked for.
    ///
    /// # Errors
    /// That the query has to end; a panic of a thread.
    pub(super) fn take(&self, at: usize, range: Range) -> Fallible<Option<Made>> {
        if range != self.range {
            return Ok(None);
        }
        if let Some(made) = self.next(at) {
            return Ok(Some(made));
        }
        let rest = self.members.get(at..).unwrap_or_default();
        let is_one = self.queue.is_over.get() || self.refused.get() == Some(at);
        if is_one || rest.len() < SERIES_MIN {
            return Ok(None);
        }
        self.fill(at, rest.get(..BATCH).unwrap_or(rest))?;
        Ok(self.next(at))
    }

    /// The tallies of a member, if they are the next ones that were made ahead.
    fn next(&self, at: usize) -> Option<Made> {
        if self.queue.first.get() != at {
            return None;
        }
        let made = self.queue.made.borrow_mut().pop_front()?;
        self.queue.first.set(at + 1);
        let bytes = made.bytes().min(self.queue.bytes.get());
        self.queue.bytes.set(self.queue.bytes.get() - bytes);
        self.context.budget.release(bytes);
        Some(made)
    }

    /// Reads a batch: these members, the first of which has this number.
    fn fill(&self, first: usize, all: &[(&'a Member<'a>, u32)]) -> Fallible<()> {
        let Self { context, range, interval, is_last, .. } = *self;
        let budget = context.budget;
        budget.release(self.queue.bytes.take());
        self.queue.made.borrow_mut().clear();
        let (limits, scopes, fields) = (budget.limits(), &*self.scopes, &*self.fields);
        let batch = Batch {
            of: Members { limits, scopes, all, fields, range, interval, is_last },
            bytes_max: BATCH_BYTES.min(budget.bytes_left() / PARTS),
            bytes: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        };
        let found = batch.run(self.threads)?;
        budget.check()?;
        // Up to the first one that is missing.
        let in_order = found.into_iter().enumerate().take_while(|(count, (at, _))| count == at);
        let made: VecDeque<Made> = in_order.map(|(_, (_, made))| made).collect();
        if made.len() < all.len() {
            self.refused.set(Some(first + made.len()));
            self.queue.is_over.set(made.len() < BATCH_MIN);
        }
        let bytes = made.iter().map(Made::bytes).sum();
        budget.hold(bytes)?;
        self.queue.first.set(first);
        self.queue.bytes.set(bytes);
        *self.queue.made.borrow_mut() = made;
        Ok(())
    }
}

impl Drop for ReadAhead<'_, '_> {
    fn drop(&mut self) {
        self.context.budget.spare(None);
        self.context.budget.release(self.queue.give_up());
    }
}
