//! Counters of the matrix itself: operations of its users, of which each device sees a part.

use coreplane_engine::Stats;
use coreplane_pmem::stripes::Stripes;

/// The counted events.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    Puts,
    Deletes,
    Batches,
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

    /// Copies them to the counters that are shown.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        let get = |count: Count| self.0.get(count as usize).max(0) as u64;
        stats.puts = get(Count::Puts);
        stats.deletes = get(Count::Deletes);
        stats.batches = get(Count::Batches);
        stats.more.push(("damaged_reads", get(Count::DamagedReads)));
        stats.more.push(("filter_growths", get(Count::Growths)));
    }
}

/// How the reads of a group ended.
#[derive(Debug, Default)]
pub(crate) struct Asked(Stripes<4>);

/// The answer of a filter for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The group surely does not have it.
    No,
    /// It may.
    Perhaps,
    /// It was not asked.
    Nothing,
}

impl Asked {
    #[inline]
    pub(crate) fn note(&self, is_hit: bool, said: Said) {
        let at = match (is_hit, said) {
            (true, _) => 0,
            (false, Said::No) => 1,
            (false, Said::Perhaps) => 2,
            (false, Said::Nothing) => 3,
        };
        self.0.add(at, 1);
    }

    /// So many reads have found something.
    pub(crate) fn note_hits(&self, hits: i64) {
        self.0.add(0, hits);
    }

    /// Reads that found a record; that the filter answered; for which the filter said "perhaps", and the devices had
    /// nothing; and that found nothing on the devices, and for which no filter was asked.
    pub(crate) fn answered(&self) -> [u64; 4] {
        std::array::from_fn(|at| self.0.get(at).max(0) as u64)
    }
}
