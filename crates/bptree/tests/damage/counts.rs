//! The number of records after damage: the open behind the next close finds it again.

use crate::{KEYS, PAGE, Shelf, answers, key, opened, shelf, tail};
use coreplane_bptree::Bptree;
use coreplane_engine::{Engine, WriteOptions};

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
    use std::os::unix::fs::FileExt as _;
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
