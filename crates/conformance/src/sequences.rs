//! Sequences: the engine's own grow, given ones decide.

use super::probe::{WAIT, given, key, put, record, value, written};
use super::{Factory, Restart};
use coreplane_engine::{Batch, Expected, Mutation, Outcome, StorageEngine, WriteOptions};

pub(super) fn own_sequences_grow(factory: Factory<'_>) {
    let mut fixture = factory();
    let mut last = 0;
    let grown = |sequence: u64, last: &mut u64, what: &str| {
        assert!(sequence > *last, "{what} got sequence {sequence} after {last}");
        *last = sequence;
    };
    for round in 0..4 {
        let engine = &*fixture.engine;
        for _ in 0..fixture.scale.operations / 40 {
            grown(put(engine, b"a", b"1").sequence, &mut last, "put");
            grown(put(engine, b"a", b"1").sequence, &mut last, "an equal put");
            let gone = written(engine.delete(b"a", &WAIT).unwrap());
            grown(gone.sequence, &mut last, "delete");
            let again = written(engine.insert(b"a", b"2", &WAIT).unwrap());
            grown(again.sequence, &mut last, "insert after delete");
            let batch = engine.apply(Batch::new().put(b"a", b"3").put(b"b", b"3"), &WAIT).unwrap();
            let of_record = record(engine, b"a").unwrap().sequence;
            grown(of_record, &mut last, "a batch's change");
            assert!(batch.sequence >= of_record, "a batch's sequence is that of its last change");
            let mutation = Mutation::Expire(None);
            let expired = engine.modify(b"a", &WAIT, &mut |_| mutation.clone()).unwrap();
            grown(written(expired).sequence, &mut last, "modify");
            assert_eq!(record(engine, b"a").unwrap().sequence, last);
        }
        if round % 2 == 0 {
            // Deleted, forgotten, and then a restart: the sequence must still grow.
            grown(written(engine.delete(b"a", &WAIT).unwrap()).sequence, &mut last, "delete");
            engine.hold_tombstones(u64::MAX).unwrap();
        }
        let how = if round < 2 { Restart::Clean } else { Restart::Kill };
        match fixture.restart(how) {
            Some(next) => fixture = next,
            None => return,
        }
    }
}

/// A write with a given sequence and how it is made.
type Write = fn(&dyn StorageEngine, &[u8], &WriteOptions) -> Outcome;

const WRITES: [(&str, Write); 4] = [
    ("put", |engine, key, options| engine.put(key, b"new", options).unwrap()),
    ("update", |engine, key, options| engine.update(key, b"new", options).unwrap()),
    ("delete", |engine, key, options| engine.delete(key, options).unwrap()),
    ("modify", |engine, key, options| {
        let mutation = || Mutation::Put { value: b"new".to_vec(), expires_at: None };
        engine.modify(key, options, &mut |_| mutation()).unwrap()
    }),
];

pub(super) fn a_given_sequence_decides(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.hold_tombstones(0).unwrap();
    for (name, write) in WRITES {
        let key = name.as_bytes();
        let base = engine.advance_sequence().unwrap() + 100;
        let first = written(engine.put(key, b"old", &given(base)).unwrap());
        assert_eq!(first.sequence, base, "the given sequence is the record's");
        let before = record(engine, key).unwrap();
        assert_eq!(before.sequence, base);
        for older in [base, base - 1, 1] {
            match write(engine, key, &given(older)) {
                Outcome::NotNewer(stored, _) => assert_eq!(stored, base, "{name}"),
                other => panic!("{name} with sequence {older} over {base}: {other:?}"),
            }
            assert_eq!(record(engine, key).unwrap(), before, "{name} of {older} over {base}");
        }
        let made = written(write(engine, key, &given(base + 1)));
        assert_eq!((made.sequence, made.replaced), (base + 1, true), "{name} of a newer sequence");
        let expected = (name != "delete").then_some((b"new".to_vec(), base + 1));
        let found = record(engine, key).map(|seen| (seen.value, seen.sequence));
        assert_eq!(found, expected, "after {name} of a newer sequence");
    }
}

pub(super) fn a_tombstone_decides(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.hold_tombstones(0).unwrap();
    let base = engine.advance_sequence().unwrap() + 100;
    // Of a key that never was: an older put may still arrive.
    let gone = written(engine.delete(b"a", &given(base)).unwrap());
    assert_eq!((gone.sequence, gone.replaced), (base, false), "a tombstone of nothing");
    for older in [base - 1, base] {
        let late = engine.put(b"a", b"1", &given(older)).unwrap();
        assert!(matches!(late, Outcome::NotNewer(stored, _) if stored == base), "{late:?}");
        let late = engine.delete(b"a", &given(older)).unwrap();
        assert!(matches!(late, Outcome::NotNewer(stored, _) if stored == base), "{late:?}");
        assert_eq!(value(engine, b"a"), None, "an older put came through a tombstone");
    }
    assert!(!written(engine.put(b"a", b"1", &given(base + 1)).unwrap()).replaced);
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"1"[..]));
    // A newer tombstone over an older one, and over a record.
    assert!(written(engine.delete(b"a", &given(base + 2)).unwrap()).replaced);
    assert!(!written(engine.delete(b"a", &given(base + 5)).unwrap()).replaced);
    let late = engine.put(b"a", b"1", &given(base + 4)).unwrap();
    assert!(matches!(late, Outcome::NotNewer(stored, _) if stored == base + 5), "{late:?}");
    // A delete without a given sequence leaves a tombstone as well.
    put(engine, b"b", b"1");
    let gone = written(engine.delete(b"b", &WAIT).unwrap()).sequence;
    let late = engine.put(b"b", b"1", &given(gone)).unwrap();
    assert!(matches!(late, Outcome::NotNewer(stored, _) if stored == gone), "{late:?}");
    written(engine.put(b"b", b"1", &given(gone + 1)).unwrap());
}

pub(super) fn own_sequences_follow_given_ones(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let base = engine.advance_sequence().unwrap() + 1_000_000;
    written(engine.put(b"a", b"1", &given(base)).unwrap());
    assert!(put(engine, b"a", b"2").sequence > base, "an own sequence after a given one");
    written(engine.delete(b"b", &given(base + 500)).unwrap());
    assert!(put(engine, b"b", b"2").sequence > base + 500, "after a given tombstone");
    written(engine.put(b"c", b"1", &given(base + 9000)).unwrap());
    assert!(engine.advance_sequence().unwrap() >= base + 9000, "every returned write is below");
    written(engine.put(b"d", b"1", &given(base + 20_000)).unwrap());
    let gone = written(engine.delete(b"d", &WAIT).unwrap());
    assert!(gone.sequence > base + 20_000);
}

pub(super) fn conditions_and_given_sequences(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.hold_tombstones(0).unwrap();
    let base = engine.advance_sequence().unwrap() + 100;
    let made = written(engine.insert(b"a", b"1", &given(base)).unwrap());
    assert_eq!(made.sequence, base);
    let newer = given(base + 1);
    assert!(matches!(engine.insert(b"a", b"2", &newer).unwrap(), Outcome::Exists(_)));
    let wrong = engine.compare_and_set(b"a", Expected::Value(b"2"), b"3", &newer).unwrap();
    assert!(matches!(wrong, Outcome::Mismatch(_)), "{wrong:?}");
    assert!(matches!(engine.update(b"b", b"2", &newer).unwrap(), Outcome::Missing(_)));
    assert_eq!(value(engine, b"b"), None);
    let late = engine.compare_and_set(b"a", Expected::Value(b"1"), b"3", &given(base)).unwrap();
    assert!(matches!(late, Outcome::NotNewer(stored, _) if stored == base), "{late:?}");
    let expected = Expected::Sequence(base);
    let made = written(engine.compare_and_set(b"a", expected, b"3", &given(base + 7)).unwrap());
    assert_eq!(made.sequence, base + 7);
    assert_eq!(record(engine, b"a").unwrap().value, b"3");
    written(engine.delete(b"a", &given(base + 8)).unwrap());
    let late = engine.insert(b"a", b"4", &given(base + 8)).unwrap();
    assert!(matches!(late, Outcome::NotNewer(stored, _) if stored == base + 8), "{late:?}");
    written(engine.insert(b"a", b"4", &given(base + 9)).unwrap());
}

pub(super) fn advance_sequence_divides(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let mut highest = 0;
    for round in 0..fixture.scale.operations / 20 {
        let line = engine.advance_sequence().unwrap();
        assert!(line >= highest, "a write that had returned has {highest}, the line is {line}");
        for number in 0..4 {
            let key = key((round + number * 7) % 16);
            let sequence = match number {
                3 => engine.apply(Batch::new().put(&key, b"1"), &WAIT).unwrap().sequence,
                _ => put(engine, &key, b"1").sequence,
            };
            assert!(sequence > line, "a write that began after line {line} has {sequence}");
            assert!(record(engine, &key).unwrap().sequence > line);
            highest = highest.max(sequence);
        }
    }
}
