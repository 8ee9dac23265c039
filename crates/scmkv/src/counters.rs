//! Counters in stripes, one a thread, so that counting needs no locked instruction: such a one
//! would wait until all that the thread has flushed has left the processor. Threads beyond the
//! stripes share the last, and there additions are atomic: [`Count::Records`] must be exact.

use coreplane_pmem::thread_number;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicI64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    Hits,
    Misses,
    Puts,
    Deletes,
    Batches,
    UserBytes,
    LogBytes,
    CleanerBytes,
    CleanerPages,
    Expired,
    Records,
    Splits,
    /// Times that work in the background failed.
    BackgroundFailures,
    ScrubbedPages,
    DamagedPages,
    /// What lives of tombstones.
    TombstoneBytes,
}

const COUNTS: usize = Count::TombstoneBytes as usize + 1;
/// Stripes that are one thread's own; there is one more.
const OWN: usize = 64;

#[derive(Debug)]
pub(crate) struct Counters {
    stripes: Box<[CachePadded<[AtomicI64; COUNTS]>]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { stripes: (0..=OWN).map(|_| CachePadded::default()).collect() }
    }

    /// Adds `by`, which may be negative.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: i64) {
        let number = thread_number();
        let counter = &self.stripes[number.min(OWN)][count as usize];
        if number < OWN {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        } else {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, count: Count) -> i64 {
        self.stripes.iter().map(|stripe| stripe[count as usize].load(Ordering::Relaxed)).sum()
    }
}
