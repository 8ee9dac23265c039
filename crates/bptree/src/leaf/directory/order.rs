//! The places of a leaf in the order of their keys, for scans; made by the first scan that finds more places than
//! the order has.
//!
//! A place has the same key for as long as the leaf lives, so that the order of the first places stays right when
//! records are overwritten. Newer places follow behind it, until a scan brings all places into order.

use crate::leaf::{PLACES, PlaceSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// A byte for each place. The number of ordered places is beside it in the directory; it is 0 while the order is
/// changed.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Order([[AtomicU64; 8]; PLACES / 64]);

impl Default for Order {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

impl Order {
    fn words(&self) -> &[AtomicU64] {
        self.0.as_flattened()
    }

    /// Prefetches the order.
    #[inline]
    pub(super) fn prefetch(&self) {
        self.0.iter().for_each(coreplane_pmem::arch::prefetch);
    }

    /// The first places are in the order of their keys; for a leaf that no other thread knows.
    pub(super) fn begin(&self) {
        const FIRST: u64 = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        for (at, word) in (0_u8..).zip(self.words()) {
            word.store(FIRST + u64::from_le_bytes([8 * at; 8]), Ordering::Relaxed);
        }
    }

    /// Writes the places in order, and behind them the others of `used`; returns how many are in order.
    pub(super) fn read(&self, len: &AtomicU8, used: PlaceSet, places: &mut [u8; PLACES]) -> usize {
        let ordered = len.load(Ordering::Acquire);
        for (bytes, word) in places.chunks_exact_mut(8).zip(self.words()) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        // Earlier loads are not reordered after the load of the number.
        fence(Ordering::Acquire);
        let is_whole = len.load(Ordering::Relaxed) == ordered;
        let ordered = if is_whole { usize::from(ordered) } else { 0 };
        let others = used.without(PlaceSet::first(ordered));
        for (to, place) in places.iter_mut().skip(ordered).zip(others) {
            *to = place as u8;
        }
        ordered
    }

    /// The `at`-th place, if they are in order.
    #[inline]
    pub(super) fn likely(&self, at: usize) -> usize {
        let eight = self.words()[at / 8 % (PLACES / 8)].load(Ordering::Relaxed);
        (eight >> (8 * (at % 8))) as usize % PLACES
    }

    /// Keeps an order of more places than the present one has. Under the lock of the leaf.
    pub(super) fn keep(&self, len: &AtomicU8, places: &[u8]) {
        // A leaf gets more places and never fewer, so that two orders of the same length do not differ.
        if usize::from(len.load(Ordering::Relaxed)) >= places.len() {
            return;
        }
        len.store(0, Ordering::Relaxed);
        // No store of the change moves before this one: a reader that sees any of the change sees the 0.
        fence(Ordering::Release);
        for (bytes, word) in places.chunks(8).zip(self.words()) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        len.store(places.len() as u8, Ordering::Release);
    }
}
