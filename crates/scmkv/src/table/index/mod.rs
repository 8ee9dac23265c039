//! The index: an extendible hash of segments whose slots point at records.
//!
//! ```text
//!   directory (DRAM) ──▶ segment (64 KiB) = 64 groups × 16 buckets × 8 slots
//!         y bits              group bits          home bucket, then the next …
//! ```
//!
//! The paper's table is static, with chains in pages of their own, and its writer bit is in
//! persistent memory. Here
//!
//! - it grows a segment at a time, when a group of the segment is full: half of the segment's
//!   slots move to a new one ([`grow`]). There are no chains;
//! - a lookup is one line, seldom two, and then the record ([`group`]);
//! - locks and the versions that they hand out are in DRAM ([`lock`]);
//! - readers take no lock. A slot found is right by itself, since every version of a key is
//!   published by one store to one word; a key *not* found is believed only if the segment still
//!   serves the key after the probe.
//!
//! One code has two placements: the segments are words of the pool, or of an arena of DRAM, in
//! which flushes do nothing.

mod directory;
mod group;
mod grow;
pub(crate) mod kernel;
mod lock;
mod pass;
mod slot;
mod sweep;
mod transfer;

pub(crate) use directory::Leaf;
pub(crate) use group::{Probe, Verdict};
pub(crate) use grow::SegmentHeader;
pub(crate) use lock::{GroupLock, SuspendedLock, VERSION_STEP};
pub(crate) use pass::Pass;
pub(crate) use slot::{OFFSET_MAX, Slot};
pub(crate) use sweep::{Position, SlotRef};

use crate::table::geometry::Geometry;
use crate::table::hash::Place;
use coreplane_engine::{Error, Result};
use coreplane_pmem::chunked::Chunked;
use coreplane_pmem::{Durable, Space, Word, arch};
use directory::{DEPTH_MAX, Directory};
use group::Glance;
use grow::Growth;
use kernel::Seen;
use lock::{Lock, Waiting};
use parking_lot::Mutex;
use pass::Passes;
use std::sync::Arc;

/// The index of a store.
#[derive(Debug)]
pub(crate) struct Index {
    /// The pool's space, or an arena's.
    space: Arc<Space>,
    /// True if `space` is the pool's.
    in_pool: bool,
    /// How far the records have been counted.
    passes: Passes,
    shape: Geometry,
    /// Where the window of hash bits starts in segments of each depth.
    windows: [u8; DEPTH_MAX as usize + 2],
    directory: Directory,
    locks: Chunked<Lock>,
    growth: Mutex<Growth>,
    pub(crate) waiting: Waiting,
}

impl Index {
    pub(crate) fn in_pool(&self) -> bool {
        self.in_pool
    }

    #[inline]
    pub(crate) fn leaf(&self, place: Place) -> Leaf {
        self.directory.leaf(place.y)
    }

    /// The signature that a slot of `place` has in the segment of `leaf`.
    #[inline]
    fn signature(&self, leaf: Leaf, place: Place) -> u32 {
        place.signature(self.window_start(leaf.depth()))
    }

    #[inline]
    fn window_start(&self, depth: u32) -> u32 {
        u32::from(self.windows[depth as usize])
    }

    /// Prefetches the line of `place`.
    #[inline]
    pub(crate) fn prefetch(&self, place: Place) {
        let leaf = self.leaf(place);
        let home = u64::from(place.home(self.shape.buckets));
        self.space.prefetch(self.group_offset(leaf, place) + home * coreplane_pmem::LINE as u64);
    }

    /// As [`Index::prefetch`], and the lock of the group too.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, place: Place) {
        self.prefetch_lock(place);
        self.prefetch(place);
    }

    /// Prefetches the lock of the group of `place`.
    #[inline]
    pub(crate) fn prefetch_lock(&self, place: Place) {
        arch::prefetch_to_write(self.lock_of(self.leaf(place), self.group_of(place)));
    }

    /// The slot of a key, without any lock. `verdict` decides whether a slot with the right
    /// signature is the key's.
    ///
    /// # Errors
    /// If a slot points at no record.
    #[inline]
    pub(crate) fn find(
        &self,
        place: Place,
        mut verdict: impl FnMut(Slot) -> Verdict,
    ) -> Result<Option<Slot>> {
        let mut dangling = None;
        kernel::find(
            || self.leaf(place),
            |leaf| match self.glance(leaf, place, &mut verdict)? {
                Glance::Found(slot) => Ok(Seen::Found(slot)),
                Glance::Absent => Ok(Seen::Absent),
                // The record was moved between the loads of slot and record: the slot now has its
                // new place. A slot that has not changed points at no record.
                Glance::Moved { at, slot } if dangling == Some((at, slot)) => Err(Error::Corrupt {
                    offset: slot.offset(),
                    what: format!("the slot at {at:#x} of the index points at no record"),
                }),
                Glance::Moved { at, slot } => {
                    dangling = Some((at, slot));
                    Ok(Seen::Again)
                }
            },
        )
    }

    /// Locks the group of `place` for writing.
    #[inline]
    pub(crate) fn lock(&self, place: Place) -> GroupLock<'_> {
        loop {
            let leaf = self.leaf(place);
            let lock = self.lock_of(leaf, self.group_of(place));
            let held = GroupLock::acquire(self, lock, leaf);
            if self.leaf(place) == leaf {
                return held;
            }
        }
    }

    /// As [`Index::lock`], but none if another thread holds it.
    #[inline]
    pub(crate) fn try_lock(&self, place: Place) -> Option<GroupLock<'_>> {
        let leaf = self.leaf(place);
        let lock = self.lock_of(leaf, self.group_of(place));
        let held = GroupLock::try_acquire(self, lock, leaf)?;
        (self.leaf(place) == leaf).then_some(held)
    }

    /// True if the lock of the group of `place` is held.
    #[inline]
    pub(crate) fn is_locked(&self, place: Place) -> bool {
        self.lock_of(self.leaf(place), self.group_of(place)).is_locked()
    }

    /// The lock that was suspended, to be released when dropped. A suspended group's segment is not
    /// split.
    pub(crate) fn resume(&self, suspended: SuspendedLock) -> GroupLock<'_> {
        let lock = self.lock_of(suspended.leaf, suspended.group);
        GroupLock::resumed(self, lock, suspended, false)
    }

    /// The suspended lock, which stays suspended when the returned one is dropped.
    pub(crate) fn borrow(&self, suspended: SuspendedLock) -> GroupLock<'_> {
        let lock = self.lock_of(suspended.leaf, suspended.group);
        GroupLock::resumed(self, lock, suspended, true)
    }

    #[inline]
    fn lock_of(&self, leaf: Leaf, group: u32) -> &Lock {
        self.locks.get(leaf.number() as usize * self.shape.groups as usize + group as usize)
    }

    #[inline]
    fn word(&self, offset: u64) -> Result<Word<'_, Durable>> {
        self.space.word(offset).ok_or_else(|| group::no_segment(offset))
    }

    /// Flushes the line of the slot at `at`, whichever thread stored it.
    pub(crate) fn flush_line(&self, at: u64) {
        if self.in_pool {
            self.space.flush(at, 8);
        }
    }

    /// Bytes of DRAM in use.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let arena = if self.in_pool { 0 } else { self.growth.lock().segments_bytes(&self.shape) };
        arena + self.directory.dram_bytes() + self.locks.bytes()
    }
}
