//! The engine and its inner state: lists that have to stay short, pages that must not leak, damage that a write meets.

use super::{MapEngine, MapKind};
use crate::map::Space;
use crate::volume::geometry::Geometry;
use coreplane_engine::{Engine, Error, Outcome, Replicated, TimeSource, UnixMillis, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_record::Options;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn sim(model: Model, pages: u64) -> Sim {
    let len = pages << 12;
    let options = SimOptions { model, len, max_len: len, page_size: 4096, ..SimOptions::default() };
    Sim::new(&options).expect("memory")
}

fn quiet() -> Options {
    Options { background: false, ..Options::default() }
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn put(engine: &MapEngine, key: &[u8], value: &[u8]) {
    let outcome = engine.put(key, value, &WriteOptions::default()).expect("written");
    assert!(outcome.is_written(), "{outcome:?}");
}

fn create(path: &Path, kind: MapKind, options: &Options) -> MapEngine {
    let geometry = Geometry { page_size: 4096, ..Geometry::default() };
    let (size, media) = (4 << 20, MediaChoice::Auto);
    MapEngine::create(kind, path, size, geometry, media, options).expect("an engine")
}

/// On a file each write draws a generation.
#[test]
fn syncs_leave_nothing_behind_in_memory() {
    for kind in MapKind::ALL {
        let sim = sim(Model::File, 64);
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        for number in 0..2_000 {
            put(&engine, &key(number % 7), b"value");
        }
        let count = engine.store.map.read().stream().covers_count();
        assert!(count < 10, "{kind:?} knows {count} syncs");
    }
}

/// The version of a record is damaged, and there was a snapshot.
#[test]
fn a_put_over_a_damaged_version_is_a_put() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("pool");
        let engine = create(&path, kind, &quiet());
        put(&engine, b"other", b"value");
        put(&engine, b"the key that is damaged", b"value");
        drop(engine.snapshots().expect("snapshots").snapshot().expect("a snapshot"));
        let bytes = std::fs::read(&path).expect("bytes");
        let at = bytes.windows(23).position(|it| it == b"the key that is damaged");
        // The highest byte of the version, which is 8 bytes before the key.
        let at = at.expect("its record") as u64 - 1;
        let file = std::fs::File::options().write(true).open(&path).expect("the file");
        file.write_all_at(&[0x40], at).expect("written");
        put(&engine, b"the key that is damaged", b"new");
        let found = engine.get(b"the key that is damaged").expect("a value");
        assert_eq!(found, Some(b"new".to_vec()));
        assert_eq!(engine.len().expect("a count"), 2);
    }
}

/// The cleaner runs while versions that a snapshot has kept are dropped.
#[test]
fn pages_cleaned_while_a_snapshot_goes_are_free_in_the_end() {
    let sim = sim(Model::X86, 256);
    let engine = MapEngine::simulated_create(MapKind::List, Arc::clone(sim.space()), &quiet());
    let engine = engine.expect("an engine");
    let store = &engine.store;
    let write = |step: usize, from: u32, value: u8| {
        (from..800).step_by(step).for_each(|number| put(&engine, &key(number), &[value; 200]));
    };
    write(1, 0, 1);
    write(2, 0, 2);
    let snapshot = super::snapshot::Pinned::within(store, &mut store.map.write());
    let snapshot = snapshot.expect("a snapshot");
    // The first pages have dead records, and such that only the snapshot sees.
    write(2, 1, 3);
    {
        let mut map = store.map.write();
        let guard = coreplane_pmem::epoch::pin();
        map.unpin(snapshot.version);
        let (total, free) = map.stream().pages.total_and_free();
        // Pages are cleaned before the versions that only the snapshot saw are dropped.
        for pages in free..total {
            if map.make_space(pages, 0).is_err() {
                break;
            }
        }
        while map.release_some(&guard).expect("released") {}
    }
    std::mem::forget(snapshot);
    let map = store.map.read();
    let pages = &map.stream().pages;
    assert_eq!(pages.count_aside(), 0, "of {:?}", pages.total_and_free());
}

/// Other threads get the map in between, and the caller is told how many, so that it does not go on for ever while
/// others write. What cannot be had is refused at once.
#[test]
fn some_pages_are_cleaned_at_a_time() {
    let shapes = [(MapKind::List, (11_000, 15), 10, 16), (MapKind::CowTree, (4_000, 3), 60, 32)];
    for (kind, (keys, step), more, at_once) in shapes {
        let sim = sim(Model::X86, 512);
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        (0..keys).for_each(|number| put(&engine, &key(number), &[7; 100]));
        (0..keys).step_by(step).for_each(|number| put(&engine, &key(number), &[8; 100]));
        let store = &engine.store;
        let (total, free) = store.map.read().stream().pages.total_and_free();
        let too_much = store.map.write().make_space(total + 1, 0);
        assert!(matches!(too_much, Err(Error::NoSpace { .. })), "{kind:?}: {too_much:?}");
        if kind == MapKind::List {
            let too_much = store.map.write().make_space(total - 100, 0);
            assert!(matches!(too_much, Err(Error::NoSpace { .. })), "{too_much:?}");
        }
        let (mut last, mut calls) = (engine.stats().cleaner_pages_freed, 0);
        assert!(kind != MapKind::List || last == 0, "{free} of {total} pages are free");
        loop {
            let space = store.map.write().make_space(free + more, 0).expect("space");
            let cleaned = engine.stats().cleaner_pages_freed - last;
            assert!(cleaned <= at_once, "{kind:?}: {cleaned} pages in one call");
            match space {
                Space::Found => break,
                Space::Again(said) => assert_eq!(u64::from(said), cleaned, "{kind:?}"),
                _ => {}
            }
            (last, calls) = (last + cleaned, calls + 1);
        }
        assert!(calls > 2, "{kind:?}: {calls} calls");
    }
}

/// A clear says all that earlier clears and tombstones say, before a restart and after it.
#[test]
fn a_clear_leaves_no_earlier_clears_and_tombstones() {
    let sim = sim(Model::X86, 2048);
    // A page that is free as soon as no reader is left, of any test, counts as free.
    let used = |engine: &MapEngine| {
        let map = engine.store.map.read();
        let (total, free) = map.stream().pages.total_and_free();
        total - free - map.stream().coming()
    };
    let engine = MapEngine::simulated_create(MapKind::List, Arc::clone(sim.space()), &quiet());
    let engine = engine.expect("an engine");
    let before = used(&engine);
    for number in 0..4_000 {
        put(&engine, &key(number), b"value");
        let _deleted = engine.delete(&key(number), &WriteOptions::default()).expect("deleted");
    }
    (0..1_000).for_each(|_| engine.clear().expect("cleared"));
    put(&engine, b"a key", b"value");
    let left = used(&engine) - before;
    assert!(left < 6, "{left} pages are in use");
    engine.audit().expect("counts that are kept");
    drop(engine);
    let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let engine = MapEngine::simulated_open(MapKind::List, Arc::clone(sim.space()), &quiet());
    let engine = engine.expect("opened");
    engine.audit().expect("counts that are kept");
    let (left, len) = (used(&engine) - before, engine.len().expect("a count"));
    assert!(left < 6 && len == 1, "{left} pages are in use by {len} records");
}

/// In a matrix that happens again and again, and nobody else has the map meanwhile.
#[test]
fn to_let_tombstones_go_reads_no_other_keys() {
    for kind in MapKind::ALL {
        let sim = sim(Model::X86, 1024);
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        engine.hold_tombstones(0).expect("held");
        (0..5_000).for_each(|number| put(&engine, &key(number), b"value"));
        let mut newest = 0;
        for number in (0..5_000).step_by(50) {
            let deleted = engine.delete(&key(number), &WriteOptions::default()).expect("deleted");
            let Outcome::Written(written) = deleted else { panic!("{deleted:?}") };
            newest = written.sequence;
        }
        // One is written again, and is no tombstone any more.
        put(&engine, &key(50), b"value");
        let views = || engine.store.volume.views.load(Ordering::Relaxed);
        let before = views();
        engine.hold_tombstones(newest - 1).expect("held");
        let (looks, horizon) = (views() - before, engine.tombstone_horizon());
        // A tree finds each of them on the path to it.
        assert!(looks < 100 * 30, "{kind:?} looked at {looks} records");
        engine.hold_tombstones(newest).expect("held");
        engine.sync().expect("synced");
        assert!(horizon < newest && engine.tombstone_horizon() == newest, "{kind:?}: {horizon}");
        engine.audit().expect("counts that are kept");
    }
}

/// After a resync there are as many as it took deletes.
#[test]
fn held_tombstones_go_some_at_a_time() {
    for kind in MapKind::ALL {
        let sim = sim(Model::X86, 2048);
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        engine.hold_tombstones(0).expect("held");
        (0..5_000).for_each(|number| put(&engine, &key(number), b"value"));
        let mut newest = 0;
        for number in 0..5_000 {
            let deleted = engine.delete(&key(number), &WriteOptions::default()).expect("deleted");
            let Outcome::Written(written) = deleted else { panic!("{deleted:?}") };
            newest = written.sequence;
        }
        let before = engine.store.volume.views.load(Ordering::Relaxed);
        assert!(engine.store.map.write().hold_tombstones(newest), "{kind:?}: there are more");
        let looks = engine.store.volume.views.load(Ordering::Relaxed) - before;
        assert!(looks < 3_000, "{kind:?} looked at {looks} records");
        engine.hold_tombstones(newest).expect("held");
        (0..80).for_each(|_| engine.sync().expect("synced"));
        engine.audit().expect("counts that are kept");
        assert_eq!(engine.tombstone_horizon(), newest, "{kind:?}");
    }
}

/// The one that goes first cannot be read.
#[test]
fn a_damaged_tombstone_keeps_no_others() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("pool");
    let options = Options { check_reads: true, ..quiet() };
    let engine = create(&path, MapKind::CowTree, &options);
    engine.hold_tombstones(0).expect("held");
    (0..200).for_each(|number| put(&engine, &key(number), b"value"));
    for number in 0..150 {
        let _deleted = engine.delete(&key(number), &WriteOptions::default()).expect("deleted");
    }
    engine.sync().expect("synced");
    let guard = coreplane_pmem::epoch::pin();
    let at = engine.store.map.read().newest(&guard, &key(0)).expect("found").expect("a tombstone");
    drop(guard);
    let file = std::fs::File::options().write(true).open(&path).expect("the file");
    // The length of its value.
    file.write_all_at(&[0xff; 4], at + 8).expect("written");
    engine.hold_tombstones(u64::MAX).expect("let go");
    for _ in 0..10 {
        put(&engine, &key(199), b"value");
    }
    let mut left = 0;
    let _damaged = engine.changes_since(0, &mut |it| left += u32::from(it.record.is_none()));
    let damaged = engine.store.damaged_keys_since(0).expect("damaged keys");
    assert_eq!((left, damaged.len()), (0, 1));
}

/// A tombstone that is replaced before it is durable is not held, and costs no record that comes to its place.
#[test]
fn a_held_tombstone_that_was_replaced_is_forgotten() {
    for kind in MapKind::ALL {
        let sim = sim(Model::File, 64);
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        engine.hold_tombstones(0).expect("held");
        let name = |number: u32| format!("key-{}", number % 7).into_bytes();
        let (mut at_first, mut newest) = (0, 0);
        for number in 0..12_000_u32 {
            let _deleted = engine.delete(&name(number), &WriteOptions::default()).expect("deleted");
            // As long as the tombstone, and now and then twice: so a put comes to the place of a tombstone.
            for _ in 0..1 + (number.wrapping_mul(0x9e37_79b9) >> 31) {
                let put = engine.put(&name(number), &[1; 8], &WriteOptions::default());
                let Outcome::Written(written) = put.expect("put") else { panic!("not written") };
                newest = written.sequence;
            }
            if number == 1_000 {
                at_first = engine.stats().dram_bytes;
            }
        }
        // Each would take a hundred bytes.
        let dram_bytes = engine.stats().dram_bytes;
        assert!(dram_bytes < at_first + (64 << 10), "{kind:?}: {at_first} and then {dram_bytes}");
        engine.hold_tombstones(newest).expect("held");
        for number in 0..7 {
            let found = engine.get(&name(number)).expect("a value");
            assert_eq!(found, Some(vec![1; 8]), "{kind:?} {number}");
        }
        engine.audit().expect("counts that are kept");
    }
}

/// Other threads get the map in between.
#[test]
fn what_a_snapshot_has_kept_goes_some_at_a_time() {
    for (kind, clears) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let sim = sim(Model::X86, 1024);
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        let store = &engine.store;
        let write = |value: &[u8]| (0..2_000).for_each(|number| put(&engine, &key(number), value));
        write(b"before");
        let snapshot = super::snapshot::Pinned::within(store, &mut store.map.write());
        let snapshot = snapshot.expect("a snapshot");
        if clears {
            engine.clear().expect("cleared");
            // Later commits state that it is durable.
            (0..10).for_each(|number| put(&engine, &key(number), b"behind"));
        } else {
            write(b"behind");
        }
        let guard = coreplane_pmem::epoch::pin;
        store.map.write().unpin(snapshot.version);
        std::mem::forget(snapshot);
        let mut steps = 0;
        while store.map.write().release_some(&guard()).expect("released") {
            steps += 1;
            put(&engine, &key(steps % 2_000), b"in between");
        }
        assert!(steps >= 15, "{kind:?}, cleared: {clears}: {steps} steps");
        engine.audit().expect("counts that are kept");
    }
}

/// One damaged record was met, and written anew.
#[test]
fn the_end_of_an_iteration_looks_at_no_other_keys() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("pool");
        let options = Options { check_reads: true, ..quiet() };
        let engine = create(&path, kind, &options);
        (0..2_000).for_each(|number| put(&engine, &key(number), b"the value"));
        let guard = coreplane_pmem::epoch::pin();
        let at = engine.store.map.read().newest(&guard, &key(700)).expect("found").expect("one");
        drop(guard);
        let file = std::fs::File::options().write(true).open(&path).expect("the file");
        file.write_all_at(&[0x40], at + 32).expect("written");
        let iterate = || {
            let mut cursor = 0;
            loop {
                let before = engine.store.volume.views.load(Ordering::Relaxed);
                let next = engine.iterate(cursor, 100, &mut |_| {});
                let looks = engine.store.volume.views.load(Ordering::Relaxed) - before;
                match next {
                    Ok(0) => return Ok(looks),
                    Ok(next) => cursor = next,
                    Err(error) => return Err(error),
                }
            }
        };
        let end = iterate();
        let Err(Error::Corrupt { offset, what }) = end else { panic!("{kind:?}: {end:?}") };
        assert_eq!(offset, at, "{kind:?}");
        assert!(what.contains("stored 0x") && what.contains("computed 0x"), "{kind:?}: {what}");
        put(&engine, &key(700), b"the value");
        let looks = iterate().expect("nothing is damaged");
        assert!(looks < 700, "{kind:?}: {looks} looks at records");
    }
}

/// Nobody reads the records.
#[test]
fn expired_records_leave_in_the_background() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let source = Arc::clone(&clock);
        let time: TimeSource = Arc::new(move || UnixMillis(source.load(Ordering::Relaxed)));
        let path = directory.path().join("pool");
        let options = Options { time: Some(time), ..Options::default() };
        let mut engine = create(&path, kind, &options);
        let until =
            |at| WriteOptions { expires_at: Some(UnixMillis(at)), ..WriteOptions::default() };
        for number in 0..300 {
            let at = until(1_001_000 + u64::from(number % 2));
            assert!(engine.put(&key(number), b"v", &at).expect("written").is_written());
        }
        put(&engine, b"for ever", b"v");
        let is_left = |engine: &MapEngine, left: u64| {
            let since = Instant::now();
            while engine.len().expect("a count") > left && since.elapsed() < Duration::from_secs(20)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(engine.len().expect("a count"), left, "{kind:?}");
        };
        clock.store(1_001_000, Ordering::Relaxed);
        is_left(&engine, 151);
        // After a start the expiries of the others are found again.
        engine.close().expect("closed");
        drop(engine);
        let media = MediaChoice::Auto;
        engine = MapEngine::open(kind, &path, media, &options, &|_| {}).expect("opened");
        clock.store(1_002_000, Ordering::Relaxed);
        is_left(&engine, 1);
    }
}

/// The header of a record has few bits for the length of a key, and pages of 1 MiB have room for more.
#[test]
fn the_longest_key_is_read_back_from_the_longest_pages() {
    for kind in MapKind::ALL {
        let (len, page_size) = (32 << 20, 1 << 20);
        let options = SimOptions { len, max_len: len, page_size, ..SimOptions::default() };
        let sim = Sim::new(&options).expect("memory");
        let engine = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("an engine");
        let longest = engine.limits().key_len_max;
        put(&engine, &vec![b'k'; longest], b"value");
        put(&engine, b"small", b"value");
        let long = engine.put(&vec![b'k'; (128 << 10) + 5], b"v", &WriteOptions::default());
        assert!(matches!(long, Err(Error::KeyTooLong { .. })), "{longest}");
        engine.close().expect("closed");
        drop(engine);
        let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let engine = MapEngine::simulated_open(kind, Arc::clone(sim.space()), &quiet());
        let engine = engine.expect("opened");
        for key in [&vec![b'k'; longest][..], b"small"] {
            assert_eq!(engine.get(key).expect("a value"), Some(b"value".to_vec()));
        }
    }
}
