//! Mending the index from the logs.
//!
//! An index in the pool has no checksums: a slot in which a bit has flipped leads nowhere, or to
//! another record, or is not found by a lookup of its key, which then seems to be absent. The log
//! is the truth, so such a slot can be rebuilt, as long as its record has not been given up:
//!
//! ```text
//!   a bit flips ─▶ doubt ─▶ all records of all logs ─ newest of its key, no slot ─▶ its slot is written
//!                                                  └▶ slots that fit no record ─▶ are removed
//! ```
//!
//! **Doubt** arises from signs of such damage: the [census](crate::clean::census) and the
//! [scrub](crate::upkeep::scrub) find a slot that does not fit its record, the scrub finds a record
//! that no slot leads to, and the [cleaner](crate::clean) finds that a page still counts live bytes
//! after its records were moved. As long as there is doubt the cleaner frees no page.
//!
//! **What is mended.** The newest record of each key, put or tombstone, that counts and that no
//! lookup finds gets a slot. Then slots are removed that were hit: slots one bit away from the
//! right slot of a record, or from a slot that was never used, and slots behind another slot of the
//! same key. A page that was moved and waits to be freed is skipped: its live records have copies,
//! and of the key of a dropped tombstone there is no older record elsewhere.
//!
//! **What is not.** A slot that leads nowhere may be right, and its record lost: nothing else shows
//! that the key was ever written. So a slot that no single flipped bit explains stays, and an older
//! record of such a key is not shown in its place. Where a log is damaged the newest record of a
//! key is unknown, and nothing is changed. Then pages with records that no slot finds are kept as
//! they are, and `verify` reports them. The number of records may be off by the records that were
//! counted wrongly.

use crate::clean::Cleaner;
use crate::clean::CleanerState;
use crate::clean::reserve::SplitPages;
use crate::clean::unindexed::{Kinds, unindexed};
use crate::table::counters::Count;
use crate::table::index::{GroupLock, Leaf, Position, Probe, Slot, SlotRef, Verdict};
use crate::table::page;
use coreplane_engine::{Error, Result, VerifyReport};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Kind, View};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// The result of [`Cleaner::reindex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reindexed {
    /// The index agrees with the logs.
    Whole,
    /// A log is damaged, or a slot may be the last trace of a record: not everything could be
    /// mended.
    Undecided,
    /// A record found no place, as its group is full and cannot be split for lack of pages.
    NoRoom,
}

/// How a slot of a locked group fits its record.
pub(crate) enum Fit {
    /// As it should be.
    Right,
    /// Of the record that it points at, except for its marks.
    Marks(Slot),
    /// Of no record, or not found by a lookup.
    None,
}

/// True if the marks of a slot are those of the record that it points at.
fn has_marks_of(slot: Slot, view: &View<'_>) -> bool {
    let kind = if slot.is_tombstone() { Kind::Delete } else { Kind::Put };
    view.header.kind == kind && slot.expires() == view.header.expires_at.is_some()
}

/// True if a slot is the same as another, or differs from it in one bit.
fn is_hit_from(slot: Slot, right: Slot) -> bool {
    (slot.0 ^ right.0).count_ones() <= 1
}

/// The order of the records of a key.
fn age(view: &View<'_>) -> (u64, bool) {
    (view.header.version, view.header.kind == Kind::Delete)
}

impl Cleaner {
    /// Checks the index against the logs if there is doubt about it.
    ///
    /// # Errors
    /// As [`Cleaner::reindex`].
    pub(crate) fn clear_doubt(&self, state: &CleanerState) -> Result<()> {
        if self.is_index_doubted.load(Ordering::Acquire) {
            self.reindex(state)?;
        }
        Ok(())
    }

    /// True if a page all of whose live records were moved may be freed: a record that still counts
    /// as live in it may have lost its slot.
    ///
    /// # Errors
    /// As [`Cleaner::reindex`].
    pub(crate) fn may_be_freed(&self, state: &CleanerState, page: u32) -> Result<bool> {
        let cell = self.pages.cell(page);
        // A page that is kept has a record that no slot finds, whatever it counts.
        if cell.is_pinned() {
            return Ok(false);
        }
        let left = cell.live.load(Ordering::Acquire);
        if left <= 0 {
            return Ok(true);
        }
        // If a slot was mended the page is cleaned once more: a lookup may find more records now.
        let before = self.counters.get(Count::RepairedSlots);
        self.reindex(state)?;
        Ok(self.counters.get(Count::RepairedSlots) == before && !cell.is_pinned())
    }

    /// True if a lookup of the key of `view` finds it, or a later record of the key.
    pub(crate) fn is_indexed(&self, guard: &Guard, view: &View<'_>) -> Result<bool> {
        let found = self.index.find(self.place(view.key()), |slot: Slot| {
            if self.leads_to(guard, slot, view) { Verdict::Mine } else { Verdict::Other }
        })?;
        Ok(found.is_some())
    }

    pub(crate) fn leads_to(&self, guard: &Guard, slot: Slot, view: &View<'_>) -> bool {
        if slot.offset() == view.offset {
            return has_marks_of(slot, view);
        }
        self.view(guard, slot.offset()).is_some_and(|found| {
            has_marks_of(slot, &found) && found.key() == view.key() && age(&found) >= age(view)
        })
    }

    /// Checks the index against the logs, and mends it. The caller holds the cleaner: no record is
    /// moved meanwhile. The last pages are left to the cleaner; a page with a record that would need
    /// one of them is kept.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn reindex(&self, state: &CleanerState) -> Result<Reindexed> {
        self.reindex_with(state, self.cleaners())
    }

    /// As [`Cleaner::reindex`]; so many free pages are left alone.
    ///
    /// # Errors
    /// As [`Cleaner::reindex`]; [`Error::NoSpace`] if all pages may be taken and there is none.
    pub(crate) fn reindex_with(&self, state: &CleanerState, reserve: u32) -> Result<Reindexed> {
        self.is_index_doubted.store(false, Ordering::Release);
        self.see_all_staged()?;
        let mut damage = VerifyReport::default();
        (0..self.pages.len()).filter(|page| !self.is_lost(*page, &mut damage)).for_each(|_| {});
        if damage.is_sound() {
            (0..self.pages.len()).for_each(|page| self.verify_page(page, &mut damage));
        }
        let is_sound = damage.is_sound();
        let skip = |page| state.has_emptied(page);
        let has = |view: &View<'_>| self.is_indexed(&epoch::pin(), view);
        let mut has_room;
        loop {
            let mut changed = false;
            has_room = true;
            for (generation, offset) in unindexed(self, &skip, Kinds::All, &has)? {
                let keep = || self.keep(self.space.page_of(offset));
                let again = match is_sound {
                    true => self.index_again(generation, offset, reserve),
                    false => Ok(keep()),
                };
                changed |= match again {
                    // The group is full, and the last pages are left to the cleaner.
                    Err(Error::NoSpace { .. }) if reserve > 0 => {
                        has_room = false;
                        keep()
                    }
                    again => again?,
                };
            }
            if !changed {
                break;
            }
        }
        if !is_sound {
            return Ok(Reindexed::Undecided);
        }
        let is_whole = self.take_out_misfits()?;
        self.space.fence().map_err(page::sync_failed)?;
        match (has_room, is_whole) {
            (false, _) => return Ok(Reindexed::NoRoom),
            (true, false) => return Ok(Reindexed::Undecided),
            (true, true) => self.release_kept(),
        }
        Ok(Reindexed::Whole)
    }

    /// Lets the index point at the record at `offset`, unless its key was written since; true if
    /// that changed the index, or keeps a page that was not kept before.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if its group is full and no more than `reserve` pages are free.
    fn index_again(&self, generation: u32, offset: u64, reserve: u32) -> Result<bool> {
        let guard = epoch::pin();
        let page = self.space.page_of(offset);
        let cell = self.pages.cell(page);
        let Some(view) = self.view(&guard, offset) else { return Ok(false) };
        if cell.kind() != Some(page::Kind::Log) || cell.generation() != generation {
            return Ok(false);
        }
        let place = self.place(view.key());
        loop {
            let held = self.index.lock(place);
            let met = held.probe(place, &mut |slot| Ok(self.leads_to(&guard, slot, &view)))?;
            if matches!(met, Probe::Found { .. }) {
                return Ok(false);
            }
            let probe = held.probe(place, &mut |slot| {
                let found = self.view(&guard, slot.offset());
                Ok(found.is_some_and(|found| found.key() == view.key()))
            })?;
            let right = held.slot_of(place, offset, &view.header);
            let slots = self.index.slots(held.leaf(), self.index.group_of(place))?;
            let hit = slots.iter().find(|found| is_hit_from(found.slot, right));
            let hit = hit.filter(|found| !self.may_be_lost(found.slot.offset()));
            let is_of_another = |found: &SlotRef| {
                found.slot.signature() == right.signature()
                    && hit.is_none_or(|hit| hit.at != found.at)
                    && self.sound_at(&guard, found.slot.offset()).is_none()
            };
            if slots.iter().any(is_of_another) {
                // The slot of a later record, perhaps, that is lost.
                return Ok(self.keep(page));
            }
            let at = match (probe, hit) {
                (Probe::Found { at, .. } | Probe::Vacant { at }, _) => at,
                (Probe::Full, Some(hit)) => hit.at,
                (Probe::Full, None) => {
                    let leaf = held.leaf();
                    drop(held);
                    self.split(leaf, place, SplitPages::AsItIs(&guard, reserve))?;
                    continue;
                }
            };
            held.publish_and_flush(at, right)?;
            if let Some(hit) = hit.filter(|hit| hit.at != at) {
                held.remove(hit.at)?;
            }
            if held.is_counted() {
                self.add_live(offset, i64::from(view.len()));
            }
            let is_new = hit.is_none_or(|hit| hit.slot.is_tombstone());
            if view.header.kind == Kind::Put && is_new && held.has_counted_records() {
                self.counters.add(Count::Records, 1);
            }
            self.counters.add(Count::RepairedSlots, 1);
            return Ok(true);
        }
    }

    /// The sound record of a key at `offset`, if there is one.
    pub(crate) fn sound_at<'g>(&'g self, guard: &'g Guard, offset: u64) -> Option<View<'g>> {
        let view = self.view(guard, offset)?;
        let is_of_key = matches!(view.header.kind, Kind::Put | Kind::Delete);
        (is_of_key && self.check_record(&view).is_ok()).then_some(view)
    }

    /// True if a record may have been at `offset` and be lost: a recovery has ended the page before it.
    pub(crate) fn may_be_lost(&self, offset: u64) -> bool {
        let page = self.space.page_of(offset);
        if page >= self.pages.len() || self.pages.cell(page).kind() != Some(page::Kind::Log) {
            return false;
        }
        let published = self.space.watermarks(page).map_or(0, |(published, _)| published);
        let is_behind = offset >= self.space.start_of(page) + u64::from(published);
        let element = self.pages.element(page);
        let is_empty = |open: bool| open && published == 0;
        is_behind
            && element.is_ok_and(|element| element.is_cut || is_empty(element.length.is_none()))
    }

    /// Removes from the index the slots that surely were hit; false if slots are left that fit no
    /// record.
    fn take_out_misfits(&self) -> Result<bool> {
        let mut is_whole = true;
        self.index.each_group(&mut |held, Position { group, .. }| {
            let guard = epoch::pin();
            for found in self.index.slots(held.leaf(), group)? {
                match self.fit(&guard, &held, group, found)? {
                    Fit::Right => continue,
                    Fit::Marks(slot) => held.publish_and_flush(found.at, slot)?,
                    Fit::None if self.was_hit(&guard, &held, group, found.slot)? => {
                        held.remove(found.at)?;
                        if !found.slot.is_tombstone() && held.has_counted_records() {
                            self.counters.add(Count::Records, -1);
                        }
                    }
                    Fit::None => {
                        is_whole = false;
                        continue;
                    }
                }
                self.counters.add(Count::RepairedSlots, 1);
            }
            Ok(())
        })?;
        Ok(is_whole)
    }

    /// True if a slot that fits no record was hit by a flipped bit, or is the second one of a key:
    /// then its removal loses nothing. Otherwise it may be the last trace of a record that was
    /// lost.
    fn was_hit(&self, guard: &Guard, held: &GroupLock<'_>, group: u32, slot: Slot) -> Result<bool> {
        if let Some(view) = self.sound_at(guard, slot.offset()) {
            return self.is_indexed(guard, &view);
        }
        if is_hit_from(slot, Slot::EMPTY) || is_hit_from(slot, Slot::DELETED) {
            return Ok(true);
        }
        if self.may_be_lost(slot.offset()) {
            return Ok(false);
        }
        // The slot of a record that has been replaced since.
        Ok((0..u64::BITS).map(|bit| Slot(slot.0 ^ 1 << bit)).any(|right| {
            let view = self.sound_at(guard, right.offset());
            view.is_some_and(|view| {
                let place = self.place(view.key());
                self.index.leaf(place) == held.leaf()
                    && self.index.group_of(place) == group
                    && held.slot_of(place, view.offset, &view.header) == right
                    && self.is_indexed(guard, &view).unwrap_or(false)
            })
        }))
    }

    fn fit(
        &self,
        guard: &Guard,
        held: &GroupLock<'_>,
        group: u32,
        SlotRef { at, slot }: SlotRef,
    ) -> Result<Fit> {
        let Some(view) = self.sound_at(guard, slot.offset()) else { return Ok(Fit::None) };
        let place = self.place(view.key());
        let is_here = self.index.leaf(place) == held.leaf() && self.index.group_of(place) == group;
        if !is_here || held.signature(place) != slot.signature() {
            return Ok(Fit::None);
        }
        // A lookup must find it before any other slot of the key.
        let probe = held.probe(place, &mut |other| {
            let found = self.view(guard, other.offset());
            Ok(found.is_some_and(|found| found.key() == view.key()))
        })?;
        Ok(match probe {
            Probe::Found { at: first, .. } if first == at => match has_marks_of(slot, &view) {
                true => Fit::Right,
                false => Fit::Marks(held.slot_of(place, view.offset, &view.header)),
            },
            _ => Fit::None,
        })
    }

    /// Shows every slot of the index, its segment and its group, and how it fits.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn each_fit(
        &self,
        visit: &mut dyn FnMut(Leaf, Position, SlotRef, Fit),
    ) -> Result<()> {
        self.index.each_group(&mut |held, here| {
            let guard = epoch::pin();
            for found in self.index.slots(held.leaf(), here.group)? {
                let fit = self.fit(&guard, &held, here.group, found)?;
                visit(held.leaf(), here, found, fit);
            }
            Ok(())
        })
    }

    /// The newest records of all keys that no lookup finds, each with the slot that it should have.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn missed(&self) -> Result<Vec<(Vec<u8>, Slot)>> {
        let (mut missed, mut keys) = (Vec::new(), HashSet::new());
        let guard = epoch::pin();
        loop {
            let is_met = |view: &View<'_>| self.is_indexed(&guard, view);
            let has = |view: &View<'_>| Ok(keys.contains(view.key()) || is_met(view)?);
            // One lot at a time.
            let found = unindexed(self, &|_| false, Kinds::Puts, &has)?;
            if found.is_empty() {
                return Ok(missed);
            }
            for view in found.iter().filter_map(|(_, at)| self.view(&guard, *at)) {
                // The record that no slot finds may be a member of a batch that was cut short.
                if !is_met(&view)? {
                    let place = self.place(view.key());
                    let slot = self.index.lock(place).slot_of(place, view.offset, &view.header);
                    missed.push((view.key().to_vec(), slot));
                }
                keys.insert(view.key().to_vec());
            }
        }
    }

    /// True if each slot of the group at `here` fits its record; and the next position.
    pub(crate) fn group_fits(&self, here: Position) -> Result<(bool, Option<Position>)> {
        let (leaf, group, next) = self.index.step(here);
        let guard = epoch::pin();
        let Some(held) = self.index.lock_group(leaf, here.y, group) else {
            return Ok((true, Some(here)));
        };
        let slots = self.index.slots(leaf, group)?;
        slots.iter().for_each(|found| self.space.prefetch(found.slot.offset()));
        for found in slots {
            if !matches!(self.fit(&guard, &held, group, found)?, Fit::Right) {
                return Ok((false, next));
            }
        }
        Ok((true, next))
    }
}
