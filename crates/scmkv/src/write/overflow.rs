//! Large values: in overflow records.
//!
//! ```text
//!   … │ overflow 0 │ overflow 1 │ overflow 2 │ … │ owner: length, offsets of 0, 1, 2 │ …
//! ```
//!
//! A value that is longer than an eighth of a page is written as *overflow records*, and after them the
//! record of its key, their *owner*, whose value names them. The overflow records are durable before the
//! owner is; all that lie in one page share a fence.
//!
//! An overflow record lives while the published record of its key names it. Between its append and that
//! moment nobody names it, and yet it must stay: its page is *pinned*, and the cleaner leaves
//! pinned pages alone. [`Overflow`] is who holds the pins. If it is dropped without having been
//! [owned](Overflow::own), because the write was refused or found no space, what it wrote is
//! dead and counted so.
//!
//! **Moving.** The cleaner copies the overflow records of a page, makes the copies durable, and then
//! writes each owner once more, with the new offsets, under the lock of its group. What these
//! owners take is the *toll* of a page: cleaning it gains so much less ([`victim`](crate::clean::victim)).

use crate::clean::reserve::Demand;
use crate::clean::{Cleaner, Moving};
use crate::store::Store;
use crate::table::index::{GroupLock, Probe, Slot};
use crate::table::log::{Appended, Log, Order};
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::atomic::Ordering;

/// The offsets of the overflow records of a large value, in order.
pub(crate) fn overflow_offsets<'a>(view: &View<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let view = *view;
    (1..).map_while(move |n| view.value_word(n))
}

/// Overflow records that were written and have no owner yet.
pub(crate) struct Overflow<'s> {
    store: &'s Store,
    /// The value of their owner.
    list: Vec<u8>,
    records: Vec<Appended>,
}

impl<'s> Overflow<'s> {
    fn of(store: &'s Store, value_len: usize) -> Self {
        Self { store, list: (value_len as u64).to_le_bytes().to_vec(), records: Vec::new() }
    }

    fn add(&mut self, record: Appended) {
        self.cell(record).pin();
        self.list.extend_from_slice(&record.offset.to_le_bytes());
        self.records.push(record);
    }

    fn cell(&self, record: Appended) -> &'s crate::table::page::Cell {
        self.store.pages.cell(self.store.space.page_of(record.offset))
    }

    /// The value of their owner: it names them.
    pub(crate) fn list(&self) -> &[u8] {
        &self.list
    }

    /// Their owner, a record of `len` bytes, was published under the lock `held`.
    pub(crate) fn own(mut self, held: &GroupLock<'_>, len: u32) {
        if held.is_counted() {
            let records = std::mem::take(&mut self.records);
            self.store.charge(records.iter().map(|record| record.offset), i64::from(len));
            for record in records {
                self.cell(record).unpin();
            }
        }
        // In a group that is not counted yet the census will count them.
    }
}

impl Drop for Overflow<'_> {
    fn drop(&mut self) {
        for record in std::mem::take(&mut self.records) {
            self.store.add_live(record.offset, -i64::from(record.len));
            self.cell(record).unpin();
        }
    }
}

/// An overflow record and its copy.
pub(crate) struct OverflowCopy<'g> {
    pub(crate) old: View<'g>,
    pub(crate) new: u64,
}

impl Store {
    /// Writes a large value as overflow records, made durable as `order` has it when it returns.
    ///
    /// # Errors
    /// If there is no space for it; what was written is dead then.
    pub(crate) fn write_overflow(
        &self,
        log: &mut Log,
        key: &[u8],
        (value, demand): (&[u8], Demand),
        order: Order,
    ) -> Result<Overflow<'_>> {
        // A window of `relaxed` is for what is small.
        let order = if order == Order::Early { Order::Early } else { Order::Strict };
        let mut overflow = Overflow::of(self, value.len());
        let mut first = None;
        let header = Header { kind: Kind::Overflow, ..Header::put(0) };
        for (at, record) in value.chunks(self.geometry.inline_max()).enumerate() {
            let len = header.record_len(key, record.len() + 8);
            if log.room_for(demand) < len {
                // A page that is left can be read to its end.
                if let Some(first) = first.take() {
                    log.commit(self, first, order)?;
                }
                self.make_room(log, len, demand)?;
            }
            let index = (at as u64).to_le_bytes();
            let appended = log.append(self, &header, key, &[&index, record], order)?;
            overflow.add(appended);
            first.get_or_insert(appended.offset);
        }
        if let Some(first) = first
            && !mutant!("scmkv.overflow.fence")
        {
            log.commit(self, first, order)?;
        }
        Ok(overflow)
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

    /// Copies an overflow record, if it lives. Its owner follows in [`Store::move_owner`].
    pub(crate) fn clean_overflow<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        overflow: &View<'g>,
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        {
            let held = self.index.lock(self.place(overflow.key()));
            let Some((at, _, owner)) = self.owner(guard, &held, overflow.key())? else {
                return Ok(());
            };
            held.flush(at);
            let mut named = overflow_offsets(&owner);
            if !owner.header.large || !named.any(|offset| offset == overflow.offset) {
                return Ok(());
            }
        }
        self.room_for_copy(cleaner, overflow.len() as usize, moving)?;
        let (key, value) = (overflow.key(), overflow.value());
        let copy = self.append_copy(cleaner, &overflow.header, key, value, moving)?;
        moving.overflow.push(OverflowCopy { old: *overflow, new: copy.offset });
        Ok(())
    }

    /// The slot of `key` and what it points at.
    fn owner<'g>(
        &'g self,
        guard: &'g Guard,
        held: &GroupLock<'_>,
        key: &[u8],
    ) -> Result<Option<(u64, Slot, View<'g>)>> {
        let mut owner = None;
        let probe = held.probe(self.place(key), &mut |slot| {
            let view = self.record(guard, slot)?;
            let mine = view.key() == key;
            if mine {
                owner = Some(view);
            }
            Ok(mine)
        })?;
        Ok(match (probe, owner) {
            (Probe::Found { at, slot }, Some(view)) => Some((at, slot, view)),
            _ => None,
        })
    }

    /// Lets the owner of `copies`, which are durable and of one key, name them in the place of
    /// the overflow records that they are copies of.
    pub(crate) fn move_owner<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        copies: &[OverflowCopy<'g>],
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        let mut is_moved = vec![false; copies.len()];
        let moved = self.rename_overflow(cleaner, guard, copies, &mut is_moved, moving);
        let is_counted = matches!(moved, Ok(true));
        for (copy, is_moved) in copies.iter().zip(is_moved) {
            let len = i64::from(copy.old.len());
            if is_moved && is_counted {
                self.add_live(copy.old.offset, -len);
            } else {
                // Dead at birth, or left to the census.
                self.add_live(copy.new, -len);
            }
        }
        moved.map(drop)
    }

    /// Writes the owner anew; true if its group is counted.
    fn rename_overflow<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        copies: &[OverflowCopy<'g>],
        is_moved: &mut [bool],
        moving: &mut Moving<'g>,
    ) -> Result<bool> {
        let Some(first) = copies.first() else { return Ok(false) };
        let key = first.old.key();
        loop {
            let mut held = self.index.lock(self.place(key));
            let Some((at, slot, owner)) = self.owner(guard, &held, key)? else { return Ok(false) };
            let list = renamed(&owner, copies, is_moved);
            if !is_moved.contains(&true) {
                // The writer that won flushes the slot with its next record, perhaps never.
                held.flush(at);
                return Ok(false);
            }
            // The list is sealed anew: damage must not be copied.
            let generation = self.pages.cell(self.space.page_of(owner.offset)).generation();
            owner.check(self.seed(generation, owner.offset))?;
            // A later version: whoever reads the log must prefer this list to the old one. What
            // callers see as the sequence stays.
            let sequence = Some(owner.sequence());
            let mut header = Header { batched: false, sequence, ..owner.header };
            let len = header.record_len(key, list.len());
            if cleaner.log().room() < len {
                drop(held);
                is_moved.fill(false);
                self.room_for_copy(cleaner, len, moving)?;
                continue;
            }
            header.version = self.next_version(&mut held, owner.header.version)?;
            let new = cleaner.log().append(self, &header, key, &[&list], Order::Strict)?;
            cleaner.log().commit(self, new.offset, Order::Strict)?;
            let named = Slot::new(slot.signature(), new.offset, false, slot.expires());
            held.publish_and_flush(at, named)?;
            if held.is_counted() {
                self.add_live(owner.offset, -i64::from(owner.len()));
                self.charge(copies.iter().map(|copy| copy.new), i64::from(new.len));
            } else {
                self.add_live(new.offset, -i64::from(new.len));
            }
            return Ok(held.is_counted());
        }
    }
}

/// The list of `owner` with the copies in the place of what they are copies of; tells which of
/// them it names.
fn renamed(owner: &View<'_>, copies: &[OverflowCopy<'_>], is_named: &mut [bool]) -> Vec<u8> {
    is_named.fill(false);
    if !owner.header.large {
        return Vec::new();
    }
    let mut list = owner.value().get(..8).unwrap_or_default().to_vec();
    for offset in overflow_offsets(owner) {
        let copy = copies.iter().position(|copy| copy.old.offset == offset);
        let named = copy.map_or(offset, |at| {
            is_named[at] = true;
            copies[at].new
        });
        list.extend_from_slice(&named.to_le_bytes());
    }
    list
}
