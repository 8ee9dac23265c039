//! The counters of the engine.

use coreplane_pmem::stripes::Stripes;

/// The counters.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    Hits,
    Misses,
    Puts,
    Deletes,
    Batches,
    Expired,
    UserBytes,
    /// Bytes of records that were appended to leaves.
    LogBytes,
    /// Bytes of records that were rewritten with their leaf.
    CopiedBytes,
    Records,
    LiveBytes,
    Splits,
    Rewrites,
    Merges,
    ScrubbedPages,
    DamagedPages,
}

const COUNTS: usize = Count::DamagedPages as usize + 1;

/// The counters: exact, and without a locked instruction for each ([`Stripes`]).
#[derive(Debug, Default)]
pub(crate) struct Counters(Stripes<COUNTS>);

impl Counters {
    /// Adds `by`, which may be negative.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: i64) {
        self.0.add(count as usize, by);
    }

    /// As [`Counters::add`], for several.
    #[inline]
    pub(crate) fn add_all<const COUNT: usize>(&self, added: [(Count, i64); COUNT]) {
        self.0.add_all(added.map(|(count, by)| (count as usize, by)));
    }

    pub(crate) fn get(&self, count: Count) -> i64 {
        self.0.get(count as usize)
    }
}
