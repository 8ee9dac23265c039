//! Making a store of a pool, and of what a crash has left of one.

pub(crate) mod checkpoint;
pub(crate) mod open;
pub(crate) mod recover;
