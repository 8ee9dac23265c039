//! What only a whole store can be tried with.

mod large;
mod loads;
mod locks;
mod merges;
mod pinned;
mod rows;
