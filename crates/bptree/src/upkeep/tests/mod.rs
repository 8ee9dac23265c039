//! What only a whole store can be tried with.

mod batches;
mod large;
mod loads;
mod locks;
mod merges;
mod pinned;
mod rows;
