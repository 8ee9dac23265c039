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
//! - `label`: who belongs to the matrix, and who is current
//! - `device`, `decided`, `group`, `plain`, `ring`: writing to several, reading from one
//! - `race`, `pace`, [`Prototype`]: reads for which devices compete
//! - `errand`, `given`: calls that a device's processor makes for a caller
//! - `pending`: which devices have the newest of a key
//! - `relaxed`: writes that return before they are durable
//! - `scan`, `stretch`, `cursor`: through many keys, in their order and in any
//! - `batch`, `intent`: over several groups, all or nothing; `clear`: everything at once
//! - `growing`: filters that fill up
//! - `filling`, `join`, `moving`: a device that is replaced, a group that is added
//! - `scrub`, `heal`, `uncertain`: damage at rest, healed from a peer; what is in doubt
//! - `alike`: whether the members of a group have the same
//! - `kept`: filters from a close to the next open
//! - `open`, `admission`, `level`, `upkeep`: creating, opening, who is current, bringing members level;
//!   and what is done meanwhile
//!
//! # Departures from the paper
//!
//! The paper acknowledges at the first device and lets the others lag: one durable copy, and stale
//! reads after. Here a write has a sequence, waits for as many copies as its matrix was made with
//! ([`Ack`]), and a read asks only devices that have what was acknowledged.

mod admission;
mod alike;
mod asking;
mod batch;
mod believed;
pub mod bloom;
mod clear;
mod clock;
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
mod label;
mod lacking;
mod latency;
mod level;
mod matrix;
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
mod ring;
mod scan;
mod scrub;
mod standings;
mod stretch;
mod track;
mod uncertain;
mod upkeep;

pub use admission::Loss;
pub use coreplane_engine::TimeSource;
pub use departure::Departure;
pub use engine::Matrix;
pub use filling::{FillOptions, Filled};
pub use group::DEVICES_MAX;
pub use groups::GROUPS_MAX;
pub use heal::InDoubt;
pub use label::{Ack, Position, Standing, is_device};
pub use matrix::is_reserved as is_own_key;
pub use open::{Rack, Shape};
pub use options::Options;
pub use place::SLOTS;
pub use prototype::{Prototype, ReadPath, WritePath};
pub use scrub::Scrubbed;

/// The engine's name.
pub const NAME: &str = "mkvs";
