//! Moving the overflow records of large values.
//!
//! The cleaner copies the overflow records of a page, makes the copies durable, and then writes
//! each owner once more, with the new offsets, under the lock of its group. The bytes of these
//! owners are the *toll* of a page: cleaning it gains so much less
//! ([`victim`](crate::clean::victim)).

use crate::clean::copies::Moving;
use crate::clean::{Cleaner, CleanerState};
use crate::table::index::{GroupLock, Slot};
use crate::table::log::Order;
use crate::table::overflow::overflow_offsets;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_record::{Header, View};

/// An overflow record and its copy.
pub(crate) struct OverflowCopy<'g> {
    pub(crate) old: View<'g>,
    pub(crate) new: u64,
}

impl Cleaner {
    /// Copies an overflow record, if it lives. Its owner follows in [`Cleaner::move_owner`].
    pub(crate) fn clean_overflow<'g>(
        &'g self,
        state: &mut CleanerState,
        guard: &'g Guard,
        overflow: &View<'g>,
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        {
            let held = self.index.lock(self.place(overflow.key()));
            let Some((at, _, owner)) = self.owner(guard, &held, overflow)? else {
                return Ok(());
            };
            held.flush(at);
            let mut named = overflow_offsets(&owner);
            if !owner.header.large || !named.any(|offset| offset == overflow.offset) {
                return Ok(());
            }
        }
        self.room_for_copy(state, overflow.len() as usize, moving)?;
        let (key, value) = (overflow.key(), overflow.value());
        let copy = self.append_copy(state, &overflow.header, key, value, moving)?;
        moving.overflow.push(OverflowCopy { old: *overflow, new: copy.offset });
        Ok(())
    }

    /// The slot of the key of `overflow` and the record that it points at.
    pub(crate) fn owner<'g>(
        &'g self,
        guard: &'g Guard,
        held: &GroupLock<'_>,
        overflow: &View<'_>,
    ) -> Result<Option<(u64, Slot, View<'g>)>> {
        let of = (overflow, self.place(overflow.key()));
        let slot = self.slot_of(guard, held, of)?;
        slot.map(|(at, slot)| Ok((at, slot, self.record(guard, slot)?))).transpose()
    }

    /// Lets the owner of `copies`, which are durable and of one key, name them in place of the
    /// overflow records that were copied.
    pub(crate) fn move_owner<'g>(
        &'g self,
        state: &mut CleanerState,
        guard: &'g Guard,
        copies: &[OverflowCopy<'g>],
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        let mut is_moved = vec![false; copies.len()];
        let moved = self.rename_overflow(state, guard, copies, &mut is_moved, moving);
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

    /// Writes the owner again; true if its group is counted.
    pub(crate) fn rename_overflow<'g>(
        &'g self,
        state: &mut CleanerState,
        guard: &'g Guard,
        copies: &[OverflowCopy<'g>],
        is_moved: &mut [bool],
        moving: &mut Moving<'g>,
    ) -> Result<bool> {
        let Some(first) = copies.first() else { return Ok(false) };
        let key = first.old.key();
        loop {
            let mut held = self.index.lock(self.place(key));
            let Some((at, slot, owner)) = self.owner(guard, &held, &first.old)? else {
                return Ok(false);
            };
            let list = renamed(&owner, copies, is_moved);
            if !is_moved.contains(&true) {
                // The writer that won flushes the slot with its next record, which may never come.
                held.flush(at);
                return Ok(false);
            }
            // The list gets a new checksum: damage must not be copied.
            let generation = self.pages.cell(self.space.page_of(owner.offset)).generation();
            owner.check(self.seed(generation, owner.offset))?;
            // A later version: a reader of the log must prefer this list to the old one. The
            // sequence that callers see stays.
            let sequence = Some(owner.sequence());
            let mut header = Header { batched: false, sequence, ..owner.header };
            let len = header.record_len(key, list.len());
            if state.log().room() < len {
                drop(held);
                is_moved.fill(false);
                self.room_for_copy(state, len, moving)?;
                continue;
            }
            header.version = self.next_version(&mut held, owner.header.version)?;
            let new = state.log().append(self, &header, key, &[&list], Order::Strict)?;
            state.log().commit(self, new.offset, Order::Strict)?;
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

/// The list of `owner` with the copies in place of the records that were copied; marks the copies
/// that it names.
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
