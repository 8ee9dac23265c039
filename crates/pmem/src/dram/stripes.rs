//! Counters in stripes, one per thread, so that counting needs no locked instruction, which would
//! wait until all flushes of the thread have left the processor. Threads beyond the number of
//! stripes share the last one, where additions are atomic: no count is ever lost.

use crate::thread_number;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicI64, Ordering};

/// Stripes that belong to one thread each; there is one more.
const OWN: usize = 64;

/// `N` counters.
#[derive(Debug)]
pub struct Stripes<const N: usize> {
    stripes: Box<[CachePadded<[AtomicI64; N]>]>,
}

impl<const N: usize> Default for Stripes<N> {
    fn default() -> Self {
        let stripe = |_| CachePadded::new(std::array::from_fn(|_| AtomicI64::new(0)));
        Self { stripes: (0..=OWN).map(stripe).collect() }
    }
}

impl<const N: usize> Stripes<N> {
    /// Adds `by`, which may be negative, to counter `at`.
    #[inline]
    pub fn add(&self, at: usize, by: i64) {
        self.add_all([(at, by)]);
    }

    /// As [`Stripes::add`], for several counters.
    #[inline]
    pub fn add_all<const COUNT: usize>(&self, added: [(usize, i64); COUNT]) {
        let number = thread_number();
        let stripe = &self.stripes[number.min(OWN)];
        for (at, by) in added {
            let counter = &stripe[at];
            if number < OWN {
                counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
            } else {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    /// The value of counter `at`.
    pub fn get(&self, at: usize) -> i64 {
        self.stripes.iter().map(|stripe| stripe[at].load(Ordering::Relaxed)).sum()
    }
}
