//! A sweep through the whole index while it is in use.
//!
//! Segments are visited in the order of `y`, so that a place in the sweep is a value of `y` and a
//! group, which stays meaningful whichever segments split meanwhile: a sweep that goes on at
//! `(y, group)` in a segment that has split since may visit slots again, and misses no slot that was
//! there all the time.

use super::{GroupLock, Index, Leaf, Slot};
use coreplane_engine::Result;
use coreplane_pmem::LINE;

/// A slot that a sweep has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) at: u64,
    pub(crate) slot: Slot,
}

/// A place in a sweep, which is also the number of Redis's SCAN cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    pub(crate) y: u32,
    pub(crate) group: u32,
}

impl Position {
    const GROUP_BITS: u32 = 6;

    /// The position that a cursor names; any number is one. 0 is the start.
    pub(crate) fn from_cursor(cursor: u64) -> Self {
        Self {
            y: (cursor >> Self::GROUP_BITS) as u32,
            group: cursor as u32 & ((1 << Self::GROUP_BITS) - 1),
        }
    }

    pub(crate) fn to_cursor(self) -> u64 {
        u64::from(self.y) << Self::GROUP_BITS | u64::from(self.group)
    }
}

impl Index {
    /// The leaf at a position, and the position of the next group; none at the end.
    pub(crate) fn step(&self, position: Position) -> (Leaf, u32, Option<Position>) {
        let leaf = self.directory.leaf(position.y);
        let group = position.group & (self.shape.groups - 1);
        let spare = 32 - leaf.depth();
        let start = if spare == 32 { 0 } else { position.y >> spare << spare };
        let next = if group + 1 < self.shape.groups {
            Some(Position { y: start, group: group + 1 })
        } else {
            let end = u64::from(start) + (1_u64 << spare);
            u32::try_from(end).ok().map(|y| Position { y, group: 0 })
        };
        (leaf, group, next)
    }

    /// Shows each group, locked, with its place in the sweep.
    ///
    /// # Errors
    /// As `visit`.
    pub(crate) fn each_group<'a>(
        &'a self,
        visit: &mut dyn FnMut(GroupLock<'a>, Position) -> Result<()>,
    ) -> Result<()> {
        let mut position = Some(Position::default());
        while let Some(here) = position {
            let (leaf, group, next) = self.step(here);
            let Some(held) = self.lock_group(leaf, here.y, group) else { continue };
            visit(held, Position { group, ..here })?;
            position = next;
        }
        Ok(())
    }

    /// The used slots of a group, as they are now.
    pub(crate) fn slots(&self, leaf: Leaf, group: u32) -> Result<Vec<SlotRef>> {
        let offset = leaf.offset() + u64::from(group) * self.shape.group_bytes();
        let words = self.group_words(offset)?;
        Ok(words
            .iter()
            .enumerate()
            .flat_map(|(bucket, line)| {
                line.iter().enumerate().map(move |(at, word)| SlotRef {
                    at: offset + (bucket * LINE + 8 * at) as u64,
                    slot: Slot(*word),
                })
            })
            .filter(|held| held.slot.is_used())
            .collect())
    }

    /// Locks group `group` of the segment that serves `y`; none if that is no longer `leaf`.
    pub(crate) fn lock_group(&self, leaf: Leaf, y: u32, group: u32) -> Option<GroupLock<'_>> {
        let held = GroupLock::acquire(self, self.lock_of(leaf, group), leaf);
        (self.directory.leaf(y) == leaf).then_some(held)
    }
}
