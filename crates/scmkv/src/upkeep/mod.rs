//! The maintenance of a store: checkpoints, background threads, growth, scrub, verify, repair.

pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod grow;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod stats;
pub(crate) mod verify;
