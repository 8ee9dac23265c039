//! The options of a simulation.

use super::fault::Fault;
use super::machine::Model;
use crate::dram::processors;
use crate::space::SpaceOptions;
use std::ops::Range;

/// The options of a simulation. Start from [`SimOptions::default`]: 64 KiB in pages of 4 KiB.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// The number of spaces, each with its own pool, that lose power at the same moment; each file
    /// has its own syncs. Several spaces cannot grow.
    pub spaces: usize,
    /// The initial bytes of a space.
    pub len: u64,
    /// Bytes up to which it may grow; beyond that growth is refused.
    pub max_len: u64,
    /// Bytes of a page.
    pub page_size: u32,
    /// Each space has its own domain of epochs: only its own readers, which pin by
    /// [`Space::pin`](crate::Space::pin), decide when it reuses a page.
    pub own_epochs: bool,
    /// The rules of the medium.
    pub model: Model,
    /// Decides which images are sampled and how threads are scheduled.
    pub seed: u64,
    /// The most images of a cut.
    pub images_per_cut: usize,
    /// Cut before every store, too: for tiny workloads.
    pub cut_at_stores: bool,
    /// Where an operation has very many cuts, which are alike, one in this many is checked, chosen by the seed; and the
    /// first 64 and the last 64. The report counts these cuts.
    pub cut_in: usize,
    /// For one image in this many, recovery is cut, too; 0 for none.
    pub recovery_cut_in: usize,
    /// The most images of a cut within recovery.
    pub images_per_recovery_cut: usize,
    /// Threads that check images.
    pub checkers: usize,
    /// Appends go past the caches where the program leaves the choice to the medium.
    pub non_temporal: bool,
    /// Report loads of bytes that another thread has stored and not made durable.
    pub early_reads: bool,
    /// Where such loads are allowed.
    pub early_reads_allowed: Vec<Range<u64>>,
    /// A fault in the run.
    pub fault: Option<Fault>,
    /// A fault in every recovery that is cut.
    pub recovery_fault: Option<Fault>,
    /// The sync with this number fails, and so do all after it ([`Model::File`]). Syncs are counted
    /// from 1 within the run, separately for each space, whichever thread requested them.
    pub failing_sync: Option<u64>,
    /// The range that a probe reports as unreadable. Loads from it still succeed.
    pub unreadable: Option<Range<u64>>,
    /// Stop after this many violations.
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
            cut_in: 1,
            recovery_cut_in: 16,
            images_per_recovery_cut: 8,
            checkers: processors::available(),
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
    /// The options of each space.
    pub(super) fn of_space(&self) -> SpaceOptions {
        SpaceOptions {
            page_size: self.page_size,
            reserve: self.max_len.max(self.len),
            own_epochs: self.own_epochs,
        }
    }
}
