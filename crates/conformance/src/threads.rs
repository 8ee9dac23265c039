//! Several threads at once.

use super::Factory;
use super::probe::{EARLY, WAIT, all, key, look, put, record, records, written};
use super::rng::Rng;
use coreplane_engine::{Batch, Mutation, Outcome, StorageEngine, Visibility, WriteOptions};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

const THREADS: usize = 4;

fn number_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_le_bytes).unwrap_or_else(|_| panic!("{bytes:?} is torn"))
}

/// Adds one to the number in `key`.
fn increment(engine: &dyn StorageEngine, key: &[u8], options: &WriteOptions) {
    let outcome = engine.modify(key, options, &mut |record| {
        let old = record.map_or(0, |record| number_of(&record.value.to_cow()));
        std::thread::yield_now();
        Mutation::Put { value: (old + 1).to_le_bytes().to_vec(), expires_at: None }
    });
    written(outcome.unwrap());
}

pub(super) fn modify_loses_nothing(factory: Factory<'_>) {
    for options in [WAIT, EARLY] {
        let fixture = factory();
        let engine = &*fixture.engine;
        let rounds = fixture.scale.operations / 8;
        scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for round in 0..rounds {
                        increment(engine, b"shared", &options);
                        increment(engine, &key((thread + round) % 3), &options);
                    }
                });
            }
        });
        engine.sync().unwrap();
        let count = |key: &[u8]| number_of(&record(engine, key).expect("never written").value);
        assert_eq!(count(b"shared"), (THREADS * rounds) as u64, "increments were lost");
        let sum: u64 = (0..3).map(|number| count(&key(number))).sum();
        assert_eq!(sum, (THREADS * rounds) as u64, "increments were lost");
    }
}

const WIDTH: usize = 6;

/// Reads all keys of the batches until `stop`; each answer must be of one batch.
fn read_whole_batches(engine: &dyn StorageEngine, visibility: Visibility, stop: &AtomicBool) {
    let keys: Vec<_> = (0..WIDTH).map(key).collect();
    while !stop.load(Ordering::Relaxed) {
        let (answers, horizon) = records(engine, &keys, visibility);
        if visibility == Visibility::Early {
            engine.commit(&horizon).unwrap();
        }
        let values: Vec<_> =
            answers.iter().map(|seen| seen.as_ref().map(|seen| &seen.value)).collect();
        let whole = values.iter().all(|value| *value == values[0]);
        assert!(whole, "a batch was seen in part: {values:?}");
    }
}

pub(super) fn batches_are_isolated(factory: Factory<'_>) {
    for options in [WAIT, EARLY] {
        let fixture = factory();
        let engine = &*fixture.engine;
        let rounds = fixture.scale.operations / 8;
        let stop = AtomicBool::new(false);
        scope(|scope| {
            for visibility in [Visibility::Durable, Visibility::Early] {
                let stop = &stop;
                scope.spawn(move || read_whole_batches(engine, visibility, stop));
            }
            let writers: Vec<_> = (0..2_u8)
                .map(|writer| {
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let mut batch = Batch::new();
                            for number in 0..WIDTH {
                                // One writer in the other order, and sometimes deletes.
                                let key =
                                    key(if writer == 0 { number } else { WIDTH - 1 - number });
                                match round % 5 {
                                    4 => batch.delete(&key),
                                    _ => batch.put(&key, &[writer, round as u8, 7, 7]),
                                };
                            }
                            engine.apply(&batch, &options).unwrap();
                        }
                    })
                })
                .collect();
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok), "a writer failed");
        });
        engine.sync().unwrap();
        let (answers, _) =
            records(engine, &(0..WIDTH).map(key).collect::<Vec<_>>(), Visibility::Durable);
        let values: Vec<_> = answers.into_iter().map(|seen| seen.map(|seen| seen.value)).collect();
        assert!(values.iter().all(|value| *value == values[0]), "at the end: {values:?}");
    }
}

pub(super) fn sequences_grow_across_threads(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let rounds = fixture.scale.operations / 4;
    // The greatest sequence of a write that has returned.
    let returned = AtomicU64::new(0);
    let mut sequences: Vec<u64> = scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let returned = &returned;
                scope.spawn(move || {
                    let mut sequences = Vec::new();
                    for round in 0..rounds {
                        let floor = returned.load(Ordering::SeqCst);
                        let options = if (thread + round) % 2 == 0 { WAIT } else { EARLY };
                        let outcome = match (thread + round) % 5 {
                            0 => engine.delete(b"a", &options).unwrap(),
                            _ => engine.put(b"a", b"1", &options).unwrap(),
                        };
                        if let Some(made) = outcome.written() {
                            let sequence = made.sequence;
                            assert!(sequence > floor, "{sequence} after {floor} had returned");
                            returned.fetch_max(sequence, Ordering::SeqCst);
                            sequences.push(sequence);
                        }
                    }
                    sequences
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let count = sequences.len();
    sequences.sort_unstable();
    sequences.dedup();
    assert_eq!(sequences.len(), count, "two writes of a key have the same sequence");
    engine.sync().unwrap();
    if let Some(seen) = record(engine, b"a") {
        assert_eq!(Some(&seen.sequence), sequences.last(), "the last write is not the newest");
    }
}

pub(super) fn only_one_insert_wins(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let count = fixture.scale.keys_of(128, 100);
    // All threads start on a key together; none may panic before the last barrier.
    let barrier = Barrier::new(THREADS);
    let outcomes: Vec<Vec<_>> = scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u8)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let insert = |number| {
                        barrier.wait();
                        engine.insert(&key(number), &[thread], &WAIT)
                    };
                    (0..count).map(insert).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for number in 0..count {
        let mut winner = None;
        for (thread, outcomes) in outcomes.iter().enumerate() {
            match &outcomes[number] {
                Ok(Outcome::Written(made)) => {
                    assert!(!made.replaced, "an insert replaced something");
                    assert_eq!(winner.replace(thread as u8), None, "two inserts won");
                }
                Ok(Outcome::Exists(_)) => {}
                other => panic!("{other:?} for an insert"),
            }
        }
        let held = record(engine, &key(number)).map(|seen| seen.value);
        assert_eq!(held, winner.map(|winner| vec![winner]), "the record of the one that won");
    }
    assert_eq!(engine.len().unwrap(), count as u64);
    assert_eq!(all(engine, 10).len(), count);
}

pub(super) fn clear_comes_before_or_after(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let rounds = fixture.scale.operations / 10;
    scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for round in 0..rounds {
                    let key = key(thread * 100 + round % 5);
                    put(engine, &key, &key);
                    if let Some(seen) = record(engine, &key) {
                        assert_eq!(seen.value, key, "another record's value");
                    }
                }
            });
        }
        for _ in 0..10 {
            engine.clear().unwrap();
        }
    });
    let records = all(engine, 10);
    assert_eq!(engine.len().unwrap(), records.len() as u64, "len after clears beside writes");
    assert!(records.iter().all(|(key, seen)| seen.value == *key), "{records:?}");
    engine.clear().unwrap();
    assert!(all(engine, 10).is_empty());
    assert!(engine.verify(&mut |_| ()).unwrap().is_sound());
}

/// The value of record `number`, of varying length.
fn long_value(number: usize) -> Vec<u8> {
    vec![number as u8; 8 + number % 41]
}

/// Reads records below `returned` at random; each must be there as it was written. It rests in between: threads that
/// never do take the writer's processor for milliseconds, and its writes, some thousand, would take half a minute.
fn read_returned(engine: &dyn StorageEngine, seed: u64, returned: &AtomicU64, stop: &AtomicBool) {
    let mut rng = Rng::new(seed);
    for read in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if read % 64 == 63 {
            std::thread::sleep(Duration::from_micros(100));
        }
        let end = returned.load(Ordering::SeqCst) as usize;
        let number = rng.below(end);
        let visibility = if rng.one_in(2) { Visibility::Early } else { Visibility::Durable };
        if end > 0 {
            let found = look(engine, &key(number), visibility).0.map(|seen| seen.value);
            let due = Some(long_value(number));
            assert!(found == due, "record {number} of {end} is {found:?}, not {due:?}");
        }
    }
}

pub(super) fn what_returned_is_found_beside_growth(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let count = (fixture.scale.bytes / 128).min(2 * fixture.scale.operations);
    let (returned, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    scope(|scope| {
        let (returned, stop) = (&returned, &stop);
        for seed in 0..2 {
            scope.spawn(move || read_returned(engine, seed, returned, stop));
        }
        let writer = scope.spawn(move || {
            for number in 0..count {
                put(engine, &key(number), &long_value(number));
                returned.store(number as u64 + 1, Ordering::SeqCst);
            }
            // Equal overwrites and deletes of another key: records that are moved must stay readable.
            for number in 0..count {
                put(engine, &key(number), &long_value(number));
                put(engine, b"other", &[1; 60]);
                written(engine.delete(b"other", &WAIT).unwrap());
            }
        });
        let result = writer.join();
        stop.store(true, Ordering::Relaxed);
        assert!(result.is_ok(), "the writer failed");
    });
    assert_eq!(engine.len().unwrap(), count as u64);
}
