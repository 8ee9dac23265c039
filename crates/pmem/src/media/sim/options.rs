//! How a simulation runs.

use super::fault::Fault;
use super::machine::Model;
use crate::space::SpaceOptions;
use std::ops::Range;

/// How a simulation runs. Start from [`SimOptions::default`]: 64 KiB in pages of 4 KiB.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Spaces, each of its own pool, that lose power at the same moment; files have each their own
    /// syncs. Several do not grow.
    pub spaces: usize,
    /// Bytes of a space at first.
    pub len: u64,
    /// Bytes up to which it may grow; beyond that growth is refused.
    pub max_len: u64,
    /// Bytes of a page.
    pub page_size: u32,
    /// Each space has a domain of epochs to itself: when it uses a page again is decided by its own readers
    /// alone, which pin by [`Space::pin`](crate::Space::pin).
    pub own_epochs: bool,
    /// Which laws the medium obeys.
    pub model: Model,
    /// Decides which images are sampled and how threads are scheduled.
    pub seed: u64,
    /// At most so many images a cut.
    pub images_per_cut: usize,
    /// Cut before every store too: for tiny workloads.
    pub cut_at_stores: bool,
    /// One image in so many is cut again within its recovery; 0 for none.
    pub recovery_cut_in: usize,
    /// At most so many images a cut within recovery.
    pub images_per_recovery_cut: usize,
    /// Threads that check images.
    pub checkers: usize,
    /// Appends go past the caches, where the program leaves the choice to the medium.
    pub non_temporal: bool,
    /// Report loads of what another thread has not made durable.
    pub early_reads: bool,
    /// Where such loads are allowed.
    pub early_reads_allowed: Vec<Range<u64>>,
    /// A fault in the run.
    pub fault: Option<Fault>,
    /// A fault in every recovery that is cut.
    pub recovery_fault: Option<Fault>,
    /// The sync with this number fails, and so do all after it ([`Model::File`]). They count from
    /// 1 over those of the run, of each space by itself, whoever asked for them.
    pub failing_sync: Option<u64>,
    /// What a probe says cannot be loaded. Whoever loads it all the same is not stopped.
    pub unreadable: Option<Range<u64>>,
    /// Stop after so many violations.
    pub max_violations: usize,
    /// Shrink violations (some hundred more recoveries for each).
    pub shrink: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            spaces: 1,
            len: 64 << 10,
            max_len: 64 << 10,
            page_size: 4096,
            own_epochs: false,
            model: Model::X86,
            seed: 1,
            images_per_cut: 64,
            cut_at_stores: false,
            recovery_cut_in: 16,
            images_per_recovery_cut: 8,
            checkers: std::thread::available_parallelism().map_or(1, usize::from),
            non_temporal: false,
            early_reads: true,
            early_reads_allowed: Vec::new(),
            fault: None,
            recovery_fault: None,
            failing_sync: None,
            unreadable: None,
            max_violations: 3,
            shrink: true,
        }
    }
}

impl SimOptions {
    /// How each space is made.
    pub(super) fn of_space(&self) -> SpaceOptions {
        SpaceOptions {
            page_size: self.page_size,
            reserve: self.max_len.max(self.len),
            own_epochs: self.own_epochs,
        }
    }
}
