//! A close leaves a checkpoint. An open with it reads no leaf, and finds the same as one without it. A power cut at
//! any moment of the close, the open and later writes loses nothing; a damaged checkpoint costs only time.

mod story;

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Engine, Error, Ordered, Repairable, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Fault, Model, SimOptions, explore};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use story::{Story, explored, long_key, short_key};

fn scaled<T>(usual: T, full: T) -> T {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    if is_full { full } else { usual }
}

/// Short, closed at the end, and written to after the recovery.
fn closing(seed: u64) -> Story {
    // In one of three some keys are long.
    let key = if seed.is_multiple_of(3) { long_key } else { short_key };
    Story { closes: true, goes_on: true, key, ..Story::new(seed, 1, 14) }
}

fn options(seed: u64) -> SimOptions {
    let base = story::options(seed);
    // Long keys should not fill it: whether there is room depends on the pages that readers hold.
    let len = if seed.is_multiple_of(3) { 2 * base.len } else { base.len };
    SimOptions { images_per_cut: 5, recovery_cut_in: 6, len, max_len: len, ..base }
}

#[test]
fn a_power_cut_in_a_close_or_after_the_open_loses_nothing() {
    let (mut images, mut with) = (0, 0);
    for seed in 1..=scaled(3, 16) {
        let story = closing(seed);
        images += explored(&story, &options(seed));
        with += story.with_checkpoint.into_inner();
    }
    assert!(images > 700 && with > 10, "{images} images, {with} opened with a checkpoint");
}

#[test]
fn where_a_fence_is_a_sync_too() {
    let (mut images, mut with) = (0, 0);
    for seed in 1..=scaled(2, 8) {
        let story = closing(seed);
        images += explored(&story, &SimOptions { model: Model::File, ..options(seed) });
        with += story.with_checkpoint.into_inner();
    }
    assert!(images > 150 && with > 3, "{images} images, {with} opened with a checkpoint");
}

/// Each page of the checkpoint must have been flushed, and fenced before the root names it.
#[test]
fn a_flush_or_the_fence_of_a_checkpoint_that_is_missing_is_found() {
    let few = || Story { operations: 8, ..closing(2) };
    let sim = SimOptions {
        images_per_cut: 60,
        recovery_cut_in: 0,
        shrink: false,
        max_violations: 50,
        non_temporal: false,
        ..options(2)
    };
    let story = few();
    explored(&story, &sim);
    let close = story.done.into_inner().unwrap().expect("a close");
    let caught = |fault: Fault| {
        let report = explore(&SimOptions { fault: Some(fault), ..sim.clone() }, &few());
        report.violations.iter().any(|it| it.message.contains("not whole"))
    };
    let caught_flushes =
        close.pages.iter().filter(|page| caught(Fault::DropFlushOf((*page).clone())));
    assert_eq!(caught_flushes.count(), close.pages.len());
    assert!(!close.pages.is_empty());
    let caught_fences = close.fences.filter(|number| caught(Fault::DropFence(*number)));
    assert!(caught_fences.count() >= 1);
}

const PAGE: u32 = 4 << 10;

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

fn created(path: &Path) -> Bptree {
    let options = Options::default();
    Bptree::create(path, 4 << 20, PAGE, MediaChoice::Auto, &options).expect("create")
}

fn opened(path: &Path) -> Bptree {
    Bptree::open(path, MediaChoice::Auto, &Options::default(), &|_| {}).expect("open")
}

fn figure(store: &Bptree, name: &str) -> u64 {
    store.stats().figure(name).expect("the figure")
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// Every 40th is large and has pages of its own.
fn value(number: u32, version: u32) -> Vec<u8> {
    let len = if number.is_multiple_of(40) { 5000 } else { 60 };
    vec![(number * 7 + version) as u8; len]
}

fn put_all(store: &Bptree, numbers: std::ops::Range<u32>, version: u32) {
    for number in numbers {
        let _outcome = store
            .put(&key(number), &value(number, version), &WriteOptions::default())
            .expect("put");
    }
}

/// Scans, gets and verifies.
fn check(store: &Bptree, expected: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut found = BTreeMap::new();
    let mut take = |entry: coreplane_engine::Entry<'_>| {
        found.insert(entry.key.to_vec(), entry.record.expect("a record").value.to_vec());
        true
    };
    store.scan(b"", None, false, usize::MAX, &mut take).expect("scan");
    assert!(found == *expected, "{} records of {}", found.len(), expected.len());
    for (key, value) in expected {
        assert_eq!(store.get(key).expect("get").as_ref(), Some(value));
    }
    assert_eq!(store.len().expect("len"), expected.len() as u64);
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
}

fn expected(numbers: std::ops::Range<u32>, version: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    numbers.map(|number| (key(number), value(number, version))).collect()
}

#[test]
fn an_open_after_a_close_reads_no_leaf_and_one_after_a_kill_all() {
    let directory = in_memory();
    let path = directory.path().join("pool");
    let store = created(&path);
    put_all(&store, 0..2000, 0);
    let free = store.stats().free_bytes;
    let live = store.stats().live_bytes;
    store.close().expect("close");
    drop(store);
    let store = opened(&path);
    let leaves = figure(&store, "leaves_unloaded");
    assert!(leaves > 20 && figure(&store, "opened_with_checkpoint") == 1, "{leaves} leaves");
    assert!(store.get(&key(7)).expect("get").is_some());
    assert_eq!(figure(&store, "leaves_unloaded"), leaves - 1);
    assert_eq!(store.stats().live_bytes, live);
    // Closed with most leaves not loaded, and opened once more.
    let _outcome = store.put(&key(3), &value(3, 1), &WriteOptions::default()).expect("put");
    store.close().expect("close");
    drop(store);
    let store = opened(&path);
    assert_eq!(figure(&store, "leaves_unloaded"), leaves);
    let mut all = expected(0..2000, 0);
    all.insert(key(3), value(3, 1));
    check(&store, &all);
    assert_eq!(figure(&store, "leaves_unloaded"), 0);
    // Readers of other tests may hold the pages of the checkpoint for a while.
    let begun = std::time::Instant::now();
    while store.stats().free_bytes < free - u64::from(PAGE) {
        assert!(begun.elapsed().as_secs() < 20, "pages are lost");
        std::thread::yield_now();
    }
    put_all(&store, 0..2000, 2);
    drop(store);
    let store = opened(&path);
    let unloaded = figure(&store, "leaves_unloaded");
    assert_eq!((unloaded, figure(&store, "opened_with_checkpoint")), (0, 0));
    check(&store, &expected(0..2000, 2));
}

#[test]
fn a_checkpoint_that_is_damaged_costs_time_alone() {
    let directory = in_memory();
    let path = directory.path().join("pool");
    let store = created(&path);
    put_all(&store, 0..1500, 0);
    store.close().expect("close");
    drop(store);
    let pool = std::fs::read(&path).expect("read");
    let pages: Vec<usize> = (PAGE as usize..pool.len())
        .step_by(PAGE as usize)
        .filter(|start| pool[start + 4..start + 8] == 0x43_u32.to_le_bytes())
        .collect();
    assert!(!pages.is_empty());
    let all = expected(0..1500, 0);
    let mut found = 0;
    for (page, at) in pages.iter().flat_map(|page| (0..PAGE as usize).map(move |at| (page, at))) {
        // All of the head, and some of the rest.
        if at >= 96 && !at.is_multiple_of(61) {
            continue;
        }
        let mut changed = pool.clone();
        changed[page + at] ^= 1 << (at % 8);
        std::fs::write(&path, &changed).expect("write");
        let store = opened(&path);
        found += figure(&store, "checkpoints_damaged");
        if at.is_multiple_of(16) {
            check(&store, &all);
        } else {
            assert_eq!(store.len().expect("len"), all.len() as u64);
        }
    }
    assert!(found > 96, "{found} flips were seen");
}

/// The checkpoint states that there was a record where nothing sound is.
#[test]
fn a_leaf_that_ends_too_early_is_an_error_and_not_a_loss() {
    let directory = in_memory();
    let path = directory.path().join("pool");
    let store = created(&path);
    put_all(&store, 0..1000, 0);
    store.close().expect("close");
    drop(store);
    let mut pool = std::fs::read(&path).expect("read");
    let at = |key: &[u8]| pool.windows(key.len()).position(|bytes| bytes == key);
    let place = at(&key(501)).expect("the key is in the pool");
    // In every copy of it, since dead leaves still hold some.
    let mut place = Some(place);
    while let Some(at) = place {
        pool[at + 12] ^= 4;
        let rest = pool[at + 1..].windows(9).position(|bytes| bytes == key(501));
        place = rest.map(|more| at + 1 + more);
    }
    std::fs::write(&path, &pool).expect("write");
    let store = opened(&path);
    let got = store.get(&key(501));
    assert!(matches!(got, Err(Error::Corrupt { .. })), "{got:?}");
    let mut batch = Batch::new();
    batch.put(&key(501), b"new");
    store.apply(&batch, &WriteOptions::default()).expect("a put over a lost key");
    assert_eq!(store.get(&key(501)).expect("get").as_deref(), Some(&b"new"[..]));
    assert_eq!(store.get(&key(10)).expect("get"), Some(value(10, 0)));
}

/// Writes acknowledged before the close are there after it, and none is acknowledged later.
#[test]
fn a_close_beside_writers_loses_nothing() {
    for round in 0..scaled(8, 40) {
        let directory = in_memory();
        let path = directory.path().join("pool");
        let store = created(&path);
        let written: Vec<AtomicU32> = (0..2).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for (writer, written) in (0..).zip(&written) {
                let store = &store;
                scope.spawn(move || {
                    for serial in 0.. {
                        let number = serial * 2 + writer;
                        let options = WriteOptions::default();
                        match store.put(&key(number % 600), &number.to_le_bytes(), &options) {
                            Ok(_) => written.store(serial + 1, Ordering::Release),
                            Err(Error::Closed) => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            while written[0].load(Ordering::Acquire) < 100 + 150 * round {
                std::thread::yield_now();
            }
            store.close().expect("close");
        });
        drop(store);
        let store = opened(&path);
        assert_eq!(figure(&store, "opened_with_checkpoint"), 1);
        for (writer, written) in (0..).zip(&written) {
            let serials = written.load(Ordering::Acquire);
            for serial in serials.saturating_sub(300)..serials {
                let number: u32 = serial * 2 + writer;
                let found = store.get(&key(number % 600)).expect("get");
                assert_eq!(found, Some(number.to_le_bytes().to_vec()), "round {round}");
            }
        }
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}
