//! Checkpoints of a pool that gets full.

use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use coreplane_engine::WriteOptions;
use coreplane_pmem::{MediaChoice, Pool};

/// Otherwise one would be taken and given up in turn where the number of free pages stays about the same.
#[test]
fn a_checkpoint_is_not_taken_where_it_is_soon_given_up() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(1 << 20, Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    let mut keys = 0_u64..;
    let mut taken = 0;
    while store.take_checkpoint().expect("a look") {
        taken += 1;
        let free = store.pages.refresh_free();
        while store.pages.refresh_free() + 2 > free {
            let key = keys.next().expect("a key").to_le_bytes();
            let _outcome = store.put(&key, &[7; 60], &WriteOptions::default()).expect("put");
        }
        store.checkpoint_if_due().expect("a look");
        assert_ne!(store.checkpoints.number(), 0, "checkpoint {taken}");
        assert!(store.give_up_checkpoint().expect("given up"));
    }
    assert!(taken > 50, "{taken} checkpoints");
}
