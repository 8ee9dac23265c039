//! Going through the records: cursors and changes.

use crate::read::Reader;
use crate::read::get::Whole;
use crate::table::index::{GroupLock, Position, Slot};
use crate::table::misled;
use coreplane_engine::{Entry, Error, Result};
use coreplane_pmem::epoch::{self, Guard};
use std::sync::atomic::Ordering;

/// Records that are prefetched before they are read.
const AHEAD: usize = 8;

/// Bytes of a record that are prefetched.
const AHEAD_BYTES: u64 = 192;

/// Empty groups that a call of an iteration passes, unless it is asked for more records. The index does not shrink
/// when records are removed: a call that went on to the next record might pass all of it.
pub(crate) const PASSED_MAX: usize = 128;

/// A record or tombstone that was found.
struct Met<'g> {
    whole: Whole<'g>,
    /// It is a record, and has not expired.
    live: bool,
}

impl Reader {
    /// Prefetches the first lines of a record.
    #[inline]
    fn prefetch_record(&self, slot: Slot) {
        (0..AHEAD_BYTES).step_by(64).for_each(|at| self.space.prefetch(slot.offset() + at));
    }

    /// Reads the records of a locked group. They stay as they are while the guard lives, so that
    /// they can be shown without the lock.
    fn read_group<'g>(
        &'g self,
        guard: &'g Guard,
        held: &GroupLock<'_>,
        group: u32,
        wanted: impl Fn(Slot) -> bool,
    ) -> Result<Vec<Met<'g>>> {
        let slots = self.index.slots(held.leaf(), group)?.into_iter().map(|found| found.slot);
        let slots: Vec<Slot> = slots.filter(|slot| wanted(*slot)).collect();
        let mut met = Vec::with_capacity(slots.len());
        slots.iter().take(AHEAD).for_each(|slot| self.prefetch_record(*slot));
        for (number, slot) in slots.iter().copied().enumerate() {
            if let Some(next) = slots.get(number + AHEAD) {
                self.prefetch_record(*next);
            }
            let view = self.record(guard, slot)?;
            if held.signature(self.place(view.key())) != slot.signature() {
                return Err(misled(slot));
            }
            self.check_read(&view)?;
            let live = !slot.is_tombstone() && !self.is_expired(&view)?;
            let large = live && view.header.large;
            let pieces =
                if large { self.pieces(guard, &view, self.check_reads)? } else { Vec::new() };
            met.push(Met { whole: Whole { view, pieces }, live });
        }
        Ok(met)
    }

    /// Shows the live records of whole groups from `cursor` on, until `count` records were found, expired ones
    /// included, or as many empty groups, but not fewer than [`PASSED_MAX`]. With a `count` of 0, those of one group.
    pub(crate) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let mut position = Position::from_cursor(cursor);
        let (mut met, mut passed) = (0, 0);
        loop {
            let (leaf, group, next) = self.index.step(position);
            let guard = epoch::pin();
            let Some(held) = self.index.lock_group(leaf, position.y, group) else { continue };
            let found = self.read_group(&guard, &held, group, |slot| !slot.is_tombstone())?;
            drop(held);
            met += found.len();
            passed += usize::from(found.is_empty());
            for Met { whole, live } in found {
                if live {
                    let record = whole.record(self.ticket_of(&whole.view));
                    let (key, sequence) = (whole.view.key(), record.sequence);
                    visit(Entry { key, record: Some(record), sequence });
                }
            }
            match next {
                None => return Ok(0),
                Some(next) if met >= count || passed >= count.max(PASSED_MAX) => {
                    return Ok(next.to_cursor());
                }
                Some(next) => position = next,
            }
        }
    }

    /// Shows everything newer than `sequence`, tombstones too.
    pub(crate) fn changes_since(
        &self,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        self.check_history(sequence)?;
        self.index.each_group(&mut |held, Position { group, .. }| {
            let guard = epoch::pin();
            let found = self.read_group(&guard, &held, group, |_| true)?;
            drop(held);
            for Met { whole, live } in found {
                let (key, newer) = (whole.view.key(), whole.view.sequence());
                if newer > sequence {
                    let record = live.then(|| whole.record(self.ticket_of(&whole.view)));
                    visit(Entry { key, record, sequence: newer });
                }
            }
            Ok(())
        })?;
        // A tombstone of a group that was still to come may have been dropped meanwhile.
        self.check_history(sequence)
    }

    /// # Errors
    /// [`Error::HistoryGone`] if a tombstone above `sequence` was dropped.
    fn check_history(&self, sequence: u64) -> Result<()> {
        let horizon = self.dropped_tombstones.load(Ordering::Acquire);
        if sequence < horizon {
            return Err(Error::HistoryGone { asked: sequence, horizon });
        }
        Ok(())
    }
}
