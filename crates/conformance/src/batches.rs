//! Several changes that happen together or not at all.

use super::Factory;
use super::probe::{FAR, WAIT, all, given, key, put, record, value, written};
use coreplane_engine::{Batch, Error};

pub(super) fn a_batch_is_made_whole(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let count = fixture.scale.keys_of(64, 300).min(engine.limits().batch_len_max / 2);
    let mut batch = Batch::new();
    for number in 0..count {
        batch.put(&key(number), b"first");
    }
    let first = engine.apply(&batch, &WAIT).unwrap();
    assert!(!first.replaced && first.ticket.is_durable(), "{first:?}");
    assert_eq!(all(engine, 50).len(), count, "records after a batch");
    let mut batch = Batch::new();
    for number in 0..count {
        match number % 3 {
            0 => batch.delete(&key(number)),
            1 => batch.put_until(&key(number), b"second", Some(FAR)),
            _ => batch.delete(&key(number + count)),
        };
    }
    let second = engine.apply(&batch, &WAIT).unwrap();
    assert!(second.replaced, "a batch over live records replaced nothing");
    assert!(second.sequence > first.sequence);
    for number in 0..count {
        let found = record(engine, &key(number)).map(|seen| (seen.value, seen.expires_at));
        let expected = match number % 3 {
            0 => None,
            1 => Some((b"second".to_vec(), Some(FAR))),
            _ => Some((b"first".to_vec(), None)),
        };
        assert_eq!(found, expected, "record {number} after a batch");
    }
    let third = engine.apply(Batch::new().delete(&key(0)).put(b"new", b""), &WAIT).unwrap();
    assert!(!third.replaced, "nothing live was replaced");
    assert!(engine.apply(Batch::new().delete(&key(1)), &WAIT).unwrap().replaced);
    let large = fixture.scale.bytes / 8;
    let mut batch = Batch::new();
    batch.put(b"large 1", &vec![1; large]).put(b"small", b"2").put(b"large 3", &vec![3; large]);
    engine.apply(&batch, &WAIT).unwrap();
    assert!(value(engine, b"large 1") == Some(vec![1; large]), "a large value in a batch");
    assert!(value(engine, b"large 3") == Some(vec![3; large]), "a large value in a batch");
    assert_eq!(value(engine, b"small").as_deref(), Some(&b"2"[..]));
}

pub(super) fn the_last_change_of_a_key_wins(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let mut batch = Batch::new();
    batch.put(b"a", b"1").put(b"b", b"1").put(b"a", b"2").delete(b"b").put(b"c", b"1");
    batch.delete(b"c").put(b"c", b"3").delete(b"d").put_until(b"a", b"3", Some(FAR));
    engine.apply(&batch, &WAIT).unwrap();
    let a = record(engine, b"a").unwrap();
    assert_eq!((a.value.as_slice(), a.expires_at), (&b"3"[..], Some(FAR)));
    assert_eq!(value(engine, b"b"), None, "a delete after a put in one batch");
    assert_eq!(value(engine, b"c").as_deref(), Some(&b"3"[..]), "a put after a delete");
    assert_eq!(engine.len().unwrap(), 2, "len after a batch with duplicates");
    assert_eq!(all(engine, 10).len(), 2);
    engine.apply(Batch::new().put(b"a", b"4").delete(b"a"), &WAIT).unwrap();
    assert_eq!(value(engine, b"a"), None);
    assert_eq!(engine.len().unwrap(), 1);
}

pub(super) fn an_empty_batch_changes_nothing(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    put(engine, b"a", b"1");
    let before = all(engine, 10);
    let nothing = engine.apply(&Batch::new(), &WAIT).unwrap();
    assert!(!nothing.replaced && nothing.ticket.is_durable(), "{nothing:?}");
    let nothing = engine.apply(Batch::new().delete(b"b"), &WAIT).unwrap();
    assert!(!nothing.replaced, "{nothing:?}");
    assert_eq!(all(engine, 10), before);
}

pub(super) fn a_refused_batch_changes_nothing(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let limits = engine.limits();
    put(engine, b"a", b"1");
    let before = all(engine, 10);
    let long_key = vec![0; limits.key_len_max + 1];
    for place in 0..3 {
        let mut batch = Batch::new();
        for number in 0..3 {
            match number == place {
                true => batch.delete(&long_key),
                false => batch.put(&key(number), b"2").delete(b"a"),
            };
        }
        let error = engine.apply(&batch, &WAIT).unwrap_err();
        assert!(matches!(error, Error::KeyTooLong { .. }), "{error}");
        assert_eq!(all(engine, 10), before, "a refused batch was made in part");
    }
    // Only if the limit is small enough to make such a value three times over.
    if limits.value_len_max <= 16 << 20 {
        let mut batch = Batch::new();
        batch.put(b"b", b"2").put(b"c", &vec![0; limits.value_len_max + 1]).delete(b"a");
        let error = engine.apply(&batch, &WAIT).unwrap_err();
        assert!(matches!(error, Error::ValueTooLong { .. }), "{error}");
        assert_eq!(all(engine, 10), before, "a refused batch was made in part");
    }
}

pub(super) fn a_batch_with_a_given_sequence(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.hold_tombstones(0).unwrap();
    let base = engine.advance_sequence().unwrap() + 100;
    let mut batch = Batch::new();
    batch.put(b"a", b"1").put(b"b", b"1").delete(b"c");
    let made = engine.apply(&batch, &given(base)).unwrap();
    assert_eq!(made.sequence, base, "the sequence that was given");
    for name in [b"a", b"b"] {
        assert_eq!(record(engine, name).unwrap().sequence, base, "a change's given sequence");
    }
    assert!(put(engine, b"a", b"2").sequence > base);
    written(engine.put(b"b", b"2", &given(base + 50)).unwrap());
}
