//! How far the live records have been counted since the store was opened.
//!
//! The counting takes two passes through all groups ([`census`](crate::clean::census)): the first
//! counts records, for which the slots alone suffice, the second counts their bytes, for which each
//! record is read. One bit in a group's lock says on which side of the current pass the group is,
//! since a pass begins only when the one before has visited all groups:
//!
//! ```text
//!   pass      a group with the mark      without it
//!   Records   nothing is counted         records are counted
//!   Bytes     records and bytes are      records are counted
//!   Done      all is counted             all is counted
//! ```
//!
//! So at the start of a pass the old reading and the new reading of every group agree, and a writer
//! that holds a group may still use the old one.

use super::{Index, Leaf, Slot};
use coreplane_engine::Result;
use coreplane_pmem::LINE;
use std::sync::atomic::{AtomicU8, Ordering};

/// The passes of the counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Pass {
    Records = 0,
    Bytes = 1,
    Done = 2,
}

/// The current pass.
#[derive(Debug)]
pub(super) struct Passes(AtomicU8);

impl Passes {
    pub(super) fn new(counted: bool) -> Self {
        Self(AtomicU8::new(if counted { Pass::Done } else { Pass::Records } as u8))
    }

    #[inline]
    pub(super) fn now(&self) -> Pass {
        match self.0.load(Ordering::Acquire) {
            0 => Pass::Records,
            1 => Pass::Bytes,
            _ => Pass::Done,
        }
    }
}

impl Index {
    /// The current pass of the counting.
    #[inline]
    pub(crate) fn pass(&self) -> Pass {
        self.passes.now()
    }

    /// Begins `pass`; the pass before it has visited all groups.
    pub(crate) fn begin_pass(&self, pass: Pass) {
        self.passes.0.fetch_max(pass as u8, Ordering::AcqRel);
    }

    /// The number of live records of a locked group, according to its slots.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn records_in(&self, leaf: Leaf, group: u32) -> Result<i64> {
        let start = leaf.offset() + u64::from(group) * self.shape.group_bytes();
        let mut records = 0;
        for bucket in 0..u64::from(self.shape.buckets) {
            let line = self.line(start + bucket * LINE as u64)?;
            let is_live = |slot: &Slot| slot.is_used() && !slot.is_tombstone();
            records += line.map(Slot).iter().filter(|slot| is_live(slot)).count() as i64;
        }
        Ok(records)
    }
}
