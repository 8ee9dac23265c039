//! SCMKV: a log-structured hash engine, point reads and writes at the speed of the medium.
//!
//! ```text
//!   key ─hash─▶ index: one line of 8 slots ─tag, offset─▶ record in a log page
//!                                                          ▲
//!   put:  append to this thread's log ─ flush ─ fence ─────┘ then store the slot
//! ```
//!
//! The paper (Wang, Huang, Zhu: *SCMKV: A Lightweight Log-Structured Key-Value Store on SCM*,
//! NPC 2018) gives the shape: pages of 2 MiB, a log and an allocator per thread, a page
//! information table, 16-bit tags, checksums, cost-benefit cleaning, one recovery thread per
//! unclean log. Each module says what it keeps of the paper and where it departs, since the paper
//! acknowledges what is not durable, lets readers see it, keeps its lock bits in persistent
//! memory, never deletes and never grows.
//!
//! - `record`, `log`: what is written, and in which order it becomes durable
//! - `page`: what each page holds
//! - `index`, `hash`: where a key's record is
//! - `get`, `put`, `batch`: the operations
//! - `overflow`: large values
//! - `clean`, `victim`, `appraisal`, `reserve`: giving space back, and who may take it
//! - `checkpoint`: a copy of the index that is in DRAM
//! - `recover`, `census`, `verify`: after a crash
//! - `quarantine`: pages that may have lost something
//! - `sweep_expired`: what has expired and nobody looks at
//! - `scrub`, `reindex`, `dead_damage`: damage at rest, of records and of the index
//! - `repair`: what to do about damage
//!
//! **The log is the truth.** Everything else can be made from it.

mod clean;
mod engine;
mod read;
mod recovery;
mod store;
mod table;
mod upkeep;
mod write;

pub use coreplane_engine::TimeSource;
pub use engine::Scmkv;
pub use recovery::open::{KIND, Options, Placement};
pub use table::geometry::Geometry;
pub use upkeep::repair::{Fate, Finding, Repair, Tell};
