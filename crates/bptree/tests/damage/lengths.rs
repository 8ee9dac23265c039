//! A damaged length of a value: it costs its record, and not the writes to other keys of the leaf.

use crate::{PAGE, is_damage, key, options};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Engine, Repairable, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

const OTHERS: u32 = 60;
/// In the middle of the others.
const HURT: u32 = OTHERS / 2;
/// The longest time for which readers may keep pages, as the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

fn others() -> impl Iterator<Item = u32> {
    (0..=OTHERS).filter(|number| *number != HURT)
}

/// A store with one full leaf, whose first record has a wrong bit in the length of its value: the byte at this place
/// of the record is changed.
fn hurt(at: usize, bit: u8) -> (tempfile::TempDir, Bptree) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { background: false, ..options() };
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, &options);
    let store = store.expect("create");
    let put = |number: u32, len: usize| {
        let _outcome =
            store.put(&key(number), &vec![1; len], &WriteOptions::default()).expect("put");
    };
    put(HURT, 499);
    others().for_each(|number| put(number, 27));
    let pool = std::fs::read(&path).expect("read");
    let record = pool.windows(9).position(|it| it == key(HURT)).expect("the key") - 20;
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_all_at(&[pool[record + at] ^ bit], (record + at) as u64).expect("write");
    (directory, store)
}

/// 2048 bytes more, which are still in the page, and so many more that they are not.
#[test]
fn a_leaf_with_a_damaged_length_is_rewritten_without_that_record() {
    type Write<'a> = (&'a str, &'a dyn Fn(&Bptree, u32));
    let puts: Write<'_> = ("puts", &|store, number| {
        let options = WriteOptions::default();
        let _outcome = store.put(&key(number), &[2; 27], &options).expect("a put");
    });
    let batches: Write<'_> = ("batches", &|store, number| {
        let mut batch = Batch::new();
        batch.put(&key(number), &[2; 27]);
        store.apply(&batch, &WriteOptions::default()).map(drop).expect("a batch");
    });
    for (what, write) in [puts, batches] {
        for (at, bit) in [(9, 8), (11, 1)] {
            let (_directory, store) = hurt(at, bit);
            let free = || store.stats().free_bytes;
            let before = free();
            others().for_each(|number| write(&store, number));
            let figure = |name| store.stats().figure(name).expect("a figure");
            assert!(figure("leaves_rewritten") + figure("leaves_split") > 0, "{what}, {at}");
            // Readers of other tests may keep pages for a while.
            let since = Instant::now();
            while free() + 2 * (PAGE as u64) < before {
                assert!(since.elapsed() < PATIENCE, "{what}, {at}: {} of {before}", free());
                std::thread::yield_now();
            }
            let found = store.get(&key(HURT));
            assert!(found.as_ref().is_err_and(is_damage), "{what}, {at}: {found:?}");
            for number in others() {
                let found = store.get(&key(number)).expect("get");
                assert_eq!(found.as_deref(), Some(&[2; 27][..]), "{what}, {at}: {number}");
            }
            // It is written again, and the doubt about others ends.
            write(&store, HURT);
            assert!(store.get(&key(HURT)).expect("get").is_some(), "{what}, {at}");
            assert_eq!(store.len().expect("len"), u64::from(OTHERS) + 1, "{what}, {at}");
            for doubt in store.lost_ranges().expect("doubts") {
                store.settle(&doubt).expect("settle");
            }
            assert!(store.verify(&mut |_| {}).expect("verify").is_sound(), "{what}, {at}");
        }
    }
}

#[test]
fn a_store_with_a_damaged_length_of_a_large_value_is_emptied() {
    for (at, bit) in [(9, 8), (11, 1)] {
        let (_directory, store) = hurt(at, bit);
        // So that the pages of large values are looked for.
        let large = vec![3; 2 * PAGE];
        let _outcome = store.put(&key(0), &large, &WriteOptions::default()).expect("put");
        store.clear().expect("clear");
        assert_eq!(store.len().expect("len"), 0);
        assert_eq!(store.get(&key(HURT)).expect("get"), None);
    }
}
