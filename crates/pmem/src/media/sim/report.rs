//! The result of an exploration.

use super::machine::{EarlyRead, SyncStage};
use std::fmt;

/// A crash image with a wrong recovery.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// The number of events of the run before the power cut.
    pub cut: usize,
    /// The number of events of recovery before the second power cut.
    pub cut_in_recovery: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// Which stores were kept and lost, and the history.
    pub story: String,
    /// The token from which [`replay`](super::replay) makes exactly this image again.
    pub token: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.message)?;
        write!(f, "  seed {}, power cut after event {}", self.seed, self.cut)?;
        if let Some(cut) = self.cut_in_recovery {
            write!(f, ", and again after event {cut} of recovery")?;
        }
        writeln!(f, "\n{}  replay: {}", self.story, self.token)
    }
}

/// Cuts while the sync of a drawn generation had not ended ([`Model::File`](super::Model::File)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncCuts {
    /// The sync was not requested.
    pub drawn: u64,
    /// It was requested and had not begun.
    pub requested: u64,
    /// It had begun.
    pub under_way: u64,
}

impl SyncCuts {
    pub(super) fn count(&mut self, stage: Option<SyncStage>) {
        match stage {
            None => {}
            Some(SyncStage::Drawn) => self.drawn += 1,
            Some(SyncStage::Requested) => self.requested += 1,
            Some(SyncStage::UnderWay) => self.under_way += 1,
        }
    }

    fn merge(&mut self, other: Self) {
        self.drawn += other.drawn;
        self.requested += other.requested;
        self.under_way += other.under_way;
    }

    /// True if the power was cut in each of these states.
    pub fn are_all_there(&self) -> bool {
        self.drawn.min(self.requested).min(self.under_way) > 0
    }
}

/// The result of an exploration.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Places at which the power was cut.
    pub cuts: u64,
    /// Of these, the cuts with an outstanding sync whose generation was drawn.
    pub sync_cuts: SyncCuts,
    /// Different crash images checked (including those within recovery).
    pub images: u64,
    /// Of these, images of a power cut within recovery.
    pub recovery_images: u64,
    /// Images that were the same as one checked before with the same history.
    pub duplicates: u64,
    /// Events of the run.
    pub events: u64,
    /// Images with a wrong recovery.
    pub violations: Vec<Violation>,
    /// Loads of bytes that another thread had not made durable.
    pub early_reads: Vec<EarlyRead>,
    /// How often the baton was taken by the clock from a thread that did not proceed: above 0 a
    /// replay may differ.
    pub forced_switches: u64,
}

impl Report {
    /// Adds the result of another exploration.
    pub fn merge(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.sync_cuts.merge(other.sync_cuts);
        self.images += other.images;
        self.recovery_images += other.recovery_images;
        self.duplicates += other.duplicates;
        self.events += other.events;
        self.violations.extend(other.violations);
        self.early_reads.extend(other.early_reads);
        self.forced_switches += other.forced_switches;
    }

    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.early_reads.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} images ({} within recovery) at {} cuts of {} events, {} duplicates: {} violations, \
             {} early reads",
            self.images,
            self.recovery_images,
            self.cuts,
            self.events,
            self.duplicates,
            self.violations.len(),
            self.early_reads.len()
        )?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "{violation}"))?;
        self.early_reads.iter().take(8).try_for_each(|early| {
            writeln!(
                f,
                "early read: thread {} at {:#x} saw store #{} of thread {}",
                early.thread, early.offset, early.store, early.stored_by
            )
        })
    }
}
