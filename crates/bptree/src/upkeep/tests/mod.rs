//! What only a whole store can be tried with.

mod batches;
mod large;
mod loads;
mod locks;
mod merges;
mod pins;
mod rows;

use std::sync::RwLock;

/// Held by who keeps a guard for long, and shared by those who need what is given back meanwhile: a guard keeps
/// the pages of all stores.
static GUARD: RwLock<()> = RwLock::new(());
