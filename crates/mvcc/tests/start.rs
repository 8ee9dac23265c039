//! A store answers before its open is complete: readers find all records, and each writer waits until the open is
//! complete.

use coreplane_engine::{Engine, Ordered, Repairable, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;

const KEYS: u32 = 20_000;

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

fn lives() -> u32 {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    if is_full { 6 } else { 3 }
}

/// Keys of this remainder are written in a life.
fn is_written(number: u32, life: u32) -> bool {
    number % 6 == life
}

fn put(store: &MapEngine, number: u32, life: u32) {
    let put = store.put(&key(number), &life.to_le_bytes(), &WriteOptions::default());
    assert!(put.expect("put").ticket().is_durable());
}

/// Every key has the life in which it was written last, which may be this one.
fn read_all(store: &MapEngine, life: u32, from: u32) {
    for number in (from..KEYS).chain(0..from) {
        let value = store.get(&key(number)).expect("get");
        let value = value.and_then(|it| it.first_chunk().copied()).map(u32::from_le_bytes);
        let before = (0..life).rev().find(|life| is_written(number, *life)).unwrap_or(0);
        let is_new = is_written(number, life) && value == Some(life);
        assert!(value == Some(before) || is_new, "key {number}: {value:?} in life {life}");
    }
}

#[test]
fn readers_have_all_while_an_opening_goes_on() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let (media, options) = (|| MediaChoice::Auto, Options::default());
        // So many pages that the table is read by several threads, which leave out most of them.
        let geometry = Geometry { page_size: 1024, ..Geometry::default() };
        let store = MapEngine::create(kind, &path, 64 << 20, geometry, media(), &options);
        let store = store.expect("create");
        for number in 0..KEYS {
            put(&store, number, 0);
        }
        drop(store);
        for life in 1..lives() {
            let store = MapEngine::open(kind, &path, media(), &options, &|_| {}).expect("open");
            std::thread::scope(|threads| {
                for from in [0, KEYS / 3] {
                    let store = &store;
                    let _reader = threads.spawn(move || read_all(store, life, from));
                }
                for number in (0..KEYS).filter(|number| is_written(*number, life)) {
                    put(&store, number, life);
                }
            });
            read_all(&store, life + 1, 0);
            let report = store.verify(&mut |_| {}).expect("verify");
            assert_eq!((report.records, report.damages.len()), (u64::from(KEYS), 0));
            let mut shown = 0;
            let mut count = |_: coreplane_engine::Entry<'_>| {
                shown += 1;
                true
            };
            store.scan(b"", None, false, usize::MAX, &mut count).expect("scan");
            assert_eq!(shown, KEYS);
            // A crash, except for the last life.
            if life + 1 == lives() {
                store.close().expect("close");
            }
        }
    }
}
