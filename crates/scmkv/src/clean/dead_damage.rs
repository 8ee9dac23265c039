//! Damaged records that are no longer needed.
//!
//! A record that was replaced, or written again from a peer, is dead, damaged or not. But the
//! cleaner stops at damage, so that `verify` would report it for ever. The bytes of a damaged
//! record cannot tell whether it is dead: its key may be damaged. The index can, as long as it is
//! whole: no slot points at the record, and no large value names it.
//!
//! ```text
//!   page    │ put a │ p?t b │ put c │      no slot leads to the second: a and c are moved, the page is freed
//! ```
//!
//! Left as they are: a page whose records can no longer be told apart, a page in which the damaged
//! record may be the commit record of a batch, and all pages while a slot fits no record.

use crate::clean::{Cleaner, CleanerState};
use crate::table::index::Position;
use crate::table::overflow::overflow_offsets;
use crate::table::page;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use coreplane_record::{Kind, View};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Cleaner {
    /// True if a record is damaged and known to be dead.
    ///
    /// # Errors
    /// If it is damaged and may be live.
    pub(crate) fn is_dead_damage(&self, generation: u32, view: &View<'_>) -> Result<bool> {
        match view.check(self.seed(generation, view.offset)) {
            Ok(()) => Ok(false),
            Err(_) if self.quarantine.dead.lock().contains(&view.offset) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Moves the live records of pages in which only dead records are damaged, and frees the pages.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn clean_dead_damage(&self, state: &mut CleanerState) -> Result<()> {
        let pages: Vec<(u32, BTreeSet<u64>)> = (0..self.pages.len())
            .filter_map(|page| self.damaged_in(page).map(|damaged| (page, damaged)))
            .collect();
        if pages.is_empty() {
            return Ok(());
        }
        let mut dead: BTreeSet<u64> = pages.iter().flat_map(|(_, of)| of.iter().copied()).collect();
        if !self.strike_out_named(&mut dead)? {
            return Ok(());
        }
        self.quarantine.dead.lock().clone_from(&dead);
        for (page, _) in pages.into_iter().filter(|(_, damaged)| damaged.is_subset(&dead)) {
            self.release(page);
            // Pinned for another reason: it waits to be freed, or for the owner of its overflow
            // records.
            if self.pages.cell(page).is_pinned() {
                continue;
            }
            match self.clean_page(state, page) {
                // It stays as it is: there is no room for its live records, or more is damaged.
                Ok(_) | Err(Error::NoSpace { .. }) => {}
                Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.quarantine.dead.lock().clear();
        Ok(())
    }

    /// The damaged records of a full page, all of whose records can be told apart; none if it has
    /// none, or they cannot.
    fn damaged_in(&self, page: u32) -> Option<BTreeSet<u64>> {
        let cell = self.pages.cell(page);
        let length = u64::from(cell.length.load(Ordering::Acquire));
        if cell.kind() != Some(page::Kind::Log) || length == 0 || self.space.probe(page).is_err() {
            return None;
        }
        let guard = epoch::pin();
        let (mut at, end) = (self.space.start_of(page), self.space.start_of(page) + length);
        let mut damaged = BTreeSet::new();
        let mut is_last_sound = false;
        while at < end {
            let view = self.view(&guard, at)?;
            is_last_sound = view.check(self.seed(cell.generation(), at)).is_ok();
            if !is_last_sound {
                let is_of_key =
                    matches!(view.header.kind, Kind::Put | Kind::Delete | Kind::Overflow);
                if !is_of_key || view.key().is_empty() {
                    return None;
                }
                damaged.insert(at);
            }
            at += u64::from(view.len());
        }
        // The record behind a damaged one shows that the length of that one is right.
        (at == end && is_last_sound && !damaged.is_empty()).then_some(damaged)
    }

    /// Removes from `damaged` the records that slots or large values name; false if the index does
    /// not tell.
    fn strike_out_named(&self, damaged: &mut BTreeSet<u64>) -> Result<bool> {
        let mut position = Some(Position::default());
        while let Some(here) = position {
            let (leaf, group, next) = self.index.step(here);
            let guard = epoch::pin();
            let Some(_held) = self.index.lock_group(leaf, here.y, group) else { continue };
            for found in self.index.slots(leaf, group)? {
                let offset = found.slot.offset();
                let view = self.view(&guard, offset);
                let Some(view) = view.filter(|view| self.check_record(view).is_ok()) else {
                    if !damaged.remove(&offset) {
                        return Ok(false);
                    }
                    // The overflow records that it names are unknown.
                    damaged.retain(|at| {
                        let view = self.view(&guard, *at);
                        view.is_some_and(|view| view.header.kind != Kind::Overflow)
                    });
                    continue;
                };
                if view.header.large {
                    for at in overflow_offsets(&view) {
                        damaged.remove(&at);
                    }
                }
            }
            position = next;
        }
        Ok(true)
    }
}
