//! The same work on other stores, and on the floors: what `coreplane bench` does, done here by
//! peers.
//!
//! A comparison is worth what its least fair part is worth. So the driver, the records, the draws
//! and the checks are those of [`coreplane_bench`]; a peer is only a [`Target`]. Each comes in two
//! settings ([`Safety`]): the fastest one that survives a kill of its process, and the one in which
//! a write returns when a power cut cannot take it back. Each gets memory enough to hold
//! everything, no compression (the values are random), Bloom filters where it has them, and its
//! makers' own preset for point lookups where there is one; what it was given is printed with each
//! result ([`Peer::settings`]).
//!
//! | peer | survives a kill | survives a power cut |
//! |---|---|---|
//! | `rocksdb` | log written to the kernel at each write | and synced |
//! | `leveldb` | the same | and synced |
//! | `lmdb` | `MDB_WRITEMAP` and `MDB_NOSYNC` | synced commits, with or without the write map |
//! | `redb` | immediate commits on a backend whose sync does nothing | immediate commits |
//! | `fjall` | journal written to the kernel at each write | and synced |
//!
//! Servers are peers too ([`server`]): redis-server, memcached, and ours.
//!
//! redb's own `Durability::None` is not among them: such commits are rolled back after a kill.
//!
//! On tmpfs a sync costs a system call and keeps nothing; the second setting then shows what the
//! protocol costs, and nothing is power-safe. Which file system it is, the caller knows.

mod adapter;
mod fjall;
mod floors;
mod leveldb;
mod lmdb;
mod redb;
mod rocksdb;
mod wire;

use adapter::{Adapted, Adapter};
use coreplane_bench::{Error, FloorRoom, Plan, Result, Step, Target};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

/// What a write that returned survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Safety {
    /// A kill of the process, at the fastest setting that does.
    Kill,
    /// A power cut, as far as the file system keeps what it syncs.
    Power,
}

impl Safety {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Power => "power",
        }
    }
}

impl FromStr for Safety {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "kill" => Ok(Self::Kill),
            "power" => Ok(Self::Power),
            _ => Err(format!("`{text}` is none of kill, power")),
        }
    }
}

/// A store that is open, empty at first.
pub trait Peer: Target {
    /// What it was given: versions, sizes, switches.
    fn settings(&self) -> Value;
}

/// The names of [`open`].
pub const NAMES: [&str; 10] = [
    "floor-pmem",
    "floor-dram",
    "floor-pmem-seen",
    "floor-dram-seen",
    "rocksdb",
    "leveldb",
    "lmdb",
    "lmdb-nomap",
    "redb",
    "fjall",
];

/// A server that runs already and speaks `protocol`, `resp` or `memcached`, at `address`.
///
/// # Errors
/// [`Error::Plan`] if that is no protocol; that nobody listens there shows in its sessions.
pub fn server(protocol: &str, address: SocketAddr) -> Result<Box<dyn Peer>> {
    Ok(Box::new(wire::Server::at(protocol, address)?))
}

/// Opens a peer in `directory`, which must be there, with room for `steps`. What it holds already
/// stays; a floor is always empty.
///
/// # Errors
/// [`Error::Plan`] if there is no such peer; what the peer says if it cannot be opened.
pub fn open(
    name: &str,
    directory: &Path,
    safety: Safety,
    plan: &Plan,
    steps: &[Step],
) -> Result<Box<dyn Peer>> {
    plan.check()?;
    let appends = steps.iter().map(|step| step.writes(plan)).sum();
    let last = Step::plans(steps, plan).map(|(step, plan)| plan.records_after(step.workload)).max();
    let records = last.unwrap_or(plan.records);
    let room = Room {
        data: records * (plan.key_size + plan.value_size) as u64,
        written: appends * (plan.key_size + plan.value_size + 64) as u64,
    };
    Ok(match name {
        name if name.starts_with("floor-") => {
            Box::new(floors::open(name, directory, plan, FloorRoom { records, appends })?)
        }
        "rocksdb" => adapted(directory, safety, |at| rocksdb::RocksDb::open(at, safety, room))?,
        "leveldb" => adapted(directory, safety, |at| leveldb::LevelDb::open(at, safety, room))?,
        "lmdb" => adapted(directory, safety, |at| lmdb::Lmdb::open(at, safety, true, room))?,
        "lmdb-nomap" => adapted(directory, safety, |at| lmdb::Lmdb::open(at, safety, false, room))?,
        "redb" => adapted(directory, safety, |at| redb::Redb::open(at, safety, room))?,
        "fjall" => adapted(directory, safety, |at| fjall::Fjall::open(at, safety, room))?,
        _ => return Err(Error::Plan(format!("`{name}` is none of {}", NAMES.join(", ")))),
    })
}

fn adapted<A: Adapter + 'static>(
    directory: &Path,
    safety: Safety,
    open: impl FnOnce(&Path) -> Result<A>,
) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Adapted::open(directory, safety, open)?))
}

/// What a peer must be able to hold.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Bytes of all keys and values.
    data: u64,
    /// Bytes that are written in all, overwritten ones included.
    written: u64,
}

impl Room {
    /// Bytes of a cache that holds everything, and its blocks' overhead.
    fn cache(self) -> u64 {
        (self.data * 2).max(64 << 20)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Target(error.to_string())
}
