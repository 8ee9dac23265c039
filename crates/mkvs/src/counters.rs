//! What the matrix counts itself: what its users do, of which each device sees a part.

use coreplane_engine::Stats;
use coreplane_pmem::stripes::Stripes;

/// What is counted.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    Hits,
    Misses,
    Puts,
    Deletes,
    Batches,
    /// Reads that the filter answered.
    Denied,
    /// Reads of which the filter said "perhaps", and the devices had nothing.
    FalseHits,
    /// Reads that met a damaged record and went to a peer.
    DamagedReads,
    /// Filters that were made anew with more room.
    Growths,
}

const COUNTS: usize = Count::Growths as usize + 1;

/// The counters: exact, and without a locked instruction each.
#[derive(Debug, Default)]
pub(crate) struct Counters(Stripes<COUNTS>);

impl Counters {
    #[inline]
    pub(crate) fn add(&self, count: Count, by: i64) {
        self.0.add(count as usize, by);
    }

    /// Puts them into the counters that are shown.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        let get = |count: Count| self.0.get(count as usize).max(0) as u64;
        stats.hits = get(Count::Hits);
        stats.misses = get(Count::Misses);
        stats.puts = get(Count::Puts);
        stats.deletes = get(Count::Deletes);
        stats.batches = get(Count::Batches);
        stats.more.push(("filter_denied", get(Count::Denied)));
        stats.more.push(("filter_false_hits", get(Count::FalseHits)));
        stats.more.push(("damaged_reads", get(Count::DamagedReads)));
        stats.more.push(("filter_growths", get(Count::Growths)));
    }
}
