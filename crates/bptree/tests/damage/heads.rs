//! A wrong bit in the head of a leaf in use.

use super::{KEYS, PAGE, is_damage, is_full, key, shelf, tail, word};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Engine, KeyRange, Ordered, Repairable, Result, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::fs::File;
use std::os::unix::fs::FileExt;

fn scan(store: &Bptree, (start, reverse): (&[u8], bool)) -> Result<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    let mut take = |entry: coreplane_engine::Entry<'_>| {
        keys.push(entry.key.to_vec());
        true
    };
    store.scan(start, None, reverse, usize::MAX, &mut take).map(|()| keys)
}

/// The pool of an open store.
fn beneath(path: &std::path::Path) -> File {
    File::options().read(true).write(true).open(path).expect("the pool")
}

/// A bit in the head of a leaf in use that tells whether there are leaves behind it. No call waits for ever, and
/// nothing stays locked.
#[test]
fn a_leaf_that_says_wrongly_where_it_ends_is_an_error_and_never_a_loop() {
    let shelf = shelf(false);
    let is_leaf = |page: &usize| tail(&shelf.pool, *page).is_some();
    let all = KeyRange { start: Vec::new(), end: None };
    let mut told = 0;
    for page in (1..shelf.pool.len() / PAGE).filter(is_leaf) {
        let store = shelf.open(&[]).expect("open");
        let scan = |reverse| scan(&store, (b"", reverse));
        let down = scan(true).expect("scan");
        let mut batch = Batch::new();
        (0..KEYS).for_each(|number| _ = batch.put(&key(number), b"of a batch"));
        let (file, mut byte) = (beneath(&shelf.path()), [0]);
        let at = (page * PAGE + 5) as u64;
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 1], at).expect("write");
        let results = [
            store.apply(&batch, &WriteOptions::default()).map(drop),
            store.settle(&all),
            store.lost_ranges().map(drop),
            scan(false).map(drop),
        ];
        let is_told = results.iter().any(Result::is_err);
        told += u32::from(is_told);
        if is_told {
            assert!(results.iter().all(|it| it.as_ref().is_err_and(is_damage)), "{results:?}");
            assert!(scan(true).is_err() || scan(true).expect("scan") == down);
        }
        file.write_all_at(&byte, at).expect("write");
        store.apply(&batch, &WriteOptions::default()).expect("nothing is locked");
    }
    assert!(told > 3, "{told} of the leaves are in use");
}

/// A bit anywhere: a bound that is too great leads behind the next leaf, and the keys of that leaf must not be
/// skipped.
#[test]
fn a_scan_does_not_go_past_a_leaf_whose_head_has_a_wrong_bit() {
    let shelf = shelf(false);
    let store = shelf.open(&[]).expect("open");
    let (file, middle) = (beneath(&shelf.path()), key(KEYS / 2));
    let ways: [(&[u8], bool); 4] = [(b"", false), (b"", true), (&middle, false), (&middle, true)];
    let right = ways.map(|way| scan(&store, way).expect("scan"));
    let (mut told, step) = (0, if is_full() { 1 } else { 5 });
    for page in (1..shelf.pool.len() / PAGE).filter(|page| tail(&shelf.pool, *page).is_some()) {
        let bytes = &shelf.pool[page * PAGE..][..PAGE];
        let len = 64 + word(bytes, 8) % 0x10000 + word(bytes, 8) / 0x10000;
        for bit in (page % step..8 * len).step_by(step) {
            let (at, mut byte) = ((page * PAGE + bit / 8) as u64, [0]);
            file.read_exact_at(&mut byte, at).expect("read");
            file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], at).expect("write");
            for (way, right) in ways.iter().zip(&right) {
                match scan(&store, *way) {
                    Ok(keys) => assert!(keys == *right, "page {page}, bit {bit}, {way:?}"),
                    Err(error) if is_damage(&error) => told += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            file.write_all_at(&byte, at).expect("write");
        }
    }
    assert!(told > 1000, "{told} of the scans tell");
}

/// No leaf can be named as the predecessor of the new one.
#[test]
fn a_clear_that_fails_leaves_the_store_as_it_was() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { background: false, ..Options::default() };
    let store = Bptree::create(&path, 256 << 10, PAGE as u32, MediaChoice::Auto, &options);
    let store = store.expect("create");
    let write = WriteOptions::default();
    let _outcome = store.put(b"key", b"value", &write).expect("put");
    let (file, pool) = (beneath(&path), std::fs::read(&path).expect("read"));
    let flip = |bit: u8| {
        for page in (1..pool.len() / PAGE).filter(|page| tail(&pool, *page).is_some()) {
            let at = page * PAGE + 5;
            file.write_all_at(&[pool[at] ^ bit], at as u64).expect("write");
        }
    };
    flip(1);
    for _ in 0..2 * pool.len() / PAGE {
        let failed = store.clear().expect_err("a clear");
        assert!(is_damage(&failed), "{failed}");
    }
    flip(0);
    let _outcome = store.put(b"key", b"other", &write).expect("put");
    assert_eq!(store.get(b"key").expect("get"), Some(b"other".to_vec()));
    store.clear().expect("clear");
    assert!(store.get(b"key").expect("get").is_none());
}

/// The rest of the least key of such a leaf cannot be told.
#[test]
fn a_store_of_long_keys_with_a_damaged_head_can_be_emptied() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { background: false, ..Options::default() };
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, &options);
    let store = store.expect("create");
    let free = store.stats().free_bytes;
    for number in 0..60 {
        let key = [vec![b'k'; 600], key(number)].concat();
        let _outcome = store.put(&key, &[7; 100], &WriteOptions::default()).expect("put");
    }
    let (file, pool) = (beneath(&path), std::fs::read(&path).expect("read"));
    let has_least = |page: &usize| {
        tail(&pool, *page).is_some() && !word(&pool, page * PAGE + 8).is_multiple_of(0x10000)
    };
    for page in (1..pool.len() / PAGE).filter(has_least) {
        let at = page * PAGE + 5;
        file.write_all_at(&[pool[at] ^ 1], at as u64).expect("write");
    }
    store.clear().expect("clear");
    assert_eq!(store.len().expect("len"), 0);
    store.close().expect("close");
    drop(store);
    let store = Bptree::open(&path, MediaChoice::Auto, &options, &|_| {}).expect("open");
    assert_eq!(store.stats().free_bytes, free, "pages of bounds are lost");
}
