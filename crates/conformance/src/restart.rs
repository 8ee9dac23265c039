//! The contents of a store after it went down and came up again.

use super::oracle::Oracle;
use super::probe::{EARLY, FAR, WAIT, all, given, key, put, until, value, written};
use super::rng::Rng;
use super::{Factory, Fixture, Restart};
use coreplane_engine::{Batch, Durability, StorageEngine, Ticket, WriteOptions};
use std::collections::BTreeMap;

/// Fills a store with records of all kinds, and deletes some.
fn fill(fixture: &Fixture, seed: u64, options: &WriteOptions) -> Oracle {
    let engine = &*fixture.engine;
    let mut rng = Rng::new(seed);
    let mut oracle = Oracle::default();
    let keys = fixture.scale.keys_of(256, 200);
    for _ in 0..fixture.scale.operations / 2 {
        let key = key(rng.below(keys));
        let len = if rng.one_in(50) { fixture.scale.bytes / 100 } else { rng.below(60) };
        let bytes = rng.bytes(len);
        match rng.below(8) {
            0 | 1 => {
                let _outcome = engine.delete(&key, options).unwrap();
                oracle.remove(&key);
            }
            2 => {
                let mut batch = Batch::new();
                batch.put(&key, &bytes).put(b"of the batch", &bytes).delete(b"gone");
                engine.apply(&batch, options).unwrap();
                oracle.set(&key, &bytes, None);
                oracle.set(b"of the batch", &bytes, None);
            }
            3 => {
                let options = WriteOptions { expires_at: Some(FAR), ..*options };
                written(engine.put(&key, &bytes, &options).unwrap());
                oracle.set(&key, &bytes, Some(FAR));
            }
            _ => {
                written(engine.put(&key, &bytes, options).unwrap());
                oracle.set(&key, &bytes, None);
            }
        }
    }
    let large = vec![9; fixture.scale.bytes / 8];
    written(engine.put(b"large", &large, options).unwrap());
    oracle.set(b"large", &large, None);
    written(engine.put(b"", b"of the empty key", options).unwrap());
    oracle.set(b"", b"of the empty key", None);
    oracle
}

/// Restarts three times, with writes between, and compares each time.
fn keeps_all(factory: Factory<'_>, how: Restart, options: &WriteOptions) {
    let mut fixture = factory();
    for round in 0..3 {
        let oracle = fill(&fixture, fixture.scale.seed + round, options);
        // No durable read before the restart: it would wait until the early writes are durable.
        let before = all(&*fixture.engine, 100);
        let highest = before.values().map(|seen| seen.sequence).max().unwrap_or(0);
        match fixture.restart(how) {
            Some(next) => fixture = next,
            None => return,
        }
        let engine = &*fixture.engine;
        let after = all(engine, 100);
        assert_eq!(before.len(), after.len(), "records before and after a restart ({how:?})");
        for ((key, before), (other, after)) in before.iter().zip(&after) {
            assert_eq!(key, other, "keys before and after");
            let same = (&before.value, before.sequence, before.expires_at)
                == (&after.value, after.sequence, after.expires_at);
            assert!(same, "the record of {key:?} was {before:?} and is {after:?}");
        }
        oracle.check_values(engine);
        assert_eq!(engine.len().unwrap(), after.len() as u64, "len after a restart");
        let report = engine.verify(&mut |_| ()).unwrap();
        assert!(report.is_sound(), "after a restart ({how:?}): {:?}", report.damages);
        assert!(engine.advance_sequence().unwrap() >= highest, "the line is below a write");
        for key in before.keys() {
            let _outcome = engine.delete(key, options).unwrap();
        }
        assert!(engine.is_empty().unwrap());
    }
}

pub(super) fn a_clean_restart_keeps_all(factory: Factory<'_>) {
    keeps_all(factory, Restart::Clean, &WAIT);
    keeps_all(factory, Restart::Clean, &EARLY);
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..WAIT };
    keeps_all(factory, Restart::Clean, &relaxed);
    // Given sequences still decide, as long as the tombstones are there.
    let fixture = factory();
    let engine = &*fixture.engine;
    let base = engine.advance_sequence().unwrap() + 100;
    written(engine.put(b"a", b"1", &given(base)).unwrap());
    written(engine.put(b"b", b"1", &until(FAR)).unwrap());
    let Some(fixture) = fixture.restart(Restart::Clean) else { return };
    let engine = &*fixture.engine;
    let late = engine.put(b"a", b"2", &given(base)).unwrap();
    assert!(
        matches!(late, coreplane_engine::Outcome::NotNewer(stored, _) if stored == base),
        "{late:?}"
    );
    assert!(put(engine, b"a", b"3").sequence > base, "a sequence after a restart");
}

pub(super) fn a_kill_loses_nothing(factory: Factory<'_>) {
    keeps_all(factory, Restart::Kill, &WAIT);
    // Visible is enough: a killed process loses nothing at any level.
    for durability in [None, Some(Durability::RELAXED)] {
        keeps_all(factory, Restart::Kill, &WriteOptions { durability, ..EARLY });
    }
}

/// All values that a key was given, in order, each with the ticket of its write.
type Versions = BTreeMap<Vec<u8>, Vec<(Option<Vec<u8>>, Ticket)>>;

/// Writes with some waiting, some early, some relaxed.
fn write_versions(engine: &dyn StorageEngine, rng: &mut Rng, operations: usize) -> Versions {
    let mut versions = Versions::new();
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..WAIT };
    for number in 0..operations {
        let options = match rng.below(4) {
            // The last ones are early, so that the cut may find some of them undurable.
            _ if number + 20 > operations => EARLY,
            0 => WAIT,
            // Only keys below 8 are ever written relaxed: their tickets say nothing.
            1 => relaxed,
            _ => EARLY,
        };
        let non_strict = options.durability.is_some();
        let name = key(if non_strict { rng.below(8) } else { 8 + rng.below(12) });
        let text = format!("version {number}").into_bytes();
        let history = versions.entry(name.clone()).or_insert_with(|| vec![(None, Ticket::DURABLE)]);
        if rng.one_in(4) {
            if let Some(made) = engine.delete(&name, &options).unwrap().written() {
                history.push((None, made.ticket));
            }
        } else {
            let made = written(engine.put(&name, &text, &options).unwrap());
            history.push((Some(text), made.ticket));
        }
    }
    versions
}

pub(super) fn a_power_cut_keeps_what_is_durable(factory: Factory<'_>) {
    for round in 0..6 {
        let fixture = factory();
        let mut rng = Rng::new(fixture.scale.seed + round);
        let engine = &*fixture.engine;
        let mut batches = Vec::new();
        for number in 0..10 {
            let text = format!("batch {number}").into_bytes();
            let mut batch = Batch::new();
            for part in 0..4 {
                batch.put(&key(500 + number * 4 + part), &text);
            }
            let made = engine.apply(&batch, &if number % 3 == 0 { WAIT } else { EARLY }).unwrap();
            batches.push((number, text, made.ticket));
        }
        let versions = write_versions(engine, &mut rng, 50 + fixture.scale.operations / 10);
        let durable = |ticket: Ticket| engine.is_durable(&ticket.into()).unwrap();
        // For each key, the last version that was durable, and all.
        let known: Vec<_> = versions
            .into_iter()
            .map(|(name, versions)| {
                let strict = name >= key(8);
                let last = versions.iter().rposition(|(_, ticket)| strict && durable(*ticket));
                (name, last.unwrap_or(0), versions)
            })
            .collect();
        let batches: Vec<_> = batches
            .into_iter()
            .map(|(number, text, ticket)| (number, text, durable(ticket)))
            .collect();
        let Some(fixture) = fixture.restart(Restart::PowerCut) else { return };
        let engine = &*fixture.engine;
        for (name, last, versions) in known {
            let found = value(engine, &name);
            let place = versions.iter().skip(last).position(|(version, _)| *version == found);
            assert!(place.is_some(), "{name:?} is {found:?}, durable was {:?}", versions[last]);
        }
        for (number, text, durable) in batches {
            let parts: Vec<_> =
                (0..4).map(|part| value(engine, &key(500 + number * 4 + part))).collect();
            let whole = parts.iter().all(|part| part.as_ref() == Some(&text));
            let none = parts.iter().all(Option::is_none);
            assert!(whole || (none && !durable), "batch {number} after a power cut: {parts:?}");
        }
        assert!(engine.verify(&mut |_| ()).unwrap().is_sound(), "after a power cut");
        put(engine, b"goes on", b"1");
        assert!(value(engine, b"goes on").is_some());
    }
}
