//! [`coreplane::Db`] over every engine and over matrices: each call has the same effect and the same answer on all of
//! them, except for the order of keys, which some lack.

mod batches;
mod lifetime;
mod points;
mod ranges;
mod stores;
