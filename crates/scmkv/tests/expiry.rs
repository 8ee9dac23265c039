//! What was once said to have expired stays so, and nothing else expires with it.

use coreplane_engine::model::ManualClock;
use coreplane_engine::{Completion, Engine, Horizon, UnixMillis, Visibility, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const START: u64 = 1_800_000_000_000;
const HOUR: u64 = 3_600_000;

fn options(clock: &ManualClock) -> Options {
    Options { background: false, time: Some(clock.as_clock()), ..Options::default() }
}

fn create(path: &Path, media: MediaChoice, clock: &ManualClock) -> Scmkv {
    let (size, geometry, placement) = (64 * 4096, Geometry::TINY, Placement::Auto);
    Scmkv::create_with(path, size, geometry, media, placement, options(clock)).expect("create")
}

fn expiring(at: u64) -> WriteOptions {
    WriteOptions { expires_at: Some(UnixMillis(at)), ..WriteOptions::default() }
}

#[test]
fn a_clock_that_was_ahead_for_a_moment_ends_no_later_record_at_its_birth() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = create(&directory.path().join("pool"), MediaChoice::Auto, &clock);
    store.put(b"short", b"v", &expiring(START + 1000)).expect("put");
    clock.set(UnixMillis(START + HOUR));
    assert!(store.get(b"short").expect("get").is_none());
    clock.set(UnixMillis(START + 2000));
    let session = store.now().0 + 600_000;
    store.put(b"session", b"v", &expiring(session)).expect("put");
    assert!(store.get(b"session").expect("get").is_some());
    assert!(store.get(b"short").expect("get").is_none());
}

/// On each medium: gone stays gone, and the engine's clock stands no earlier.
fn stays_gone(directory: &tempfile::TempDir, media: &MediaChoice) {
    let path = directory.path().join("pool");
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = create(&path, media.clone(), &clock);
    store.put(b"told", b"v", &expiring(START + HOUR)).expect("put");
    store.put(b"not told", b"v", &expiring(START + HOUR + 1)).expect("put");
    clock.set(UnixMillis(START + 2 * HOUR));
    let found = store.get_with(b"told", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit);
    store.wait_durable(&Horizon::from(found.ticket)).expect("wait");
    drop(store);
    clock.set(UnixMillis(START));
    let store = Scmkv::open(&path, media.clone(), options(&clock)).expect("open");
    assert!(store.get(b"told").expect("get").is_none(), "it came back");
    assert!(store.get(b"not told").expect("get").is_some(), "nobody was told that it is gone");
    assert_eq!(store.now(), UnixMillis(START + HOUR));
    // A relative expiry that is computed from the engine's clock lasts.
    let at = store.now().0 + 1000;
    store.put(b"new", b"v", &expiring(at)).expect("put");
    assert!(store.get(b"new").expect("get").is_some());
}

#[test]
fn gone_stays_gone_in_memory() {
    stays_gone(&tempfile::tempdir_in("/dev/shm").expect("directory"), &MediaChoice::Auto);
}

#[test]
fn gone_stays_gone_on_a_file() {
    stays_gone(&tempfile::tempdir().expect("directory"), &MediaChoice::File);
}

#[test]
fn an_expiry_on_a_file_is_answered_when_it_is_durable_and_looked_at_without_a_wait() {
    const RECORDS: u64 = 40;
    let directory = tempfile::tempdir().expect("directory");
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = create(&directory.path().join("pool"), MediaChoice::File, &clock);
    for number in 0..RECORDS {
        let options =
            WriteOptions { completion: Completion::Early, ..expiring(START + number + 1) };
        store.put(&number.to_le_bytes(), b"v", &options).expect("put");
    }
    store.sync().expect("sync");
    assert!(store.visible_ticket().is_durable());
    clock.set(UnixMillis(START + HOUR));
    let mut positions = Vec::new();
    for number in 0..RECORDS {
        let key = number.to_le_bytes();
        let found = store.get_with(&key, Visibility::Early, &mut |_| {}).expect("get");
        assert!(!found.hit);
        positions.push(found.ticket.position());
        let seen = store.get_with(&key, Visibility::Durable, &mut |_| {}).expect("get");
        assert!(seen.ticket.is_durable());
        assert!(store.is_durable(&Horizon::from(found.ticket)).expect("is_durable"));
    }
    // Each expiry was greater than all before it, so that each needed a mark of its own.
    let asked = positions.iter().filter(|position| **position > 0).count();
    assert!(asked > 0, "no answer rested on the mark");
}

/// Where a fence is a sync: a reader that does not wait for it, as one at `relaxed`, may have told
/// the world already that the record is gone.
#[test]
fn an_expiry_that_was_told_becomes_durable_though_nobody_waits() {
    let directory = tempfile::tempdir().expect("directory");
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = create(&directory.path().join("pool"), MediaChoice::File, &clock);
    store.put(b"a", b"1", &expiring(START + HOUR)).expect("put");
    store.sync().expect("sync");
    let (told, syncs) = mpsc::channel();
    store.on_durable(Arc::new(move || {
        let _nobody_listens_any_more = told.send(()).is_ok();
    }));
    clock.set(UnixMillis(START + 2 * HOUR));
    let found = store.get_with(b"a", Visibility::Early, &mut |_| ()).expect("get");
    assert!(!found.hit);
    syncs.recv_timeout(Duration::from_secs(30)).expect("the mark is not durable, nor will it be");
}
