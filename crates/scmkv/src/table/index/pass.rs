//! How far what lives has been counted since the store was opened.
//!
//! What is counted is counted in two passes through all groups ([`census`](crate::clean::census)): first
//! the records, for which the slots alone say enough, then what they take, for which each record
//! is looked at. One bit in a group's lock says on which side of the pass under way the group is,
//! since a pass begins only when the one before has been everywhere:
//!
//! ```text
//!   pass      a group with the mark      without it
//!   Records   nothing is counted         its records are
//!   Bytes     its bytes are, too         its records are
//!   Done      all is counted             all is counted
//! ```
//!
//! So at the turn of a pass every group says the same by the old reading and by the new one, and
//! a writer that holds a group may still read it the old way.

use super::{Index, Leaf, Slot};
use coreplane_engine::Result;
use coreplane_pmem::LINE;
use std::sync::atomic::{AtomicU8, Ordering};

/// What is being counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Pass {
    Records = 0,
    Bytes = 1,
    Done = 2,
}

/// The pass under way.
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
    /// What is being counted.
    #[inline]
    pub(crate) fn pass(&self) -> Pass {
        self.passes.now()
    }

    /// The pass before `pass` has been to all groups.
    pub(crate) fn begin_pass(&self, pass: Pass) {
        self.passes.0.fetch_max(pass as u8, Ordering::AcqRel);
    }

    /// The live records of a locked group, as its slots have them.
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
