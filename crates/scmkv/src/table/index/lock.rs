//! The lock of a group, which also hands out versions.
//!
//! ```text
//!   63                              2    1       0
//!   ┌────────────────────────────────┬────────┬────────┐
//!   │ version last given out         │ marked │ locked │
//!   └────────────────────────────────┴────────┴────────┘
//! ```
//!
//! A writer holds the lock of its key's group anyway, so the next version costs nothing and no
//! counter is shared: it is one more than the greatest of the last version of this group and the
//! *base*, which the store raises durably at every open and before a version exceeds it by half a
//! step. So versions order all writes of a key, across threads, deletes and restarts.
//!
//! The word is in DRAM: it does not survive a crash, and a crash leaves no group locked.
//!
//! *Marked*: after an open the live records are counted in the background, group by group
//! ([`census`](crate::clean::census)); a writer adjusts the counters only for groups that were
//! counted. The meaning of a mark depends on the [`pass`](super::pass).

use super::group::Probe;
use super::kernel::{self, LOCKED};
use super::{Index, Leaf, Pass, Slot};
use crate::table::hash::Place;
use coreplane_engine::Result;
use coreplane_pmem::LINE;
use coreplane_pmem::spin::Backoff;
use coreplane_record::{Header, Kind};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const MARKED: u64 = 2;
const VERSION_SHIFT: u32 = 2;

/// The base is raised in steps of this.
pub(crate) const VERSION_STEP: u64 = 1 << 28;

/// A lock word.
#[derive(Debug)]
pub(crate) struct Lock(AtomicU64);

impl Lock {
    #[inline]
    pub(super) fn is_locked(&self) -> bool {
        self.0.load(Ordering::Acquire) & LOCKED != 0
    }

    pub(super) fn unmarked() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn marked() -> Self {
        Self(AtomicU64::new(MARKED))
    }
}

/// A group that stays locked while no thread works in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuspendedLock {
    pub(super) leaf: Leaf,
    pub(super) group: u32,
    word: u64,
}

impl SuspendedLock {
    /// True if it is the lock of group `group` of the segment of `leaf`.
    #[inline]
    pub(crate) fn is_of(&self, leaf: Leaf, group: u32) -> bool {
        (self.leaf, self.group) == (leaf, group)
    }

    /// The number of the group in its segment.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }
}

/// The work to do while waiting for a group's lock.
#[derive(Default)]
pub(crate) struct Waiting(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl Waiting {
    #[cold]
    fn help(&self) {
        if let Some(help) = self.0.get() {
            help();
        }
    }

    /// Calls `help` now and then while a thread waits: it may end the work that holds the lock.
    /// Only the first function given counts.
    pub(crate) fn call(&self, help: impl Fn() + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(help));
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

/// A group that is locked for writing, until it is dropped.
#[derive(Debug)]
pub(crate) struct GroupLock<'a> {
    index: &'a Index,
    lock: &'a Lock,
    leaf: Leaf,
    /// The word to store when it is unlocked.
    word: u64,
    /// It stays locked when this is dropped.
    is_kept: bool,
}

impl<'a> GroupLock<'a> {
    #[inline]
    pub(super) fn acquire(index: &'a Index, lock: &'a Lock, leaf: Leaf) -> Self {
        let mut backoff = Backoff::new();
        loop {
            if let Some(held) = Self::try_acquire(index, lock, leaf) {
                return held;
            }
            index.waiting.help();
            backoff.wait();
        }
    }

    #[inline]
    pub(super) fn try_acquire(index: &'a Index, lock: &'a Lock, leaf: Leaf) -> Option<Self> {
        kernel::try_acquire(&lock.0).map(|word| Self { index, lock, leaf, word, is_kept: false })
    }

    /// Leaves the group, number `group` of its segment, locked: [`Index::resume`] gives the lock
    /// back, to any thread.
    pub(crate) fn suspend(self, group: u32) -> SuspendedLock {
        let this = ManuallyDrop::new(self);
        SuspendedLock { leaf: this.leaf, group, word: this.word }
    }

    /// The group whose lock was suspended.
    pub(super) fn resumed(
        index: &'a Index,
        lock: &'a Lock,
        suspended: SuspendedLock,
        is_kept: bool,
    ) -> Self {
        Self { index, lock, leaf: suspended.leaf, word: suspended.word, is_kept }
    }

    pub(super) fn word(&self) -> u64 {
        self.word
    }

    /// Takes over the version and the mark of the lock word `word`.
    pub(super) fn inherit(&mut self, word: u64) {
        self.word = word & !LOCKED;
    }

    pub(crate) fn leaf(&self) -> Leaf {
        self.leaf
    }

    /// True if the records of this group are among the counted ones.
    #[inline]
    pub(crate) fn has_counted_records(&self) -> bool {
        self.index.pass() > Pass::Records || self.word & MARKED == 0
    }

    /// True if the live records of this group are counted, in bytes too.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        match self.index.pass() {
            Pass::Records => false,
            Pass::Bytes => self.word & MARKED != 0,
            Pass::Done => true,
        }
    }

    /// From now on writers count the records of this group.
    pub(crate) fn set_records_counted(&mut self) {
        self.word &= !MARKED;
    }

    /// From now on writers adjust all counters for this group, whose records are counted.
    pub(crate) fn set_counted(&mut self) {
        self.word |= MARKED;
    }

    /// The last version of this group; 0 if it has given out none since the store was opened, with
    /// a base above all earlier versions.
    #[inline]
    pub(crate) fn last_version(&self) -> u64 {
        self.word >> VERSION_SHIFT
    }

    /// The next version: greater than all versions of this group, and than `base`.
    #[inline]
    pub(crate) fn next_version(&mut self, base: u64) -> u64 {
        let version = (self.word >> VERSION_SHIFT).max(base) + 1;
        self.word = version << VERSION_SHIFT | self.word & MARKED;
        version
    }

    /// Versions given out from now on are greater than `version`.
    pub(crate) fn raise_version(&mut self, version: u64) {
        let version = (self.word >> VERSION_SHIFT).max(version);
        self.word = version << VERSION_SHIFT | self.word & MARKED;
    }

    /// Probes for the key of `place`, which is of this group. `is_mine` decides whether a slot is
    /// the key's.
    ///
    /// # Errors
    /// As `is_mine`, and if the index is damaged.
    #[inline]
    pub(crate) fn probe(
        &self,
        place: Place,
        is_mine: &mut dyn FnMut(Slot) -> Result<bool>,
    ) -> Result<Probe> {
        self.index.probe(self.leaf, place, false, is_mine)
    }

    /// As [`GroupLock::probe`], not ending at an empty slot: for recovery. A vacancy is the first empty slot on the
    /// path, if there is one, else the first that was used and is free again.
    ///
    /// # Errors
    /// As `is_mine`, and if the index is damaged.
    pub(crate) fn probe_whole(
        &self,
        place: Place,
        is_mine: &mut dyn FnMut(Slot) -> Result<bool>,
    ) -> Result<Probe> {
        self.index.probe(self.leaf, place, true, is_mine)
    }

    /// The first free slot for `place`, which is of this group, for which `is_taken` is false.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn vacancy(
        &self,
        place: Place,
        is_taken: &dyn Fn(u64) -> bool,
    ) -> Result<Option<u64>> {
        self.index.vacancy(self.leaf, place, is_taken)
    }

    /// Stores a slot. Every reader that starts after this returns sees it, and this thread's later
    /// reads come after it. Durable at the next fence of the log to which it is reported
    /// ([`Log::note_published`](crate::table::log::Log::note_published)).
    ///
    /// # Errors
    /// If the index is damaged.
    #[inline]
    pub(crate) fn publish(&self, at: u64, slot: Slot) -> Result<()> {
        self.index.word(at)?.store_ahead_of_loads(slot.0);
        Ok(())
    }

    /// As [`GroupLock::publish`], and flushes the slot's line: durable at the thread's next fence.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn publish_and_flush(&self, at: u64, slot: Slot) -> Result<()> {
        self.publish(at, slot)?;
        self.flush(at);
        Ok(())
    }

    /// As [`GroupLock::publish`], for a caller that keeps the lock: until it is released, readers
    /// that look for a write staged here wait for it.
    ///
    /// # Errors
    /// If the index is damaged.
    #[inline]
    pub(crate) fn publish_staged(&self, at: u64, slot: Slot) -> Result<()> {
        self.index.word(at)?.store(slot.0);
        Ok(())
    }

    /// True if it was locked before, for another write of the same log.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.is_kept
    }

    /// The slot at `at`, of this group.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn slot(&self, at: u64) -> Result<Slot> {
        Ok(Slot(self.index.word(at)?.load()))
    }

    /// The slot for the record of `place` at `offset`.
    #[inline]
    pub(crate) fn slot_of(&self, place: Place, offset: u64, header: &Header) -> Slot {
        let is_delete = header.kind == Kind::Delete;
        Slot::new(self.signature(place), offset, is_delete, header.expires_at.is_some())
    }

    /// The offsets of the lines of this group, which `place` is of.
    pub(crate) fn lines(&self, place: Place) -> impl Iterator<Item = u64> + use<> {
        let group = self.index.group_offset(self.leaf, place);
        (0..u64::from(self.index.shape.buckets)).map(move |bucket| group + bucket * LINE as u64)
    }

    /// Flushes the line of a slot, whichever thread stored it.
    pub(crate) fn flush(&self, at: u64) {
        if self.index.in_pool {
            self.index.space.flush(at & !(LINE as u64 - 1), LINE as u64);
        }
    }

    /// Removes the slot at `at`, of this group, from the index; durable when it returns, since the
    /// next removal may leave an empty slot in a bucket that the probe for this slot has passed.
    ///
    /// # Errors
    /// If the index is damaged, or the medium fails.
    pub(crate) fn remove(&self, at: u64) -> Result<()> {
        let group = at / self.index.shape.group_bytes() * self.index.shape.group_bytes();
        let mut words = self.index.group_words(group)?;
        let bucket = (at - group) / LINE as u64;
        words[bucket as usize][(at % LINE as u64 / 8) as usize] = Slot::EMPTY.0;
        self.publish_and_flush(at, self.index.vacated(&words, bucket as u32))?;
        if self.index.in_pool {
            self.index.space.fence().map_err(crate::table::page::sync_failed)?;
        }
        Ok(())
    }

    /// The signature that a slot of `place` has here.
    #[inline]
    pub(crate) fn signature(&self, place: Place) -> u32 {
        self.index.signature(self.leaf, place)
    }
}

impl Drop for GroupLock<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_kept {
            kernel::release(&self.lock.0, self.word);
        }
    }
}
