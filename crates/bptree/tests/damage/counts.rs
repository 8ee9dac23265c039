//! The number of records after damage: the open behind the next close finds it again.

use crate::{KEYS, PAGE, Shelf, answers, key, opened, options, shelf, tail};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;

fn len(store: &Bptree) -> u64 {
    store.len().expect("len")
}

/// The number of records that a recovery finds in the pool as it is now.
fn counted(shelf: &Shelf) -> u64 {
    let other = shelf.directory.path().join("other");
    std::fs::copy(shelf.path(), &other).expect("copy");
    len(&opened(&other).expect("open"))
}

/// Of leaves that are read after the open: the checkpoint has counted their records.
#[test]
fn records_that_were_lost_in_a_leaf_are_not_counted_for_ever() {
    let shelf = shelf(true);
    let sound = len(&shelf.open(&[]).expect("open"));
    let (mut lost, pages) = (0, 1..shelf.pool.len() / PAGE);
    for (page, records) in pages.filter_map(|page| Some((page, tail(&shelf.pool, page)?))) {
        let of_record = records.first().map(|record| record.start + 24);
        for at in [Some(page * PAGE + 20), of_record].into_iter().flatten() {
            let store = shelf.open(&[(at, 1)]).expect("open");
            let _answers = answers(&store, &shelf.map);
            let counted = counted(&shelf);
            store.close().expect("close");
            drop(store);
            let store = opened(&shelf.path()).expect("open");
            assert_eq!(len(&store), counted, "byte {at} of page {page}");
            lost += u32::from(counted < sound);
            // The checkpoint of the next close is right.
            store.close().expect("close");
            drop(store);
            let store = opened(&shelf.path()).expect("open");
            assert_eq!(store.stats().figure("opened_with_checkpoint"), Some(1), "{at}");
            assert_eq!(len(&store), counted, "byte {at} of page {page}");
        }
    }
    assert!(lost > 3, "{lost} flips cost records");
}

/// A store in which the kind of a record has a wrong bit, before a put takes its place.
#[test]
fn a_record_that_has_lost_its_kind_is_counted_once() {
    let shelf = shelf(false);
    let store = shelf.open(&[]).expect("open");
    let sound = len(&store);
    let pool = std::fs::read(shelf.path()).expect("read");
    let file = std::fs::File::options().write(true).open(shelf.path()).expect("open");
    let wanted = key(KEYS - 1);
    for (at, _) in pool.windows(wanted.len()).enumerate().filter(|(_, it)| *it == wanted) {
        if pool[at - 20 + 6] & 14 == 2 {
            file.write_all_at(&[pool[at - 14] ^ 4], at as u64 - 14).expect("write");
        }
    }
    assert!(store.get(&wanted).is_err());
    let _outcome = store.put(&wanted, b"new", &WriteOptions::default()).expect("put");
    store.close().expect("close");
    drop(store);
    assert_eq!(len(&opened(&shelf.path()).expect("open")), sound);
}

/// A byte of the birth in the last page of this kind.
fn birth_in(pool: &[u8], kind: u8) -> usize {
    let mut pages = (1..pool.len() / PAGE).rev();
    pages.find(|page| pool[page * PAGE + 4] == kind).expect("a page of this kind") * PAGE + 8
}

/// The pages of a large value, and of the rest of a long key, are unknown when their record goes.
#[test]
fn pages_that_damage_hides_are_free_after_the_next_open() {
    let long = [key(1), vec![b'l'; 900]].concat();
    for (is_in_name, is_cleared) in [(false, false), (true, false), (false, true), (true, true)] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..options() };
        let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, &options);
        let store = store.expect("create");
        let put = |store: &Bptree, key: &[u8], value: &[u8]| {
            let _outcome = store.put(key, value, &WriteOptions::default()).expect("put");
        };
        let taken = |store: &Bptree| (store.stats().free_bytes, store.stats().live_bytes);
        put(&store, &key(0), b"small");
        let before = taken(&store);
        put(&store, &key(0), &[9; 3 * PAGE]);
        if is_cleared {
            put(&store, &long, b"small");
        }
        let pool = std::fs::read(&path).expect("read");
        let of_value = if is_in_name {
            // In the length of the value, which stands behind the key.
            pool.windows(9).rposition(|it| it == key(0)).expect("the record") + 9 + 5
        } else {
            birth_in(&pool, 0x50)
        };
        let of_key = is_cleared.then(|| birth_in(&pool, 0x4b));
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        for at in [of_value].into_iter().chain(of_key) {
            file.write_all_at(&[pool[at] ^ 1], at as u64).expect("write");
        }
        if is_cleared {
            store.clear().expect("clear");
        }
        put(&store, &key(0), b"small");
        store.close().expect("close");
        drop(store);
        let store = opened(&path).expect("open");
        assert_eq!(taken(&store), before, "in the name: {is_in_name}, cleared: {is_cleared}");
    }
}
