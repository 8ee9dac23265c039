//! A process that is killed while the power stays: the next one finds records that were not on the medium yet. Those
//! that it shows are durable.

use coreplane_engine::{
    Batch, Completion, Durability, Engine, Ordered, Outcome, Repairable, Snapshots, WriteOptions,
};
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const KINDS: [MapKind; 2] = MapKind::ALL;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    // No caller waits for a sync.
    let window = Duration::from_hours(1);
    let durability = Durability::Relaxed { window_bytes: 1 << 40, window };
    Options { durability, background: false, check_reads: true, ..Options::default() }
}

fn opened(kind: MapKind, sim: &Sim) -> MapEngine {
    MapEngine::simulated_open(kind, Arc::clone(sim.space()), &options()).expect("open")
}

fn contents(store: &MapEngine) -> Map {
    let mut map = Map::new();
    let mut take = |entry: coreplane_engine::Entry<'_>| {
        let value = entry.record.expect("a record").value.to_vec();
        map.insert(entry.key.to_vec(), value);
        true
    };
    store.scan(b"", None, false, usize::MAX, &mut take).expect("scan");
    map
}

/// Killed with some writes that were not flushed, in several pages.
fn killed(kind: MapKind, model: Model, seed: u32) -> (Sim, Map) {
    let len = 256 << 10;
    let sim = SimOptions {
        len,
        max_len: len,
        page_size: 4096,
        seed: u64::from(seed),
        model,
        ..SimOptions::default()
    };
    let sim = Sim::new(&sim).expect("a medium");
    let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
    let store = store.expect("create");
    let mut map = Map::new();
    for number in 0..40 + 7 * seed {
        let key = format!("key {:03}", number * 37 % 61).into_bytes();
        let value = vec![number as u8; 400 + (number * seed) as usize % 900];
        let options = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
        if number % 5 == 4 {
            let mut batch = Batch::new();
            batch.put(&key, &value).put(b"key 030", &value);
            store.apply(&batch, &options).expect("apply");
            map.insert(b"key 030".to_vec(), value.clone());
        } else {
            let _outcome = store.put(&key, &value, &options).expect("put");
        }
        map.insert(key, value);
    }
    drop(store);
    (sim.killed().expect("memory"), map)
}

fn is_all_there(kind: MapKind, sim: &Sim, map: &Map, what: &str) {
    for eviction in [Eviction::Nothing, Eviction::Seeded(1), Eviction::Seeded(2)] {
        let image = sim.crash(eviction).reopen().expect("memory");
        let store = opened(kind, &image);
        assert!(contents(&store) == *map, "{what}, {eviction:?}");
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound(), "{what}, {eviction:?}");
    }
}

#[test]
fn what_is_shown_after_a_kill_is_there_after_a_power_cut() {
    for kind in KINDS {
        let mut at_risk = 0;
        for seed in 0..40 {
            let model = if seed % 2 == 0 { Model::X86 } else { Model::File };
            let what = format!("{kind:?}, {model:?}, seed {seed}");
            let (sim, mut map) = killed(kind, model, seed / 2);
            let lost = sim.crash(Eviction::Nothing).reopen().expect("memory");
            at_risk += u32::from(contents(&opened(kind, &lost)) != map);
            let store = opened(kind, &sim);
            let shown = contents(&store);
            if kind == MapKind::CowTree && model == Model::X86 {
                // Records that no commit has sealed were not shown to any reader, and are lost with the process.
                assert!(shown.len() + 10 > map.len(), "{what}: a kill has taken too much");
                map = shown;
            } else {
                assert!(shown == map, "{what}: a kill has taken something");
            }
            let strict =
                WriteOptions { durability: Some(Durability::Strict), ..Default::default() };
            let (key, value) = map.last_key_value().expect("some");
            let outcome = store.insert(key, value, &strict).expect("insert");
            assert!(matches!(outcome, Outcome::Exists(ticket) if ticket.is_durable()), "{what}");
            is_all_there(kind, &sim, &map, &what);
            map.iter().step_by(3).for_each(|(key, value)| {
                store.put(key, value, &strict).map(drop).expect("put");
            });
            is_all_there(kind, &sim, &map, &format!("{what}, written to"));
            store.close().expect("close");
            drop(store);
            is_all_there(kind, &sim, &map, &format!("{what}, closed"));
        }
        assert!(at_risk > 20, "{at_risk} of the kills leave something that is not in the medium");
    }
}

/// A snapshot that is dropped after a close, and any other call after it, leaves a closed pool as it is.
#[test]
fn nothing_is_written_after_a_close() {
    for kind in KINDS {
        for seed in 0..4 {
            let (sim, _) = killed(kind, Model::X86, seed);
            let store = opened(kind, &sim);
            let map = contents(&store);
            let snapshot = store.snapshot().expect("a snapshot");
            let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
            let (gone, _) = map.first_key_value().expect("some");
            let _outcome = store.delete(gone, &early).expect("delete");
            store.close().expect("close");
            drop(snapshot);
            let _late = (store.sync().is_ok(), store.verify(&mut |_| {}).is_ok());
            drop(store);
            let sim = sim.killed().expect("memory");
            let left = contents(&opened(kind, &sim));
            assert!(left.len() + 1 == map.len() && !left.contains_key(gone), "{kind:?}");
        }
    }
}

/// Bytes that were dead before an open are known to be, so that an opened store can be overwritten as before.
#[test]
fn a_store_is_written_over_after_an_opening() {
    for kind in KINDS {
        let len = 1 << 20;
        let sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
        let sim = Sim::new(&sim).expect("a medium");
        let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
        let store = store.expect("create");
        let mut count = 0_u32;
        while store.put(&count.to_be_bytes(), &[1; 100], &WriteOptions::default()).is_ok() {
            count += 1;
        }
        let over = |store: &MapEngine, round: u8| {
            for step in 0..count {
                let key = (step * 7919 % count).to_be_bytes();
                let outcome = store.put(&key, &[round; 100], &WriteOptions::default());
                assert!(outcome.is_ok(), "{kind:?}, round {round}, {step} of {count}: {outcome:?}");
            }
        };
        over(&store, 2);
        store.close().expect("close");
        drop(store);
        let sim = sim.killed().expect("memory");
        let store = opened(kind, &sim);
        over(&store, 3);
        over(&store, 4);
        assert!(store.audit().is_ok());
    }
}

/// Pages that were freed before a clean close, and written by the next process, are not found by the one after it.
#[test]
fn pages_that_were_freed_stay_so() {
    for kind in KINDS {
        for seed in 0..20 {
            let (sim, mut map) = killed(kind, Model::X86, seed);
            let mut sim = sim;
            for round in 0..6_u8 {
                let store = opened(kind, &sim);
                for number in 0..80_u32 {
                    let key = format!("key {:03}", number * 37 % 61).into_bytes();
                    let value = vec![round; 300 + (number * seed) as usize % 500];
                    store.put(&key, &value, &WriteOptions::default()).map(drop).expect("put");
                    map.insert(key, value);
                }
                store.close().expect("close");
                drop(store);
                sim = sim.killed().expect("memory");
                is_all_there(kind, &sim, &map, &format!("seed {seed}, round {round}"));
            }
        }
    }
}
