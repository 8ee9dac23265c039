//! Tests that need a whole store.

mod batches;
mod bounds;
mod clears;
mod closes;
mod large;
mod loads;
mod locks;
mod merges;
mod pins;
mod rows;
mod scrubs;
mod sequences;
mod syncs;

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use coreplane_pmem::{MediaChoice, Pool};
use std::sync::RwLock;

/// The size of a leaf.
const PAGE: u32 = 4096;

/// Held by a test that keeps a guard for long, and shared by tests that need pages back meanwhile: a guard keeps
/// the pages of all stores.
static GUARD: RwLock<()> = RwLock::new(());

/// An empty store of 1 MiB, without background threads.
fn new_store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(1 << 20, PAGE, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    (directory, Store::format(pool, &options).expect("a store"))
}
