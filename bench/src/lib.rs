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
//! key, a value or the check of one, one reading of the clock and one count in its histogram; it
//! allocates nothing. An operation's latency is from one reading to the next, these costs (some
//! tens of nanoseconds) included.

mod choice;
mod drive;
mod error;
mod floor;
mod plan;
pub mod record;
mod report;
mod target;
mod workload;

pub use choice::Distribution;
pub use drive::run;
pub use error::{Error, Result};
pub use floor::{Floor, FloorIndex};
pub use plan::Plan;
pub use report::Report;
pub use target::{Costs, EngineTarget, Session, Target};
pub use workload::Workload;
