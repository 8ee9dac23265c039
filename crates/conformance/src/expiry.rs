//! The time at which a record ceases to exist.

use super::probe::{FAR, PAST, WAIT, all, key, put, record, records, until, value, written};
use super::{Factory, Fixture};
use crate::model::ManualClock;
use coreplane_engine::{
    Batch, Expected, Mutation, Outcome, StorageEngine, UnixMillis, Visibility, WriteOptions,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

/// A store with a clock that can be set, and the clock; none if the store has none.
fn with_clock(factory: Factory<'_>) -> Option<(Fixture, ManualClock)> {
    let fixture = factory();
    let clock = fixture.clock.clone()?;
    Some((fixture, clock))
}

pub(super) fn gone_at_the_very_millisecond(factory: Factory<'_>) {
    let Some((fixture, clock)) = with_clock(factory) else { return };
    let engine = &*fixture.engine;
    let at = UnixMillis(clock.now().0 + 1000);
    written(engine.put(b"a", b"1", &until(at)).unwrap());
    written(engine.put(b"b", b"1", &until(UnixMillis(at.0 + 1))).unwrap());
    put(engine, b"c", b"1");
    clock.set(UnixMillis(at.0 - 1));
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"1"[..]), "gone a millisecond too early");
    assert_eq!(all(engine, 10).len(), 3);
    clock.set(at);
    assert_eq!(value(engine, b"a"), None, "there at the time at which it ceases to exist");
    assert_eq!(value(engine, b"b").as_deref(), Some(&b"1"[..]));
    clock.advance(1);
    assert_eq!(value(engine, b"b"), None);
    clock.advance(1 << 40);
    assert_eq!(value(engine, b"c").as_deref(), Some(&b"1"[..]), "a record without expiry");
}

/// Asks every operation about `key`, whose record has expired.
fn check_gone(engine: &dyn StorageEngine, key: &[u8]) {
    assert_eq!(value(engine, key), None, "get shows an expired record");
    let (answers, _) = records(engine, &[key.to_vec()], Visibility::Durable);
    assert_eq!(answers, [None], "multi_get shows an expired record");
    assert!(!all(engine, 10).contains_key(key), "iterate shows an expired record");
    let mut shown = false;
    let kept = engine.modify(key, &WAIT, &mut |record| {
        shown |= record.is_some();
        Mutation::Keep
    });
    assert!(matches!(kept.unwrap(), Outcome::Kept(_)));
    assert!(!shown, "modify shows an expired record");
    assert!(matches!(engine.update(key, b"2", &WAIT).unwrap(), Outcome::Missing(_)), "update");
    assert!(matches!(engine.delete(key, &WAIT).unwrap(), Outcome::Missing(_)), "delete");
    let cas = engine.compare_and_set(key, Expected::Value(b"1"), b"2", &WAIT).unwrap();
    assert!(matches!(cas, Outcome::Mismatch(_)), "compare_and_set matches an expired value");
    if let Some(ordered) = engine.ordered() {
        let mut visit = |entry: coreplane_engine::Entry<'_>| {
            assert_ne!(entry.key, key, "scan shows an expired record");
            true
        };
        ordered.scan(b"", None, false, usize::MAX, &mut visit).unwrap();
    }
}

/// A write to a key; says whether it replaced something.
type Write<'a> = &'a dyn Fn(&[u8]) -> bool;

pub(super) fn gone_for_every_operation(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let writes: [(&[u8], Write<'_>); 3] = [
        (b"put", &|key| written(engine.put(key, b"2", &WAIT).unwrap()).replaced),
        (b"insert", &|key| written(engine.insert(key, b"2", &WAIT).unwrap()).replaced),
        (b"cas", &|key| {
            let outcome = engine.compare_and_set(key, Expected::Absent, b"2", &WAIT);
            written(outcome.unwrap()).replaced
        }),
    ];
    for (key, write) in writes {
        match &fixture.clock {
            Some(clock) => {
                let at = UnixMillis(clock.now().0 + 5);
                written(engine.put(key, b"1", &until(at)).unwrap());
                assert!(value(engine, key).is_some());
                clock.set(at);
            }
            // Written already expired: it never exists.
            None => {
                written(engine.put(key, b"1", &until(PAST)).unwrap());
            }
        }
        check_gone(engine, key);
        assert!(!write(key), "a write replaced an expired record");
        assert_eq!(value(engine, key).as_deref(), Some(&b"2"[..]));
    }
}

pub(super) fn a_write_sets_or_drops_expiry(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let expiry = |key: &[u8]| record(engine, key).unwrap().expires_at;
    written(engine.insert(b"a", b"1", &until(FAR)).unwrap());
    assert_eq!(expiry(b"a"), Some(FAR));
    written(engine.update(b"a", b"1", &WAIT).unwrap());
    assert_eq!(expiry(b"a"), None, "an update without expiry keeps the old one");
    let one = Expected::Value(b"1");
    written(engine.compare_and_set(b"a", one, b"1", &until(FAR)).unwrap());
    assert_eq!(expiry(b"a"), Some(FAR));
    put(engine, b"a", b"1");
    assert_eq!(expiry(b"a"), None);
    // Each change of a batch has its own; that of the options is not used.
    let mut batch = Batch::new();
    batch.put(b"a", b"2").put_until(b"b", b"2", Some(FAR)).put_until(b"c", b"2", Some(PAST));
    engine.apply(&batch, &until(PAST)).unwrap();
    assert_eq!(expiry(b"a"), None, "the expiry of the options is not a batch's");
    assert_eq!(expiry(b"b"), Some(FAR));
    assert_eq!(value(engine, b"c"), None, "a change that had expired");
    let refused = engine.insert(b"a", b"3", &until(PAST)).unwrap();
    assert!(matches!(refused, Outcome::Exists(_)));
    assert_eq!(expiry(b"a"), None, "a refused insert set the expiry");
}

pub(super) fn expiry_on_the_system_clock(factory: Factory<'_>) {
    let fixture = factory();
    if fixture.clock.is_some() {
        return;
    }
    let engine = &*fixture.engine;
    let at = UnixMillis(UnixMillis::now().0 + 30);
    written(engine.put(b"a", b"1", &until(at)).unwrap());
    written(engine.put(b"b", b"1", &until(FAR)).unwrap());
    // An engine may look at the clock a little late.
    while UnixMillis::now().0 < at.0 + 50 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(value(engine, b"a"), None, "there long after its expiry");
    assert_eq!(value(engine, b"b").as_deref(), Some(&b"1"[..]));
}

pub(super) fn a_clock_set_back_revives_nothing(factory: Factory<'_>) {
    let Some((fixture, clock)) = with_clock(factory) else { return };
    let engine = &*fixture.engine;
    let start = clock.now();
    written(engine.put(b"a", b"1", &until(UnixMillis(start.0 + 10))).unwrap());
    clock.advance(10);
    assert_eq!(value(engine, b"a"), None);
    clock.set(start);
    assert_eq!(value(engine, b"a"), None, "a clock set back revived an expired record");
}

pub(super) fn a_sweep_removes_what_has_expired(factory: Factory<'_>) {
    let Some((fixture, clock)) = with_clock(factory) else { return };
    let engine = &*fixture.engine;
    let soon = UnixMillis(clock.now().0 + 1000);
    let count = fixture.scale.keys_of(128, 200);
    engine.hold_tombstones(engine.advance_sequence().unwrap()).unwrap();
    let line = engine.advance_sequence().unwrap();
    for number in 0..count {
        let expires_at = (number % 2 == 0).then_some(soon);
        let options = WriteOptions { expires_at, ..WAIT };
        written(engine.put(&key(number), b"1", &options).unwrap());
    }
    let expired = count.div_ceil(2);
    assert_eq!(engine.sweep_expired().unwrap(), 0, "nothing has expired yet");
    assert_eq!(engine.len().unwrap(), count as u64);
    clock.set(soon);
    assert!(engine.sweep_expired().unwrap() <= expired as u64);
    assert_eq!(engine.len().unwrap(), (count - expired) as u64, "len after a sweep");
    assert_eq!(engine.sweep_expired().unwrap(), 0, "a second sweep");
    for number in 0..count {
        let expected = (number % 2 == 1).then_some(&b"1"[..]);
        assert_eq!(value(engine, &key(number)).as_deref(), expected, "{number} after a sweep");
    }
    // A reader of the changes is told, with the sequence that the record had.
    let mut gone = 0;
    engine.changes_since(line, &mut |entry| gone += usize::from(entry.record.is_none())).unwrap();
    assert_eq!(gone, expired, "tombstones of what was swept, which are held");
    // Swept keys can be written again.
    assert!(!put(engine, &key(0), b"2").replaced);
    assert_eq!(value(engine, &key(0)).as_deref(), Some(&b"2"[..]));
    assert!(engine.verify(&mut |_| ()).unwrap().is_sound());
}

pub(super) fn what_expires_is_counted_all_along(factory: Factory<'_>) {
    let Some((fixture, clock)) = with_clock(factory) else { return };
    let engine = &*fixture.engine;
    let soon = UnixMillis(clock.now().0 + 1000);
    let count = fixture.scale.keys_of(128, 200);
    for number in 0..count {
        written(engine.put(&key(number), b"1", &until(soon)).unwrap());
    }
    let due = engine.stats().expired + count as u64;
    clock.set(soon);
    let is_swept = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            while !is_swept.load(Ordering::Acquire) {
                // In this order: between the two a record may be removed, and count twice.
                let (len, expired) = (engine.len().unwrap(), engine.stats().expired);
                assert!(len + expired >= due, "{len} there and {expired} expired of {due}");
            }
        });
        let swept = engine.sweep_expired();
        is_swept.store(true, Ordering::Release);
        assert!(swept.unwrap() <= count as u64);
    });
    assert_eq!(engine.len().unwrap(), 0);
    assert!(engine.stats().expired >= due);
}
