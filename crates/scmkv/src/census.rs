//! Counting after a crash.
//!
//! The number of live records and how much of each page lives are kept in DRAM. With the index in
//! the pool an open after a crash reads neither index nor records, so that its time does not grow
//! with them; the count is made afterwards, in the background, group by group under its lock.
//! Until a group is counted its writers leave the counters alone ([`lock`](crate::index)); what
//! they did is in the state that the census finds.
//!
//! It comes by every slot, and so sees which of them have lost their record
//! ([`quarantine`](crate::quarantine)). Nothing is cleaned before it is done.

use crate::counters::Count;
use crate::fragments::fragment_offsets;
use crate::index::{GroupLock, Position, SlotRef};
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use std::sync::atomic::Ordering;

impl Store {
    /// Counts what is not counted yet. Ends early if the store is closed. What is damaged is left
    /// to `verify` and to whoever reads it: it must not keep the rest from being counted.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn take_census(&self) -> Result<()> {
        if self.census_done.load(Ordering::Acquire) {
            return Ok(());
        }
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
            if !slot.is_tombstone() {
                self.counters.add(Count::Records, 1);
            }
            let view = self.reader().view(&guard, slot.offset());
            let Some(view) = self.vouched(held, *slot, view) else { continue };
            self.add_live(slot.offset(), i64::from(view.len()));
            if slot.is_tombstone() {
                self.counters.add(Count::TombstoneBytes, i64::from(view.len()));
            }
            if view.header.large {
                self.charge(fragment_offsets(&view), i64::from(view.len()));
                for offset in fragment_offsets(&view) {
                    if let Some(fragment) = self.reader().view(&guard, offset) {
                        self.add_live(offset, i64::from(fragment.len()));
                    }
                }
            }
        }
    }
}
