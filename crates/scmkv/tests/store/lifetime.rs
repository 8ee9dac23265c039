//! How a store begins and ends, and where it can be moved.

use crate::home::{Home, New, options, write};
use crate::tiny::{created, recovered, simulated};
use coreplane_engine::{Deferred, Durability, Engine, Error, Repairable, WriteOptions};
use coreplane_pmem::media::sim::Eviction;
use coreplane_scmkv::{Options, Placement};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGES: u64 = 64;

fn key(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

#[test]
fn a_creation_that_fails_leaves_nothing_behind() {
    let home = Home::in_memory();
    home.try_create(New::tiny(1)).expect_err("one page is no store");
    assert!(!home.path().exists());
    home.try_create(New::tiny(PAGES)).expect("create where the other failed");
}

#[test]
fn a_creation_that_finds_a_pool_leaves_it_alone() {
    let home = Home::in_memory();
    let _outcome = home.create(New::tiny(PAGES)).put(b"k", b"v", &write()).expect("put");
    home.try_create(New::tiny(PAGES)).expect_err("there is one already");
    assert!(home.open(options(false)).get(b"k").expect("get").is_some());
}

/// A pool whose index is in it, copied to a disk, after a clean close or as a kill leaves it.
fn moved_to_a_disk(is_closed: bool) {
    let (memory, disk) = (Home::in_memory(), Home::on_disk());
    let write = write();
    let store = memory.create(New::tiny(PAGES));
    for number in 0..300 {
        let _outcome = store.put(&key(number), &[1; 20], &write).expect("put");
    }
    let _outcome = store.delete(&key(7), &write).expect("delete");
    if is_closed {
        store.close().expect("close");
    }
    drop(store);
    std::fs::copy(memory.path(), disk.path()).expect("copy");

    let store = disk.open(options(false));
    assert_eq!(store.placement(), Placement::Dram, "slots may become durable before records");
    assert_eq!(store.len().expect("len"), 299);
    for number in 0..300 {
        let _outcome = store.put(&key(number), &[2; 20], &write).expect("put");
    }
    assert_eq!(store.verify(&mut |_| {}).expect("verify").damages, []);
    drop(store);
    // And back again: the index in the pool is stale by now.
    let back = Home::in_memory();
    std::fs::copy(disk.path(), back.path()).expect("copy");
    let store = back.open(options(false));
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
        let sim = simulated(4 * PAGES);
        let store = created(&sim, Options { durability: Durability::RELAXED, ..options(false) });
        let begun = AtomicBool::new(false);
        let write = |thread: u32| {
            let mut acknowledged = 0;
            loop {
                // A new key each: none is replaced, none cleaned.
                match store.put(&key(thread * 1000 + acknowledged), b"v", &self::write()) {
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
        let (_sim, store) = recovered(&sim.crash(Eviction::Nothing));
        for (thread, count) in [1, 2].into_iter().zip(acknowledged) {
            for number in 0..count {
                let value = store.get(&key(thread * 1000 + number)).expect("get");
                assert!(value.is_some(), "round {round}: {number} of {count} is lost");
            }
        }
    }
}

/// Damages the record of `key` so that it is none, wherever it is in the file.
fn damage(home: &Home, key: &[u8]) {
    const HEADER: usize = 20;
    let mut bytes = home.bytes();
    let at = bytes.windows(key.len()).position(|window| window == key).expect("the key");
    bytes[at - HEADER + 4..at - HEADER + 8].fill(0);
    home.put_bytes(&bytes);
}

#[test]
fn one_damaged_record_does_not_keep_the_others_from_being_counted() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(PAGES));
    for number in 100..400 {
        let _outcome = store.put(&key(number), &[1; 20], &write()).expect("put");
    }
    drop(store);
    // In a page that was full at the crash, which no recovery reads.
    damage(&home, &key(100));
    let store = home.open(options(false));
    store.get(&key(100)).expect_err("its record is gone");
    assert_eq!(store.len().expect("len"), 300);
    assert_eq!(store.stats().figure("records_are_counted"), Some(1));
    assert_eq!(store.verify(&mut |_| {}).expect("verify").records, 299);
}

/// No sync is called, and nothing else is written.
#[test]
fn the_window_of_a_relaxed_write_ends_by_itself() {
    let home = Home::file_in_memory();
    // The store itself is strict: the window is that of each write.
    let store = home.create(New::tiny(PAGES).placed(Placement::Dram).with(options(true)));
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..write() };
    let (synced, syncs) = std::sync::mpsc::channel();
    store.on_durable(Arc::new(move || _ = synced.send(())));
    for round in 0..20_u32 {
        let _outcome = store.put(&key(round), b"v", &relaxed).expect("put");
        assert!(syncs.recv_timeout(Duration::from_secs(60)).is_ok(), "window {round} never ended");
    }
}

#[test]
fn the_scrub_finds_what_nobody_reads() {
    use std::os::unix::fs::FileExt;
    let home = Home::in_memory();
    let store = home.create(New::tiny(24).with(options(true)));
    for number in 0..40 {
        let _outcome = store.put(&key(number), &[0xa5; 200], &write()).expect("put");
    }
    let count = |name: &str| store.stats().figure(name).unwrap_or(0);
    let wait_for = |what: &str, is_there: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_there() {
            assert!(Instant::now() < deadline, "no {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("scrub", &|| count("scrubbed_pages") > 20);
    assert_eq!(count("damaged_pages"), 0);
    let bytes = home.bytes();
    let at = bytes.windows(200).position(|window| window == [0xa5; 200]).expect("a value");
    let file = std::fs::File::options().write(true).open(home.path()).expect("open");
    file.write_all_at(&[0xa4], at as u64 + 50).expect("flip");
    wait_for("damage found", &|| count("damaged_pages") == 1);
}

/// As a command line uses it: every open begins a page, and leaves it nearly empty.
#[test]
fn a_store_that_is_opened_for_each_write_is_not_full_of_empty_pages() {
    let home = Home::in_memory();
    drop(home.create(New::of_size(32 << 20).with(options(false))));
    for number in 0..60 {
        let store = home.open(options(false));
        let _outcome = store.put(&key(number), b"value", &write()).expect("put");
        if number % 3 == 0 {
            // Killed.
            continue;
        }
        store.close().expect("close");
    }
    let store = home.open(options(false));
    for number in 0..60 {
        assert!(store.get(&key(number)).expect("get").is_some(), "{number}");
    }
    assert!(store.verify(&mut |_| ()).expect("verify").is_sound());
}
