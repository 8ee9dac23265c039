//! Power cuts at every fence and every return: what was acknowledged is there, what was not is
//! there wholly or not at all, and what the store holds passes `verify`.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use coreplane_engine::{Batch, Completion, Engine, Error, Horizon, UnixMillis, WriteOptions};
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
    /// A record that has expired when it is written, by a clock that stands still.
    PutExpired(u8, Vec<u8>),
    /// A record that expires much later.
    PutExpiring(u8, Vec<u8>),
    Grow,
    Delete(u8),
    Batch(Vec<(u8, Option<Vec<u8>>)>),
    /// Writes that share a fence: each by itself, all acknowledged together.
    Group(Vec<(u8, Option<Vec<u8>>)>),
    /// Cleaning, the sweep of what has expired, closing: changes nothing that a reader sees.
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
        Op::Create | Op::Upkeep | Op::Grow => {}
        Op::Put(number, value) | Op::PutExpiring(number, value) => change(*number, Some(value)),
        Op::Delete(number) | Op::PutExpired(number, _) => change(*number, None),
        Op::Batch(changes) | Op::Group(changes) => {
            changes.iter().for_each(|(number, value)| change(*number, value.as_ref()));
        }
    }
}

/// The operations that survive by themselves.
fn singles(op: &Op) -> Vec<Op> {
    match op {
        Op::Group(changes) => changes
            .iter()
            .map(|(number, value)| match value {
                Some(value) => Op::Put(*number, value.clone()),
                None => Op::Delete(*number),
            })
            .collect(),
        _ => vec![op.clone()],
    }
}

/// A workload drawn from a seed.
struct Workload {
    seed: u64,
    ops: usize,
    keys: u8,
    placement: Placement,
    /// Threads, each with keys of its own.
    threads: u8,
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

/// The time, all the time.
const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

fn options() -> Options {
    Options { background: false, time: Some(Arc::new(|| NOW)), ..Options::default() }
}

impl Workload {
    /// Whether some records have expired: until the cleaner meets them they count as records.
    fn expires(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    fn step(&self, draw: &mut Draw, serial: usize, thread: u8) -> Op {
        let first = thread * self.keys;
        let number = first + draw.next(u64::from(self.keys)) as u8;
        // Beside other writers the cleaner is at work more often.
        match draw.next(if self.threads == 1 { 21 } else { 27 }) {
            0..=7 => Op::Put(number, draw.value(serial)),
            8 if self.expires() => Op::PutExpired(number, draw.value(serial)),
            8..=9 => Op::PutExpiring(number, draw.value(serial)),
            10..=13 => Op::Delete(number),
            kind @ 14..=17 => {
                let changes = (0..2 + draw.next(if self.threads == 1 { 4 } else { 2 }))
                    .map(|_| {
                        let number = first + draw.next(u64::from(self.keys)) as u8;
                        let value = (draw.next(4) > 0).then(|| draw.value(serial));
                        (number, value)
                    })
                    .collect();
                if kind < 16 { Op::Batch(changes) } else { Op::Group(changes) }
            }
            _ => Op::Upkeep,
        }
    }
}

fn perform(store: &Scmkv, op: &Op) {
    let write = WriteOptions::default();
    let expiring = |milliseconds: i64| Some(UnixMillis(NOW.0.saturating_add_signed(milliseconds)));
    match op {
        Op::Create => {}
        Op::Grow => store.grow(LEN_MAX).expect("grow"),
        Op::PutExpired(number, value) => {
            let write = WriteOptions { expires_at: expiring(-1), ..write };
            store.put(&key(*number), value, &write).expect("put");
        }
        Op::PutExpiring(number, value) => {
            let write = WriteOptions { expires_at: expiring(86_400_000), ..write };
            store.put(&key(*number), value, &write).expect("put");
        }
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
        Op::Group(changes) => {
            let write = WriteOptions { completion: Completion::Early, ..write };
            let mut horizon = Horizon::new();
            for (number, value) in changes {
                let outcome = match value {
                    Some(value) => store.put(&key(*number), value, &write).expect("put"),
                    None => store.delete(&key(*number), &write).expect("delete"),
                };
                horizon.include(outcome.ticket());
            }
            store.wait_durable(&horizon).expect("wait_durable");
        }
        Op::Upkeep => {
            store.clean().expect("clean");
            store.sweep_expired().expect("sweep");
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
        let store = &store;
        let work = |thread: u8| {
            let mut draw = Draw(self.seed << 8 | u64::from(thread));
            for serial in 0..self.ops {
                let op = match (thread, serial) {
                    (0, serial) if serial == self.ops / 2 => Op::Grow,
                    _ => self.step(&mut draw, serial, thread),
                };
                run.acknowledged(op.clone(), || perform(store, &op));
            }
        };
        if self.threads == 1 {
            work(0);
        } else {
            run.threads(|threads| {
                (0..self.threads).for_each(|thread| threads.spawn(move || work(thread)));
            });
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
        if len < map.len() as u64 || len > map.len() as u64 && !self.expires() {
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
        let flying: Vec<Op> = history.in_flight().flat_map(singles).collect();
        let mut most = least.clone();
        for some in 0..1_u32 << flying.len() {
            most.clone_from(&least);
            for (_, op) in flying.iter().enumerate().filter(|(at, _)| some >> at & 1 == 1) {
                apply(&mut most, op);
            }
            if *contents == most {
                return Ok(());
            }
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

const LEN: u64 = 160 << 10;
const LEN_MAX: u64 = 224 << 10;

fn sim_options(seed: u64) -> SimOptions {
    SimOptions {
        len: LEN,
        max_len: LEN_MAX,
        page_size: 4096,
        model: Model::X86,
        seed,
        images_per_cut: 40,
        recovery_cut_in: 50,
        images_per_recovery_cut: 2,
        checkers: 2,
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

fn seeds() -> u64 {
    if std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full") { 60 } else { 8 }
}

/// A workload and its images. From keys that are overwritten and cleaned a lot to keys that make
/// the index split.
fn explored(placement: Placement, threads: u8, options: &SimOptions) -> Report {
    let keys = (24 + (options.seed % 3) as u8 * 50) / threads;
    let ops = 110 / usize::from(threads);
    let workload = Workload { seed: options.seed, ops, keys, placement, threads };
    explore(options, &workload)
}

fn explore_all(placement: Placement, threads: u8, first: u64, options: fn(u64) -> SimOptions) {
    let mut images = 0;
    for seed in first..first + seeds() {
        let report = explored(placement, threads, &options(seed));
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        images += report.images;
    }
    eprintln!("{images} crash images, 0 violations");
    assert!(images > 1000 * seeds(), "only {images} images");
}

#[test]
fn nothing_acknowledged_is_lost_with_the_index_in_the_pool() {
    explore_all(Placement::Pool, 1, 1, sim_options);
}

#[test]
fn nothing_acknowledged_is_lost_with_the_index_in_dram() {
    explore_all(Placement::Dram, 1, 101, sim_options);
}

#[test]
fn nothing_acknowledged_is_lost_by_several_threads() {
    explore_all(Placement::Pool, 3, 201, sim_options);
    explore_all(Placement::Dram, 2, 301, sim_options);
}

/// A writer replaces what the cleaner is copying, and its slot is not durable when the old page is
/// freed: seldom, so this runs longer and looks at fewer images a cut.
#[test]
fn no_slot_falls_back_into_a_page_that_the_cleaner_freed() {
    let mut images = 0;
    for seed in 5000..5000 + seeds() {
        let (ops, keys) = (350, 40);
        let workload = Workload { seed, ops, keys, placement: Placement::Pool, threads: 2 };
        let options = SimOptions {
            len: 112 << 10,
            images_per_cut: 4,
            recovery_cut_in: 0,
            early_reads: false,
            ..sim_options(seed)
        };
        let report = explore(&options, &workload);
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        images += report.images;
    }
    eprintln!("{images} crash images, 0 violations");
}

#[test]
fn nothing_acknowledged_is_lost_where_a_fence_is_a_sync() {
    let options =
        |seed| SimOptions { model: Model::File, non_temporal: false, ..sim_options(seed) };
    explore_all(Placement::Dram, 1, 401, options);
    explore_all(Placement::Dram, 2, 501, options);
}

#[test]
fn without_fences_or_flushes_the_simulator_finds_losses() {
    for fault in [Fault::DropEveryFence, Fault::DropEveryFlush] {
        let options = SimOptions { fault: Some(fault.clone()), ..sim_options(1) };
        let report = explored(Placement::Pool, 1, &options);
        assert!(!report.violations.is_empty(), "{fault:?} was not caught");
    }
}

/// The classic faults one by one, each at many places of a run: a place may be harmless (a line
/// that is flushed again, a fence behind which nothing waits), but not all are. Two stores between
/// the same fences may change places anywhere; across a fence that is a store after its fence.
#[test]
fn each_classic_fault_is_found_in_the_engine() {
    let places = (40..400).step_by(40);
    let everywhere = Fault::TearStoresOf(0..LEN_MAX);
    let faults: [(&str, Vec<Fault>); 4] = [
        ("a missing flush", places.clone().map(Fault::DropFlush).collect()),
        ("a missing fence", places.clone().map(Fault::DropFence).collect()),
        ("a store after its fence", places.map(Fault::DelayStore).collect()),
        ("torn words", vec![everywhere]),
    ];
    for (what, faults) in faults {
        let (places, mut caught) = (faults.len(), 0);
        for fault in faults {
            let options = SimOptions {
                fault: Some(fault),
                recovery_cut_in: 0,
                images_per_cut: 16,
                max_violations: 1,
                shrink: false,
                non_temporal: false,
                ..sim_options(1)
            };
            caught += usize::from(!explored(Placement::Pool, 1, &options).violations.is_empty());
        }
        eprintln!("{what}: found at {caught} of {places} places");
        assert!(caught > 0, "{what} was never found");
    }
}
