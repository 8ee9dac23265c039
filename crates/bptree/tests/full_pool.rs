//! A full pool: writes that replace other records find room there, one by one and as a batch.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Engine, Error, Outcome, Repairable, Replicated, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u32 = 4096;

/// A page that a reader of any store may still hold does not come back, and a full pool has few others: so the
/// tests do not run beside each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(number: u32) -> Vec<u8> {
    // In no order, so that leaves are split anywhere.
    format!("key {:08x}", number.wrapping_mul(0x9e37_79b1)).into_bytes()
}

fn value(number: u32, round: u8, len: usize) -> Vec<u8> {
    [&[round][..], &vec![number as u8; len]].concat()
}

/// A store of `size` bytes that takes no more records, and the number that it has.
fn full(size: u64, media: MediaChoice, len: usize) -> (tempfile::TempDir, Bptree, u32) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let options = Options { background: false, ..Options::default() };
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, size, PAGE, media, &options).expect("create");
    let mut count = 0;
    loop {
        match store.put(&key(count), &value(count, 0, len), &WriteOptions::default()) {
            Ok(Outcome::Written(_)) => count += 1,
            Err(Error::NoSpace { .. }) => return (directory, store, count),
            other => panic!("{other:?}"),
        }
    }
}

fn check(store: &Bptree, count: u32, len: usize, round: impl Fn(u32) -> u8) {
    for number in 0..count {
        let found = store.get(&key(number)).expect("get");
        assert_eq!(found, Some(value(number, round(number), len)), "{number}");
    }
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{report:?}");
}

fn one_by_one(media: MediaChoice, len: usize) {
    let (_directory, store, count) = full(1 << 20, media, len);
    for round in 1..4 {
        for number in 0..count {
            let put = store.put(&key(number), &value(number, round, len), &WriteOptions::default());
            assert!(put.is_ok(), "{number} in round {round}: {put:?}");
        }
    }
    check(&store, count, len, |_| 3);
}

/// In pools of this size. In others a leaf may be completely full, and its neighbours too.
#[test]
fn all_records_of_a_full_store_can_be_written_over_one_by_one() {
    let _alone = alone();
    one_by_one(MediaChoice::Auto, 100);
    one_by_one(MediaChoice::File, 100);
}

/// Pages that one thread has taken and gives back in a moment must not make the other fail.
#[test]
fn two_threads_write_over_all_records_of_a_full_store() {
    let _alone = alone();
    for len in [100, 300] {
        let (_directory, store, count) = full(1 << 20, MediaChoice::Auto, len);
        std::thread::scope(|scope| {
            for half in 0..2 {
                let store = &store;
                scope.spawn(move || {
                    for round in 1..4 {
                        for number in (half..count).step_by(2) {
                            let value = value(number, round, len);
                            let put = store.put(&key(number), &value, &WriteOptions::default());
                            assert!(put.is_ok(), "{number} in round {round}: {put:?}");
                        }
                    }
                });
            }
        });
        check(&store, count, len, |_| 3);
    }
}

/// Batches of neighbouring keys, and of keys of several leaves, with all the leaves full.
fn batches(media: MediaChoice, len: usize) {
    let (_directory, store, count) = full(1 << 20, media, len);
    let mut sorted: Vec<u32> = (0..count).collect();
    sorted.sort_by_key(|number| key(*number));
    let scattered: Vec<u32> = (0..count).collect();
    let worlds = [(&sorted, 4), (&scattered, 4), (&sorted, 30), (&sorted, 1), (&scattered, 2)];
    for (round, (numbers, size)) in (1..).zip(worlds) {
        for (at, numbers) in numbers.chunks(size).enumerate() {
            let mut batch = Batch::new();
            for it in numbers {
                batch.put(&key(*it), &value(*it, round, len));
            }
            let applied = store.apply(&batch, &WriteOptions::default());
            assert!(applied.is_ok(), "batch {at} of {size} in round {round}: {applied:?}");
        }
    }
    check(&store, count, len, |_| 5);
}

#[test]
fn all_records_of_a_full_store_can_be_written_over_by_batches() {
    let _alone = alone();
    batches(MediaChoice::Auto, 100);
    batches(MediaChoice::Auto, 200);
}

#[test]
fn where_a_fence_is_a_sync() {
    let _alone = alone();
    batches(MediaChoice::File, 100);
}

#[test]
fn where_records_are_long() {
    let _alone = alone();
    batches(MediaChoice::Auto, 300);
}

/// The leaves have only tombstones, and no page is free: the batch wants more of one leaf than any leaf has.
#[test]
fn a_batch_of_deletes_over_leaves_in_which_nothing_lives() {
    let _alone = alone();
    for pinned in [false, true] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let options = Options { background: false, ..Options::default() };
        let path = directory.path().join("pool");
        let store = Bptree::create(&path, 1 << 20, PAGE, MediaChoice::Auto, &options);
        let store = store.expect("create");
        store.hold_tombstones(0).expect("all are kept");
        let gone: Vec<Vec<u8>> = (0..900).map(|it| format!("gone {it:05}").into_bytes()).collect();
        let usual = WriteOptions::default();
        for key in &gone {
            let _put = store.put(key, b"value", &usual).expect("put");
            let _deleted = store.delete(key, &usual).expect("delete");
        }
        for number in 0.. {
            if store.put(&key(number), &value(number, 0, 100), &usual).is_err() {
                break;
            }
        }
        let mut batch = Batch::new();
        for key in &gone {
            batch.delete(key);
            // With a sequence an absent key is deleted too.
            batch.delete(&[key, &b" more"[..]].concat());
        }
        let sequence = Some(1 << 40);
        let newer = WriteOptions { sequence, ..WriteOptions::default() };
        let guard = pinned.then(coreplane_pmem::epoch::pin);
        let applied = store.apply(&batch, &newer);
        assert!(matches!(applied, Ok(_) | Err(Error::NoSpace { .. })), "{applied:?}");
        drop(guard);
        assert!(store.delete(&gone[0], &newer).is_ok(), "a delete takes the last page");
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// Inserts leave pages that only overwrites may take: a batch of both is refused as a whole, and one of overwrites
/// is not.
#[test]
fn a_batch_with_a_new_record_is_refused_and_nothing_of_it_is_there() {
    let _alone = alone();
    let (_directory, store, count) = full(1 << 20, MediaChoice::Auto, 100);
    let mut batch = Batch::new();
    // More new records than any leaf has room for.
    for number in 0..200 {
        batch.put(&key(count + number), &value(count + number, 1, 100));
        batch.put(&key(number), &value(number, 1, 100));
    }
    let applied = store.apply(&batch, &WriteOptions::default());
    assert!(matches!(applied, Err(Error::NoSpace { .. })), "{applied:?}");
    assert_eq!(store.get(&key(count)).expect("get"), None);
    check(&store, count, 100, |_| 0);
}

/// A store that takes hardly any of the keys that are put, and the numbers of those that it has.
fn brimful(
    (size, page): (u64, u32),
    put: impl Fn(&Bptree, u32) -> bool,
) -> (tempfile::TempDir, Bptree, Vec<u32>) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let options = Options { background: false, ..Options::default() };
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, size, page, MediaChoice::Auto, &options).expect("create");
    let (mut there, mut refused) = (Vec::new(), 0);
    for number in 0.. {
        if put(&store, number) {
            (refused, _) = (0, there.push(number));
        } else if refused == 300 {
            break;
        } else {
            refused += 1;
        }
    }
    (directory, store, there)
}

/// True if the write was made, false if there is no space.
fn is_made(written: Result<Outcome, Error>) -> bool {
    match written {
        Ok(Outcome::Written(_)) => true,
        Err(Error::NoSpace { .. }) => false,
        other => panic!("{other:?}"),
    }
}

/// Sixteen records fill a leaf, so that none has room for a tombstone: a delete takes no page for good.
#[test]
fn deletes_and_overwrites_go_on_where_every_leaf_is_full() {
    const LEN: usize = 212;
    let _alone = alone();
    for given in [false, true] {
        let options = |number: u64| WriteOptions {
            sequence: given.then_some((1 << 40) + number),
            ..WriteOptions::default()
        };
        let put = |store: &Bptree, number, round| {
            store.put(&key(number), &value(number, round, LEN), &options(u64::from(round)))
        };
        let (_directory, store, mut there) =
            brimful((1 << 20, PAGE), |store, it| is_made(put(store, it, 0)));
        there.sort_by_key(|number| key(*number));
        let is_gone = |at: usize| at % 41 == 7;
        for (at, number) in there.iter().enumerate().filter(|(at, _)| is_gone(*at)) {
            let deleted = store.delete(&key(*number), &options(9));
            assert!(matches!(deleted, Ok(Outcome::Written(_))), "{at}: {deleted:?}");
        }
        for (at, number) in there.iter().enumerate().filter(|(at, _)| !is_gone(*at)) {
            let written = if given || at % 2 == 0 {
                put(&store, *number, 1)
            } else {
                store.update(&key(*number), &value(*number, 1, LEN), &options(1))
            };
            assert!(matches!(written, Ok(Outcome::Written(_))), "{at}: {written:?}");
        }
        for (at, number) in there.iter().enumerate() {
            let due = (!is_gone(at)).then(|| value(*number, 1, LEN));
            assert_eq!(store.get(&key(*number)).expect("get"), due, "{at}");
        }
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// Leaves with as many records as they have places.
#[test]
fn the_smallest_records_of_a_full_store_can_be_replaced() {
    let _alone = alone();
    let key = |number: u32| number.wrapping_mul(0x9e37_79b1).to_be_bytes();
    let usual = WriteOptions::default();
    let put = |store: &Bptree, number| is_made(store.put(&key(number), b"", &usual));
    let (_directory, store, mut there) = brimful((1 << 20, PAGE), put);
    there.sort_by_key(|number| key(*number));
    for round in 0..3 {
        for (at, number) in there.iter().enumerate() {
            let updated = store.update(&key(*number), b"", &usual);
            assert!(matches!(updated, Ok(Outcome::Written(_))), "{at} in {round}: {updated:?}");
        }
    }
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// The leaves have more records than four of them may have in place of five, and nothing lives in them any more.
#[test]
fn leaves_of_forgotten_tombstones_are_compacted() {
    const LEN: usize = 19;
    let _alone = alone();
    let key = |number: u32| format!("{:016x}", number.wrapping_mul(0x9e37_79b1)).into_bytes();
    let usual = WriteOptions::default();
    let put =
        |store: &Bptree, number| is_made(store.put(&key(number), &value(number, 0, LEN), &usual));
    for are_held in [false, true] {
        let (_directory, store, mut there) = brimful((4 << 20, 16 << 10), put);
        let fresh = there[there.len() - 1] + 1000;
        there.sort_by_key(|number| key(*number));
        if are_held {
            store.hold_tombstones(0).expect("all are kept");
        }
        let deleted = &there[there.len() / 4..there.len() / 2];
        for number in deleted {
            let outcome = store.delete(&key(*number), &usual);
            assert!(matches!(outcome, Ok(Outcome::Written(_))), "{outcome:?}");
        }
        store.hold_tombstones(u64::MAX).expect("none is kept");
        let is_elsewhere = |number: &u32| key(*number) > key(there[there.len() * 3 / 4]);
        let others = (fresh..).filter(is_elsewhere).take_while(|number| put(&store, *number));
        let count = others.count();
        assert!(count > deleted.len() / 2, "{count} in place of {} ({are_held})", deleted.len());
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// A leaf that is emptied after its left neighbour is merged with it; its right one is full.
#[test]
fn leaves_that_are_emptied_in_the_order_of_keys_are_merged() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let options = Options { background: false, ..Options::default() };
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 4 << 20, PAGE, MediaChoice::Auto, &options).expect("create");
    let key = |number: u32| format!("key {number:05}").into_bytes();
    for number in 0..2000 {
        let _outcome = store.put(&key(number), &[7; 100], &WriteOptions::default()).expect("put");
    }
    let figure = |name| store.stats().figure(name).expect("a figure");
    let leaves = figure("leaves_split");
    for number in 0..1500 {
        let _outcome = store.delete(&key(number), &WriteOptions::default()).expect("delete");
    }
    let merged = figure("leaves_merged");
    assert!(leaves > 50 && merged > leaves / 2, "{merged} of {leaves}");
}

/// A write may rewrite leaves, and merge others, but never without end: leaves that are split for it are not merged
/// again before it is made.
#[test]
fn what_a_write_copies_is_bounded() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let options = Options { background: false, ..Options::default() };
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 1 << 20, PAGE, MediaChoice::Auto, &options).expect("create");
    let copied = || store.stats().cleaner_bytes_copied;
    let mut worst = 0;
    for round in 0..12_u32 {
        let (mut refused, mut serial) = (0, 0);
        while refused < 12 {
            let len = 300 + (serial * 37 % 1500) as usize;
            let (key, value) = (key(serial * 7 % 4_000), value(serial + round, 0, len));
            let before = copied();
            match store.put(&key, &value, &WriteOptions::default()) {
                Ok(_) => refused = 0,
                Err(Error::NoSpace { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            worst = worst.max(copied() - before);
            serial += 1;
        }
        for number in (round % 3..4_000).step_by(3) {
            let _outcome = store.delete(&key(number), &WriteOptions::default()).expect("delete");
        }
    }
    assert!(worst < u64::from(16 * PAGE), "{worst} bytes");
}
