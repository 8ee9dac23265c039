//! The same work for every store: the YCSB workloads, and the floors that physics sets.
//!
//! A benchmark that does not look at what it reads measures how fast a store can be wrong. Here a
//! value is computed from its key and a version that it carries ([`record`]), and every hit is
//! computed again and compared; a value that is not what it must be ends the run.
//!
//! ```text
//!   Plan ──► choices of each thread, drawn beforehand ──► threads ──► Session of a Target
//!                                                            │
//!                                       histogram each ──► Report, one a phase
//! ```
//!
//! A [`Target`] is anything with get and put: an [`Engine`](coreplane_engine::Engine)
//! ([`EngineTarget`]), another store, or the [`Floor`], which only moves the bytes that any store
//! must move. All run in the same loop, so that its own cost is the same for all.
//!
//! # What the loop costs
//!
//! The records to touch are drawn before the clock starts. A thread then makes, per operation, a
//! key, a value or a copy of one and its check; it allocates nothing. One operation in 17 is timed
//! for the percentiles: reading the clock around each would cost more than it measures. The rate
//! is that of all operations, from the first thread's first to the last thread's last.

mod bay;
mod choice;
mod commit_group;
mod commits;
mod competition;
mod drive;
mod error;
mod filter;
mod floor;
mod interference;
mod map_work;
mod memory;
mod occupancy;
mod plan;
mod processors;
pub mod record;
mod report;
mod resync;
mod stall;
mod target;
mod turnover;
mod workload;

pub use bay::DeviceEngine;
pub use choice::Distribution;
pub use commits::{CommitsReport, run_commits};
pub use competition::{CompetitionReport, Jitter, competition};
pub use drive::run;
pub use error::{Error, Result};
pub use filter::{FilterReport, run_filter};
pub use floor::{Floor, FloorIndex, FloorRoom};
pub use interference::{InterferenceReport, run_interference};
pub use map_work::MapWork;
pub use memory::Dram;
pub use occupancy::{
    OccupancyReport, OverwriteReport, Sweep, load_until_full, overwrite_for, overwrite_share,
};
pub use plan::Plan;
pub use report::Report;
pub use resync::{Refill, ResyncEnd, ResyncReport, resync};
pub use target::{Costs, EngineTarget, Session, Target};
pub use turnover::{TurnoverReport, run_turnover};
pub use workload::{Step, Workload};
