//! Coreplane as a library: a map on persistent memory, every write of which is durable when it returns.
//!
//! ```
//! use coreplane::{Db, EngineChoice};
//!
//! # let dir = tempfile::tempdir()?;
//! let path = "/dev/shm/people.pool";
//! # let path = &dir.path().join("people.pool");
//! # let small = coreplane::StoreConfig::at(path).engine(EngineChoice::Bptree).size(16 << 20);
//! # small.create_db()?.close()?;
//! let db = Db::open_or_create(path, EngineChoice::Bptree)?;
//! db.put("user:1", "Ada")?; // durable when it returns
//! assert_eq!(db.get("user:1")?.as_deref(), Some(&b"Ada"[..]));
//! assert!(!db.put_if_absent("user:1", "Bob")?.is_written()); // there is somebody already
//! db.batch().put("user:2", "Grace").delete("user:1").commit()?; // both or neither
//! for entry in db.prefix("user:")? {
//!     let (key, value) = entry?;
//!     println!("{} is {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Db`] is a handle for any number of threads. Below it is a pool, a file on some medium, or a directory with a
//! pool for each device of a matrix. A [`StoreConfig`] sets the engine, the medium, the size, and when a write is
//! durable:
//!
//! | engine | its keys | for |
//! |---|---|---|
//! | [`EngineChoice::Scmkv`] | in no order: `range`, `prefix` fail | the fastest reads and writes of single keys |
//! | [`EngineChoice::Bptree`] | in order | ranges and prefixes |
//! | [`EngineChoice::Map`] | in order | snapshots, by [`Engine::snapshots`] |
//! | any of them, with [`StoreConfig::matrix`] | as its devices | a store that goes on when a device is lost |
//!
//! Programs to begin with are in `examples/`: `first_steps`, `counter`, `ordered_index`, `device_loss`, `visits`.
//!
//! # Guarantees
//!
//! - A write that returned is as durable as [`StoreConfig::durability`] states, on the medium that [`Db::medium`]
//!   names. [`Db::power_cut_loses`] states both together, in words.
//! - A pool is open once: a second opener, in this process or another, gets an error.
//! - A store that was not closed because its process was killed loses nothing; its next open recovers.
//! - Bad input, a full pool and damage are errors, never a panic; [`Error::remedy`] states what to do about each.
//!
//! # Below
//!
//! [`Db`] is built on the contract that every engine keeps, [`Engine`] and the traits beside it: tickets, snapshots,
//! sequences, records in place. [`Store`] is an engine with the facts about its medium and its index; [`admin`] is
//! for its maintenance.

pub mod admin;
mod admin_job;
mod config;
mod db;
mod geometry;
mod lost_ranges;
mod matrix;
mod repair;
mod store;

pub use config::{EngineChoice, SIZE_DEFAULT, StoreConfig};
pub use coreplane_engine::{
    Batch, Change, ChangeRef, Clear, Completion, Deferred, DeviceStats, Durability,
    DurableListener, Engine, Entry, Error, Expected, Found, GroupStats, Horizon, Latency, Limits,
    Mutation, Ordered, Outcome, Record, Remedy, Result, Snapshot, Snapshots, Stats, StorageEngine,
    Ticket, UnixMillis, Value, Visibility, WriteOptions, Written,
};
pub use coreplane_mkvs::{Ack, Prototype, ReadPath};
pub use coreplane_mvcc::MapKind;
pub use coreplane_pmem::{MediaChoice, Medium};
pub use coreplane_scmkv::Placement;
pub use db::{Db, Iter, Range, WriteBatch};
pub use matrix::MatrixShape;
pub use store::Store;
