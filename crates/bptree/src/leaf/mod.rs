//! Leaves: pages of records, and their state in DRAM.

mod directory;
mod head;
mod places;

pub(crate) use directory::{Begun, Directory, Held, LeafLoad, Version, tag_from, tag_of};
pub(crate) use head::{Head, Life, generation};
pub(crate) use places::{FEW, PLACES, PlaceSet};
