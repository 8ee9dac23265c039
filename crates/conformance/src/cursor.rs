//! `iterate`: keys that exist from the first call to the last are shown.

use super::Factory;
use super::probe::{WAIT, all, key, put};
use super::rng::Rng;
use coreplane_engine::StorageEngine;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn iterates_over_everything(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    assert!(all(engine, 10).is_empty(), "a fresh store has records");
    let count = fixture.scale.keys_of(64, fixture.scale.operations / 2);
    for number in 0..count {
        let made = put(engine, &key(number), &number.to_le_bytes());
        assert!(!made.replaced);
    }
    for step in [0, 1, 3, 10, 1000, count, usize::MAX / 8] {
        let records = all(engine, step);
        assert_eq!(records.len(), count, "records shown in steps of {step}");
        for number in 0..count {
            let seen = records.get(&key(number)).map(|seen| seen.value.as_slice());
            assert_eq!(seen, Some(&number.to_le_bytes()[..]), "record {number}");
        }
    }
    for number in (0..count).step_by(2) {
        let _outcome = engine.delete(&key(number), &WAIT).unwrap();
    }
    let shown: BTreeSet<_> = all(engine, 7).into_keys().collect();
    let expected: BTreeSet<_> = (1..count).step_by(2).map(key).collect();
    assert_eq!(shown, expected, "after deletes");
}

pub(super) fn any_number_is_a_cursor(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let count = fixture.scale.keys_of(64, 200);
    for number in 0..count {
        put(engine, &key(number), b"1");
    }
    let mut rng = Rng::new(fixture.scale.seed);
    let powers = (0..64).map(|power| 1_u64 << power);
    let cursors = powers.chain([u64::MAX, u64::MAX - 1]);
    for start in cursors.chain((0..100).map(|_| rng.next())) {
        let mut cursor = start;
        // It must come to an end, and show only existing keys.
        for call in 0.. {
            assert!(call <= 2 * count + 64, "from cursor {start} there is no end");
            let visit = &mut |entry: coreplane_engine::Entry<'_>| {
                assert!(entry.key.starts_with(b"key-"), "a key that never was");
            };
            cursor = engine.iterate(cursor, 5, visit).unwrap();
            if cursor == 0 {
                break;
            }
        }
    }
}

pub(super) fn what_stays_is_shown_beside_changes(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let stays = fixture.scale.keys_of(256, fixture.scale.operations.min(1200) / 4);
    for number in 0..stays {
        put(engine, &key(number), b"stays");
    }
    let mut rng = Rng::new(fixture.scale.seed);
    for round in 0..4 {
        let mut shown = BTreeSet::new();
        let (mut cursor, mut next, mut first) = (0, stays, stays);
        // Where keys are in order, new keys always come before the cursor.
        let mut left = 8 * stays;
        loop {
            cursor = engine
                .iterate(cursor, 5, &mut |entry| {
                    shown.insert(entry.key.to_vec());
                })
                .unwrap();
            if cursor == 0 {
                break;
            }
            // Growth in the first rounds, comings and goings in all; the keys that stay are overwritten.
            let steps = left.min(if round < 2 { 20 } else { 3 });
            left -= steps;
            for _ in 0..steps {
                if next - first < 2 * stays {
                    put(engine, &key(next), b"comes");
                    next += 1;
                }
                if round > 0 && next - first > stays / 2 {
                    let _outcome = engine.delete(&key(first), &WAIT).unwrap();
                    first += 1;
                }
                put(engine, &key(rng.below(stays)), b"stays too");
            }
        }
        for number in 0..stays {
            assert!(shown.contains(&key(number)), "record {number} stayed and was not shown");
        }
        for number in first..next {
            let _outcome = engine.delete(&key(number), &WAIT).unwrap();
        }
    }
}

/// Inserts and deletes keys from `start` on until `stop`.
fn come_and_go(engine: &dyn StorageEngine, start: usize, room: usize, stop: &AtomicBool) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        for number in start..start + room {
            put(engine, &key(number), b"comes");
        }
        for number in start + (round % 2)..start + room {
            let _outcome = engine.delete(&key(number), &WAIT).unwrap();
        }
        round += 1;
    }
}

pub(super) fn what_stays_is_shown_beside_threads(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let stays = fixture.scale.keys_of(256, 500);
    for number in 0..stays {
        put(engine, &key(number), b"stays");
    }
    let stop = AtomicBool::new(false);
    let missed = std::thread::scope(|scope| {
        scope.spawn(|| come_and_go(engine, 10_000, stays, &stop));
        let mut missed = Vec::new();
        for _ in 0..10 {
            let shown = all(engine, 16);
            missed.extend((0..stays).filter(|number| !shown.contains_key(&key(*number))));
        }
        stop.store(true, Ordering::Relaxed);
        missed
    });
    assert!(missed.is_empty(), "records {missed:?} stayed and were not shown");
}
