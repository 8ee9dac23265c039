//! Power cuts at every fence and every return: what was acknowledged is there, what was not is
//! there wholly or not at all, and what the store holds passes `verify`.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use coreplane_engine::{Batch, Engine, Error, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Fault, History, Model, Report, Run, SimOptions, Subject, explore,
};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Op {
    Create,
    Put(u8, Vec<u8>),
    Delete(u8),
    Batch(Vec<(u8, Option<Vec<u8>>)>),
    /// Cleaning, closing: changes nothing that a reader sees.
    Upkeep,
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u8) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn apply(map: &mut Option<Map>, op: &Op) {
    let map = map.get_or_insert_default();
    let mut change = |number: u8, value: Option<&Vec<u8>>| match value {
        Some(value) => drop(map.insert(key(number), value.clone())),
        None => drop(map.remove(&key(number))),
    };
    match op {
        Op::Create | Op::Upkeep => {}
        Op::Put(number, value) => change(*number, Some(value)),
        Op::Delete(number) => change(*number, None),
        Op::Batch(changes) => {
            changes.iter().for_each(|(number, value)| change(*number, value.as_ref()));
        }
    }
}

/// A workload drawn from a seed.
struct Workload {
    seed: u64,
    ops: usize,
    keys: u8,
    placement: Placement,
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn value(&mut self, serial: usize) -> Vec<u8> {
        // Some are large enough (over an eighth of a page) to be stored as fragments.
        let len = if self.next(12) == 0 { 700 + self.next(900) } else { 8 + self.next(120) };
        (0..len).map(|at| (serial as u64 * 31 + at) as u8).collect()
    }
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

impl Workload {
    fn step(&self, draw: &mut Draw, serial: usize) -> Op {
        let number = draw.next(u64::from(self.keys)) as u8;
        match draw.next(20) {
            0..=9 => Op::Put(number, draw.value(serial)),
            10..=13 => Op::Delete(number),
            14..=16 => {
                let changes = (0..2 + draw.next(4))
                    .map(|_| {
                        let number = draw.next(u64::from(self.keys)) as u8;
                        let value = (draw.next(4) > 0).then(|| draw.value(serial));
                        (number, value)
                    })
                    .collect();
                Op::Batch(changes)
            }
            _ => Op::Upkeep,
        }
    }
}

fn perform(store: &Scmkv, op: &Op) {
    let write = WriteOptions::default();
    match op {
        Op::Create => {}
        Op::Put(number, value) => {
            store.put(&key(*number), value, &write).expect("put");
        }
        Op::Delete(number) => {
            store.delete(&key(*number), &write).expect("delete");
        }
        Op::Batch(changes) => {
            let mut batch = Batch::new();
            for (number, value) in changes {
                match value {
                    Some(value) => batch.put(&key(*number), value),
                    None => batch.delete(&key(*number)),
                };
            }
            store.apply(&batch, &write).expect("apply");
        }
        Op::Upkeep => {
            store.clean().expect("clean");
        }
    }
}

impl Subject for Workload {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = run.acknowledged(Op::Create, || {
            Scmkv::simulated_create(run.space().clone(), Geometry::TINY, self.placement, options())
                .expect("create")
        });
        let mut draw = Draw(self.seed);
        for serial in 0..self.ops {
            let op = self.step(&mut draw, serial);
            run.acknowledged(op.clone(), || perform(&store, &op));
        }
        run.acknowledged(Op::Upkeep, || store.close().expect("close"));
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        match Scmkv::simulated_open(space.clone(), options()) {
            Ok(store) => Ok(Some(store)),
            // Told apart by `check`: only before the creation is acknowledged may there be none.
            Err(Error::Unusable(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<Option<Map>, String> {
        let Some(store) = store else { return Ok(None) };
        let mut map = Map::new();
        let mut cursor = 0;
        loop {
            cursor = store
                .iterate(cursor, 100, &mut |entry| {
                    let value = entry.record.map(|record| record.value.to_vec());
                    map.insert(entry.key.to_vec(), value.unwrap_or_default());
                })
                .map_err(|error| error.to_string())?;
            if cursor == 0 {
                break;
            }
        }
        for (key, value) in &map {
            let got = store.get(key).map_err(|error| error.to_string())?;
            if got.as_ref() != Some(value) {
                return Err(format!("get and iterate differ at {key:?}"));
            }
        }
        let len = store.len().map_err(|error| error.to_string())?;
        if len != map.len() as u64 {
            return Err(format!("len {len}, {} records", map.len()));
        }
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        if !report.is_sound() {
            return Err(format!("damages {:?}", report.damages));
        }
        Ok(Some(map))
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        let mut least = None;
        history.acknowledged().for_each(|op| apply(&mut least, op));
        let mut most = least.clone();
        history.in_flight().for_each(|op| apply(&mut most, op));
        if *contents == least || *contents == most {
            return Ok(());
        }
        let differs = |expected: &Option<Map>| {
            let (have, want) =
                (contents.clone().unwrap_or_default(), expected.clone().unwrap_or_default());
            want.iter()
                .filter(|(key, value)| have.get(*key) != Some(*value))
                .map(|(key, _)| format!("lost {}", String::from_utf8_lossy(key)))
                .chain(
                    have.keys()
                        .filter(|key| !want.contains_key(*key))
                        .map(|key| format!("revived {}", String::from_utf8_lossy(key))),
                )
                .collect::<Vec<_>>()
        };
        Err(format!("against least {:?}, against most {:?}", differs(&least), differs(&most)))
    }
}

fn sim_options(seed: u64) -> SimOptions {
    SimOptions {
        len: 192 << 10,
        max_len: 192 << 10,
        page_size: 4096,
        model: Model::X86,
        seed,
        images_per_cut: 40,
        recovery_cut_in: 50,
        images_per_recovery_cut: 2,
        checkers: 2,
        ..SimOptions::default()
    }
}

fn seeds() -> u64 {
    if std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full") { 60 } else { 12 }
}

fn explored(placement: Placement, fault: Option<Fault>, seed: u64) -> Report {
    // From keys that are overwritten and cleaned a lot to keys that make the index split.
    let keys = 24 + (seed % 3) as u8 * 50;
    let workload = Workload { seed, ops: 110, keys, placement };
    explore(&SimOptions { fault, ..sim_options(seed) }, &workload)
}

#[test]
fn nothing_acknowledged_is_lost_with_the_index_in_the_pool() {
    let mut images = 0;
    for seed in 1..=seeds() {
        let report = explored(Placement::Pool, None, seed);
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        images += report.images;
    }
    println!("{images} crash images, 0 violations");
    assert!(images > 50_000, "only {images} images");
}

#[test]
fn nothing_acknowledged_is_lost_with_the_index_in_dram() {
    let mut images = 0;
    for seed in 1..=seeds() {
        let report = explored(Placement::Dram, None, 100 + seed);
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        images += report.images;
    }
    println!("{images} crash images, 0 violations");
    assert!(images > 50_000, "only {images} images");
}

#[test]
fn without_fences_or_flushes_the_simulator_finds_losses() {
    for fault in [Fault::DropEveryFence, Fault::DropEveryFlush] {
        let report = explored(Placement::Pool, Some(fault.clone()), 1);
        assert!(!report.violations.is_empty(), "{fault:?} was not caught");
    }
}
