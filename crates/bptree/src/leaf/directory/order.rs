//! The places of a leaf in the order of their keys: for scans, made by the first that comes when
//! there are more places than it has.
//!
//! A place has one key for as long as the leaf lives, so that the order of the first places stays
//! right whatever is written to them. Those that came since are behind it, until a scan brings all
//! into order.

use super::PLACES;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A byte for each place; the bytes have a line of their own in the directory.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Order {
    /// How many places are in order; 0 while that is changed.
    len: AtomicU64,
    places: [AtomicU64; PLACES / 8],
}

/// A bit for each of the first places.
#[inline]
fn first_bits(places: usize) -> u64 {
    if places >= PLACES { u64::MAX } else { (1 << places) - 1 }
}

impl Order {
    /// The first `len` places are in the order of their keys; of a leaf that nobody else knows.
    pub(super) fn begin(&self, len: u32) {
        const FIRST: u64 = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        for (at, word) in (0_u8..).zip(&self.places) {
            word.store(FIRST + u64::from_le_bytes([8 * at; 8]), Ordering::Relaxed);
        }
        self.len.store(u64::from(len), Ordering::Relaxed);
    }

    /// The places in order, and behind them the others of `used`; how many are in order.
    pub(super) fn read(&self, used: u64, places: &mut [u8; PLACES]) -> usize {
        let len = self.len.load(Ordering::Acquire);
        for (bytes, word) in places.chunks_exact_mut(8).zip(&self.places) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        // What was loaded before this is not loaded after the number.
        fence(Ordering::Acquire);
        let is_whole = self.len.load(Ordering::Relaxed) == len;
        let ordered = if is_whole { len as usize } else { 0 };
        let (mut to, mut rest) = (ordered, used & !first_bits(ordered));
        while rest != 0 && to < PLACES {
            places[to] = rest.trailing_zeros() as u8;
            rest &= rest - 1;
            to += 1;
        }
        ordered
    }

    /// The place that is the `at`-th, if they are in order.
    #[inline]
    pub(super) fn likely(&self, at: usize) -> usize {
        let eight = self.places[at / 8 % (PLACES / 8)].load(Ordering::Relaxed);
        (eight >> (8 * (at % 8))) as usize % PLACES
    }

    /// Keeps an order of more places than there was one of. Under the lock of the leaf.
    pub(super) fn keep(&self, places: &[u8]) {
        // A leaf gets more places and never fewer, so that no two orders of as many differ.
        if self.len.load(Ordering::Relaxed) as usize >= places.len() {
            return;
        }
        self.len.store(0, Ordering::Relaxed);
        // No store of the change before this one: who has seen any of it sees that.
        fence(Ordering::Release);
        for (bytes, word) in places.chunks(8).zip(&self.places) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        self.len.store(places.len() as u64, Ordering::Release);
    }
}
