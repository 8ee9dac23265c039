//! [`coreplane::Db`] over every engine and over matrices: each call says and does the same on all of them, but for
//! the order of keys, which some have not.

mod batches;
mod lifetime;
mod points;
mod ranges;
mod stores;
