//! A record that was once reported as expired stays so, and no other record expires with it.

use crate::home::{self, Home, New};
use coreplane_conformance::model::ManualClock;
use coreplane_conformance::steps::iterate_all;
use coreplane_engine::{
    Batch, Completion, Deferred, Engine, Horizon, Mutation, Outcome, Record, Repairable,
    Replicated, UnixMillis, Visibility, WriteOptions,
};
use coreplane_scmkv::{Options, Placement, Scmkv};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const START: u64 = 1_800_000_000_000;
const HOUR: u64 = 3_600_000;

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()), ..home::options(false) }
}

/// A small store, its index placed by the medium.
fn small(clock: &ManualClock) -> New {
    New::tiny(64).placed(Placement::Auto).with(options(clock))
}

fn expiring(at: u64) -> WriteOptions {
    WriteOptions { expires_at: Some(UnixMillis(at)), ..WriteOptions::default() }
}

#[test]
fn a_clock_that_was_ahead_for_a_moment_ends_no_later_record_at_its_birth() {
    let home = Home::in_memory();
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(small(&clock));
    let _outcome = store.put(b"short", b"v", &expiring(START + 1000)).expect("put");
    clock.set(UnixMillis(START + HOUR));
    assert!(store.get(b"short").expect("get").is_none());
    clock.set(UnixMillis(START + 2000));
    let session = store.now().0 + 600_000;
    let _outcome = store.put(b"session", b"v", &expiring(session)).expect("put");
    assert!(store.get(b"session").expect("get").is_some());
    assert!(store.get(b"short").expect("get").is_none());
}

/// On each medium: gone stays gone, and the engine's clock stands no earlier.
fn stays_gone(home: &Home) {
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(small(&clock));
    let _outcome = store.put(b"told", b"v", &expiring(START + HOUR)).expect("put");
    let _outcome = store.put(b"not told", b"v", &expiring(START + HOUR + 1)).expect("put");
    clock.set(UnixMillis(START + 2 * HOUR));
    let found = store.get_with(b"told", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit);
    store.wait_durable(&Horizon::from(found.ticket)).expect("wait");
    drop(store);
    clock.set(UnixMillis(START));
    let store = home.open(options(&clock));
    assert!(store.get(b"told").expect("get").is_none(), "it came back");
    assert!(store.get(b"not told").expect("get").is_some(), "nobody was told that it is gone");
    assert_eq!(store.now(), UnixMillis(START + HOUR));
    // A relative expiry that is computed from the engine's clock lasts.
    let at = store.now().0 + 1000;
    let _outcome = store.put(b"new", b"v", &expiring(at)).expect("put");
    assert!(store.get(b"new").expect("get").is_some());
}

#[test]
fn gone_stays_gone_in_memory() {
    stays_gone(&Home::in_memory());
}

#[test]
fn gone_stays_gone_on_a_file() {
    stays_gone(&Home::on_disk());
}

#[test]
fn an_expiry_on_a_file_is_answered_when_it_is_durable_and_looked_at_without_a_wait() {
    const RECORDS: u64 = 40;
    let home = Home::on_disk();
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(small(&clock));
    for number in 0..RECORDS {
        let options =
            WriteOptions { completion: Completion::Early, ..expiring(START + number + 1) };
        let _outcome = store.put(&number.to_le_bytes(), b"v", &options).expect("put");
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

/// Where a fence is a sync: a reader that does not wait for it, as one at `relaxed`, may already
/// have told others that the record is gone.
#[test]
fn an_expiry_that_was_told_becomes_durable_though_nobody_waits() {
    let home = Home::on_disk();
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(small(&clock));
    let _outcome = store.put(b"a", b"1", &expiring(START + HOUR)).expect("put");
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

fn options_with_background(clock: &ManualClock) -> Options {
    Options { background: true, ..options(clock) }
}

/// Large enough for all writes here many times over.
fn large(placement: Placement, options: Options) -> New {
    New::of_size(64 << 20).placed(placement).with(options)
}

/// Waits until `len` records are counted, however slow the machine is.
fn wait_for_len(store: &Scmkv, len: u64) {
    let start = Instant::now();
    while store.len().expect("len") != len {
        assert!(start.elapsed() < Duration::from_secs(120), "{} left", store.len().expect("len"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_has_expired_is_counted_no_more_although_nobody_reads_or_cleans() {
    for placement in [Placement::Pool, Placement::Dram] {
        let home = Home::in_memory();
        let clock = ManualClock::starting_at(UnixMillis(START));
        let store = home.create(large(placement, options_with_background(&clock)));
        for number in 0..3000_u64 {
            let write = match number % 3 {
                0 => expiring(START + HOUR),
                1 => expiring(START + 3 * HOUR),
                _ => WriteOptions::default(),
            };
            let _outcome = store.put(&number.to_le_bytes(), b"value", &write).expect("put");
        }
        let before = store.stats().live_bytes;
        clock.set(UnixMillis(START + HOUR));
        wait_for_len(&store, 2000);
        // The last one is counted when its tombstone is durable.
        let since = Instant::now();
        while store.stats().expired < 1000 && since.elapsed() < Duration::from_mins(2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(store.stats().expired, 1000);
        assert!(store.stats().live_bytes <= before, "a tombstone is no longer than its record");
        // Each way of writing an expiry is noticed, once the sweep has nothing left to do.
        let soon = UnixMillis(START + HOUR + 1);
        let _outcome = store.put(b"put", b"v", &expiring(soon.0)).expect("put");
        let _outcome = store.put(b"put", &vec![7; 1 << 20], &expiring(soon.0)).expect("put");
        let _outcome = store.insert(b"insert", b"v", &expiring(soon.0)).expect("insert");
        let expire = &mut |_: Option<Record<'_>>| Mutation::Expire(Some(soon));
        let _outcome =
            store.modify(&2_u64.to_le_bytes(), &WriteOptions::default(), expire).expect("modify");
        let mut batch = Batch::new();
        batch.put_until(b"batch", b"v", Some(soon));
        store.apply(&batch, &WriteOptions::default()).expect("apply");
        assert_eq!(store.len().expect("len"), 2003);
        clock.set(soon);
        wait_for_len(&store, 1999);
        store.close().expect("close");
        drop(store);
        // An open finds out which records expire.
        clock.set(UnixMillis(START + 3 * HOUR));
        let store = home.open(options_with_background(&clock));
        wait_for_len(&store, 999);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
        for number in 0..3000_u64 {
            let found = store.get(&number.to_le_bytes()).expect("get");
            assert_eq!(found.is_some(), number % 3 == 2 && number != 2, "{number}");
        }
    }
}

#[test]
fn what_was_swept_is_gone_for_good_and_nothing_else_has_changed() {
    for placement in [Placement::Pool, Placement::Dram] {
        let home = Home::in_memory();
        let clock = ManualClock::starting_at(UnixMillis(START));
        let store = home.create(large(placement, options(&clock)));
        // An older version is in the log, and must not come back.
        let _outcome = store.put(b"key", b"old", &WriteOptions::default()).expect("put");
        let given = |sequence| WriteOptions { sequence: Some(sequence), ..expiring(START + 10) };
        let sequence = store.advance_sequence().expect("advance_sequence") + 7;
        let _outcome = store.put(b"key", b"new", &given(sequence)).expect("put");
        let _outcome = store.put(b"other", b"v", &expiring(START + HOUR)).expect("put");
        assert_eq!(store.sweep_expired().expect("sweep"), 0);
        clock.set(UnixMillis(START + 10));
        assert_eq!(store.sweep_expired().expect("sweep"), 1);
        assert_eq!(store.sweep_expired().expect("sweep"), 0);
        assert_eq!((store.len().expect("len"), store.stats().deletes), (1, 0));
        // Followers and writers with sequences see what they would have seen without the sweep.
        let mut changes = Vec::new();
        let show = &mut |entry: coreplane_engine::Entry<'_>| {
            changes.push((entry.key.to_vec(), entry.record.is_some(), entry.sequence));
        };
        store.changes_since(sequence - 1, show).expect("changes");
        assert!(changes.contains(&(b"key".to_vec(), false, sequence)), "{changes:?}");
        let refused = store.put(b"key", b"late", &given(sequence)).expect("put");
        assert!(matches!(refused, Outcome::NotNewer(known, _) if known == sequence), "{refused:?}");
        drop(store);
        clock.set(UnixMillis(START));
        let store = home.open(options(&clock));
        assert!(store.get(b"key").expect("get").is_none(), "it came back");
        assert_eq!(store.len().expect("len"), 1);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

#[test]
fn a_record_that_is_rewritten_beside_the_sweep_survives() {
    let home = Home::in_memory();
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(large(Placement::Auto, options(&clock)));
    let (is_over, swept) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let met = store.sweep_expired().expect("sweep");
                swept.fetch_add(met, Ordering::Relaxed);
            }
        });
        // Until the two have met, however little processor time the sweep is given.
        for turn in 0..20_000_000_u64 {
            if turn >= 20_000 && swept.load(Ordering::Relaxed) > 0 {
                break;
            }
            let key = (turn % 64).to_le_bytes();
            let _outcome = store.put(&key, b"expired", &expiring(START - 1)).expect("put");
            if turn % 1000 == 0 {
                std::thread::yield_now();
            }
            let _outcome =
                store.put(&key, &turn.to_le_bytes(), &WriteOptions::default()).expect("put");
            let found = store.get(&key).expect("get");
            assert_eq!(found.as_deref(), Some(&turn.to_le_bytes()[..]), "turn {turn}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let swept = swept.into_inner();
    assert_eq!(store.len().expect("len"), 64);
    assert_eq!(store.stats().expired, swept);
    assert!(swept > 0, "the sweep never met what had expired");
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

#[test]
fn what_was_swept_on_a_file_is_durable_with_the_next_sync() {
    let home = Home::on_disk();
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(small(&clock));
    for number in 0..40_u64 {
        let _outcome = store.put(&number.to_le_bytes(), b"v", &expiring(START + 10)).expect("put");
    }
    store.sync().expect("sync");
    clock.set(UnixMillis(START + 10));
    assert_eq!(store.sweep_expired().expect("sweep"), 40);
    assert_eq!(store.len().expect("len"), 0);
    store.sync().expect("sync");
    drop(store);
    let store = home.open(options(&clock));
    assert_eq!(store.len().expect("len"), 0);
}

/// A call of an iteration passes no more expired records than it would show live ones.
#[test]
fn what_has_expired_is_a_step_of_an_iteration() {
    const EXPIRED: usize = 1000;
    const COUNT: usize = 10;
    let home = Home::in_memory();
    let clock = ManualClock::starting_at(UnixMillis(START));
    let store = home.create(small(&clock));
    for number in 0..EXPIRED {
        let key = format!("key:{number:04}");
        let _outcome = store.put(key.as_bytes(), b"v", &expiring(START + 1000)).expect("put");
    }
    let _outcome = store.put(b"lives", b"v", &WriteOptions::default()).expect("put");
    clock.set(UnixMillis(START + HOUR));
    let (calls, shown) = iterate_all(&store, COUNT).expect("iterate");
    assert_eq!(shown, [b"lives"]);
    // A group that is begun is shown to its end.
    assert!(calls >= EXPIRED / (8 * COUNT), "{calls} calls");
}
