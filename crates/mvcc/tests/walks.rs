//! Walks over many keys, beside writes that give up pages which a walk has not read yet.

use coreplane_conformance::steps::iterate_all;
use coreplane_engine::{Batch, Engine, Ordered, Snapshots, TimeSource, UnixMillis, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u32 = 400;
/// One key in so many has a value that is written to pages of its own.
const LARGE: u32 = 7;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn value(number: u32, round: u32) -> Vec<u8> {
    let len = if number.is_multiple_of(LARGE) { 6000 } else { 60 };
    round.to_le_bytes().iter().copied().cycle().take(len).collect()
}

fn round_of(value: &[u8]) -> u32 {
    value.first_chunk().copied().map_or(u32::MAX, u32::from_le_bytes)
}

/// All keys in one batch, which readers see as a whole.
fn write_round(store: &MapEngine, round: u32) {
    let mut batch = Batch::new();
    for number in 0..KEYS {
        batch.put(&key(number), &value(number, round));
    }
    let written = store.apply(&batch, &WriteOptions::default()).expect("write");
    assert!(written.ticket.is_durable());
}

fn create(kind: MapKind, directory: &tempfile::TempDir, options: &Options) -> MapEngine {
    let geometry = Geometry { page_size: 1024, ..Geometry::default() };
    let path = directory.path().join("pool");
    MapEngine::create(kind, &path, 16 << 20, geometry, MediaChoice::Auto, options).expect("create")
}

/// Every key with the round of its value, which is whole.
fn scan(
    store: &MapEngine,
    reverse: bool,
    mut between: impl FnMut(usize),
    snapshot: Option<&dyn coreplane_engine::Snapshot>,
) -> Vec<(u32, u32)> {
    let mut shown = Vec::new();
    let mut visit = |entry: coreplane_engine::Entry<'_>| {
        let number = u32::from_be_bytes(*entry.key.first_chunk().expect("a key of ours"));
        let found = entry.record.expect("a live record").value.to_vec();
        let round = round_of(&found);
        assert_eq!(found, value(number, round), "key {number}");
        between(shown.len());
        shown.push((number, round));
        true
    };
    match snapshot {
        Some(snapshot) => snapshot.scan(&[], None, reverse, usize::MAX, &mut visit),
        None => Ordered::scan(store, &[], None, reverse, usize::MAX, &mut visit),
    }
    .expect("scan");
    if reverse {
        shown.reverse();
    }
    assert!(shown.iter().map(|it| it.0).eq(0..KEYS), "each key once, in order");
    shown
}

/// Records that a walk has found and not read yet are overwritten, and their pages are given up, between two keys.
#[test]
fn a_walk_goes_on_when_its_pages_are_given_up() {
    for kind in MapKind::ALL {
        for check_reads in [false, true] {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
            let options = Options { check_reads, background: false, ..Options::default() };
            let store = create(kind, &directory, &options);
            write_round(&store, 1);
            for reverse in [false, true] {
                let before = round_of(&store.get(&key(1)).expect("get").expect("there"));
                // With checks the map is held while a record is shown: no thread can write then.
                let first = if reverse { KEYS - 1 } else { 1 };
                let shown = scan(
                    &store,
                    reverse,
                    |at| {
                        if at == 1 && !check_reads {
                            write_round(&store, before + 1);
                            write_round(&store, before + 2);
                            // Pages are freed when the records that superseded theirs are durable, and their words
                            // are.
                            (0..4).for_each(|_| write_round(&store, before + 3));
                        }
                    },
                    None,
                );
                let newest = round_of(&store.get(&key(1)).expect("get").expect("there"));
                let of = |number: u32| shown[number as usize].1;
                assert_eq!(of(first), before, "{kind:?}");
                assert!(shown.iter().all(|it| it.1 == before || it.1 == newest), "{kind:?}");
                assert_eq!(of(if reverse { 0 } else { KEYS - 1 }), newest, "{kind:?}");
            }
        }
    }
}

/// A snapshot is of one round, whatever is written while it is read; a record that is read without one is never older
/// than those acknowledged before.
#[test]
fn walks_beside_writes_see_what_they_should() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let store = create(kind, &directory, &Options::default());
        write_round(&store, 1);
        let rounds = match std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|it| it == "full") {
            true => 150,
            false => 30,
        };
        let (acknowledged, walks) = (AtomicU32::new(1), AtomicU32::new(0));
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let (since, mut round) = (Instant::now(), 2);
                let waits = || since.elapsed() < Duration::from_secs(60);
                while round < rounds || walks.load(Ordering::Relaxed) == 0 && waits() {
                    write_round(&store, round);
                    acknowledged.store(round, Ordering::Release);
                    round += 1;
                }
            });
            while !writer.is_finished() {
                let walk = walks.load(Ordering::Relaxed);
                let least = acknowledged.load(Ordering::Acquire);
                let snapshot = store.snapshot().expect("snapshot");
                let shown = scan(&store, walk % 2 == 0, |_| {}, Some(&*snapshot));
                assert!(shown.iter().all(|it| it.1 == shown[0].1), "{kind:?}: one round");
                assert!(shown[0].1 >= least, "{kind:?}");
                drop(snapshot);
                let least = acknowledged.load(Ordering::Acquire);
                let shown = scan(&store, walk % 2 == 1, |_| {}, None);
                assert!(shown.iter().all(|it| it.1 >= least), "{kind:?}: never stale");
                walks.store(walk + 1, Ordering::Relaxed);
            }
            writer.join().expect("the writer");
            assert!(walks.load(Ordering::Relaxed) > 0);
        });
        let audited = store.audit().expect("what is counted is what lives");
        assert!(audited > 0);
    }
}

/// A call of an iteration skips no more expired records than the number of live records it would show.
#[test]
fn what_has_expired_is_a_step_of_an_iteration() {
    const EXPIRED: u32 = 1000;
    const COUNT: usize = 10;
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let now = Arc::new(AtomicU64::new(1000));
        let told = Arc::clone(&now);
        let time: TimeSource = Arc::new(move || UnixMillis(told.load(Ordering::Relaxed)));
        let options = Options { background: false, time: Some(time), ..Options::default() };
        let store = create(kind, &directory, &options);
        let mut batch = Batch::new();
        for number in 0..EXPIRED {
            batch.put_until(&key(number), b"v", Some(UnixMillis(2000)));
        }
        batch.put(&key(EXPIRED), b"lives");
        store.apply(&batch, &WriteOptions::default()).expect("write");
        now.store(3000, Ordering::Relaxed);
        let (calls, shown) = iterate_all(&store, COUNT).expect("iterate");
        assert_eq!(shown, [key(EXPIRED)], "{kind:?}");
        assert!(calls >= EXPIRED as usize / (2 * COUNT), "{kind:?}: {calls} calls");
    }
}
