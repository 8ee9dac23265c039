//! One key at a time: the effect of a write, the answer of a read.

use super::probe::{EARLY, WAIT, look, put, record, records, settle, value, written};
use super::rng::Rng;
use super::{Factory, probe};
use coreplane_engine::{Outcome, Visibility};

pub(super) fn put_then_get(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    assert!(!engine.name().is_empty());
    assert_eq!(value(engine, b"a"), None, "a fresh store has a record");
    put(engine, b"a", b"1");
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(value(engine, b"b"), None);
    put(engine, b"a", b"22");
    put(engine, b"ab", b"3");
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"22"[..]), "an overwrite is not seen");
    assert_eq!(value(engine, b"ab").as_deref(), Some(&b"3"[..]));
    let rounds = fixture.scale.operations / 4;
    for round in 0..rounds {
        let text = round.to_string();
        put(engine, b"often", text.as_bytes());
        assert_eq!(value(engine, b"often").as_deref(), Some(text.as_bytes()));
    }
}

pub(super) fn insert_only_if_absent(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let first = written(engine.insert(b"a", b"1", &WAIT).unwrap());
    assert!(!first.replaced, "an insert replaced something");
    let before = record(engine, b"a").unwrap();
    for options in [WAIT, EARLY] {
        let second = engine.insert(b"a", b"2", &options).unwrap();
        assert!(matches!(second, Outcome::Exists(_)), "{second:?} for a second insert");
        settle(engine, second.ticket());
        assert_eq!(record(engine, b"a").unwrap(), before, "a refused insert changed the record");
    }
    written(engine.delete(b"a", &WAIT).unwrap());
    assert!(!written(engine.insert(b"a", b"3", &WAIT).unwrap()).replaced);
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"3"[..]));
}

pub(super) fn update_only_if_present(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for options in [WAIT, EARLY] {
        let outcome = engine.update(b"a", b"1", &options).unwrap();
        assert!(matches!(outcome, Outcome::Missing(_)), "{outcome:?} for an update of nothing");
        settle(engine, outcome.ticket());
        assert_eq!(value(engine, b"a"), None, "a refused update wrote");
    }
    put(engine, b"a", b"1");
    assert!(written(engine.update(b"a", b"2", &WAIT).unwrap()).replaced);
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"2"[..]));
    written(engine.delete(b"a", &WAIT).unwrap());
    assert!(matches!(engine.update(b"a", b"3", &WAIT).unwrap(), Outcome::Missing(_)));
    assert_eq!(value(engine, b"a"), None);
}

pub(super) fn delete_only_what_is_there(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    assert!(matches!(engine.delete(b"a", &WAIT).unwrap(), Outcome::Missing(_)));
    put(engine, b"a", b"1");
    put(engine, b"b", b"1");
    assert!(written(engine.delete(b"a", &WAIT).unwrap()).replaced, "a delete replaced nothing");
    assert_eq!(value(engine, b"a"), None, "a deleted record is there");
    assert_eq!(value(engine, b"b").as_deref(), Some(&b"1"[..]), "another record went along");
    let again = engine.delete(b"a", &EARLY).unwrap();
    assert!(matches!(again, Outcome::Missing(_)), "{again:?} for a second delete");
    put(engine, b"a", b"2");
    assert_eq!(value(engine, b"a").as_deref(), Some(&b"2"[..]), "a record written after a delete");
}

pub(super) fn replaced_is_true_of_live_records(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for options in [WAIT, EARLY] {
        let replaced = |value: &[u8]| written(engine.put(b"a", value, &options).unwrap()).replaced;
        assert!(!replaced(b"1"), "the first put replaced something");
        assert!(replaced(b"2"), "the second put replaced nothing");
        assert!(replaced(b"2"), "an equal value is replaced too");
        assert!(written(engine.delete(b"a", &options).unwrap()).replaced);
        assert!(!replaced(b"3"), "a put over a tombstone replaced something");
        assert!(written(engine.delete(b"a", &options).unwrap()).replaced);
    }
    engine.sync().unwrap();
}

pub(super) fn multi_get_answers_each_key(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    assert!(records(engine, &[], Visibility::Durable).0.is_empty());
    let count = fixture.scale.keys_of(64, 200);
    let key_of = |number: &usize| probe::key(*number);
    for number in (0..count).step_by(3) {
        put(engine, &key_of(&number), &key_of(&number));
    }
    // In no order, some twice, absent ones between.
    let mut rng = Rng::new(fixture.scale.seed);
    let asked: Vec<usize> = (0..2 * count).map(|_| rng.below(count)).collect();
    let keys: Vec<_> = asked.iter().map(key_of).collect();
    for visibility in [Visibility::Durable, Visibility::Early] {
        let (answers, horizon) = records(engine, &keys, visibility);
        if visibility == Visibility::Durable {
            assert!(horizon.is_empty(), "a durable multi_get rests on {horizon:?}");
        }
        for ((number, key), answer) in asked.iter().zip(&keys).zip(&answers) {
            let expected = (number % 3 == 0).then_some(key);
            let found = answer.as_ref().map(|seen| &seen.value);
            assert_eq!(found, expected, "multi_get of {key:?}");
            assert_eq!(*answer, look(engine, key, visibility).0, "multi_get and get differ");
        }
    }
}

pub(super) fn records_are_shown_whole(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let options = probe::until(probe::FAR);
    let made = written(engine.put(b"a", b"value", &options).unwrap());
    let seen = record(engine, b"a").unwrap();
    assert_eq!(seen.value, b"value");
    assert_eq!(seen.sequence, made.sequence, "the sequence that was returned");
    assert_eq!(seen.expires_at, Some(probe::FAR), "the expiry that was given");
    let made = put(engine, b"a", b"other");
    let seen = record(engine, b"a").unwrap();
    assert_eq!((seen.sequence, seen.expires_at), (made.sequence, None));
}
