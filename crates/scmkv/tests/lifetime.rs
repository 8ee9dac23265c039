//! How a store begins and ends, and what it is moved to.

use coreplane_engine::{Durability, Engine, Error, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: u64 = 64 * 4096;

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

fn create(path: &Path, size: u64) -> Result<Scmkv, Error> {
    let (geometry, media) = (Geometry::TINY, MediaChoice::Auto);
    Scmkv::create_with(path, size, geometry, media, Placement::Pool, options())
}

fn open(path: &Path, media: MediaChoice) -> Scmkv {
    Scmkv::open(path, media, options()).expect("open")
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

#[test]
fn a_creation_that_fails_leaves_nothing_behind() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let path = directory.path().join("pool");
    create(&path, 4096).expect_err("one page is no store");
    assert!(!path.exists());
    create(&path, SIZE).expect("create where the other failed");
}

#[test]
fn a_creation_that_finds_a_pool_leaves_it_alone() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let path = directory.path().join("pool");
    create(&path, SIZE).expect("create").put(b"k", b"v", &WriteOptions::default()).expect("put");
    create(&path, SIZE).expect_err("there is one already");
    assert!(open(&path, MediaChoice::Auto).get(b"k").expect("get").is_some());
}

/// A pool whose index is in it, copied to a disk, after a clean close or as a kill leaves it.
fn moved_to_a_disk(is_closed: bool) {
    let memory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let disk = tempfile::tempdir().expect("directory");
    let (from, to) = (memory.path().join("pool"), disk.path().join("pool"));
    let write = WriteOptions::default();
    let store = create(&from, SIZE).expect("create");
    for number in 0..300 {
        store.put(&key(number), &[1; 20], &write).expect("put");
    }
    store.delete(&key(7), &write).expect("delete");
    if is_closed {
        store.close().expect("close");
    }
    drop(store);
    std::fs::copy(&from, &to).expect("copy");

    let store = open(&to, MediaChoice::File);
    assert_eq!(store.placement(), Placement::Dram, "slots may become durable before records");
    assert_eq!(store.len().expect("len"), 299);
    for number in 0..300 {
        store.put(&key(number), &[2; 20], &write).expect("put");
    }
    assert_eq!(store.verify(&mut |_| {}).expect("verify").damages, []);
    drop(store);
    // And back again: what was in the index of the pool is of no use any more.
    let back = memory.path().join("back");
    std::fs::copy(&to, &back).expect("copy");
    let store = open(&back, MediaChoice::Auto);
    for number in 0..300 {
        assert_eq!(store.get(&key(number)).expect("get").as_deref(), Some(&[2; 20][..]));
    }
    assert_eq!(store.verify(&mut |_| {}).expect("verify").damages, []);
}

#[test]
fn a_closed_pool_moves_to_a_disk_and_back() {
    moved_to_a_disk(true);
}

#[test]
fn a_killed_pool_moves_to_a_disk_and_back() {
    moved_to_a_disk(false);
}

#[test]
fn what_a_write_beside_the_closing_was_answered_holds() {
    for round in 0..150 {
        let simulated =
            SimOptions { len: 4 * SIZE, max_len: 4 * SIZE, page_size: 4096, ..Default::default() };
        let sim = Sim::new(&simulated).expect("sim");
        let options = Options { durability: Durability::RELAXED, ..options() };
        let (space, geometry) = (sim.space().clone(), Geometry::TINY);
        let store = Scmkv::simulated_create(space, geometry, Placement::Pool, options);
        let store = store.expect("create");
        let begun = AtomicBool::new(false);
        let write = |thread: u32| {
            let mut acknowledged = 0;
            loop {
                // A new key each: none is replaced, none cleaned.
                match store.put(&key(thread * 1000 + acknowledged), b"v", &WriteOptions::default())
                {
                    Ok(_) => acknowledged += 1,
                    Err(Error::Closed) => return acknowledged,
                    Err(Error::NoSpace { .. }) => {}
                    Err(error) => panic!("round {round}: {error}"),
                }
                begun.store(true, Ordering::Release);
            }
        };
        let write = &write;
        let acknowledged = std::thread::scope(|scope| {
            let threads = [1, 2].map(|thread| scope.spawn(move || write(thread)));
            while !begun.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            store.close().expect("close");
            threads.map(|thread| thread.join().expect("join"))
        });
        let after = sim.crash(Eviction::Nothing).reopen().expect("reopen");
        let store = Scmkv::simulated_open(after.space().clone(), self::options()).expect("open");
        for (thread, count) in [1, 2].into_iter().zip(acknowledged) {
            for number in 0..count {
                let value = store.get(&key(thread * 1000 + number)).expect("get");
                assert!(value.is_some(), "round {round}: {number} of {count} is lost");
            }
        }
    }
}

/// Makes the record of `key` none, wherever it is in the file.
fn damage(path: &Path, key: &[u8]) {
    const HEADER: usize = 20;
    let mut bytes = std::fs::read(path).expect("read");
    let at = bytes.windows(key.len()).position(|window| window == key).expect("the key");
    bytes[at - HEADER + 4..at - HEADER + 8].fill(0);
    std::fs::write(path, bytes).expect("write");
}

#[test]
fn one_damaged_record_does_not_keep_the_others_from_being_counted() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let path = directory.path().join("pool");
    let store = create(&path, SIZE).expect("create");
    for number in 100..400 {
        store.put(&key(number), &[1; 20], &WriteOptions::default()).expect("put");
    }
    drop(store);
    // In a page that was full at the crash, which no recovery reads.
    damage(&path, &key(100));
    let store = open(&path, MediaChoice::Auto);
    store.get(&key(100)).expect_err("its record is gone");
    assert_eq!(store.len().expect("len"), 300);
    let counted = |name| {
        let more = store.stats().more;
        more.into_iter().find(|(it, _)| *it == name).map(|(_, value)| value)
    };
    assert_eq!(counted("records_are_counted"), Some(1));
    assert_eq!(store.verify(&mut |_| {}).expect("verify").records, 299);
}

#[test]
fn the_window_of_a_relaxed_write_ends_by_itself() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let path = directory.path().join("pool");
    let (geometry, media) = (Geometry::TINY, MediaChoice::Auto);
    // The store itself is strict: the window is that of each write.
    let store =
        Scmkv::create_with(&path, SIZE, geometry, media, Placement::Pool, Options::default());
    let store = store.expect("create");
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..WriteOptions::default() };
    for round in 0..20_u32 {
        store.put(&key(round), b"v", &relaxed).expect("put");
        let fences = store.stats().fences;
        let began = std::time::Instant::now();
        // One fence may have come between the put and the count.
        while store.stats().fences == fences && began.elapsed().as_secs() < 1 {
            std::thread::yield_now();
        }
    }
    store.put(b"last", b"v", &relaxed).expect("put");
    let before = store.stats();
    // Nothing is left to be flushed once the windows have ended, and nobody asked for that.
    let began = std::time::Instant::now();
    while store.stats().flushes == before.flushes && began.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    let ended = store.stats();
    store.sync().expect("sync");
    let lines = store.stats().flushes - ended.flushes;
    assert_eq!(lines, 0, "a sync found {lines} lines that no window had ended for");
}

#[test]
fn the_scrub_finds_what_nobody_reads() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let path = directory.path().join("pool");
    let (geometry, media) = (Geometry::TINY, MediaChoice::Auto);
    let size = 24 * 4096;
    let store =
        Scmkv::create_with(&path, size, geometry, media, Placement::Pool, Options::default());
    let store = store.expect("create");
    for number in 0..40 {
        store.put(&key(number), &[0xa5; 200], &WriteOptions::default()).expect("put");
    }
    let count = |name: &str| {
        let stats = store.stats();
        stats.more.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    };
    let wait_for = |what: &str, is_there: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_there() {
            assert!(std::time::Instant::now() < deadline, "no {what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    wait_for("scrub", &|| count("scrubbed_pages") > 20);
    assert_eq!(count("damaged_pages"), 0);
    let bytes = std::fs::read(&path).expect("read");
    let at = bytes.windows(200).position(|window| window == [0xa5; 200]).expect("a value");
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_all_at(&[0xa4], at as u64 + 50).expect("flip");
    wait_for("damage found", &|| count("damaged_pages") == 1);
}
