//! The matrix of the MKVS paper: key-value pairs spread over groups of devices.
//!
//! ```text
//!              ┌─ filter ─▶ group: device, device, …     devices of a group hold the same keys
//!   key ─▶ CPU ┤
//!              └─ filter ─▶ group: device, device, …     groups hold different ones
//! ```
//!
//! The processor knows for each group which keys it may have (section 4.2: a counting Bloom
//! filter), so that a device is asked only for what it probably has.
//!
//! What is here so far is that filter, [`bloom`]. There are no groups and no devices yet.

pub mod bloom;
