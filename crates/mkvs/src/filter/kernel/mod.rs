//! The accesses on which the filter rests, over any kind of atomic and any place for replaced values, so that a
//! model checker runs the same code as probes, writers and rebuilds.
//!
//! - `table`: lines of counters
//! - `gate`: which writers began before a point, and when they are gone
//! - `switch`: from one table to the next

mod gate;
mod switch;
mod table;

pub(super) use gate::{Gate, Stay};
pub(super) use switch::{Phase, Place, Switch};
pub use table::KEYS_PER_LINE;
pub(crate) use table::Table;

use coreplane_pmem::epoch::barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word.
pub(crate) trait Atomic {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    /// Replaces `current` by `new` (relaxed), or returns the present value; may fail without a reason.
    fn replace(&self, current: u64, new: u64) -> Result<u64, u64>;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// The fence between a change of a thread and a load that must not come before it; for the side that fences
    /// far more often. Pairs with [`Self::heavy`].
    fn light();
    fn heavy();
}

impl Atomic for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn replace(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn light() {
        barrier::light();
    }

    fn heavy() {
        barrier::heavy();
    }
}

#[cfg(test)]
mod tests;
