//! Coreplane as a library: one configuration opens any store.
//!
//! A store is an [`Engine`] over a pool, and a pool is a file on some medium. Which engine, which
//! medium, where the index lies and when a write is durable are five words in a [`StoreConfig`];
//! what comes back is a [`Store`]: an `Arc<dyn StorageEngine>`, and the facts about what it rests on.
//!
//! ```no_run
//! use coreplane::{Engine, StoreConfig, WriteOptions};
//!
//! # fn main() -> coreplane::Result<()> {
//! let store = StoreConfig::at("/dev/shm/greetings.pool").size(1 << 30).open_or_create()?;
//! store.engine().put(b"greeting", b"hello", &WriteOptions::default())?;
//! println!("a power cut would lose {}", store.power_cut_loses());
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - A write that returned is as durable as [`StoreConfig::durability`] says, on the medium that
//!   [`Store::medium`] names. [`Store::power_cut_loses`] is both together, in words.
//! - A pool is open once: a second opener, in this process or another, gets an error.
//! - A store that is dropped without [`Store::close`] loses nothing; its next open recovers.

mod admin_job;
mod config;
mod geometry;
mod lost_ranges;
mod matrix;
mod store;

pub use admin_job::{Doing, Done, Failed, MatrixFacts, MatrixStatus, MatrixStore, Work};
pub use config::{EngineChoice, SIZE_DEFAULT, StoreConfig};
pub use coreplane_engine::{
    Batch, Completion, Deferred, Durability, Engine, Entry, Error, Expected, KeyRange, Mutation,
    Outcome, Progress, Record, Remedy, Repairable, Replicated, Result, Stats, StorageEngine,
    UnixMillis, Value, VerifyReport, Visibility, WriteOptions,
};
pub use coreplane_mkvs::{
    Ack, Copied, CopyOptions, DamageSummary, Departure, Loss, MemberState, Position, Prototype,
    ReadPath, Scrubbed, WritePath, is_own_key,
};
pub use coreplane_mvcc::MapKind;
pub use coreplane_pmem::{MediaChoice, Medium};
pub use coreplane_scmkv::{Fate, Finding, Placement, Repair, Tell};
pub use geometry::{pool_fan_out as fan_out_at, pool_page_size as page_size_at};
pub use matrix::MatrixShape;
pub use store::{Store, pool_engine as engine_at};
