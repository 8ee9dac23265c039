//! The matrix of the MKVS paper: key-value pairs spread over groups of devices.
//!
//! ```text
//!              ┌─ filter ─▶ group: device, device, …     devices of a group hold the same keys
//!   key ─▶ CPU ┤
//!              └─ filter ─▶ group: device, device, …     groups hold different ones
//! ```
//!
//! A device is a pool and the engine in it. Any engine will do: the matrix is an engine over engines, and
//! knows nothing else about a device. The hash of a key determines its slot, and the owner of the slot is the
//! key's group ([`slots`]). A filter in DRAM mostly knows whether the group has the key ([`filter`]). The
//! devices of the group that may be asked depend on the writes that each has received so far (`in_flight`).
//!
//! # Rooms
//!
//! From the bottom to the top: a room names only itself and rooms that stand earlier in this table.
//! `cargo xtask tidy` checks that. What a room offers to others is the list behind the modules in its `mod.rs`.
//!
//! | room | what it is |
//! |---|---|
//! | `stats` | counters, latencies and hedge delays, the clock |
//! | `filter` | which keys a group may have: a counting Bloom filter |
//! | `shape` | which group and which devices a key belongs to: slots, owners, positions |
//! | `in_flight` | which devices have the newest write of a key while some members lack it; key locks |
//! | `device` | one device: its rings, its processor, its fault guard |
//! | `membership` | the membership record: members and primary of each group, lost ranges |
//! | `group` | one group: a write to several devices, a read from one, hedges |
//! | `keyspace` | the keys over all groups: the owner of each, and all reads: gets, scans, iterations |
//! | `failover` | puts another membership in force: a member leaves or joins; the stable watermark |
//! | `rebuild` | copies brought up to date: resync, rebalance, scrub, filters |
//! | `matrix` | keys over groups: puts and batches |
//! | `session` | open, recovery after a crash, close |
//!
//! Where to begin: the put is `matrix/put.rs` and then `group/fast_put.rs`, or, where a fast put is not
//! possible, `Group::write` (`group/mod.rs`). The get is `keyspace/read.rs` and `group/read.rs`.
//! `in_flight/mod.rs` tracks the devices that have the newest write of a key, `membership/mod.rs` the members
//! of a group.
//!
//! # Departures from the paper
//!
//! The paper acknowledges at the first device and lets the others lag: one durable copy, and stale reads
//! after. Here a write has a sequence and waits for the number of copies that its matrix was created with
//! ([`Ack`]), and a read asks only devices that have every acknowledged write of the key.

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
pub use failover::Departure;
pub use matrix::Matrix;
pub use membership::{Loss, MemberState, Rack, is_device};
pub use rebuild::{Copied, CopyOptions, DamageSummary, Scrubbed};
pub use session::open::Shape;
pub use session::options::Options;
pub use shape::{
    Ack, DEVICES_MAX, GROUPS_MAX, NAME, Position, Prototype, RESERVED as OWN_KEY_PREFIX, ReadPath,
    SLOTS, is_reserved as is_own_key, slots,
};
