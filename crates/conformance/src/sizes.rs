//! Keys and values of every length, up to the limits and beyond.

use super::Factory;
use super::probe::{WAIT, key, put, record, value, written};
use super::rng::Rng;
use coreplane_engine::{Batch, Error, Expected, Mutation, StorageEngine};

pub(super) fn empty_keys_and_values(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    assert_eq!(value(engine, b""), None);
    put(engine, b"", b"of the empty key");
    assert_eq!(value(engine, b"").as_deref(), Some(&b"of the empty key"[..]));
    put(engine, b"k", b"");
    assert_eq!(value(engine, b"k").as_deref(), Some(&b""[..]), "an empty value is a value");
    put(engine, b"", b"");
    assert_eq!(value(engine, b"").as_deref(), Some(&b""[..]));
    assert_eq!(super::probe::all(engine, 10).len(), 2);
    assert!(written(engine.delete(b"", &WAIT).unwrap()).replaced);
    assert_eq!(value(engine, b""), None);
    assert_eq!(value(engine, b"\0"), None, "a zero byte is not the empty key");
    let key: Vec<u8> = (0..=255).collect();
    put(engine, &key, &key);
    assert_eq!(value(engine, &key).as_ref(), Some(&key), "every byte may be in a key");
}

/// Lengths around the powers of two, up to `max`.
fn lengths(max: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> = (0..40).collect();
    for power in 5..usize::BITS - 1 {
        let middle = 1_usize << power;
        lengths.extend([middle - 1, middle, middle + 1, middle + middle / 2]);
    }
    lengths.push(max);
    lengths.retain(|len| *len <= max);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Puts, overwrites and deletes a record and looks at it each time.
fn round_trip(engine: &dyn StorageEngine, rng: &mut Rng, key_len: usize, value_len: usize) {
    let (key, first) = (rng.bytes(key_len), rng.bytes(value_len));
    let about = format!("key of {key_len}, value of {value_len} bytes");
    put(engine, &key, &first);
    assert!(value(engine, &key).as_ref() == Some(&first), "{about}: not what was put");
    let second = rng.bytes(value_len);
    assert!(put(engine, &key, &second).replaced, "{about}: the overwrite replaced nothing");
    assert!(value(engine, &key).as_ref() == Some(&second), "{about}: not what was put over it");
    written(engine.delete(&key, &WAIT).unwrap());
    assert_eq!(value(engine, &key), None, "{about}: there after its delete");
}

pub(super) fn keys_of_every_length(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let mut rng = Rng::new(fixture.scale.seed);
    let max = engine.limits().key_len_max.min(fixture.scale.bytes / 6);
    for len in lengths(max) {
        round_trip(engine, &mut rng, len, 5);
    }
    let fits = engine.limits().key_len_max == max;
    assert!(fits || max == fixture.scale.bytes / 6);
}

pub(super) fn values_of_every_length(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let mut rng = Rng::new(fixture.scale.seed);
    let max = engine.limits().value_len_max.min(fixture.scale.bytes / 6).min(5 << 20);
    for len in lengths(max) {
        round_trip(engine, &mut rng, 9, len);
    }
    // Large and small values over each other, several of them at once.
    let key = b"grows and shrinks";
    for len in [1, max / 2, 0, max, 7, max] {
        let bytes = rng.bytes(len);
        put(engine, key, &bytes);
        put(engine, b"beside", &bytes[..len.min(100)]);
        assert!(value(engine, key).as_ref() == Some(&bytes), "a value of {len} bytes");
    }
}

pub(super) fn beyond_a_limit_nothing_changes(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let limits = engine.limits();
    let long_key = vec![b'k'; limits.key_len_max + 1];
    let long_value = vec![0; limits.value_len_max + 1];
    put(engine, b"a", b"1");
    let before = record(engine, b"a");
    let key_error = |result: coreplane_engine::Result<()>, what: &str| {
        let expected = (long_key.len(), limits.key_len_max);
        match result {
            Err(Error::KeyTooLong { len, max }) => assert_eq!((len, max), expected, "{what}"),
            other => panic!("{what} of a key over the limit: {other:?}"),
        }
    };
    key_error(engine.put(&long_key, b"", &WAIT).map(drop), "put");
    key_error(engine.insert(&long_key, b"", &WAIT).map(drop), "insert");
    key_error(engine.update(&long_key, b"", &WAIT).map(drop), "update");
    key_error(engine.delete(&long_key, &WAIT).map(drop), "delete");
    let absent = Expected::Absent;
    key_error(engine.compare_and_set(&long_key, absent, b"", &WAIT).map(drop), "cas");
    let mut empty =
        |_: Option<coreplane_engine::Record<'_>>| Mutation::Put { value: vec![], expires_at: None };
    key_error(engine.modify(&long_key, &WAIT, &mut empty).map(drop), "modify");
    let mut batch = Batch::new();
    key_error(engine.apply(batch.put(b"b", b"2").put(&long_key, b""), &WAIT).map(drop), "apply");
    let value_error = |result: coreplane_engine::Result<()>, what: &str| {
        let expected = (long_value.len(), limits.value_len_max);
        match result {
            Err(Error::ValueTooLong { len, max }) => assert_eq!((len, max), expected, "{what}"),
            other => panic!("{what} of a value over the limit: {other:?}"),
        }
    };
    value_error(engine.put(b"a", &long_value, &WAIT).map(drop), "put");
    value_error(engine.insert(b"c", &long_value, &WAIT).map(drop), "insert");
    value_error(engine.update(b"a", &long_value, &WAIT).map(drop), "update");
    let one = Expected::Value(b"1");
    value_error(engine.compare_and_set(b"a", one, &long_value, &WAIT).map(drop), "cas");
    // Zeroes that nobody reads take no memory.
    let mut long = |_: Option<coreplane_engine::Record<'_>>| Mutation::Put {
        value: vec![0; limits.value_len_max + 1],
        expires_at: None,
    };
    value_error(engine.modify(b"a", &WAIT, &mut long).map(drop), "modify");
    assert_eq!(record(engine, b"a"), before, "a refused write changed the record");
    for key in [&b"b"[..], b"c", &long_key] {
        assert_eq!(value(engine, key), None, "a refused write left something");
    }
    assert_eq!(engine.len().unwrap(), 1);
    too_many_changes(engine);
}

fn too_many_changes(engine: &dyn StorageEngine) {
    let max = engine.limits().batch_len_max;
    let Some(len) = max.checked_add(1).filter(|len| *len <= 1 << 21) else {
        return;
    };
    let mut batch = Batch::new();
    for _ in 0..len {
        batch.put(b"many", b"");
    }
    match engine.apply(&batch, &WAIT) {
        Err(Error::BatchTooLarge { len: said, max: limit }) => {
            assert_eq!((said, limit), (len, max));
        }
        other => panic!("a batch of {len} changes, over the limit: {other:?}"),
    }
    assert_eq!(value(engine, b"many"), None, "a refused batch left something");
}

/// Every record of a full store can be overwritten, again and again, even if no more fit beside them.
pub(super) fn a_full_store_can_be_overwritten(factory: Factory<'_>) {
    for size in [24, 400] {
        let fixture = factory();
        let engine = &*fixture.engine;
        let Some(fills) = fixture.fills else { return };
        let filling = |number: usize, round: usize| {
            let mut value = vec![number as u8; size];
            value[0] = round as u8;
            value
        };
        let mut count = 0;
        loop {
            match engine.put(&key(count), &filling(count, 0), &WAIT) {
                Ok(_) => count += 1,
                Err(Error::NoSpace { .. }) => break,
                Err(error) => panic!("{error} from a store that fills up"),
            }
            assert!(count * size <= fills, "{count} records of {size} bytes and still not full");
        }
        let mut newest = vec![0; count];
        // Scattered, so that no page has only dead records.
        for step in 0..3 * count {
            let (number, round) = (step * 7919 % count, 1 + step / count);
            let outcome = engine.put(&key(number), &filling(number, round), &WAIT);
            let outcome =
                outcome.unwrap_or_else(|error| panic!("overwrite {step} of {count}: {error}"));
            assert!(written(outcome).replaced);
            newest[number] = round;
        }
        for (number, round) in newest.into_iter().enumerate() {
            let found = value(engine, &key(number));
            assert!(found == Some(filling(number, round)), "record {number} of a full store");
        }
        assert!(engine.verify(&mut |_| ()).unwrap().is_sound(), "after all was written over");
    }
}

pub(super) fn a_full_store_keeps_what_it_has(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let Some(fills) = fixture.fills else { return };
    let size = (fixture.scale.bytes / 64).max(16);
    let filling = |number: usize| vec![number as u8; size];
    let mut count = 0;
    loop {
        match engine.put(&key(count), &filling(count), &WAIT) {
            Ok(outcome) => assert!(!written(outcome).replaced),
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error} from a store that fills up"),
        }
        count += 1;
        assert!(count * size <= fills, "{count} records of {size} bytes and still not full");
    }
    let mut batch = Batch::new();
    for number in count..count + 4 {
        batch.put(&key(number), &filling(number));
    }
    let refused = engine.apply(&batch, &WAIT);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?} in a full store");
    let check = |from: usize, to: usize| {
        for number in from..to {
            let found = value(engine, &key(number));
            assert!(found == Some(filling(number)), "record {number} in a full store");
        }
    };
    check(0, count);
    for number in count..count + 4 {
        assert_eq!(value(engine, &key(number)), None, "a write that had no space left something");
    }
    assert_eq!(engine.len().unwrap(), count as u64, "len of a full store");
    // The remedy that an error of this kind suggests must help.
    for number in 0..count / 2 {
        assert!(written(engine.delete(&key(number), &WAIT).unwrap()).replaced);
    }
    for number in 0..count / 4 {
        put(engine, &key(number), &filling(number));
    }
    check(0, count / 4);
    check(count / 2, count);
    assert!(engine.verify(&mut |_| ()).unwrap().is_sound(), "after it was full");
}
