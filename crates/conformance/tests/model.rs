//! Features of the reference engine beyond the trait: manual commit, power cuts, its clock.

use coreplane_conformance::model::{ManualClock, ModelEngine};
use coreplane_engine::{
    Batch, Completion, Deferred, Durability, Engine, Error, Horizon, Repairable, UnixMillis,
    Visibility, WriteOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const EARLY: WriteOptions = WriteOptions {
    use_reserve: false,
    expires_at: None,
    durability: None,
    completion: Completion::Early,
    sequence: None,
};

fn early_value(engine: &ModelEngine, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    engine.get_with(key, Visibility::Early, &mut |r| value = Some(r.value.to_vec())).unwrap();
    value
}

#[test]
fn early_writes_become_durable_on_demand_and_tell_the_listeners() {
    let engine = ModelEngine::with_manual_commit();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    engine.on_durable(Arc::new(move || {
        seen.fetch_add(1, Ordering::SeqCst);
    }));
    let outcome = engine.put(b"k", b"v", &EARLY).unwrap();
    let horizon = Horizon::from(outcome.ticket());
    assert!(!horizon.is_empty());
    assert!(!engine.commit(&horizon).unwrap());
    assert_eq!(early_value(&engine, b"k").unwrap(), b"v");
    let found = engine.get_with(b"k", Visibility::Early, &mut |_| ()).unwrap();
    assert_eq!(found.ticket, outcome.ticket());
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(engine.make_durable());
    assert!(!engine.make_durable());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(engine.is_durable(&horizon).unwrap());
    assert_eq!(engine.get(b"k").unwrap().unwrap(), b"v");
}

#[test]
fn a_durable_read_waits_for_the_commit() {
    let engine = Arc::new(ModelEngine::with_manual_commit());
    let _outcome = engine.put(b"k", b"v", &EARLY).unwrap();
    let reader = Arc::clone(&engine);
    let read = std::thread::spawn(move || reader.get(b"k").unwrap());
    engine.make_durable();
    assert_eq!(read.join().unwrap().unwrap(), b"v");
}

#[test]
fn a_power_cut_takes_back_what_is_not_durable() {
    let engine = ModelEngine::with_manual_commit();
    let _outcome = engine.put(b"a", b"1", &WriteOptions::default()).unwrap();
    let _outcome = engine.put(b"b", b"1", &WriteOptions::default()).unwrap();
    let _outcome = engine.put(b"a", b"2", &EARLY).unwrap();
    let _outcome = engine.delete(b"b", &EARLY).unwrap();
    engine.apply(Batch::new().put(b"c", b"3").put(b"d", b"3"), &EARLY).unwrap();
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..WriteOptions::default() };
    assert!(engine.put(b"e", b"5", &relaxed).unwrap().ticket().is_durable());
    let killed = engine.after_kill();
    assert_eq!(killed.get(b"a").unwrap().unwrap(), b"2");
    assert_eq!(killed.len().unwrap(), 4);
    let cut = engine.after_power_cut();
    assert_eq!(cut.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(cut.get(b"b").unwrap().unwrap(), b"1");
    assert_eq!(cut.len().unwrap(), 2);
    assert!(cut.verify(&mut |_| ()).unwrap().is_sound());
    engine.sync().unwrap();
    let cut = engine.after_power_cut();
    assert_eq!(cut.get(b"d").unwrap().unwrap(), b"3");
    assert_eq!(cut.len().unwrap(), 4);
}

#[test]
fn a_broken_medium_stops_writes_and_waits() {
    let engine = ModelEngine::with_manual_commit();
    let ticket = engine.put(b"a", b"1", &EARLY).unwrap().ticket();
    engine.break_medium("pulled out");
    assert!(matches!(engine.wait_durable(&ticket.into()), Err(Error::SyncFailed(_))));
    assert!(matches!(engine.put(b"a", b"2", &EARLY), Err(Error::SyncFailed(_))));
    assert!(matches!(engine.get(b"a"), Err(Error::SyncFailed(_))));
    assert!(matches!(engine.sync(), Err(Error::SyncFailed(_))));
    assert_eq!(engine.after_power_cut().get(b"a").unwrap(), None);
}

#[test]
fn a_clock_set_back_revives_nothing() {
    let clock = ManualClock::starting_at(UnixMillis(1000));
    let engine = ModelEngine::with_clock(clock.as_clock());
    let options = WriteOptions { expires_at: Some(UnixMillis(1010)), ..WriteOptions::default() };
    let _outcome = engine.put(b"k", b"v", &options).unwrap();
    clock.set(UnixMillis(1009));
    assert!(engine.get(b"k").unwrap().is_some());
    clock.set(UnixMillis(1010));
    assert!(engine.get(b"k").unwrap().is_none());
    clock.set(UnixMillis(1000));
    assert!(engine.get(b"k").unwrap().is_none());
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    let engine = ModelEngine::new().with_capacity(10);
    let options = WriteOptions::default();
    let _outcome = engine.put(b"k", b"12345", &options).unwrap();
    assert!(matches!(engine.put(b"l", b"12345", &options), Err(Error::NoSpace { .. })));
    let _outcome = engine.put(b"k", b"123456789", &options).unwrap();
    assert_eq!(engine.len().unwrap(), 1);
}
