//! Scrubs beside writers.

use crate::recovery::open::{Options, create_options};
use crate::tree::image::{Item, Source};
use crate::tree::multi_leaf_commit::NewPart;
use crate::upkeep::Store;
use crate::upkeep::tests::{GUARD, PAGE, new_store};
use crate::volume::counters::Count;
use coreplane_engine::{Scrub, TimeSource, UnixMillis, WriteOptions};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use coreplane_record::Header;
use smallvec::smallvec;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// A large batch appends to its first leaf long before it publishes the records.
#[test]
fn a_leaf_with_records_that_are_not_published_yet_is_not_damaged() {
    let (_directory, store) = new_store();
    let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
    let locked = store.lock_leaf(b"key").expect("a leaf");
    let page = locked.page;
    assert!(matches!(store.scrub_page(page), Some((_, true))));
    let version = locked.held.given() + 1;
    let header = Header { batched: true, ..Header::put(version) };
    let item = Item { header, key: b"another", value: b"value", source: Source::Caller };
    let part = NewPart { life: locked.life(), items: smallvec![item], is_superseded: false };
    let _places = store.append_commit(&[part], version).expect("a commit");
    assert_eq!(store.scrub_page(page), None);
    // The writer is gone, and the record is known to nobody.
    drop(locked);
    assert!(matches!(store.scrub_page(page), Some((_, false))));
}

const KEYS: u64 = 300;

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// A pool with a store, one in three of whose records stays; the others expire at 11 and 12.
fn with_expiries(path: &Path, options: &Options) -> Store {
    let pool = Pool::create(path, &create_options(1 << 20, PAGE, MediaChoice::Auto));
    let store = Store::format(pool.expect("a pool"), options).expect("a store");
    for number in 0..KEYS {
        let expires_at = (number % 3 > 0).then_some(UnixMillis(10 + number % 3));
        let write = WriteOptions { expires_at, ..WriteOptions::default() };
        let _outcome = store.put(&key(number), &[7; 100], &write).expect("put");
    }
    store
}

/// Options without background threads, and with this clock.
fn with_clock(clock: &Arc<AtomicU64>) -> Options {
    let clock = Arc::clone(clock);
    let time: TimeSource = Arc::new(move || UnixMillis(clock.load(Ordering::Relaxed)));
    Options { background: false, time: Some(time), ..Options::default() }
}

/// Scrubs every page.
pub(super) fn round(store: &Store) {
    let mut scrub = Scrub::default();
    (0..store.space.pages()).for_each(|_| _ = store.scrub_next(&mut scrub));
}

/// Nobody writes to their leaves, or reads them. After an open with a checkpoint they are not loaded.
#[test]
fn expired_records_are_removed_by_the_scrub() {
    for is_opened in [false, true] {
        let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
        let clock = Arc::new(AtomicU64::new(1));
        let options = with_clock(&clock);
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let mut store = with_expiries(&path, &options);
        let leaves = store.inner.leaves().len();
        if is_opened {
            store.close().expect("close");
            drop(store);
            let pool = Pool::open(&path, &OpenOptions::default()).expect("a pool");
            store = Store::open(pool, &options, &|_| {}).expect("open");
        }
        round(&store);
        assert_eq!(store.len(), KEYS, "none has expired");
        assert!(!is_opened || store.opened.unloaded.load(Ordering::Relaxed) > 0, "they stay so");
        for (now, left) in [(11, KEYS * 2 / 3), (12, KEYS / 3)] {
            clock.store(now, Ordering::Relaxed);
            round(&store);
            assert_eq!(store.len(), left, "opened: {is_opened}");
        }
        assert!(store.inner.leaves().len() < leaves, "leaves with few records are merged");
        assert_eq!(store.counters.get(Count::DamagedPages), 0);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// They would only be removed in this process.
#[test]
fn expired_records_of_a_copy_stay() {
    let clock = Arc::new(AtomicU64::new(1));
    let options = with_clock(&clock);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    drop(with_expiries(&path, &options));
    let pool = Pool::open_copy(&path, &OpenOptions::default()).expect("a pool");
    let options = Options { is_copy: true, ..options };
    let store = Store::open(pool, &options, &|_| {}).expect("open");
    clock.store(12, Ordering::Relaxed);
    round(&store);
    assert_eq!(store.len(), KEYS);
    assert!(store.counters.get(Count::ScrubbedPages) > 0);
}

/// It begins like the page of no leaf then, or ends behind what is published.
#[test]
fn a_wrong_kind_or_length_of_a_leaf_that_nobody_reads_is_found() {
    for (at, bit) in [(4, 1), (9, 0x40), (11, 0x40)] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..Options::default() };
        let pool = Pool::create(&path, &create_options(1 << 20, PAGE, MediaChoice::Auto));
        let store = Store::format(pool.expect("a pool"), &options).expect("a store");
        for (key, len) in [(b"a", 100), (b"b", 9000)] {
            let _outcome = store.put(key, &vec![7; len], &WriteOptions::default()).expect("put");
        }
        store.close().expect("close");
        drop(store);
        let pool = Pool::open(&path, &OpenOptions::default()).expect("a pool");
        let store = Store::open(pool, &options, &|_| {}).expect("open");
        round(&store);
        assert_eq!(store.counters.get(Count::DamagedPages), 0);
        let at = store.space.start_of(store.inner.descend(b"a").leaf) + at;
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("open");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ bit], at).expect("write");
        round(&store);
        assert_eq!(store.counters.get(Count::DamagedPages), 1, "byte {at}");
        assert_eq!(store.opened.unloaded.load(Ordering::Relaxed), 1, "it was loaded");
    }
}
