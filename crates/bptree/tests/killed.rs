//! A process that is killed while the power stays on: the next one finds writes that were not in the file yet. The
//! records that it shows, and the writes that it accepts, are durable.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Durability, Engine, Outcome, Repairable, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u32 = 4096;

/// No caller waits for a sync.
fn unhurried() -> Durability {
    Durability::Relaxed { window_bytes: 1 << 40, window: Duration::from_hours(1) }
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options { durability: unhurried(), background: false, ..Options::default() }
}

fn opened(sim: &Sim) -> Bptree {
    Bptree::simulated_open(Arc::clone(sim.space()), &options()).expect("open")
}

fn contents(store: &Bptree) -> Map {
    let mut map = Map::new();
    let ordered = store.ordered().expect("ordered");
    let mut take = |entry: coreplane_engine::Entry<'_>| {
        let value = entry.record.expect("a record").value.to_vec();
        map.insert(entry.key.to_vec(), value);
        true
    };
    ordered.scan(b"", None, false, usize::MAX, &mut take).expect("scan");
    map
}

/// Killed with some writes that were not flushed, in leaves that were rewritten, and split, before.
fn killed(seed: u32, strict_in: u32) -> (Sim, Map) {
    let len = 1 << 20;
    let seed_of_sim = u64::from(seed);
    let sim = SimOptions {
        len,
        max_len: len,
        page_size: PAGE,
        seed: seed_of_sim,
        model: Model::File,
        ..SimOptions::default()
    };
    let sim = Sim::new(&sim).expect("a medium");
    let store = Bptree::simulated_create(Arc::clone(sim.space()), &options()).expect("create");
    let mut map = Map::new();
    for number in 0..40 + 7 * seed {
        let key = format!("key {:03}", number * 37 % 61).into_bytes();
        let value = vec![number as u8; 30 + (number * seed) as usize % 200];
        let is_strict = number % strict_in == 0;
        let durability = is_strict.then_some(Durability::Strict);
        let options = WriteOptions { durability, ..WriteOptions::default() };
        if number % 23 == 22 {
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

fn is_all_there(sim: &Sim, map: &Map, what: &str) {
    for eviction in [Eviction::Nothing, Eviction::Seeded(1), Eviction::Seeded(2)] {
        let image = sim.crash(eviction).reopen().expect("memory");
        let store = opened(&image);
        assert_eq!(store.lost_ranges().expect("doubts"), [], "{what}, {eviction:?}");
        assert!(contents(&store) == *map, "{what}, {eviction:?}");
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound(), "{what}, {eviction:?}");
    }
}

#[test]
fn what_is_shown_after_a_kill_is_there_after_a_power_cut() {
    let mut at_risk = 0;
    for seed in 0..20 {
        for strict_in in [1, 5, 1000] {
            let what = format!("seed {seed}, one strict in {strict_in}");
            let (sim, map) = killed(seed, strict_in);
            let lost = opened(&sim.crash(Eviction::Nothing).reopen().expect("memory"));
            at_risk += u32::from(contents(&lost) != map);
            let store = opened(&sim);
            assert!(contents(&store) == map, "{what}: a kill has taken something");
            let strict =
                WriteOptions { durability: Some(Durability::Strict), ..Default::default() };
            let (key, value) = map.last_key_value().expect("some");
            let outcome = store.insert(key, value, &strict).expect("insert");
            assert!(matches!(outcome, Outcome::Exists(ticket) if ticket.is_durable()), "{what}");
            is_all_there(&sim, &map, &what);
            if seed % 2 == 0 {
                // Sealed leaves are marked superseded, which states that all before the mark was durable.
                map.iter().step_by(5).for_each(|(key, value)| {
                    store.put(key, value, &strict).map(drop).expect("put");
                });
                is_all_there(&sim, &map, &format!("{what}, written to"));
            }
            store.close().expect("close");
            drop(store);
            is_all_there(&sim, &map, &format!("{what}, closed"));
        }
    }
    assert!(at_risk > 20, "{at_risk} of the kills leave something that is not in the file");
}

/// Killed where a fence is an instruction, with the last put only in the caches; none if that has rewritten a leaf,
/// which has fences between.
fn killed_before_its_fence(seed: u32) -> Option<(Sim, Map)> {
    let len = 1 << 20;
    let seed_of_sim = u64::from(seed);
    let options_of_sim = SimOptions {
        len,
        max_len: len,
        page_size: PAGE,
        seed: seed_of_sim,
        ..SimOptions::default()
    };
    let sim = Sim::new(&options_of_sim).expect("a medium");
    let store = Bptree::simulated_create(Arc::clone(sim.space()), &options()).expect("create");
    let mut map = Map::new();
    let mut put = |number: u32| {
        let key = format!("key {:03}", number * 37 % 61).into_bytes();
        let value = vec![number as u8; 30 + (number * seed) as usize % 200];
        store.put(&key, &value, &WriteOptions::default()).map(drop).expect("put");
        map.insert(key, value);
    };
    (0..40 + 7 * seed).for_each(&mut put);
    let durable = sim.crash(Eviction::Nothing);
    put(40 + 7 * seed);
    let last = sim.crash(Eviction::Nothing);
    drop(store);
    let machine = durable.reopen().expect("memory");
    let space = machine.space();
    let pages = durable.bytes().chunks(PAGE as usize).zip(last.bytes().chunks(PAGE as usize));
    let changed: Vec<_> = (0..).zip(pages).filter(|(_, (old, new))| old != new).collect();
    if changed.len() != 1 {
        return None;
    }
    for (page, (_, bytes)) in changed {
        let mut writer = space.claim_log(page).expect("a page that nobody has");
        writer.append(&[bytes]).expect("a page");
        drop(writer);
        assert!(space.retire(page));
        while space.reclaim().is_none() {
            std::thread::yield_now();
        }
    }
    Some((machine.killed().expect("memory"), map))
}

#[test]
fn what_is_shown_after_a_kill_before_a_fence_is_there_after_a_power_cut() {
    let mut at_risk = 0;
    for seed in 0..20 {
        let Some((sim, map)) = killed_before_its_fence(seed) else { continue };
        let lost = opened(&sim.crash(Eviction::Nothing).reopen().expect("memory"));
        at_risk += u32::from(contents(&lost) != map);
        let store = opened(&sim);
        assert!(contents(&store) == map, "seed {seed}: a kill has taken something");
        is_all_there(&sim, &map, &format!("seed {seed}"));
        drop(store);
    }
    assert!(at_risk > 10, "{at_risk} of the kills leave something in the caches");
}
