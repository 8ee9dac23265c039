//! The counters of the engine.

use coreplane_pmem::stripes::Stripes;

/// The names of the counters.
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
    /// Failures of background work.
    BackgroundFailures,
    ScrubbedPages,
    DamagedPages,
    /// Slots of the index that were rebuilt from the logs, or removed.
    RepairedSlots,
    /// Bytes of live tombstones.
    TombstoneBytes,
}

const COUNTS: usize = Count::TombstoneBytes as usize + 1;

/// The counters: exact, and without a locked instruction each ([`Stripes`]).
#[derive(Debug)]
pub(crate) struct Counters(Stripes<COUNTS>);

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Stripes::default())
    }

    /// Adds `by`, which may be negative.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: i64) {
        self.0.add(count as usize, by);
    }

    pub(crate) fn get(&self, count: Count) -> i64 {
        self.0.get(count as usize)
    }
}

/// Comparisons that this thread has made, for tests of how their number grows.
#[cfg(test)]
pub(crate) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        static MADE: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn note() {
        MADE.set(MADE.get() + 1);
    }

    /// Those of `work`.
    pub(crate) fn of(work: impl FnOnce()) -> u64 {
        let before = MADE.get();
        work();
        MADE.get() - before
    }
}
