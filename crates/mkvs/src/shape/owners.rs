//! The group that owns each slot, and the group to which the slot is moving.
//!
//! ```text
//!   at rest    owner A
//!   moving     owner A, to B    readers ask A; writes to A go to B as well
//!   frozen     owner A, to B    no writes: for the moment in which B becomes the owner
//!   at rest    owner B
//! ```
//!
//! The table on the devices (in the record) has the same states, except the frozen one, and is written first. A
//! slot that is in the same state before and after an operation did not move meanwhile.

use crate::filter::hash_of;
use crate::shape::position::is_reserved;
use crate::shape::slots::slot_of;
use std::sync::atomic::{AtomicU64, Ordering};

const NOWHERE: u64 = 0xffff;
const FROZEN: u64 = 1 << 32;

/// The groups that have the keys of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route(u64);

impl Route {
    fn new(owner: u16, to: Option<u16>) -> Self {
        Self(u64::from(owner) | to.map_or(NOWHERE, u64::from) << 16)
    }

    /// The group that is read, and that decides writes.
    #[inline]
    pub(crate) fn owner(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// The group to which the slot is moving.
    pub(crate) fn to(self) -> Option<usize> {
        let to = self.0 >> 16 & 0xffff;
        (to != NOWHERE).then_some(to as usize)
    }

    /// True if no writer may write now.
    #[inline]
    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }
}

/// The routes of all slots.
#[derive(Debug)]
pub(crate) struct Owners(Box<[AtomicU64]>);

impl Owners {
    pub(crate) fn new(owners: &[u16]) -> Self {
        Self(owners.iter().map(|owner| AtomicU64::new(Route::new(*owner, None).0)).collect())
    }

    /// The route of a key with this hash.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> Route {
        self.of_slot(slot_of(hash))
    }

    /// True for a record that a group shows: not the matrix's own, and of a slot of the group.
    pub(crate) fn shows(&self, group: u16, key: &[u8]) -> bool {
        !is_reserved(key) && self.of(hash_of(key)).owner() == usize::from(group)
    }

    #[inline]
    pub(crate) fn of_slot(&self, slot: usize) -> Route {
        Route(self.0[slot].load(Ordering::Acquire))
    }

    /// True if some slot has such a route.
    pub(crate) fn has(&self, is_so: impl Fn(Route) -> bool) -> bool {
        self.0.iter().any(|route| is_so(Route(route.load(Ordering::Acquire))))
    }

    /// A slot is at rest.
    pub(crate) fn settle(&self, slot: usize, owner: u16) {
        self.0[slot].store(Route::new(owner, None).0, Ordering::Release);
    }

    /// A slot moves.
    pub(crate) fn begin(&self, slot: usize, to: u16) {
        let owner = self.of_slot(slot).owner() as u16;
        self.0[slot].store(Route::new(owner, Some(to)).0, Ordering::Release);
    }

    /// From now on no writer begins to write to a slot that moves.
    pub(crate) fn freeze(&self, slot: usize) {
        self.0[slot].fetch_or(FROZEN, Ordering::AcqRel);
    }

    /// Writers may go on.
    pub(crate) fn thaw(&self, slot: usize) {
        self.0[slot].fetch_and(!FROZEN, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_moves_from_group_to_group() {
        let owners = Owners::new(&[0, 1]);
        let rest = owners.of_slot(1);
        assert_eq!((rest.owner(), rest.to(), rest.is_frozen()), (1, None, false));
        owners.begin(1, 2);
        assert_eq!((owners.of_slot(1).owner(), owners.of_slot(1).to()), (1, Some(2)));
        owners.freeze(1);
        assert!(owners.of_slot(1).is_frozen());
        owners.thaw(1);
        assert!(!owners.of_slot(1).is_frozen());
        owners.settle(1, 2);
        assert_eq!((owners.of_slot(1).owner(), owners.of_slot(1).to()), (2, None));
        assert_eq!(owners.of_slot(0).owner(), 0);
    }
}
