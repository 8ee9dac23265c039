//! Making a store from a pool, and from the state that a crash has left.

pub(crate) mod checkpoint;
pub(crate) mod open;
pub(crate) mod recover;
mod threads;
