//! Large values: in pieces.
//!
//! ```text
//!   … │ fragment 0 │ fragment 1 │ fragment 2 │ … │ owner: length, offsets of 0, 1, 2 │ …
//! ```
//!
//! A value that is longer than an eighth of a page is written as *fragments*, and after them the
//! record of its key, their *owner*, whose value names them. The fragments are durable before the
//! owner is; all that lie in one page share a fence.
//!
//! A fragment lives while the published record of its key names it. Between its append and that
//! moment nobody names it, and yet it must stay: its page is *pinned*, and the cleaner leaves
//! pinned pages alone. [`Fragments`] is who holds the pins. If it is dropped without having been
//! [owned](Fragments::own), because the write was refused or found no space, what it wrote is
//! dead and counted so.
//!
//! **Moving.** The cleaner copies the fragments of a page, makes the copies durable, and then
//! writes each owner once more, with the new offsets, under the lock of its group. What these
//! owners take is the *toll* of a page: cleaning it gains so much less ([`victim`](crate::victim)).

use crate::clean::{Cleaner, Moving};
use crate::index::{GroupLock, Probe, Slot};
use crate::log::{Appended, Log, Order};
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::atomic::Ordering;

/// The offsets of the fragments of a large value, in order.
pub(crate) fn fragment_offsets<'a>(view: &View<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let view = *view;
    (1..).map_while(move |n| view.value_word(n))
}

/// Fragments that were written and have no owner yet.
pub(crate) struct Fragments<'s> {
    store: &'s Store,
    /// The value of their owner.
    list: Vec<u8>,
    pieces: Vec<Appended>,
}

impl<'s> Fragments<'s> {
    fn of(store: &'s Store, value_len: usize) -> Self {
        Self { store, list: (value_len as u64).to_le_bytes().to_vec(), pieces: Vec::new() }
    }

    fn add(&mut self, piece: Appended) {
        self.cell(piece).pin();
        self.list.extend_from_slice(&piece.offset.to_le_bytes());
        self.pieces.push(piece);
    }

    fn cell(&self, piece: Appended) -> &'s crate::page::Cell {
        self.store.pages.cell(self.store.space.page_of(piece.offset))
    }

    /// The value of their owner: it names them.
    pub(crate) fn list(&self) -> &[u8] {
        &self.list
    }

    /// Their owner, a record of `len` bytes, was published under the lock `held`.
    pub(crate) fn own(mut self, held: &GroupLock<'_>, len: u32) {
        if held.is_counted() {
            let pieces = std::mem::take(&mut self.pieces);
            self.store.charge(pieces.iter().map(|piece| piece.offset), i64::from(len));
            for piece in pieces {
                self.cell(piece).unpin();
            }
        }
        // In a group that is not counted yet the census will count them.
    }
}

impl Drop for Fragments<'_> {
    fn drop(&mut self) {
        for piece in std::mem::take(&mut self.pieces) {
            self.store.add_live(piece.offset, -i64::from(piece.len));
            self.cell(piece).unpin();
        }
    }
}

/// A fragment and its copy.
pub(crate) struct FragmentCopy<'g> {
    pub(crate) old: View<'g>,
    pub(crate) new: u64,
}

impl Store {
    /// Writes a large value as fragments, made durable as `order` has it when it returns.
    ///
    /// # Errors
    /// If there is no space for it; what was written is dead then.
    pub(crate) fn write_fragments(
        &self,
        log: &mut Log,
        key: &[u8],
        value: &[u8],
        order: Order,
    ) -> Result<Fragments<'_>> {
        // A window of `relaxed` is for what is small.
        let order = if order == Order::Early { Order::Early } else { Order::Strict };
        let mut fragments = Fragments::of(self, value.len());
        let mut first = None;
        let header = Header { kind: Kind::Fragment, ..Header::put(0) };
        for (at, piece) in value.chunks(self.geometry.inline_max()).enumerate() {
            let len = header.record_len(key, piece.len() + 8);
            if log.room_for(Kind::Put) < len {
                // A page that is left can be read to its end.
                if let Some(first) = first.take() {
                    log.commit(self, first, order)?;
                }
                self.make_room(log, len, Kind::Put)?;
            }
            let index = (at as u64).to_le_bytes();
            let appended = log.append(self, &header, key, &[&index, piece], order)?;
            fragments.add(appended);
            first.get_or_insert(appended.offset);
        }
        if let Some(first) = first
            && !mutant!("scmkv.fragments.fence")
        {
            log.commit(self, first, order)?;
        }
        Ok(fragments)
    }

    /// Adds `len` to the toll of every page that holds one of these fragments of a value.
    pub(crate) fn charge(&self, offsets: impl Iterator<Item = u64>, len: i64) {
        let mut last = None;
        for page in offsets.map(|offset| self.space.page_of(offset)) {
            if last.replace(page) != Some(page) && page < self.pages.len() {
                self.pages.cell(page).toll.fetch_add(len, Ordering::Relaxed);
            }
        }
    }

    /// Copies a fragment, if it lives. Its owner follows in [`Store::move_owner`].
    pub(crate) fn clean_fragment<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        fragment: &View<'g>,
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        {
            let held = self.index.lock(self.place(fragment.key()));
            let Some((at, _, owner)) = self.owner(guard, &held, fragment.key())? else {
                return Ok(());
            };
            held.flush(at);
            let mut named = fragment_offsets(&owner);
            if !owner.header.large || !named.any(|offset| offset == fragment.offset) {
                return Ok(());
            }
        }
        self.room_for_copy(cleaner, fragment.len() as usize, moving)?;
        let (key, value) = (fragment.key(), fragment.value());
        let copy = self.append_copy(cleaner, &fragment.header, key, value, moving)?;
        moving.fragments.push(FragmentCopy { old: *fragment, new: copy.offset });
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
    /// the fragments that they are copies of.
    pub(crate) fn move_owner<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        copies: &[FragmentCopy<'g>],
        moving: &mut Moving<'g>,
    ) -> Result<()> {
        let mut is_moved = vec![false; copies.len()];
        let moved = self.rename_fragments(cleaner, guard, copies, &mut is_moved, moving);
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
    fn rename_fragments<'g>(
        &'g self,
        cleaner: &mut Cleaner,
        guard: &'g Guard,
        copies: &[FragmentCopy<'g>],
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
fn renamed(owner: &View<'_>, copies: &[FragmentCopy<'_>], is_named: &mut [bool]) -> Vec<u8> {
    is_named.fill(false);
    if !owner.header.large {
        return Vec::new();
    }
    let mut list = owner.value().get(..8).unwrap_or_default().to_vec();
    for offset in fragment_offsets(owner) {
        let copy = copies.iter().position(|copy| copy.old.offset == offset);
        let named = copy.map_or(offset, |at| {
            is_named[at] = true;
            copies[at].new
        });
        list.extend_from_slice(&named.to_le_bytes());
    }
    list
}
