//! The matrix of the MKVS paper: key-value pairs spread over groups of devices.
//!
//! ```text
//!              ┌─ filter ─▶ group: device, device, …     devices of a group hold the same keys
//!   key ─▶ CPU ┤
//!              └─ filter ─▶ group: device, device, …     groups hold different ones
//! ```
//!
//! A device is a pool and the engine in it, any engine: the matrix is an engine over engines, and
//! knows of a device nothing but that. Which group has a key follows from its hash
//! ([`place`]); whether it has the key at all a filter in DRAM mostly knows ([`bloom`]); and which
//! of the group's devices is asked follows from what each of them has got already (`pending`).
//!
//! - [`place`]: from a key to its group
//! - [`bloom`]: which keys a group may have
//! - `membership`: who belongs to the matrix, who has all that was acknowledged, and how that changes
//! - `device`, `decided`, `group`, `plain`, `ring`: writing to several, reading from one
//! - `race`, `pace`, [`Prototype`]: reads for which devices compete
//! - `errand`, `given`: calls that a device's processor makes for a caller
//! - `pending`: which devices have the newest of a key
//! - `relaxed`: writes that return before they are durable
//! - `scan`, `stretch`, `cursor`: through many keys, in their order and in any
//! - `batch`, `intent`: over several groups, all or nothing; `clear`: everything at once
//! - `growing`: filters that fill up
//! - `filling`, `join`, `moving`: a device that is replaced, a group that is added
//! - `second_look`: keys that one device does not find
//! - `scrub`, `heal`: damage at rest, healed from a peer; what is in doubt
//! - `alike`: whether the members of a group have the same
//! - `kept`: filters from a close to the next open
//! - `open`, `close`: creating, opening, and closing
//!
//! # Departures from the paper
//!
//! The paper acknowledges at the first device and lets the others lag: one durable copy, and stale
//! reads after. Here a write has a sequence, waits for as many copies as its matrix was made with
//! ([`Ack`]), and a read asks only devices that have what was acknowledged.

mod alike;
mod append_list;

mod asking;
mod batch;
mod believed;
pub mod bloom;
mod clear;
mod clock;
mod close;
mod counters;
mod cursor;
mod decided;
mod departure;
mod device;
mod engine;
mod errand;
mod figures;
mod filling;
mod given;
mod group;
mod groups;
mod growing;
mod heal;
mod intent;
mod join;
mod kept;
mod lacking;
mod latency;
mod matrix;
mod membership;
mod moving;
mod older;
mod open;
mod options;
mod order;
mod owners;
mod pace;
mod pending;
pub mod place;
mod plain;
mod prototype;
mod race;
mod relaxed;
mod retire;
mod ring;
mod scan;
mod scrub;
mod second_look;
mod stretch;
mod track;

pub use coreplane_engine::TimeSource;
pub use departure::Departure;
pub use engine::Matrix;
pub use filling::{FillOptions, Filled};
pub use group::DEVICES_MAX;
pub use groups::GROUPS_MAX;
pub use heal::InDoubt;
pub use matrix::is_reserved as is_own_key;
pub use membership::record::{Ack, Position, Standing, is_device};
pub use membership::resolve::Loss;
pub use open::{Rack, Shape};
pub use options::Options;
pub use place::SLOTS;
pub use prototype::{Prototype, ReadPath, WritePath};
pub use scrub::Scrubbed;

/// The engine's name.
pub const NAME: &str = "mkvs";
