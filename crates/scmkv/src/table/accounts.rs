//! Live bytes and records: counted where a slot is stored, under the lock of its group.

use crate::table::Table;
use crate::table::counters::Count;
use crate::table::index::{GroupLock, Slot};
use crate::table::log::Appended;
use crate::table::overflow::overflow_offsets;
use coreplane_pmem::epoch;
use coreplane_record::{Header, Kind, View};
use std::sync::atomic::Ordering;

impl Table {
    /// A record of `user_bytes` bytes of key and value was published.
    #[inline(always)]
    pub(crate) fn count_published(
        &self,
        held: &GroupLock<'_>,
        header: &Header,
        appended: Appended,
        user_bytes: usize,
    ) {
        self.leave_to_census(held, appended.offset, appended.len);
        let is_delete = header.kind == Kind::Delete;
        if is_delete {
            self.count_tombstone(held, appended.len);
        }
        self.counters.add(if is_delete { Count::Deletes } else { Count::Puts }, 1);
        self.counters.add(Count::UserBytes, user_bytes as i64);
    }

    /// Updates the counters for a slot that was replaced.
    pub(crate) fn account(
        &self,
        held: &GroupLock<'_>,
        old_slot: Slot,
        old: Option<&View<'_>>,
        new: &Header,
    ) {
        if let Some(old) = old {
            self.drop_live(held, old);
        }
        if held.has_counted_records() {
            let before = old_slot.is_used() && !old_slot.is_tombstone();
            let after = new.kind == Kind::Put;
            match (before, after) {
                (false, true) => self.counters.add(Count::Records, 1),
                (true, false) => self.counters.add(Count::Records, -1),
                _ => {}
            }
        }
    }

    /// A tombstone of `len` bytes was published.
    #[cold]
    pub(crate) fn count_tombstone(&self, held: &GroupLock<'_>, len: u32) {
        if held.is_counted() {
            self.counters.add(Count::TombstoneBytes, i64::from(len));
        }
    }

    /// Leaves a record just published in a group that is not counted yet to the census.
    pub(crate) fn leave_to_census(&self, held: &GroupLock<'_>, offset: u64, len: u32) {
        if !held.is_counted() {
            self.add_live(offset, -i64::from(len));
        }
    }

    /// The record `old` (and its overflow records) is no longer live.
    pub(crate) fn drop_live(&self, held: &GroupLock<'_>, old: &View<'_>) {
        if !held.is_counted() {
            return;
        }
        self.add_live(old.offset, -i64::from(old.len()));
        if old.header.kind == Kind::Delete {
            self.counters.add(Count::TombstoneBytes, -i64::from(old.len()));
        }
        if old.header.large {
            self.charge(overflow_offsets(old), -i64::from(old.len()));
            let guard = epoch::pin();
            for offset in overflow_offsets(old) {
                if let Some(overflow) = self.view(&guard, offset) {
                    self.add_live(offset, -i64::from(overflow.len()));
                }
            }
        }
    }

    /// Adds `len` to the toll of every page that holds one of these overflow records of a value.
    pub(crate) fn charge(&self, offsets: impl Iterator<Item = u64>, len: i64) {
        let mut last = None;
        for page in offsets.map(|offset| self.space.page_of(offset)) {
            if last.replace(page) != Some(page) && page < self.pages.len() {
                self.pages.cell(page).toll.fetch_add(len, Ordering::Relaxed);
            }
        }
    }
}
