//! Where a key belongs: its slot, the group that owns it, and the order of the group's devices.

pub(crate) mod append_list;
mod name;
pub(crate) mod order;
pub(crate) mod owners;
pub(crate) mod position;
pub(crate) mod prototype;
pub mod slots;

/// The engine's name.
pub const NAME: &str = "mkvs";
