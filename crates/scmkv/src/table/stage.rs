//! Writes that share a fence.
//!
//! A write whose caller does not wait (`Completion::Early`) is *staged* where a fence is an
//! instruction: its record is in the log, not flushed, and its slot is not published.
//!
//! ```text
//!   put a: append, keep a's group locked │ put b: … │ commit: flush ─▶ fence ─▶ publish a, b; unlock
//! ```
//!
//! So n writes cost one fence, and one flush a line however many records lie in it; and yet no
//! reader sees a write that a power cut could take back. The locks make a staged write count at
//! once: a thread that meets one while it reads or writes its group commits the staged writes of
//! the log and goes on ([`Table::see_staged`], [`Table::help`]). A staged write belongs to the log,
//! not to the thread that made it, so no thread ever waits for a caller that has gone away.
//!
//! **No deadlock.** Staged locks are many, and taken in no order. Hence a log commits its staged
//! writes before its owner waits for anything: for the lock of a group, for pages, for a split. A
//! thread that waits holds no staged lock. A thread that does not wait soon releases its log, and
//! then any thread can commit.
//!
//! The records of an open page may survive a crash or not, each independently, like those of any
//! write that was not acknowledged.

mod kernel;

use crate::table::Table;
use crate::table::hash::Place;
use crate::table::index::{GroupLock, Leaf, Slot, SuspendedLock};
use crate::table::log::{Appended, Log, Order};
use crate::table::look::{Standing, Write};
use crate::table::page::sync_failed;
use coreplane_engine::{Durability, Horizon, Outcome, Result, Ticket, Written};
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{SyncError, epoch};
use coreplane_record::{Header, Kind};
use crossbeam_utils::CachePadded;
use kernel::OfLog;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of writes that share a fence unless the caller says otherwise.
const STAGED_MAX: usize = 64;

/// The greatest number that a caller may ask for: the groups are locked meanwhile.
const STAGED_LIMIT: usize = 256;

/// The state of the logs' staged writes that is readable without their locks.
#[derive(Debug)]
pub(crate) struct Staging {
    /// True once any write was staged: until then readers need not check.
    is_used: AtomicBool,
    logs: Box<[CachePadded<OfLog<AtomicU64>>]>,
}

/// A staged write.
#[derive(Debug)]
struct Staged {
    /// The number of its group's lock.
    lock: usize,
    place: Place,
    at: u64,
    slot: Slot,
    header: Header,
    appended: Appended,
    user_bytes: usize,
}

/// The staged writes of a log.
#[derive(Debug, Default)]
pub(crate) struct StagedWrites {
    writes: Vec<Staged>,
    locks: Vec<SuspendedLock>,
}

impl StagedWrites {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// True if the key at `place` has a staged write.
    fn has(&self, place: Place) -> bool {
        self.writes.iter().any(|write| write.place == place)
    }

    /// True if a staged write takes the slot at `at`.
    pub(crate) fn takes(&self, at: u64) -> bool {
        self.writes.iter().any(|write| write.at == at)
    }

    /// The number of the lock of group `group` in the segment of `leaf`.
    fn lock_of(&self, leaf: Leaf, group: u32) -> Option<usize> {
        self.locks.iter().position(|lock| lock.is_of(leaf, group))
    }

    /// Keeps `lock`; if it was borrowed from the segment of `known`, it replaces the lock that is
    /// there. Returns its number.
    fn keep(&mut self, lock: SuspendedLock, known: Option<Leaf>) -> usize {
        match known.and_then(|leaf| self.lock_of(leaf, lock.group())) {
            Some(number) => {
                self.locks[number] = lock;
                number
            }
            None => {
                self.locks.push(lock);
                self.locks.len() - 1
            }
        }
    }
}

impl Staging {
    pub(crate) fn new(logs: u16) -> Self {
        Self {
            is_used: AtomicBool::new(false),
            logs: (0..logs).map(|_| CachePadded::new(OfLog::new(AtomicU64::new))).collect(),
        }
    }

    /// True if the write of `ticket` was committed.
    ///
    /// # Errors
    /// If it never will be.
    fn is_committed(&self, ticket: Ticket) -> Result<bool> {
        let Some(of_log) = self.logs.get(usize::from(ticket.log())) else { return Ok(true) };
        of_log
            .is_committed(ticket.position())
            .map_err(|_lost| sync_failed(SyncError("the fence of this write failed".to_owned())))
    }
}

impl Table {
    /// Appends the record of a write and keeps its group locked until the log commits.
    ///
    /// # Errors
    /// As those of a write; nothing is staged then.
    pub(crate) fn stage(
        &self,
        log: &mut Log,
        mut held: GroupLock<'_>,
        write: &Write<'_>,
        standing: &Standing<'_>,
        mut header: Header,
        value: &[u8],
    ) -> Result<Outcome> {
        header.version = self.draw_version(&mut held, standing, header.sequence)?;
        let appended = log.append(self, &header, write.key, &[value], Order::Staged)?;
        let value_len = if header.kind == Kind::Delete { 0 } else { value.len() };
        let (place, leaf) = (write.place, held.leaf());
        let slot = held.slot_of(place, appended.offset, &header);
        let known = held.is_borrowed().then_some(leaf);
        let lock = log.staged().keep(held.suspend(self.index.group_of(place)), known);
        let user_bytes = write.key.len() + value_len;
        let staged = Staged { lock, place, at: standing.at, slot, header, appended, user_bytes };
        let of_log = &self.staging.logs[usize::from(log.id())];
        let position = of_log.position();
        log.staged().writes.push(staged);
        let len = log.staged().writes.len();
        if !self.staging.is_used.load(Ordering::Relaxed) {
            self.staging.is_used.store(true, Ordering::SeqCst);
        }
        of_log.note(len as u64);
        let mut ticket = Ticket::new(log.id(), position);
        if len >= self.staged_max(write) {
            self.commit_staged(log)?;
            ticket = Ticket::DURABLE;
        } else if let Some(max_delay) = self.max_delay(write.options) {
            self.windows.opened(max_delay);
        }
        Ok(Outcome::Written(Written {
            sequence: header.sequence.unwrap_or(header.version),
            ticket,
            replaced: standing.live,
        }))
    }

    /// Locks the group of a write. Staged writes of the log are committed before it waits; a group
    /// that the log has locked itself takes further keys.
    #[inline]
    pub(crate) fn lock_for(&self, log: &mut Log, place: Place) -> Result<GroupLock<'_>> {
        if log.has_staged() {
            if let Some(held) = self.index.try_lock(place) {
                return Ok(held);
            }
            let (leaf, group) = (self.index.leaf(place), self.index.group_of(place));
            let staged = log.staged();
            if let Some(lock) = staged.lock_of(leaf, group)
                && !staged.has(place)
            {
                return Ok(self.index.borrow(staged.locks[lock]));
            }
            self.commit_staged(log)?;
        }
        Ok(self.index.lock(place))
    }

    /// Finds another slot for a write whose slot a staged write has taken; false if there is none.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn avoid_staged(
        &self,
        log: &mut Log,
        held: &GroupLock<'_>,
        place: Place,
        standing: &mut Standing<'_>,
    ) -> Result<bool> {
        let staged = log.staged();
        if standing.slot != Slot::EMPTY || !staged.takes(standing.at) {
            return Ok(true);
        }
        let vacant = held.vacancy(place, &|at| staged.takes(at))?;
        standing.at = vacant.unwrap_or(standing.at);
        Ok(vacant.is_some())
    }

    fn staged_max(&self, write: &Write<'_>) -> usize {
        match write.options.durability.unwrap_or(self.durability) {
            Durability::Group { max_ops, .. } => (max_ops as usize).min(STAGED_LIMIT),
            _ => STAGED_MAX,
        }
    }

    /// Makes the staged writes of `log` durable and visible, with one fence.
    ///
    /// # Errors
    /// If the medium fails; the staged writes are not visible then, and never durable.
    #[inline]
    pub(crate) fn commit_staged(&self, log: &mut Log) -> Result<()> {
        if log.has_staged() { self.commit_some(log) } else { Ok(()) }
    }

    fn commit_some(&self, log: &mut Log) -> Result<()> {
        let guard = epoch::pin();
        let mut staged = std::mem::take(log.staged());
        // Ahead of the fence, as in a single write.
        for one in &staged.writes {
            let held = self.index.borrow(staged.locks[one.lock]);
            // The slot was found when this write was staged, and its group has been locked since.
            let old_slot = held.slot(one.at).unwrap_or(Slot::EMPTY);
            let old = self.record(&guard, old_slot).ok().filter(|_| old_slot.is_used());
            self.account(&held, old_slot, old.as_ref(), &one.header);
        }
        if mutant!("scmkv.stage.publish_first") {
            for one in &staged.writes {
                let held = self.index.borrow(staged.locks[one.lock]);
                held.publish_staged(one.at, one.slot)?;
            }
        }
        let result = log.commit(self, 0, Order::Staged);
        let of_log = &self.staging.logs[usize::from(log.id())];
        let publish = || {
            staged.writes.iter().try_for_each(|one| {
                if mutant!("scmkv.stage.unpublished") {
                    return Ok(());
                }
                let held = self.index.borrow(staged.locks[one.lock]);
                held.publish_staged(one.at, one.slot)?;
                log.note_published(self, one.at);
                self.count_published(&held, &one.header, one.appended, one.user_bytes);
                Ok(())
            })
        };
        let unlock = || staged.locks.iter().for_each(|lock| drop(self.index.resume(*lock)));
        let result = of_log.commit(result, publish, unlock);
        // Emptied, so that its memory is reused.
        staged.writes.clear();
        staged.locks.clear();
        *log.staged() = staged;
        result
    }

    /// Makes the staged writes of the group of `place` visible that this thread may know of.
    ///
    /// # Errors
    /// If the medium fails.
    #[inline(always)]
    pub(crate) fn see_staged(&self, place: Place) -> Result<()> {
        if self.staging.is_used.load(Ordering::Relaxed) && self.index.is_locked(place) {
            self.commit_all_staged()?;
        }
        Ok(())
    }

    /// As [`Table::see_staged`] for each of `keys`.
    ///
    /// # Errors
    /// If the medium fails.
    #[inline]
    pub(crate) fn see_staged_of(&self, keys: &[&[u8]]) -> Result<()> {
        if self.staging.is_used.load(Ordering::Relaxed) {
            keys.iter().try_for_each(|key| self.see_staged(self.place(key)))?;
        }
        Ok(())
    }

    /// Makes every staged write visible that this thread may know of.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn see_all_staged(&self) -> Result<()> {
        if self.staging.is_used.load(Ordering::Relaxed) { self.commit_all_staged() } else { Ok(()) }
    }

    #[cold]
    fn commit_all_staged(&self) -> Result<()> {
        for (log, of_log) in self.logs.iter().zip(&self.staging.logs) {
            let mut backoff = Backoff::new();
            of_log.see(|| match log.try_lock() {
                Some(mut log) => self.commit_staged(&mut log),
                None => {
                    backoff.wait();
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    /// Commits the staged writes of idle logs, for a thread that waits for the lock of a group.
    pub(crate) fn help(&self) {
        if !self.staging.is_used.load(Ordering::Relaxed) {
            return;
        }
        for (log, of_log) in self.logs.iter().zip(&self.staging.logs) {
            if of_log.has_staged()
                && let Some(mut log) = log.try_lock()
            {
                // A medium that fails does so for all: the callers that wait for these writes get
                // the error.
                let _told = self.commit_staged(&mut log).is_ok();
            }
        }
    }

    /// Commits the writes that the tickets of `horizon` wait for.
    ///
    /// # Errors
    /// If the medium fails, or failed at an earlier attempt.
    pub(crate) fn commit_tickets(&self, horizon: &Horizon) -> Result<()> {
        for ticket in horizon.tickets() {
            let Some(log) = self.logs.get(usize::from(ticket.log())) else { continue };
            let mut backoff = Backoff::new();
            // Another writer may commit the log and keep it for long work.
            while !self.staging.is_committed(*ticket)? {
                match log.try_lock() {
                    Some(mut log) => self.commit_staged(&mut log)?,
                    None => backoff.wait(),
                }
            }
        }
        Ok(())
    }

    /// True if all writes that `horizon` waits for are committed.
    ///
    /// # Errors
    /// If it never will be.
    pub(crate) fn are_committed(&self, horizon: &Horizon) -> Result<bool> {
        for ticket in horizon.tickets() {
            if !self.staging.is_committed(*ticket)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
