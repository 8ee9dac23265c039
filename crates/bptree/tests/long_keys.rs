//! Keys of all lengths up to the longest, and keys that begin alike, against a model.

use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{
    Batch, Engine, Error, Expected, KEY_LEN_MAX, Ordered, Outcome, Repairable, Replicated,
    UnixMillis, WriteOptions,
};
use coreplane_pmem::{MediaChoice, epoch};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: u32 = 4096;
const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()), check_reads: true, ..Options::default() }
}

fn created(directory: &Path, size: u64, page: u32, clock: &ManualClock) -> Bptree {
    let path = directory.join("pool");
    Bptree::create(&path, size, page, MediaChoice::Auto, &options(clock)).expect("create")
}

fn opened(directory: &Path, clock: &ManualClock) -> Bptree {
    let path = directory.join("pool");
    Bptree::open(&path, MediaChoice::Auto, &options(clock), &|_| {}).expect("open")
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

fn usual() -> WriteOptions {
    WriteOptions::default()
}

/// A leaf between two bounds of maximum length, and in it a record of maximum length.
#[test]
fn the_longest_record_of_a_leaf_can_be_replaced() {
    let directory = in_memory();
    let store = created(directory.path(), 16 << 20, PAGE, &ManualClock::starting_at(NOW));
    for len in (PAGE as usize / 8 - 100..=PAGE as usize / 8).step_by(4) {
        let key = |last: u8| [vec![b'k'; len - 1], vec![last]].concat();
        for round in 0..3 {
            for last in 0..9 {
                let _outcome =
                    store.put(&key(last), &[round; PAGE as usize / 4], &usual()).expect("put");
            }
        }
    }
}

/// Held tombstones take the room of their keys: two leaves of them need not fit into one.
#[test]
fn leaves_of_long_tombstones_are_not_made_one() {
    let directory = in_memory();
    let store = created(directory.path(), 16 << 20, PAGE, &ManualClock::starting_at(NOW));
    store.hold_tombstones(0).expect("hold");
    for len in [300, 440, 5000] {
        let key = |number: u32| format!("{number:0len$}").into_bytes();
        for number in 0..60 {
            let _outcome = store.put(&key(number), b"value", &usual()).expect("put");
        }
        for number in 0..60 {
            let _outcome = store.delete(&key(number), &usual()).expect("delete");
        }
    }
    let mut tombstones = 0;
    store
        .changes_since(0, &mut |entry| tombstones += u32::from(entry.record.is_none()))
        .expect("changes");
    assert_eq!(tombstones, 180);
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Keys that are alike up to one of a few lengths, some of them prefixes of others.
    fn key(&mut self, field_max: usize) -> Vec<u8> {
        let alike = [0, 3, field_max - 25, field_max - 24, field_max - 2, field_max, 5000, 9000];
        let mut key = vec![b'k'; alike[self.below(alike.len())]];
        for _ in 0..self.below(3) {
            key.push(b'i' + self.below(5) as u8);
        }
        if self.below(40) == 0 {
            key.resize(KEY_LEN_MAX - self.below(2), b'm');
        }
        key
    }

    fn value(&mut self) -> Vec<u8> {
        let len = [0, 5, 100, 300, 1000, 3000, 9000][self.below(7)];
        vec![self.below(256) as u8; len]
    }
}

fn all(store: &Bptree, start: &[u8], end: Option<&[u8]>, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut shown = Vec::new();
    let mut visit = |entry: coreplane_engine::Entry<'_>| {
        let value = entry.record.expect("a record").value.to_vec();
        shown.push((entry.key.to_vec(), value));
        true
    };
    store.scan(start, end, reverse, usize::MAX, &mut visit).expect("scan");
    shown
}

fn check_range(store: &Bptree, map: &Map, draw: &mut Draw, field_max: usize) {
    let (start, end) = (draw.key(field_max), draw.key(field_max));
    let end = (draw.below(3) > 0).then_some(end);
    let range = (
        Bound::Included(&start),
        end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.max(&start))),
    );
    let mut due: Vec<_> =
        map.range::<Vec<u8>, _>(range).map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(all(store, &start, end.as_deref(), false) == due, "scan of {} bytes", start.len());
    due.reverse();
    assert!(all(store, &start, end.as_deref(), true) == due, "backwards from {}", start.len());
}

fn check_all(store: &Bptree, map: &Map) {
    store.sweep_expired().expect("sweep");
    let due: Vec<_> = map.clone().into_iter().collect();
    assert!(all(store, b"", None, false) == due, "the scan is another");
    let mut iterated = Map::new();
    let mut cursor = 0;
    loop {
        cursor = store
            .iterate(cursor, 7, &mut |entry| {
                let value = entry.record.expect("a record").value.to_vec();
                iterated.insert(entry.key.to_vec(), value);
            })
            .expect("iterate");
        if cursor == 0 {
            break;
        }
    }
    assert!(iterated == *map, "the iteration is another");
    for key in map.keys() {
        assert!(store.check(key).expect("check"));
    }
    let keys: Vec<&[u8]> = map.keys().map(Vec::as_slice).collect();
    let mut hits = 0;
    let mut visit = |at: usize, record: Option<coreplane_engine::Record<'_>>| {
        hits += usize::from(record.is_some_and(|it| it.value.equals(&map[keys[at]])));
    };
    store.multi_get(&keys, coreplane_engine::Visibility::Durable, &mut visit).expect("get");
    assert_eq!(hits, map.len());
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
    assert_eq!((report.records, store.len().expect("len")), (map.len() as u64, map.len() as u64));
}

fn write(store: &Bptree, map: &mut Map, draw: &mut Draw, field_max: usize) {
    let (key, value) = (draw.key(field_max), draw.value());
    let is_there = map.contains_key(&key);
    match draw.below(9) {
        0..3 => {
            let outcome = store.put(&key, &value, &usual()).expect("put");
            assert!(matches!(outcome, Outcome::Written(it) if it.replaced == is_there));
            map.insert(key, value);
        }
        3 => {
            let outcome = store.insert(&key, &value, &usual()).expect("insert");
            assert_eq!(matches!(outcome, Outcome::Exists(_)), is_there);
            map.entry(key).or_insert(value);
        }
        4 => {
            let expected = map.get(&key).map_or(Expected::Absent, |value| Expected::Value(value));
            let outcome = store.compare_and_set(&key, expected, &value, &usual()).expect("cas");
            assert!(matches!(outcome, Outcome::Written(_)));
            let refused = store.compare_and_set(&key, Expected::Absent, b"", &usual());
            assert!(matches!(refused.expect("cas"), Outcome::Mismatch(_)));
            map.insert(key, value);
        }
        5 | 6 => {
            let outcome = store.delete(&key, &usual()).expect("delete");
            assert_eq!(matches!(outcome, Outcome::Written(_)), is_there);
            map.remove(&key);
        }
        7 => {
            let mut batch = Batch::new();
            for _ in 0..draw.below(9) {
                let (key, value) = (draw.key(field_max), draw.value());
                if draw.below(3) == 0 {
                    batch.delete(&key);
                    map.remove(&key);
                } else {
                    batch.put(&key, &value);
                    map.insert(key, value);
                }
            }
            store.apply(&batch, &usual()).expect("a batch");
        }
        _ => {
            // An expired record is as if it had never been.
            let brief = WriteOptions { expires_at: Some(UnixMillis(NOW.0 - 5)), ..usual() };
            let _outcome = store.put(&key, &value, &brief).expect("put");
            map.remove(&key);
        }
    }
}

/// Pages that are free, once readers (of other tests too) have gone.
fn settles_at(store: &Bptree, free: u64) -> bool {
    let begun = Instant::now();
    while store.stats().free_bytes != free {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// No page that nothing leads to is in use, and no page that something leads to is free: an open that looks at
/// every leaf finds as many pages free.
fn reopened(store: Bptree, directory: &Path, clock: &ManualClock, closes: bool) -> Bptree {
    if closes {
        store.close().expect("close");
        drop(store);
        return opened(directory, clock);
    }
    // Readers of other tests hold pages for a while: waits until all readers that may hold one of these have gone.
    let (stamp, begun) = (epoch::stamp(), Instant::now());
    while !epoch::has_passed(stamp) {
        assert!(begun.elapsed() < Duration::from_secs(60), "a reader never goes");
        std::thread::yield_now();
    }
    let free = store.stats().free_bytes;
    drop(store);
    let store = opened(directory, clock);
    let after = store.stats().free_bytes;
    assert!(after == free || settles_at(&store, free), "{free} bytes were free, now {after}");
    store
}

fn story(seed: u64, page: u32, operations: usize) {
    let directory = in_memory();
    let clock = ManualClock::starting_at(NOW);
    let field_max = page as usize / 8 - 64;
    let mut store = created(directory.path(), 32 << 20, page, &clock);
    let (mut map, mut draw) = (Map::new(), Draw(seed));
    let mut splits = 0;
    for operation in 0..operations {
        write(&store, &mut map, &mut draw, field_max);
        if draw.below(20) == 0 {
            check_range(&store, &map, &mut draw, field_max);
        }
        if operation % 400 == 399 {
            check_all(&store, &map);
        }
        match draw.below(600) {
            closes @ 0..2 => {
                splits += store.stats().figure("leaves_split").expect("a figure");
                store = reopened(store, directory.path(), &clock, closes == 0);
            }
            2 => {
                store.clear().expect("clear");
                map.clear();
            }
            3 => drop(store.sweep_expired().expect("sweep")),
            _ => {}
        }
    }
    check_all(&store, &map);
    splits += store.stats().figure("leaves_split").expect("a figure");
    assert!(splits > 0);
    let store = reopened(store, directory.path(), &clock, false);
    check_all(&store, &map);
    // With the last record the last rest is freed, and none stays behind.
    for key in map.keys() {
        let _outcome = store.delete(key, &usual()).expect("delete");
    }
    let store = reopened(store, directory.path(), &clock, false);
    store.clear().expect("clear");
    assert!(settles_at(&store, (32 << 20) - 2 * u64::from(page)), "{:?}", store.stats());
}

#[test]
fn keys_of_all_lengths_are_what_the_model_has() {
    let seeds = std::env::var("COREPLANE_SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(4);
    for seed in 1..=seeds {
        story(seed, [PAGE, 16 << 10][seed as usize % 2], 1500);
    }
}

/// Puts and batches until many were refused for space.
fn fill(store: &Bptree, map: &mut Map, draw: &mut Draw) {
    let key = |draw: &mut Draw| {
        let alike = [3, 440, 5000, 30_000, 65_300][draw.below(5)];
        format!("{}{:03}", "k".repeat(alike), draw.below(200)).into_bytes()
    };
    let mut refused = 0;
    while refused < 12 {
        let mut after = map.clone();
        let mut batch = Batch::new();
        for _ in 0..[1, 2, 12][draw.below(3)] {
            let key = key(draw);
            if draw.below(6) == 0 {
                batch.delete(&key);
                after.remove(&key);
            } else {
                let value = vec![draw.below(256) as u8; [5, 300, 900][draw.below(3)]];
                batch.put(&key, &value);
                after.insert(key, value);
            }
        }
        let written = match batch.only() {
            Some(coreplane_engine::ChangeRef::Put { key, value, .. }) => {
                store.put(key, value, &usual()).map(drop)
            }
            _ => store.apply(&batch, &usual()).map(drop),
        };
        match written {
            Ok(()) => *map = after,
            Err(Error::NoSpace { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A write that is refused for lack of space changes nothing, loses no page, and leaves nothing behind that would
/// be taken for a leaf later.
#[test]
fn what_is_refused_for_space_is_as_if_it_had_not_been() {
    for seed in 1..=6 {
        let directory = in_memory();
        let clock = ManualClock::starting_at(NOW);
        let mut store = created(directory.path(), 1 << 20, PAGE, &clock);
        let (mut map, mut draw) = (Map::new(), Draw(seed));
        for _ in 0..4 {
            fill(&store, &mut map, &mut draw);
            check_all(&store, &map);
            store = reopened(store, directory.path(), &clock, false);
            check_all(&store, &map);
            let keys: Vec<_> = map.keys().filter(|_| draw.below(8) > 0).cloned().collect();
            for key in keys {
                let _outcome = store.delete(&key, &usual()).expect("a delete");
                map.remove(&key);
            }
        }
    }
}

/// The first writer of a key gives it its rest; the rest of the other writer has no owner.
#[test]
fn of_two_that_write_a_new_key_one_keeps_its_rest() {
    let directory = in_memory();
    let clock = ManualClock::starting_at(NOW);
    let store = created(directory.path(), 32 << 20, PAGE, &clock);
    let key = |number: u32| format!("{number:020000}").into_bytes();
    let both = std::sync::Barrier::new(2);
    let keys = 500;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..keys {
                let mut batch = Batch::new();
                batch.put(&key(number), b"of a batch");
                both.wait();
                store.apply(&batch, &usual()).expect("a batch");
            }
        });
        for number in 0..keys {
            let key = key(number);
            both.wait();
            let _outcome = store.put(&key, b"of a put", &usual()).expect("put");
        }
    });
    let store = reopened(store, directory.path(), &clock, false);
    assert_eq!(store.len().expect("len"), u64::from(keys));
}

/// A store of 60 keys, and the page of the rest of a bound between two of its leaves. A byte of that rest, which was
/// `k`, is `wrong`.
fn with_damaged_bound(wrong: u8) -> (tempfile::TempDir, Bptree, usize) {
    use std::os::unix::fs::FileExt as _;
    let directory = in_memory();
    let store = created(directory.path(), 16 << 20, PAGE, &ManualClock::starting_at(NOW));
    let alike = 4000;
    for number in 0..60 {
        let key = [vec![b'k'; alike], format!("{number:03}").into(), vec![b'z'; alike]].concat();
        let _outcome = store.put(&key, b"value", &usual()).expect("put");
    }
    let path = directory.path().join("pool");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the pool");
    let bytes = std::fs::read(directory.path().join("pool")).expect("the pool");
    // The rest of a bound is as long as the keys are alike, and a digit or more.
    let rest = alike - (PAGE as usize / 8 - 64 - 24);
    let word = |page: &[u8], at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    let is_bound = |page: &[u8]| {
        word(page, 4) == 0x4b && (rest + 1..=rest + 3).contains(&(word(page, 20) as usize))
    };
    let bound = bytes.chunks(PAGE as usize).position(is_bound).expect("a bound that is long");
    file.write_all_at(&[wrong], bound as u64 * u64::from(PAGE) + 1000).expect("damage");
    (directory, store, bound)
}

/// A damaged bound between two leaves is named once, and the leaves behind them are checked.
#[test]
fn verify_goes_on_behind_a_bound_that_is_damaged() {
    let (_directory, store, bound) = with_damaged_bound(b'j');
    let report = store.verify(&mut |_| {}).expect("verify");
    assert_eq!(report.damages.len(), 1, "{:?}", report.damages);
    assert_eq!(report.damages[0].offset, bound as u64 * u64::from(PAGE), "{:?}", report.damages);
    assert!(report.records > 40, "{}", report.records);
}

/// It may read as one above other leaves, or below the keys of its own.
#[test]
fn a_scan_does_not_go_past_a_leaf_whose_bound_is_damaged() {
    for (wrong, reverse) in [(b'j', false), (b'j', true), (b'l', false), (b'l', true)] {
        let (_directory, store, _) = with_damaged_bound(wrong);
        let mut shown = 0;
        let scanned = store.scan(b"", None, reverse, usize::MAX, &mut |_| {
            shown += 1;
            true
        });
        let is_told =
            matches!(scanned, Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }));
        assert!(
            is_told || shown == 60,
            "{wrong}, in reverse: {reverse}: {shown} keys, {scanned:?}"
        );
    }
}
