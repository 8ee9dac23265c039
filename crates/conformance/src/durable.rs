//! Tickets, levels, listeners: which results may leave the process, and when.

use super::Factory;
use super::probe::{EARLY, WAIT, key, look, put, records, settle, value, written};
use coreplane_engine::{
    Batch, Completion, Durability, Expected, Horizon, Mutation, Outcome, StorageEngine, Ticket,
    Visibility, WriteOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LEVELS: [Option<Durability>; 4] =
    [None, Some(Durability::Strict), Some(Durability::GROUP), Some(Durability::RELAXED)];

/// Makes every kind of write, on a key with a record and on one without.
fn every_write(engine: &dyn StorageEngine, options: &WriteOptions) -> Vec<Ticket> {
    let put = Mutation::Put { value: b"6".to_vec(), expires_at: None };
    let batch = engine.apply(Batch::new().put(b"a", b"8").put(b"b", b"8"), options).unwrap();
    let outcomes = [
        engine.put(b"a", b"1", options),
        engine.insert(b"a", b"2", options),
        engine.insert(b"new", b"2", options),
        engine.update(b"a", b"3", options),
        engine.update(b"absent", b"3", options),
        engine.compare_and_set(b"a", Expected::Value(b"3"), b"4", options),
        engine.compare_and_set(b"a", Expected::Value(b"3"), b"5", options),
        engine.modify(b"a", options, &mut |_| put.clone()),
        engine.modify(b"a", options, &mut |_| Mutation::Keep),
        engine.delete(b"new", options),
        engine.delete(b"new", options),
    ];
    let outcomes = outcomes.into_iter().map(Result::unwrap).map(|outcome| outcome.ticket());
    outcomes.chain([batch.ticket]).collect()
}

pub(super) fn waiting_writes_are_durable(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for durability in [Some(Durability::Strict), Some(Durability::GROUP)] {
        // The records that they find may have been written early.
        every_write(engine, &WriteOptions { durability, ..EARLY });
        for ticket in every_write(engine, &WriteOptions { durability, ..WAIT }) {
            assert!(ticket.is_durable(), "a write that waited returned {ticket:?}");
        }
    }
    assert!(engine.is_durable(&Horizon::new()).unwrap(), "nothing is durable");
    assert!(engine.commit(&Horizon::new()).unwrap(), "nothing is durable");
    engine.wait_durable(&Horizon::new()).unwrap();
}

pub(super) fn early_writes_get_tickets(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let mut horizon = Horizon::new();
    for round in 0..20 {
        for ticket in every_write(engine, &EARLY) {
            horizon.include(ticket);
        }
        let made = written(engine.put(&key(round), b"early", &EARLY).unwrap());
        horizon.include(made.ticket);
        let (seen, _) = look(engine, &key(round), Visibility::Early);
        let seen = seen.expect("an early write is not visible at once");
        assert_eq!((seen.value.as_slice(), seen.sequence), (&b"early"[..], made.sequence));
        match round % 3 {
            0 => {
                engine.commit(&horizon).unwrap();
            }
            1 => engine.sync().unwrap(),
            _ => continue,
        }
        engine.wait_durable(&horizon).unwrap();
        assert!(engine.is_durable(&horizon).unwrap(), "waited for, but not durable");
        horizon.clear();
    }
    let first = written(engine.put(b"x", b"1", &EARLY).unwrap()).ticket;
    let second = written(engine.put(b"y", b"1", &EARLY).unwrap()).ticket;
    engine.sync().unwrap();
    for ticket in [first, second] {
        assert!(engine.is_durable(&ticket.into()).unwrap(), "written before a sync, not durable");
    }
}

/// Checks that an answer with `answer` depends on the write of `write`: it is not reported as durable while the write
/// is not.
fn check_rests(engine: &dyn StorageEngine, answer: &Horizon, write: Ticket, what: &str) {
    let answer_durable = engine.is_durable(answer).unwrap();
    // Writes only become durable, so if the write is undurable now, it was undurable at the answer too.
    if !engine.is_durable(&write.into()).unwrap() {
        assert!(!answer_durable, "{what} is durable, but not the write that it rests on");
    }
    engine.commit(answer).unwrap();
    engine.wait_durable(answer).unwrap();
    assert!(engine.is_durable(&write.into()).unwrap() || answer.is_empty(), "{what}");
}

pub(super) fn answers_carry_what_they_rest_on(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for round in 0..fixture.scale.operations / 10 {
        let (key, early) = (key(round % 7), Visibility::Early);
        let write = written(engine.put(&key, b"1", &EARLY).unwrap()).ticket;
        let (answer, what): (Horizon, &str) = match round % 6 {
            0 => (look(engine, &key, early).1.into(), "get"),
            1 => {
                let ticket = look(engine, &key, early).0.expect("visible at once").ticket;
                (ticket.into(), "a record")
            }
            2 => (records(engine, &[b"z".to_vec(), key.clone()], early).1, "multi_get"),
            3 => (engine.insert(&key, b"2", &EARLY).unwrap().ticket().into(), "Exists"),
            4 => {
                let wrong = Expected::Value(b"2");
                let outcome = engine.compare_and_set(&key, wrong, b"3", &EARLY).unwrap();
                assert!(matches!(outcome, Outcome::Mismatch(_)));
                (outcome.ticket().into(), "Mismatch")
            }
            _ => {
                let outcome = engine.modify(&key, &EARLY, &mut |_| Mutation::Keep).unwrap();
                (outcome.ticket().into(), "Kept")
            }
        };
        check_rests(engine, &answer, write, what);
        // An absence depends on the delete.
        let delete = written(engine.delete(&key, &EARLY).unwrap()).ticket;
        let (answer, what): (Horizon, &str) = match round % 4 {
            0 => (look(engine, &key, early).1.into(), "get of nothing"),
            1 => (records(engine, std::slice::from_ref(&key), early).1, "multi_get of nothing"),
            2 => (engine.update(&key, b"2", &EARLY).unwrap().ticket().into(), "Missing"),
            _ => (engine.delete(&key, &EARLY).unwrap().ticket().into(), "Missing"),
        };
        check_rests(engine, &answer, delete, what);
        engine.sync().unwrap();
        // A durable write is not waited for again.
        for ticket in [write, delete, look(engine, &key, early).1] {
            assert!(engine.is_durable(&ticket.into()).unwrap());
        }
    }
}

pub(super) fn every_level_and_completion(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let mut round = 0;
    for durability in LEVELS {
        for completion in [Completion::Wait, Completion::Early] {
            let options = WriteOptions { durability, completion, ..WAIT };
            for _ in 0..10 {
                let (key, text) = (key(round % 13), round.to_string().into_bytes());
                let made = written(engine.put(&key, &text, &options).unwrap());
                let (seen, _) = look(engine, &key, Visibility::Early);
                let seen = seen.map(|seen| (seen.value, seen.sequence));
                assert_eq!(seen, Some((text.clone(), made.sequence)), "at {options:?}");
                settle(engine, made.ticket);
                assert_eq!(value(engine, &key), Some(text), "at {options:?}");
                round += 1;
            }
            for ticket in every_write(engine, &options) {
                settle(engine, ticket);
            }
            written(engine.delete(b"a", &options).unwrap());
            assert_eq!(look(engine, b"a", Visibility::Early).0, None, "at {options:?}");
        }
    }
    engine.sync().unwrap();
    assert!(engine.verify(&mut |_| ()).unwrap().is_sound());
}

pub(super) fn durable_reads_rest_on_nothing(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    for round in 0..30 {
        let key = key(round % 3);
        let made = written(engine.put(&key, b"1", &EARLY).unwrap());
        engine.commit(&made.ticket.into()).unwrap();
        // `look` and `records` check the tickets.
        let (seen, _) = look(engine, &key, Visibility::Durable);
        assert_eq!(seen.map(|seen| seen.sequence), Some(made.sequence), "not the newest");
        assert!(engine.is_durable(&made.ticket.into()).unwrap(), "shown before it was durable");
        let gone = written(engine.delete(&key, &EARLY).unwrap());
        engine.commit(&gone.ticket.into()).unwrap();
        assert_eq!(look(engine, &key, Visibility::Durable).0, None);
        assert!(engine.is_durable(&gone.ticket.into()).unwrap(), "gone before that was durable");
        let made = written(engine.put(&key, b"2", &EARLY).unwrap());
        engine.commit(&made.ticket.into()).unwrap();
        let (_, horizon) = records(engine, &[key], Visibility::Durable);
        assert!(horizon.is_empty());
        assert!(engine.is_durable(&made.ticket.into()).unwrap(), "shown before it was durable");
    }
}

pub(super) fn listeners_hear_of_it(factory: Factory<'_>) {
    let fixture = factory();
    let engine = &*fixture.engine;
    let heard = Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        let heard = Arc::clone(&heard);
        engine.on_durable(Arc::new(move || {
            heard.fetch_add(1, Ordering::SeqCst);
        }));
    }
    for round in 0..20 {
        let before = heard.load(Ordering::SeqCst);
        let ticket = written(engine.put(&key(round), b"1", &EARLY).unwrap()).ticket;
        let horizon = Horizon::from(ticket);
        // Durable at once needs no call; durable in the background calls every listener.
        if engine.commit(&horizon).unwrap() {
            continue;
        }
        engine.wait_durable(&horizon).unwrap();
        let patience = std::time::Instant::now();
        while heard.load(Ordering::SeqCst) < before + 2 {
            let waited = patience.elapsed();
            assert!(waited.as_secs() < 10, "durable in the background, and no listener heard");
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
    put(engine, b"a", b"1");
}
