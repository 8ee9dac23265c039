//! Changes since a sequence, tombstones included.

use super::probe::{WAIT, all, changes, given, key, put, written};
use super::rng::Rng;
use super::{Factory, Fixture, Restart};
use coreplane_engine::{Batch, Error, StorageEngine};
use std::collections::BTreeMap;

pub(super) fn changes_are_complete(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.hold_tombstones(0).unwrap();
    let mut rng = Rng::new(fixture.scale.seed);
    let count = fixture.scale.keys_of(128, 60);
    let mut expected: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)> = BTreeMap::new();
    let mut lines = vec![0];
    for _ in 0..8 {
        for _ in 0..20 {
            let (key, value) = (key(rng.below(count)), rng.bytes(8));
            let written = match rng.below(3) {
                0 => engine.delete(&key, &WAIT).unwrap().written().map(|made| (made, None)),
                1 => {
                    let made = engine.apply(Batch::new().put(&key, &value), &WAIT).unwrap();
                    Some((made, Some(value)))
                }
                _ => Some((put(engine, &key, &value), Some(value))),
            };
            if let Some((made, value)) = written {
                expected.insert(key, (made.sequence, value));
            }
        }
        lines.push(engine.advance_sequence().unwrap());
    }
    for line in lines {
        let found = changes(engine, line).unwrap();
        for (key, change) in &expected {
            match found.get(key) {
                Some(found) => assert_eq!(found, change, "the change of {key:?} since {line}"),
                None => assert!(change.0 <= line, "{change:?} of {key:?} since {line} is missing"),
            }
        }
        let invented = found.keys().find(|key| !expected.contains_key(*key));
        assert_eq!(invented, None, "a change that never was");
    }
}

pub(super) fn tombstones_are_held(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let count = fixture.scale.keys_of(128, 40);
    for number in 0..count {
        put(engine, &key(number), b"1");
    }
    let line = engine.advance_sequence().unwrap();
    engine.hold_tombstones(line).unwrap();
    assert!(engine.tombstone_horizon() <= line, "the horizon is beyond every write");
    let mut gone = BTreeMap::new();
    for number in 0..count {
        gone.insert(key(number), written(engine.delete(&key(number), &WAIT).unwrap()).sequence);
    }
    let never = engine.advance_sequence().unwrap();
    gone.insert(b"never was".to_vec(), never);
    written(engine.delete(b"never was", &given(never)).unwrap());
    // Enough other writes for a cleaner to want the space of the tombstones.
    churn(engine, fixture.scale.operations);
    assert!(engine.tombstone_horizon() <= line, "a held tombstone was dropped");
    let found = changes(engine, line).unwrap();
    for (key, sequence) in &gone {
        let found = found.get(key);
        assert_eq!(found, Some(&(*sequence, None)), "the held tombstone of {key:?}");
    }
    // The hold moves up: tombstones above it stay.
    let middle = gone.get(&key(count / 2)).copied().unwrap_or(line);
    engine.hold_tombstones(middle).unwrap();
    churn(engine, fixture.scale.operations);
    assert!(engine.tombstone_horizon() <= middle, "a held tombstone was dropped");
    let found = changes(engine, middle).unwrap();
    for (key, sequence) in gone.iter().filter(|(_, sequence)| **sequence > middle) {
        assert_eq!(found.get(key), Some(&(*sequence, None)), "still held: {key:?}");
    }
}

pub(super) fn tombstones_are_held_across_a_restart(factory: Factory<'_>) {
    for how in [Restart::Clean, Restart::Kill] {
        let fixture = factory();
        for number in 0..40 {
            put(&*fixture.engine, &key(number), b"1");
        }
        let line = fixture.engine.advance_sequence().unwrap();
        fixture.engine.hold_tombstones(line).unwrap();
        let delete = |fixture: &Fixture, number| {
            written(fixture.engine.delete(&key(number), &WAIT).unwrap());
        };
        (0..20).for_each(|number| delete(&fixture, number));
        let Some(fixture) = fixture.restart(how) else { return };
        (20..30).for_each(|number| delete(&fixture, number));
        let engine = &*fixture.engine;
        churn(engine, fixture.scale.operations);
        assert!(engine.tombstone_horizon() <= line, "the hold was forgotten in a restart");
        let found = changes(engine, line).unwrap();
        for number in 0..30 {
            let found = found.get(&key(number));
            assert!(matches!(found, Some((_, None))), "{found:?}: the tombstone of {number}");
        }
    }
}

/// Overwrites a few keys many times.
fn churn(engine: &dyn StorageEngine, operations: usize) {
    for number in 0..operations {
        put(engine, &key(90_000 + number % 8), &[7; 100]);
    }
}

pub(super) fn history_gone_is_said(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for number in 0..fixture.scale.keys_of(128, 200) {
        put(engine, &key(number), b"1");
        written(engine.delete(&key(number), &WAIT).unwrap());
    }
    engine.hold_tombstones(u64::MAX).unwrap();
    churn(engine, fixture.scale.operations);
    let mut last = 0;
    for _ in 0..10 {
        put(engine, b"a", b"1");
        written(engine.delete(b"a", &WAIT).unwrap());
        engine.hold_tombstones(u64::MAX).unwrap();
        let horizon = engine.tombstone_horizon();
        assert!(horizon >= last, "the horizon went back from {last} to {horizon}");
        last = horizon;
        if let Some(below) = horizon.checked_sub(1) {
            // Without another writer the horizon may rise between the calls, never fall.
            match changes(engine, below) {
                Err(Error::HistoryGone { asked, horizon: said }) => {
                    assert_eq!(asked, below);
                    assert!(said >= horizon, "the error says {said}, the horizon is {horizon}");
                }
                other => panic!("changes since {below}, below horizon {horizon}: {other:?}"),
            }
        }
        let line = engine.advance_sequence().unwrap();
        assert!(horizon <= line, "the horizon {horizon} is beyond every write ({line})");
        assert!(changes(engine, line).is_ok(), "nothing is gone since {line}");
    }
}

/// Deletes whose tombstones were dropped, or a clear, while tombstones are held or before that.
pub(super) fn history_gone_is_said_after_a_restart(factory: Factory<'_>) {
    for how in [Restart::Clean, Restart::Kill] {
        for is_cleared in [false, true] {
            let fixture = factory();
            let engine = &*fixture.engine;
            for number in 0..20 {
                put(engine, &key(number), b"1");
            }
            let line = engine.advance_sequence().unwrap();
            if is_cleared {
                engine.hold_tombstones(line).unwrap();
                engine.clear().unwrap();
            } else {
                for number in 0..20 {
                    written(engine.delete(&key(number), &WAIT).unwrap());
                }
                churn(engine, fixture.scale.operations);
                engine.hold_tombstones(0).unwrap();
            }
            let Some(fixture) = fixture.restart(how) else { return };
            match changes(&*fixture.engine, line) {
                Ok(found) => {
                    for number in 0..20 {
                        let found = found.get(&key(number));
                        let is_told = matches!(found, Some((_, None)));
                        assert!(is_told, "{found:?}: the delete of {number}, cleared {is_cleared}");
                    }
                }
                Err(Error::HistoryGone { horizon, .. }) => assert!(horizon > line),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub(super) fn clear_is_a_change(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    engine.hold_tombstones(0).unwrap();
    for number in 0..20 {
        put(engine, &key(number), b"1");
    }
    let line = engine.advance_sequence().unwrap();
    engine.clear().unwrap();
    assert!(all(engine, 10).is_empty());
    // A reader of the changes must learn of it: by tombstones, or by an error that they are gone.
    match changes(engine, line) {
        Ok(found) => {
            for number in 0..20 {
                let found = found.get(&key(number));
                assert!(matches!(found, Some((_, None))), "{found:?} after clear");
            }
        }
        Err(Error::HistoryGone { horizon, .. }) => assert!(horizon > line),
        Err(error) => panic!("{error}"),
    }
    let line = engine.advance_sequence().unwrap();
    let made = put(engine, b"a", b"2");
    let found = changes(engine, line).unwrap();
    assert_eq!(found.get(&b"a"[..]), Some(&(made.sequence, Some(b"2".to_vec()))));
}
