//! What only a whole store can be tried with.

mod loads;
mod locks;
mod merges;
mod rows;
