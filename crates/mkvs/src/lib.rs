//! The matrix of the MKVS paper: key-value pairs spread over groups of devices.
//!
//! ```text
//!              ┌─ filter ─▶ group: device, device, …     devices of a group hold the same keys
//!   key ─▶ CPU ┤
//!              └─ filter ─▶ group: device, device, …     groups hold different ones
//! ```
//!
//! A device is a pool and the engine in it, any engine: the matrix is an engine over engines, and
//! knows of a device nothing but that. A key's hash says its slot, and the slot's owner its group
//! ([`slots`]); whether the group has the key a filter in DRAM mostly knows ([`filter`]); and which of the
//! group's devices may be asked follows from what each of them has got already (`in_flight`).
//!
//! # Rooms
//!
//! From the bottom to the top: a room names nothing but itself and rooms that stand earlier in this table, and
//! `cargo xtask tidy` sees to that.
//!
//! | room | what it is |
//! |---|---|
//! | `stats` | counters, latencies and hedge delays, the clock |
//! | `filter` | which keys a group may have: a counting Bloom filter |
//! | `shape` | which group and which devices a key belongs to: slots, owners, positions |
//! | `in_flight` | which devices have the newest of a key while not all of them have; key locks |
//! | `device` | one device: its rings, its processor, its fault guard |
//! | `membership` | the membership record: who belongs to a group, who is primary, what is lost |
//! | `group` | one group: a write to several devices, a read from one, hedges |
//! | `keyspace` | the keys over all groups: who owns each, and all that reads: gets, scans, iterations |
//! | `failover` | another membership is in force: a member leaves or joins; the stable watermark |
//! | `rebuild` | copies brought up to date: resync, rebalance, scrub, filters |
//! | `matrix` | keys over groups: puts and batches |
//! | `session` | open, recovery after a crash, close |
//!
//! Where to begin: the put is `matrix/put.rs` and then `group/fast_put.rs`, or where that does not apply
//! `Group::write` (`group/mod.rs`); the get is `keyspace/read.rs` and `group/read.rs`; who has the newest
//! of a key is `in_flight/mod.rs`, and who of a group `membership/mod.rs`.
//!
//! # Departures from the paper
//!
//! The paper acknowledges at the first device and lets the others lag: one durable copy, and stale
//! reads after. Here a write has a sequence, waits for as many copies as its matrix was made with
//! ([`Ack`]), and a read asks only devices that have what was acknowledged.

mod device;
mod failover;
pub mod filter;
mod group;
mod in_flight;
mod keyspace;
mod matrix;
mod membership;
mod rebuild;
mod session;
mod shape;
mod stats;

pub use coreplane_engine::TimeSource;
pub use device::interceptor;
pub use failover::departure::Departure;
pub use matrix::Matrix;
pub use membership::loss::Loss;
pub use membership::rack::Rack;
pub use membership::record::{MemberState, is_device};
pub use rebuild::copy::{Copied, CopyOptions};
pub use rebuild::indeterminate::DamageSummary;
pub use rebuild::scrub::Scrubbed;
pub use session::open::Shape;
pub use session::options::Options;
pub use shape::NAME;
pub use shape::position::{Ack, DEVICES_MAX, GROUPS_MAX, Position, is_reserved as is_own_key};
pub use shape::prototype::{Prototype, ReadPath, WritePath};
pub use shape::slots::{self, SLOTS};
