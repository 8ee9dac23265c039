//! Counters in stripes, so that threads seldom meet in a cache line. The additions are atomic:
//! thread numbers wrap around the stripes, and [`Count::Records`] must be exact.

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
}

const COUNTS: usize = Count::Splits as usize + 1;
const STRIPES: usize = 64;

#[derive(Debug)]
pub(crate) struct Counters {
    stripes: Box<[CachePadded<[AtomicI64; COUNTS]>]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| CachePadded::default()).collect() }
    }

    /// Adds `by`, which may be negative.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: i64) {
        self.stripes[thread_number() % STRIPES][count as usize].fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> i64 {
        self.stripes.iter().map(|stripe| stripe[count as usize].load(Ordering::Relaxed)).sum()
    }
}
