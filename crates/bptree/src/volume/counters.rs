//! The counters of the engine.

use coreplane_pmem::mutant;
use coreplane_pmem::stripes::Stripes;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Leaves that lost records, each counted for a sixteenth of its page or places.
    Shrunk,
    ScrubbedPages,
    DamagedPages,
}

const COUNTS: usize = Count::DamagedPages as usize + 1;

/// The counters: exact, and without a locked instruction for each ([`Stripes`]).
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stripes: Stripes<COUNTS>,
    /// Damage was found, so that it is unknown how many of the counted records there are, or which pages are free.
    are_unsure: AtomicBool,
}

impl Counters {
    /// Adds `by`, which may be negative.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: i64) {
        self.stripes.add(count as usize, by);
    }

    /// As [`Counters::add`], for several.
    #[inline]
    pub(crate) fn add_all<const COUNT: usize>(&self, added: [(Count, i64); COUNT]) {
        self.stripes.add_all(added.map(|(count, by)| (count as usize, by)));
    }

    pub(crate) fn get(&self, count: Count) -> i64 {
        self.stripes.get(count as usize)
    }

    /// Notes that records were lost that are counted, or may be; or that pages are in use that nothing leads to.
    #[cold]
    pub(crate) fn be_unsure(&self) {
        self.are_unsure.store(true, Ordering::Relaxed);
    }

    /// True if the next open has to count the records, and to find the free pages.
    pub(crate) fn are_unsure(&self) -> bool {
        self.are_unsure.load(Ordering::Relaxed) && !mutant!("bptree.close.counts")
    }
}
