//! The reports of an engine about itself, `clear` and `close`.

use super::Factory;
use super::probe::{PAST, WAIT, all, key, put, until, value, written};
use coreplane_engine::{Batch, Error, Expected, Mutation, Stats};

pub(super) fn len_counts_records(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    assert!(engine.is_empty().unwrap());
    assert_eq!(engine.len().unwrap(), 0);
    let count = fixture.scale.keys_of(128, 100) as u64;
    for number in 0..count {
        put(engine, &key(number as usize), b"1");
        put(engine, &key(number as usize), b"2");
        assert_eq!(engine.len().unwrap(), number + 1, "len after {} keys", number + 1);
        assert_eq!(engine.try_len().unwrap(), Some(number + 1), "of a store that is new");
    }
    assert!(!engine.is_empty().unwrap());
    let _outcome = engine.insert(&key(0), b"3", &WAIT).unwrap();
    let _outcome = engine.delete(b"absent", &WAIT).unwrap();
    assert_eq!(engine.len().unwrap(), count, "a refused write changed len");
    written(engine.delete(&key(0), &WAIT).unwrap());
    assert_eq!(engine.len().unwrap(), count - 1);
    engine.apply(Batch::new().put(b"x", b"").put(b"y", b"").delete(&key(1)), &WAIT).unwrap();
    assert_eq!(engine.len().unwrap(), count, "len after a batch");
    // An expired record counts until it is removed.
    let _outcome = engine.put(b"expired", b"", &until(PAST)).unwrap();
    let len = engine.len().unwrap();
    assert!(len == count || len == count + 1, "{len} records, {count} of them live");
    put(engine, b"expired", b"");
    assert_eq!(engine.len().unwrap(), count + 1, "len after writing over an expired record");
}

pub(super) fn clear_removes_all(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.clear().unwrap();
    for round in 0..3 {
        let count = fixture.scale.keys_of(128, 200);
        let mut last = 0;
        for number in 0..count {
            last = last.max(put(engine, &key(number), b"1").sequence);
        }
        put(engine, b"large", &vec![1; fixture.scale.bytes / 8]);
        engine.clear().unwrap();
        assert_eq!(engine.len().unwrap(), 0, "len after clear {round}");
        assert!(all(engine, 10).is_empty(), "records after clear");
        assert!((0..count).all(|number| value(engine, &key(number)).is_none()));
        let again = put(engine, &key(0), b"2");
        assert!(!again.replaced && again.sequence > last, "{again:?} after clear and {last}");
        assert_eq!(all(engine, 10).len(), 1);
    }
}

/// The counters that never fall while a store is open.
fn counters(stats: &Stats) -> [(&'static str, u64); 12] {
    [
        ("hits", stats.hits),
        ("misses", stats.misses),
        ("puts", stats.puts),
        ("deletes", stats.deletes),
        ("batches", stats.batches),
        ("user_bytes_written", stats.user_bytes_written),
        ("log_bytes_written", stats.log_bytes_written),
        ("cleaner_bytes_copied", stats.cleaner_bytes_copied),
        ("cleaner_pages_freed", stats.cleaner_pages_freed),
        ("flushes", stats.flushes),
        ("fences", stats.fences),
        ("expired", stats.expired),
    ]
}

pub(super) fn stats_only_grow(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let start = engine.stats();
    let mut last = start.clone();
    for round in 0..50 {
        put(engine, &key(round), b"12345");
        put(engine, &key(round), b"67890");
        assert!(value(engine, &key(round)).is_some());
        assert!(value(engine, b"absent").is_none());
        engine.apply(Batch::new().put(b"b", b"1").delete(&key(round)), &WAIT).unwrap();
        put(engine, b"d", b"1");
        written(engine.delete(b"d", &WAIT).unwrap());
        let now = engine.stats();
        for ((name, before), (_, after)) in counters(&last).into_iter().zip(counters(&now)) {
            assert!(after >= before, "{name} fell from {before} to {after}");
        }
        assert_eq!(now.records, engine.len().unwrap(), "stats and len");
        assert!(now.free_bytes <= now.pool_bytes, "more free than there is");
        last = now;
    }
    let grew = |count: fn(&Stats) -> u64| count(&last) - count(&start);
    assert_eq!(grew(|stats| stats.hits), 50, "hits");
    assert_eq!(grew(|stats| stats.misses), 50, "misses");
    assert_eq!(grew(|stats| stats.batches), 50, "batches");
    assert_eq!(grew(|stats| stats.puts), 200, "records written");
    assert_eq!(grew(|stats| stats.deletes), 100, "records deleted");
    let bytes = 50 * (2 * (9 + 5) + 2 + 2);
    assert!(grew(|stats| stats.user_bytes_written) >= bytes, "bytes of keys and values");
    assert!(grew(|stats| stats.log_bytes_written) >= bytes, "bytes appended");
    assert!(last.live_bytes >= 2, "live bytes");
}

pub(super) fn verify_finds_it_sound(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let sound = |records: u64| {
        let mut calls = Vec::new();
        let report = engine.verify(&mut |progress| calls.push(progress)).unwrap();
        assert!(report.is_sound(), "{:?}", report.damages);
        assert_eq!(report.records, records, "live records checked");
        for progress in calls {
            assert!(!progress.stage.is_empty());
            assert!(progress.total == 0 || progress.done <= progress.total, "{progress:?}");
        }
        report.bytes
    };
    sound(0);
    let count = fixture.scale.keys_of(512, 100);
    for number in 0..count {
        put(engine, &key(number), &vec![1; number]);
    }
    assert!(sound(count as u64) > 0, "bytes checked");
    for number in (0..count).step_by(2) {
        written(engine.delete(&key(number), &WAIT).unwrap());
    }
    sound(count as u64 / 2);
    put(engine, b"large", &vec![1; fixture.scale.bytes / 8]);
    sound(count as u64 / 2 + 1);
}

pub(super) fn closed_refuses_writes(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    put(engine, b"a", b"1");
    engine.close().unwrap();
    let closed = |result: coreplane_engine::Result<()>, what: &str| {
        assert!(matches!(result, Err(Error::Closed)), "{what} after close: {result:?}");
    };
    closed(engine.put(b"a", b"2", &WAIT).map(drop), "put");
    closed(engine.insert(b"b", b"2", &WAIT).map(drop), "insert");
    closed(engine.update(b"a", b"2", &WAIT).map(drop), "update");
    closed(engine.delete(b"a", &WAIT).map(drop), "delete");
    let expected = Expected::Value(b"1");
    closed(engine.compare_and_set(b"a", expected, b"2", &WAIT).map(drop), "compare_and_set");
    let delete = &mut |_: Option<coreplane_engine::Record<'_>>| Mutation::Delete;
    closed(engine.modify(b"a", &WAIT, delete).map(drop), "modify");
    closed(engine.apply(Batch::new().put(b"a", b"2"), &WAIT).map(drop), "apply");
    closed(engine.clear(), "clear");
    // The engine may choose whether it can still be read; the answer must not be wrong.
    match engine.get(b"a") {
        Ok(value) => assert_eq!(value.as_deref(), Some(&b"1"[..])),
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    match engine.close() {
        Ok(()) | Err(Error::Closed) => {}
        Err(error) => panic!("a second close: {error}"),
    }
}
