//! Counting after an open.
//!
//! The number of live records and the live bytes of each page are kept in DRAM. With the index in
//! the pool an open after a crash reads neither index nor records, so that its time does not grow
//! with them. The count is made afterwards, in the background, group by group under its lock, in
//! two [passes](crate::table::index::Pass). Until a group is counted its writers leave the counters
//! alone ([`lock`](crate::table::index)); the census finds the result of their writes.
//!
//! 1. *Records*: the slots that are in use, and no tombstones. It reads the index alone, one line
//!    for eight slots, at the speed of the medium: some ten milliseconds for ten million records.
//!    Several callers may take [slices](SLICE) of it by turns. A caller that needs only the number
//!    of records waits for this pass, and one that must not wait at all asks again
//!    ([`Cleaner::try_len`]).
//! 2. *Bytes*: the records that the slots point at, which takes a hundred times as long. This pass
//!    sees which slots have lost their record ([`quarantine`](crate::table::quarantine)). Before it
//!    is done, only as much is cleaned as a writer needs at once
//!    ([`appraisal`](crate::clean::appraisal)).
//!
//! The number of records is not kept durably, for instance beside each sealed page. A record does
//! not say whether its key was there before, and the number does not change with records alone. If
//! a copy of the cleaner turns an expired record into a tombstone, it counts or not depending on
//! which thread publishes first; a repair removes slots. A durable number that missed one of these
//! would be wrong for good, and undetectably. The slots decide lookups, and their number is right
//! by itself, regardless of the past.

use crate::clean::Cleaner;
use crate::table::counters::Count;
use crate::table::index::{GroupLock, Pass, Position, SlotRef};
use crate::table::overflow::overflow_offsets;
use coreplane_engine::Result;
use coreplane_pmem::{epoch, mutant, spin};
use std::sync::atomic::Ordering;

/// How many groups are counted in a row: what an event loop can spare, some ten microseconds. Not a
/// power of two, so that slices end within segments, too, and tests see segments split there.
const SLICE: usize = 100;

impl Cleaner {
    /// The number of records, expired ones too.
    ///
    /// # Errors
    /// If the index is damaged, or staged writes cannot be committed.
    pub(crate) fn len(&self) -> Result<u64> {
        self.see_all_staged()?;
        self.count_records()?;
        Ok(self.counters.get(Count::Records).max(0) as u64)
    }

    /// As [`Cleaner::len`]; none if the records are not counted yet. Then this counts a slice.
    ///
    /// # Errors
    /// As [`Cleaner::len`].
    pub(crate) fn try_len(&self) -> Result<Option<u64>> {
        if self.index.pass() == Pass::Records {
            // This thread may have staged writes: it would wait for itself.
            self.see_all_staged()?;
            if let Some(mut next) = self.counting.try_lock() {
                self.count_slice(&mut next)?;
            }
            if self.index.pass() == Pass::Records {
                return Ok(None);
            }
        }
        self.len().map(Some)
    }

    /// Counts the records and their bytes.
    ///
    /// # Errors
    /// As [`Cleaner::len`].
    pub(crate) fn count(&self) -> Result<()> {
        self.see_all_staged()?;
        self.take_census()
    }

    /// Counts the records, as far as that is not done.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn count_records(&self) -> Result<()> {
        while self.index.pass() == Pass::Records {
            self.count_slice(&mut spin::lock(&self.counting))?;
        }
        Ok(())
    }

    /// Counts the records of some groups, from `next` on.
    fn count_slice(&self, next: &mut Position) -> Result<()> {
        let mut counted = 0;
        while counted < SLICE && self.index.pass() == Pass::Records {
            let here = *next;
            let (leaf, group, after) = self.index.step(here);
            let Some(mut held) = self.index.lock_group(leaf, here.y, group) else { continue };
            if !held.has_counted_records() || mutant!("scmkv.census.again") {
                self.counters.add(Count::Records, self.index.records_in(leaf, group)?);
                if !mutant!("scmkv.census.uncounted") {
                    held.set_records_counted();
                }
            }
            drop(held);
            counted += 1;
            match after {
                Some(after) => *next = after,
                None => self.index.begin_pass(Pass::Bytes),
            }
        }
        Ok(())
    }

    /// Counts the groups that are not counted yet. Ends early if the store is closed. Damage is
    /// left to `verify` and to readers of the record: it must not keep the rest from being counted.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn take_census(&self) -> Result<()> {
        if self.census_done.load(Ordering::Acquire) {
            return Ok(());
        }
        self.count_records()?;
        let mut position = Some(Position::default());
        while let Some(here) = position {
            if self.closed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let (leaf, group, next) = self.index.step(here);
            let Some(mut held) = self.index.lock_group(leaf, here.y, group) else { continue };
            if !held.is_counted() {
                let slots = self.index.slots(leaf, group)?;
                self.count_group(&held, &slots);
                held.set_counted();
            }
            position = next;
            drop::<GroupLock<'_>>(held);
        }
        self.index.begin_pass(Pass::Done);
        self.end_quarantine()?;
        self.census_done.store(true, Ordering::Release);
        Ok(())
    }

    fn count_group(&self, held: &GroupLock<'_>, slots: &[SlotRef]) {
        let guard = epoch::pin();
        for SlotRef { slot, .. } in slots {
            self.space.prefetch(slot.offset());
        }
        for SlotRef { slot, .. } in slots {
            let view = self.view(&guard, slot.offset());
            let Some(view) = self.vouched(held, *slot, view) else { continue };
            self.add_live(slot.offset(), i64::from(view.len()));
            if slot.is_tombstone() {
                self.counters.add(Count::TombstoneBytes, i64::from(view.len()));
            }
            if view.header.large {
                self.charge(overflow_offsets(&view), i64::from(view.len()));
                for offset in overflow_offsets(&view) {
                    if let Some(overflow) = self.view(&guard, offset) {
                        self.add_live(offset, i64::from(overflow.len()));
                    }
                }
            }
        }
    }
}
