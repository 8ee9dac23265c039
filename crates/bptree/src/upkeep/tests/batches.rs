//! Batches that find their pages one by one.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::upkeep::tests::{GUARD, new_store};
use crate::volume::counters::Count;
use coreplane_engine::{Batch, Error, WriteOptions};
use coreplane_pmem::{MediaChoice, Pool, epoch};
use std::sync::PoisonError;

const PAGE: u32 = 4096;

/// Large values of a batch, of four pages each.
const VALUES: u32 = 8;
const VALUE: [u8; 4 * PAGE as usize - 500] = [8; 4 * PAGE as usize - 500];

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// Many changes of one leaf, one change of each, and more changes than a lane of prefetched descents.
#[test]
fn each_change_of_a_batch_goes_to_the_leaf_of_its_key() {
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    const KEYS: u32 = 1000;
    for number in 0..KEYS {
        let _outcome = store.put(&key(number), b"old", &write).expect("put");
    }
    let leaf_of = |number| store.inner.descend(&key(number)).leaf;
    for (round, stride) in [1, 2, 30, 300].into_iter().enumerate() {
        let value = [round as u8; 30];
        let mut batch = Batch::new();
        let numbers = || (0..KEYS).step_by(stride);
        for number in numbers() {
            batch.put(&key(number), &value);
        }
        store.apply(&batch, &write).expect("a batch");
        let guard = epoch::pin();
        for number in numbers() {
            let (page, key) = (leaf_of(number), key(number));
            let leaf = store.leaves.get(page as usize);
            let standing = store.look_to_write(&guard, page, leaf, &key).expect("a look");
            assert_eq!(standing.old.expect("a record").value(), value, "{number} by {stride}");
        }
    }
    assert!(leaf_of(0) != leaf_of(KEYS / 2) && leaf_of(KEYS / 2) != leaf_of(KEYS - 1));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Each page is gained by merging leaves. The values of the batch that are written when there is no other page are
/// not written again for the next one.
#[test]
fn the_large_values_of_a_batch_are_written_once_while_pages_are_gained() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(1 << 20, PAGE, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, &options).expect("a store");
    let write = WriteOptions::default();
    let mut count = 0;
    // In the order of their keys, so that most leaves are half full.
    while store.pages.free_len() > 40 {
        let _outcome = store.put(&key(count), &[7; 100], &write).expect("put");
        count += 1;
    }
    // Pages that readers of other tests hold would come back later, and no page would be gained in their place.
    while store.pages.free_len() < store.pages.spare_len() {
        std::thread::yield_now();
    }
    let taken = store.pages.take(store.pages.free_len() as usize - 12, 0).expect("free pages");
    let mut batch = Batch::new();
    for number in 0..VALUES {
        batch.put(&key(number * count / VALUES), &VALUE);
    }
    let births = || store.birth().expect("a birth");
    let (before, merges) = (births(), store.counters.get(Count::Merges));
    store.apply(&batch, &write).expect("a batch");
    let (drawn, gains) = (births() - before, store.counters.get(Count::Merges) - merges);
    assert!(gains > 10, "{gains} pages were gained");
    // One rewrite for each value and each leaf: up to four leaves for a gain, and two for a leaf of the batch.
    let most = u64::from(3 * VALUES) + 4 * gains as u64 + 1;
    assert!(drawn <= most, "{drawn} births, no more than {most} are needed");
    taken.into_iter().for_each(|page| store.pages.leave(page));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// There is space for six of its eight values.
#[test]
fn a_batch_without_space_for_its_values_writes_none() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    let mut batch = Batch::new();
    for number in 0..VALUES {
        let _outcome = store.put(&key(number), b"old", &write).expect("put");
        batch.put(&key(number), &VALUE);
    }
    let taken = store.pages.take(store.pages.free_len() as usize - 30, 0).expect("free pages");
    let births = || store.birth().expect("a birth");
    let before = births();
    let refused = store.apply(&batch, &write);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(births() - before, 1, "that of this question");
    taken.into_iter().for_each(|page| store.pages.leave(page));
    store.apply(&batch, &write).expect("a batch");
}
