//! Changes of a store over time: expired records, and a pool that grows.

use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_conformance::steps::iterate_all;
use coreplane_engine::{
    Batch, Deferred, Durability, Engine, Error, Repairable, Replicated, UnixMillis, WriteOptions,
};
use coreplane_pmem::MediaChoice;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u32 = 8 << 10;

fn created(directory: &Path, size: u64, options: &Options) -> Bptree {
    let path = directory.join("pool");
    Bptree::create(&path, size, PAGE, MediaChoice::Auto, options).expect("create")
}

fn opened(directory: &Path) -> Bptree {
    let path = directory.join("pool");
    Bptree::open(&path, MediaChoice::Auto, &Options::default(), &|_| {}).expect("open")
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// There is no sync call, and no other write.
#[test]
fn what_is_relaxed_in_a_file_is_durable_when_its_window_ends() {
    let durability =
        Durability::Relaxed { window_bytes: 1 << 20, window: Duration::from_millis(1) };
    let directory = in_memory();
    let path = directory.path().join("pool");
    let options = Options { durability, ..Options::default() };
    let store = Bptree::create(&path, 4 << 20, PAGE, MediaChoice::File, &options).expect("create");
    let (synced, syncs) = std::sync::mpsc::channel();
    store.on_durable(Arc::new(move || _ = synced.send(())));
    for number in 0..3_u8 {
        let _outcome = store.put(&[number], b"a value", &WriteOptions::default()).expect("put");
        assert!(syncs.recv_timeout(Duration::from_secs(60)).is_ok(), "window {number} never ended");
    }
}

/// Its tables in DRAM are in proportion to its size, though it may grow to many times that.
#[test]
fn a_small_pool_takes_little_memory() {
    let directory = in_memory();
    let store = created(directory.path(), 1 << 20, &Options::default());
    for number in 0..1000_u32 {
        let key = number.to_be_bytes();
        let _outcome = store.put(&key, b"a value", &WriteOptions::default()).expect("put");
    }
    let stats = store.stats();
    assert!(stats.dram_bytes < stats.pool_bytes / 2, "{} bytes", stats.dram_bytes);
}

#[test]
fn what_has_expired_goes_when_its_leaf_is_written_anew() {
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let options = Options { time: Some(clock.as_clock()), ..Options::default() };
    let directory = in_memory();
    let store = created(directory.path(), 16 << 20, &options);
    let key = |number: u32| format!("key {number:05}").into_bytes();
    let brief =
        WriteOptions { expires_at: Some(UnixMillis(1_800_000_000_500)), ..WriteOptions::default() };
    // Every third is large and has pages of its own.
    let value = |number: u32| vec![7; if number.is_multiple_of(3) { 9000 } else { 90 }];
    for number in 0..600 {
        let options = if number < 400 { brief } else { WriteOptions::default() };
        let _outcome = store.put(&key(number), &value(number), &options).expect("put");
    }
    let before = store.stats();
    assert_eq!((before.records, before.expired), (600, 0));
    clock.set(UnixMillis(1_800_000_001_000));
    for _ in 0..4 {
        (350..600).for_each(|number| {
            let _outcome = store.put(&key(number), b"new", &WriteOptions::default()).expect("put");
        });
    }
    // Some in each leaf that is written to, so that each of them is rewritten.
    for number in (0..350).step_by(5) {
        for round in 0..80_u8 {
            let _outcome =
                store.put(&key(number), &[round; 90], &WriteOptions::default()).expect("put");
        }
    }
    let after = store.stats();
    assert!(after.expired > 250, "{after:?}");
    assert!(after.records <= 600 - after.expired + 70, "{after:?}");
    assert!(after.live_bytes < before.live_bytes);
    // Readers of other tests may hold pages for a while.
    let begun = std::time::Instant::now();
    while store.stats().free_bytes <= before.free_bytes {
        assert!(begun.elapsed().as_secs() < 20, "no page came back");
        std::thread::yield_now();
    }
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    drop(store);
    let store = opened(directory.path());
    let again = store.stats();
    assert_eq!((again.records, again.live_bytes), (after.records, after.live_bytes));
}

/// Closed or killed afterwards, and emptied while its leaves are not loaded.
#[test]
fn a_store_that_was_emptied_stays_so_and_has_its_pages_back() {
    let directory = in_memory();
    let store = created(directory.path(), 4 << 20, &Options::default());
    let fill = |store: &Bptree| {
        let write = WriteOptions::default();
        for number in 0..3000_u32 {
            let len = if number.is_multiple_of(100) { 9000 } else { 90 };
            let _outcome =
                store.put(&number.to_be_bytes(), &vec![number as u8; len], &write).expect("put");
        }
    };
    let free = store.stats().free_bytes;
    let check_empty = |store: &Bptree| {
        assert_eq!((store.len().expect("len"), store.stats().live_bytes), (0, 0));
        assert_eq!(store.get(&7_u32.to_be_bytes()).expect("get"), None);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
        // Readers of other tests may hold pages for a while.
        let begun = std::time::Instant::now();
        while store.stats().free_bytes < free {
            assert!(begun.elapsed().as_secs() < 20, "{} of {free}", store.stats().free_bytes);
            std::thread::yield_now();
        }
    };
    fill(&store);
    store.clear().expect("clear");
    check_empty(&store);
    fill(&store);
    drop(store);
    let store = opened(directory.path());
    assert_eq!(store.len().expect("len"), 3000, "what came after it is there");
    store.close().expect("close");
    drop(store);
    let store = opened(directory.path());
    assert!(store.stats().figure("leaves_unloaded") > Some(10));
    store.clear().expect("clear");
    check_empty(&store);
    drop(store);
    let store = opened(directory.path());
    check_empty(&store);
    fill(&store);
    store.clear().expect("clear");
    let _outcome = store.put(b"one", b"1", &WriteOptions::default()).expect("put");
    store.close().expect("close");
    drop(store);
    let store = opened(directory.path());
    assert_eq!(store.get(b"one").expect("get"), Some(b"1".to_vec()));
    assert_eq!(store.len().expect("len"), 1);
}

#[test]
fn a_full_store_takes_more_when_its_pool_has_grown() {
    let directory = in_memory();
    let store = created(directory.path(), 1 << 20, &Options::default());
    let fill = |store: &Bptree, from: u32| {
        let mut number = from;
        let write = WriteOptions::default();
        loop {
            match store.put(&number.to_be_bytes(), &[number as u8; 300], &write) {
                Ok(_) => number += 1,
                Err(Error::NoSpace { .. }) => return number,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let first = fill(&store, 0);
    store.grow(4 << 20).expect("grow");
    let second = fill(&store, first);
    assert!(second > 3 * first, "{first} records, then {second}");
    let check = |store: &Bptree| {
        for number in 0..second {
            let value = store.get(&number.to_be_bytes()).expect("get");
            assert_eq!(value, Some(vec![number as u8; 300]), "{number}");
        }
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    };
    check(&store);
    // Killed: the records in the new pages are found again.
    drop(store);
    let store = opened(directory.path());
    check(&store);
    store.close().expect("close");
    assert!(matches!(store.grow(8 << 20), Err(Error::Closed)));
}

/// Its blocks and pages take seconds, and nobody waits for them: a read of an expired record changes the root, and
/// what a write leaves to others is in proportion to the pages that there are to write to.
#[test]
fn reads_of_expired_records_and_inserts_go_on_while_a_pool_grows() {
    const GROWN: u64 = 1 << 30;
    let directory = in_memory();
    let clock = ManualClock::starting_at(UnixMillis(1_000));
    let options = Options { time: Some(clock.as_clock()), ..Options::default() };
    let store = created(directory.path(), 8 << 20, &options);
    let put = |number: u64, expires_at: Option<UnixMillis>| {
        let write = WriteOptions { expires_at, ..WriteOptions::default() };
        let _outcome = store.put(&number.to_be_bytes(), b"value", &write).expect("room");
    };
    const EXPIRING: u64 = 4_000;
    (0..EXPIRING).for_each(|number| put(number, Some(UnixMillis(1_001 + number))));
    let path = directory.path().join("pool");
    let mut count = 0;
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| store.grow(GROWN).expect("grow"));
        let len = || std::fs::metadata(&path).expect("its state").len();
        while !grows.is_finished() && len() < GROWN {
            std::hint::spin_loop();
        }
        // The pages are faulted in now.
        while !grows.is_finished() {
            if count < EXPIRING {
                clock.advance(1);
                assert_eq!(store.get(&count.to_be_bytes()).expect("get"), None);
            }
            put(EXPIRING + count % 1_000, None);
            count += 1;
        }
    });
    // One may have waited, and the next may come before the thread has ended.
    assert!(count > 20, "{count} calls");
    store.close().expect("close");
    drop(store);
    let found = opened(directory.path()).get(&EXPIRING.to_be_bytes()).expect("get");
    assert_eq!(found, Some(b"value".to_vec()));
}

/// As a delete and a single write with this option do.
#[test]
fn a_batch_that_may_use_the_reserve_has_the_space_that_is_kept_for_deletes() {
    let directory = in_memory();
    let store = created(directory.path(), 1 << 20, &Options::default());
    let batch = |key: u32, len: usize| {
        let mut batch = Batch::new();
        batch.put(&key.to_be_bytes(), &vec![7; len]);
        batch
    };
    let usual = WriteOptions::default();
    let reserve = WriteOptions { use_reserve: true, ..usual };
    let mut number = 0;
    // First batches that need pages for their values, then those that need one for their leaf.
    for len in [3000, 500] {
        let refused = loop {
            match store.apply(&batch(number, len), &usual) {
                Ok(_) => number += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::NoSpace { .. }), "{len} bytes: {refused}");
        store.apply(&batch(number, len), &reserve).expect("reserve");
        assert_eq!(store.get(&number.to_be_bytes()).expect("get"), Some(vec![7; len]));
        number += 1;
    }
}

/// A batch that does not fit is refused: it does not mistake, again and again, pages that it has given back itself
/// for a gain.
#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let directory = in_memory();
    let store = created(directory.path(), 24 * u64::from(PAGE), &Options::default());
    let (mut refused, mut made) = (0, 0);
    for round in 0_u32..400 {
        let mut batch = coreplane_engine::Batch::new();
        for number in 0..6 {
            // One value longer than a page, and some that make leaves split.
            let len = if number == 0 { 9_000 } else { 700 };
            batch.put(format!("{:03} {number}", round % 37).as_bytes(), &vec![round as u8; len]);
        }
        match store.apply(&batch, &WriteOptions::default()) {
            Ok(_) => made += 1,
            Err(Error::NoSpace { .. }) => {
                refused += 1;
                let key = format!("{:03} 0", round * 7 % 37);
                let _outcome =
                    store.delete(key.as_bytes(), &WriteOptions::default()).expect("delete");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 10 && made > 10, "{refused} refused, {made} made");
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A record that was damaged at rest stays damaged when its leaf is rewritten: the checksum of the copy does not
/// make it valid.
#[test]
fn what_is_damaged_stays_so_when_its_leaf_is_written_anew() {
    use std::os::unix::fs::FileExt as _;
    let directory = in_memory();
    let store = created(directory.path(), 64 * u64::from(PAGE), &Options::default());
    let options = WriteOptions::default();
    let value = b"a value that is about to be damaged";
    let _outcome = store.put(b"damaged", value, &options).expect("put");
    let paths = std::fs::read_dir(directory.path()).expect("list");
    for path in paths.map(|entry| entry.expect("an entry").path()) {
        let bytes = std::fs::read(&path).expect("read");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        let found = bytes.windows(value.len()).position(|window| window == value);
        let at = found.expect("it is there") as u64;
        file.write_all_at(&[value[5] ^ 1], at + 5).expect("write");
    }
    assert!(store.check(b"damaged").is_err());
    for number in 0..400 {
        let _outcome =
            store.put(format!("other {number:03}").as_bytes(), &[7; 40], &options).expect("put");
    }
    assert!(matches!(store.check(b"damaged"), Err(Error::ChecksumMismatch { .. })));
    assert!(!store.verify(&mut |_| {}).expect("verify").is_sound());
    let _outcome = store.put(b"damaged", b"whole again", &options).expect("put");
    assert!(store.check(b"damaged").expect("check"));
}

/// In a record, in the pages of a large value, in those of a long key; in a leaf that is loaded, and in one that is
/// not.
#[test]
fn the_scrub_finds_what_nobody_reads() {
    use std::os::unix::fs::FileExt;
    let patterns = [[0xa5; 60], [0xb5; 60], [0xc5; 60]];
    for (pattern, is_unloaded) in patterns.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let directory = in_memory();
        let mut store = created(directory.path(), 4 << 20, &Options::default());
        let write = WriteOptions::default();
        let _outcome = store.put(b"key", &patterns[0], &write).expect("put");
        let _outcome =
            store.put(b"of a large value", &patterns[1].repeat(200), &write).expect("put");
        let long = [vec![b'k'; 1100], patterns[2].to_vec()].concat();
        let _outcome = store.put(&long, b"value", &write).expect("put");
        if is_unloaded {
            store.close().expect("close");
            drop(store);
            store = opened(directory.path());
        }
        let count = |name: &str| store.stats().figure(name).unwrap_or(0);
        let wait_for = |what: &str, is_there: &dyn Fn() -> bool| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !is_there() {
                assert!(std::time::Instant::now() < deadline, "no {what}");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        wait_for("scrub", &|| count("scrubbed_pages") > 0);
        assert_eq!(count("damaged_pages"), 0);
        let path = directory.path().join("pool");
        let bytes = std::fs::read(&path).expect("read");
        let at = bytes.windows(60).position(|window| window == pattern).expect("the pattern");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(&[0], at as u64 + 30).expect("flip");
        wait_for("damage found", &|| count("damaged_pages") == 1);
        let seen = count("scrubbed_pages");
        wait_for("second look", &|| count("scrubbed_pages") > seen + 1);
        assert_eq!(count("damaged_pages"), 1, "told twice");
        assert_eq!(count("leaves_unloaded"), u64::from(is_unloaded), "it was loaded");
    }
}

#[test]
fn a_scan_that_checks_what_it_shows_tells_of_damage_at_rest() {
    use coreplane_engine::Ordered;
    use std::os::unix::fs::FileExt;
    for len in [60, 9000] {
        let directory = in_memory();
        let options = Options { check_reads: true, ..Options::default() };
        let store = created(directory.path(), 4 << 20, &options);
        for (key, byte) in [(b"a", 0x15), (b"b", 0x25), (b"c", 0x35)] {
            let _outcome = store.put(key, &vec![byte; len], &WriteOptions::default()).expect("put");
        }
        let path = directory.path().join("pool");
        let bytes = std::fs::read(&path).expect("read");
        let at = bytes.windows(60).position(|window| window == [0x25; 60]).expect("the value");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(&[0x24], at as u64 + 30).expect("flip");
        for (reverse, before) in [(false, b"a"), (true, b"c")] {
            let mut shown = Vec::new();
            let scanned = store.scan(b"", None, reverse, usize::MAX, &mut |entry| {
                shown.push(entry.key.to_vec());
                true
            });
            let is_damage = matches!(scanned, Err(Error::ChecksumMismatch { .. }));
            assert!(is_damage, "{len} bytes: {scanned:?}");
            assert_eq!(shown, [before]);
        }
    }
}

/// A call of an iteration passes no more expired records than it would show live ones, and few tombstones and empty
/// leaves.
#[test]
fn what_is_gone_is_a_step_of_an_iteration() {
    const GONE: usize = 10_000;
    const COUNT: usize = 10;
    for (is_deleted, is_swept) in [(false, false), (true, false), (false, true)] {
        let directory = in_memory();
        let clock = ManualClock::starting_at(UnixMillis(1000));
        let time = Some(clock.as_clock());
        let options = Options { background: false, time, ..Options::default() };
        let store = created(directory.path(), 8 << 20, &options);
        if is_deleted {
            store.hold_tombstones(0).expect("hold");
        }
        let write = WriteOptions::default();
        let expires_at = (!is_deleted).then_some(UnixMillis(2000));
        for number in 0..GONE {
            let key = format!("key:{number:05}");
            let options = WriteOptions { expires_at, ..write };
            assert!(store.put(key.as_bytes(), b"v", &options).expect("put").is_written());
        }
        let leaves = store.stats().figure("leaves_split").expect("a figure") + 1;
        assert!(store.put(b"lives", b"v", &write).expect("put").is_written());
        for number in (0..GONE).filter(|_| is_deleted) {
            let key = format!("key:{number:05}");
            assert!(store.delete(key.as_bytes(), &write).expect("delete").is_written());
        }
        clock.set(UnixMillis(3000));
        if is_swept {
            assert_eq!(store.sweep_expired().expect("sweep"), GONE as u64);
        }
        let (calls, shown) = iterate_all(&store, COUNT).expect("iterate");
        assert_eq!(shown, [b"lives"]);
        // A leaf that is begun is shown to its end: up to 128 records, behind up to 127 tombstones.
        let least = match (is_swept, is_deleted) {
            (true, _) => leaves as usize / 128,
            (_, true) => GONE / 256,
            _ => GONE / 128,
        };
        assert!(calls >= least && least > 1, "{calls} calls, {least} are due");
    }
}
