//! Leaves: pages of records, and what is known of them in DRAM.

mod directory;
mod head;
mod places;

pub(crate) use directory::{Begun, Directory, Held, LeafLoad, Version, tag_from, tag_of};
pub(crate) use head::{Head, Life, generation};
pub(crate) use places::{FEW, PLACES, PlaceSet};
