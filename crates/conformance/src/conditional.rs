//! Writes that depend on the record: `compare_and_set` and `modify`.

use super::Factory;
use super::probe::{EARLY, FAR, PAST, WAIT, put, record, settle, until, value, written};
use coreplane_engine::{Expected, Mutation, Outcome, StorageEngine, WriteOptions};

/// Expects a mismatch that leaves the record as it is.
fn mismatch(engine: &dyn StorageEngine, key: &[u8], expected: Expected<'_>) {
    for options in [WAIT, EARLY] {
        let before = record(engine, key);
        let outcome = engine.compare_and_set(key, expected, b"never", &options).unwrap();
        assert!(matches!(outcome, Outcome::Mismatch(_)), "{outcome:?} where {expected:?}");
        settle(engine, outcome.ticket());
        assert_eq!(record(engine, key), before, "a mismatch changed the record");
    }
}

pub(super) fn compare_with_absent(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let made = written(engine.compare_and_set(b"a", Expected::Absent, b"1", &WAIT).unwrap());
    assert!(!made.replaced);
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"1"[..]));
    mismatch(engine, b"a", Expected::Absent);
    put(engine, b"a", b"");
    mismatch(engine, b"a", Expected::Absent);
    written(engine.delete(b"a", &WAIT).unwrap());
    written(engine.compare_and_set(b"a", Expected::Absent, b"2", &WAIT).unwrap());
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"2"[..]));
}

pub(super) fn compare_with_value(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    mismatch(engine, b"a", Expected::Value(b""));
    put(engine, b"a", b"1");
    for wrong in [&b"2"[..], b"", b"11", b"1\0"] {
        mismatch(engine, b"a", Expected::Value(wrong));
    }
    let made = written(engine.compare_and_set(b"a", Expected::Value(b"1"), b"", &WAIT).unwrap());
    assert!(made.replaced, "a compare_and_set that matched replaced nothing");
    assert_eq!(value(engine, b"a").as_deref(), Some(&b""[..]));
    mismatch(engine, b"a", Expected::Value(b"1"));
    written(engine.compare_and_set(b"a", Expected::Value(b""), b"3", &EARLY).unwrap());
    engine.sync().unwrap();
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"3"[..]));
    let long = vec![7; fixture.scale.bytes / 8];
    put(engine, b"long", &long);
    let mut other = long.clone();
    if let Some(last) = other.last_mut() {
        *last = 8;
    }
    mismatch(engine, b"long", Expected::Value(&other));
    written(engine.compare_and_set(b"long", Expected::Value(&long), b"", &WAIT).unwrap());
    written(engine.delete(b"a", &WAIT).unwrap());
    mismatch(engine, b"a", Expected::Value(b"3"));
}

pub(super) fn compare_with_sequence(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    mismatch(engine, b"a", Expected::Sequence(0));
    let first = put(engine, b"a", b"1").sequence;
    let second = put(engine, b"a", b"1").sequence;
    for wrong in [first, second + 1, 0, u64::MAX] {
        mismatch(engine, b"a", Expected::Sequence(wrong));
    }
    let third = engine.compare_and_set(b"a", Expected::Sequence(second), b"3", &WAIT).unwrap();
    let third = written(third);
    assert!(third.replaced && third.sequence > second, "{third:?} after sequence {second}");
    mismatch(engine, b"a", Expected::Sequence(second));
    let gone = written(engine.delete(b"a", &WAIT).unwrap()).sequence;
    for wrong in [third.sequence, gone] {
        mismatch(engine, b"a", Expected::Sequence(wrong));
    }
}

/// Modifies `key` by `mutation` and returns the value that it was shown.
fn modify(
    engine: &dyn StorageEngine,
    key: &[u8],
    options: &WriteOptions,
    mutation: &Mutation,
) -> (Outcome, Option<Vec<u8>>) {
    let mut shown = None;
    let outcome = engine
        .modify(key, options, &mut |record| {
            shown = record.map(|record| record.value.to_vec());
            mutation.clone()
        })
        .unwrap();
    settle(engine, outcome.ticket());
    (outcome, shown)
}

pub(super) fn modify_does_as_told(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for mutation in [Mutation::Keep, Mutation::Delete, Mutation::Expire(Some(FAR))] {
        let (outcome, shown) = modify(engine, b"a", &WAIT, &mutation);
        assert!(matches!(outcome, Outcome::Kept(_)), "{outcome:?} for {mutation:?} of nothing");
        assert_eq!((shown, value(engine, b"a")), (None, None));
    }
    let place = |value: &[u8]| Mutation::Put { value: value.to_vec(), expires_at: None };
    let (outcome, shown) = modify(engine, b"a", &WAIT, &place(b"1"));
    let first = written(outcome);
    assert!(!first.replaced && shown.is_none());
    let (outcome, shown) = modify(engine, b"a", &EARLY, &place(b"22"));
    let second = written(outcome);
    assert_eq!(shown.as_deref(), Some(&b"1"[..]), "what modify was shown");
    assert!(second.replaced && second.sequence > first.sequence);
    let before = record(engine, b"a").unwrap();
    assert_eq!((before.value.as_slice(), before.sequence), (&b"22"[..], second.sequence));
    let (outcome, shown) = modify(engine, b"a", &WAIT, &Mutation::Keep);
    assert!(matches!(outcome, Outcome::Kept(_)), "{outcome:?} for Keep");
    assert_eq!(shown.as_deref(), Some(&b"22"[..]));
    assert_eq!(record(engine, b"a").unwrap(), before, "Keep changed the record");
    let (outcome, _) = modify(engine, b"a", &WAIT, &Mutation::Delete);
    let gone = written(outcome);
    assert!(gone.replaced && gone.sequence > second.sequence);
    assert_eq!(value(engine, b"a"), None, "modify did not delete");
    let long = vec![b'x'; engine.limits().value_len_max.min(fixture.scale.bytes / 8)];
    let _outcome = modify(engine, b"a", &WAIT, &place(&long));
    assert!(value(engine, b"a").as_ref() == Some(&long), "a long value by modify");
}

pub(super) fn modify_expiry(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let expires = |key: &[u8]| record(engine, key).map(|seen| (seen.value, seen.expires_at));
    let first = put(engine, b"a", b"1");
    let (outcome, _) = modify(engine, b"a", &until(PAST), &Mutation::Expire(Some(FAR)));
    let second = written(outcome);
    assert!(second.replaced && second.sequence > first.sequence, "an expiry set is a write");
    assert_eq!(expires(b"a"), Some((b"1".to_vec(), Some(FAR))));
    let mutation = Mutation::Put { value: b"2".to_vec(), expires_at: None };
    let _outcome = modify(engine, b"a", &until(FAR), &mutation);
    assert_eq!(expires(b"a"), Some((b"2".to_vec(), None)), "a mutation has its own expiry");
    let mutation = Mutation::Put { value: b"3".to_vec(), expires_at: Some(FAR) };
    let _outcome = modify(engine, b"a", &WAIT, &mutation);
    assert_eq!(expires(b"a"), Some((b"3".to_vec(), Some(FAR))));
    let _outcome = modify(engine, b"a", &WAIT, &Mutation::Expire(None));
    assert_eq!(expires(b"a"), Some((b"3".to_vec(), None)), "an expiry is taken off");
    let (outcome, _) = modify(engine, b"a", &WAIT, &Mutation::Expire(Some(PAST)));
    assert!(written(outcome).replaced);
    assert_eq!(value(engine, b"a"), None, "an expiry in the past");
}
