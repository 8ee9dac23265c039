//! Leaves: pages of records, and what is known of them in DRAM.

mod directory;
mod head;

pub(crate) use directory::{Begun, Directory, Held, PLACES, Version, tag_from, tag_of};
pub(crate) use head::{Head, Life};
