//! The statistics of the store.

use crate::store::Store;
use crate::table::counters::Count;
use crate::table::index::Pass;
use coreplane_engine::Stats;
use std::sync::atomic::Ordering;

impl Store {
    /// The counters, and the space in use.
    pub(crate) fn stats(&self) -> Stats {
        // So that callers find their own writes in the counters. Writes that cannot be committed
        // were not made.
        let _counted = self.see_all_staged().is_ok();
        let count = |count| self.counters.get(count).max(0) as u64;
        let (flushes, fences) = self.space.flushes_and_fences();
        let mut stats = Stats::default();
        stats.hits = count(Count::Hits);
        stats.misses = count(Count::Misses);
        stats.puts = count(Count::Puts);
        stats.deletes = count(Count::Deletes);
        stats.batches = count(Count::Batches);
        stats.user_bytes_written = count(Count::UserBytes);
        stats.log_bytes_written = count(Count::LogBytes);
        stats.cleaner_bytes_copied = count(Count::CleanerBytes);
        stats.cleaner_pages_freed = count(Count::CleanerPages);
        stats.flushes = flushes;
        stats.fences = fences;
        stats.records = count(Count::Records);
        stats.pool_bytes = self.pool_bytes();
        stats.free_bytes = u64::from(self.pages.free_len()) * u64::from(self.space.page_size());
        stats.live_bytes = self.live_bytes();
        stats.dram_bytes =
            self.index.dram_bytes() + self.pages.dram_bytes() + self.space.dram_bytes();
        stats.expired = count(Count::Expired);
        stats.more = vec![
            ("index_splits", count(Count::Splits)),
            ("records_are_counted", u64::from(self.index.pass() > Pass::Records)),
            ("bytes_are_counted", u64::from(self.census_done.load(Ordering::Acquire))),
            ("background_failures", count(Count::BackgroundFailures)),
            ("scrubbed_pages", count(Count::ScrubbedPages)),
            ("damaged_pages", count(Count::DamagedPages)),
            ("repaired_slots", count(Count::RepairedSlots)),
        ];
        if !self.index.in_pool() {
            let log_bytes = self.counters.get(Count::LogBytes);
            stats.more.extend(self.checkpoints.stats(log_bytes));
        }
        stats
    }
}
