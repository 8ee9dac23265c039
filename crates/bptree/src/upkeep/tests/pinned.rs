//! Full leaves while a reader keeps the pages that were given back.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::volume::counters::Count;
use coreplane_engine::WriteOptions;
use coreplane_pmem::{MediaChoice, Pool, epoch};

const PAGE: u32 = 4096;

fn new_store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(1 << 20, PAGE, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    (directory, Store::format(pool, &options).expect("a store"))
}

/// Takes pages until no more than `left` are free.
fn take_all_but(store: &Store, left: u32) -> Vec<u32> {
    let taken = store.pages.take((store.pages.free_len() - left) as usize, 0);
    taken.expect("free pages")
}

/// Pages abound, but for that reader, so that a leaf is to have no more than 64 records; and there are too few to
/// cut it in two.
#[test]
fn a_leaf_of_64_records_is_written_anew_once_for_one_more() {
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    for number in 0..64_u32 {
        let _outcome = store.put(&number.to_be_bytes(), b"value", &write).expect("put");
    }
    assert_eq!(store.inner.leaves().len(), 1);
    let guard = epoch::pin();
    // Given back at once, and kept by the guard.
    drop(store.write_overflow(&[7; 100 * PAGE as usize], 0).expect("free pages"));
    let taken = take_all_but(&store, 6);
    let before = store.counters.get(Count::Rewrites);
    let _outcome = store.put(&64_u32.to_be_bytes(), b"value", &write).expect("put");
    assert_eq!(store.counters.get(Count::Rewrites) - before, 1);
    drop(guard);
    taken.into_iter().for_each(|page| store.pages.leave(page));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}
