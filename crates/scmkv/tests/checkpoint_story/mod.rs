//! A workload of the crash simulator in which checkpoints are taken, by threads with logs of
//! their own.

use coreplane_engine::{Batch, Durability, Engine, Error, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Run, SimOptions, Subject};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When what was written must be there after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// When the write returns.
    AtReturn,
    /// When the next sync returns.
    AtSync,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    /// New values of keys; none: a delete. More than one are a batch.
    Write(Vec<(u8, Option<Vec<u8>>)>),
    Clean,
    Checkpoint,
    Sync,
    Close,
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u8) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn apply(map: &mut Option<Map>, op: &Op) {
    let map = map.get_or_insert_default();
    let Op::Write(changes) = op else { return };
    for (number, value) in changes {
        match value {
            Some(value) => map.insert(key(*number), value.clone()),
            None => map.remove(&key(*number)),
        };
    }
}

/// A workload drawn from a seed.
#[derive(Debug)]
pub(crate) struct Story {
    seed: u64,
    durable: Durable,
    /// Images that were opened with a checkpoint.
    with_checkpoint: AtomicU64,
    /// The number of the fence that comes first in the first checkpoint, plus one.
    first_fence: AtomicU64,
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

impl Story {
    pub(crate) fn new(seed: u64, durable: Durable) -> Self {
        Self { seed, durable, with_checkpoint: AtomicU64::new(0), first_fence: AtomicU64::new(0) }
    }

    pub(crate) fn opened_with_checkpoint(&self) -> u64 {
        self.with_checkpoint.load(Ordering::Relaxed)
    }

    pub(crate) fn fence_of_first_checkpoint(&self) -> Option<u64> {
        self.first_fence.load(Ordering::Relaxed).checked_sub(1)
    }

    fn options(&self) -> Options {
        let durability = match self.durable {
            Durable::AtReturn => Durability::Strict,
            Durable::AtSync => {
                Durability::Relaxed { window: Duration::from_secs(3600), window_bytes: 1 << 40 }
            }
        };
        Options { background: false, durability, ..Options::default() }
    }

    fn step(&self, draw: &mut Draw, serial: usize) -> Op {
        // From keys that are overwritten and cleaned a lot to keys that make the index split.
        let keys = 24 + self.seed % 3 * 50;
        let change = |draw: &mut Draw, deletes: u64| {
            let number = draw.next(keys) as u8;
            let value = (draw.next(10) >= deletes).then(|| draw.value(serial));
            (number, value)
        };
        match draw.next(20) {
            0..=11 => Op::Write(vec![change(draw, 3)]),
            12..=14 if self.durable == Durable::AtReturn => {
                let mut changes = BTreeMap::new();
                changes.extend((0..2 + draw.next(4)).map(|_| change(draw, 3)));
                Op::Write(changes.into_iter().collect())
            }
            12..=14 => Op::Sync,
            15..=17 => Op::Clean,
            _ => Op::Checkpoint,
        }
    }

    fn perform(&self, run: &Run<'_, Op>, store: &Scmkv, op: &Op) {
        let write = WriteOptions::default();
        match op {
            Op::Create => {}
            Op::Write(changes) => match &changes[..] {
                [(number, Some(value))] => {
                    store.put(&key(*number), value, &write).expect("put");
                }
                [(number, None)] => {
                    store.delete(&key(*number), &write).expect("delete");
                }
                changes => {
                    let mut batch = Batch::new();
                    for (number, value) in changes {
                        match value {
                            Some(value) => batch.put(&key(*number), value),
                            None => batch.delete(&key(*number)),
                        };
                    }
                    store.apply(&batch, &write).expect("apply");
                }
            },
            Op::Clean => {
                if self.durable == Durable::AtSync {
                    store.sync().expect("sync");
                }
                store.clean().expect("clean");
            }
            Op::Checkpoint => {
                let (_, fences) = run.space().flushes_and_fences();
                if store.checkpoint().expect("checkpoint") {
                    let first = Ordering::Relaxed;
                    let _kept = self.first_fence.compare_exchange(0, fences + 1, first, first);
                }
            }
            Op::Sync => store.sync().expect("sync"),
            Op::Close => store.close().expect("close"),
        }
    }

    /// The states of each key that a power cut may leave: that of the last sync, and all since.
    fn allowed(history: &History<'_, Op>) -> BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> {
        let mut allowed: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> = BTreeMap::new();
        let acknowledged: Vec<&Op> = history.acknowledged().collect();
        for op in acknowledged.into_iter().chain(history.in_flight()) {
            match op {
                Op::Sync | Op::Close if history.acknowledged().any(|it| std::ptr::eq(it, op)) => {
                    for states in allowed.values_mut() {
                        states.drain(..states.len() - 1);
                    }
                }
                Op::Write(changes) => {
                    for (number, value) in changes {
                        let states = allowed.entry(key(*number)).or_insert_with(|| vec![None]);
                        states.push(value.clone());
                    }
                }
                _ => {}
            }
        }
        allowed
    }
}

fn stat(store: &Scmkv, name: &str) -> u64 {
    let stats = store.stats();
    stats.more.iter().find(|(it, _)| *it == name).map_or(0, |(_, figure)| *figure)
}

impl Subject for Story {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = run.acknowledged(Op::Create, || {
            let space = run.space().clone();
            let placement = Placement::Dram;
            Scmkv::simulated_create(space, Geometry::TINY, placement, self.options())
                .expect("create")
        });
        let mut draw = Draw(self.seed);
        for serial in 0..110 {
            let op = self.step(&mut draw, serial);
            run.acknowledged(op.clone(), || {
                // A thread of its own has a log of its own, in turn.
                run.threads(|threads| threads.spawn(|| self.perform(run, &store, &op)));
            });
        }
        run.acknowledged(Op::Close, || self.perform(run, &store, &Op::Close));
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        match Scmkv::simulated_open(space.clone(), self.options()) {
            Ok(store) => Ok(Some(store)),
            // Told apart by `check`: only before the creation is acknowledged may there be none.
            Err(Error::Unusable(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<Option<Map>, String> {
        let Some(store) = store else { return Ok(None) };
        if stat(store, "checkpoints_damaged") > 0 {
            return Err("the root names a checkpoint that is not whole".to_owned());
        }
        let with = u64::from(stat(store, "checkpoint") > 0);
        self.with_checkpoint.fetch_add(with, Ordering::Relaxed);
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
        if self.durable == Durable::AtSync {
            let have = contents.clone().unwrap_or_default();
            for (key, states) in Self::allowed(history) {
                if !states.contains(&have.get(&key).cloned()) {
                    return Err(format!("{} is as it never was", String::from_utf8_lossy(&key)));
                }
            }
            return Ok(());
        }
        let mut least = None;
        history.acknowledged().for_each(|op| apply(&mut least, op));
        let mut most = least.clone();
        history.in_flight().for_each(|op| apply(&mut most, op));
        if *contents == least || *contents == most {
            return Ok(());
        }
        let (have, want) = (contents.clone().unwrap_or_default(), least.unwrap_or_default());
        let lost = want.iter().filter(|(key, value)| have.get(*key) != Some(*value));
        let revived = have.keys().filter(|key| !want.contains_key(*key));
        let names: Vec<_> = lost
            .map(|(key, _)| key)
            .chain(revived)
            .map(|key| String::from_utf8_lossy(key))
            .collect();
        Err(format!("neither as acknowledged nor as in flight: {names:?}"))
    }
}

pub(crate) fn sim_options(seed: u64) -> SimOptions {
    SimOptions {
        len: 192 << 10,
        max_len: 192 << 10,
        page_size: 4096,
        seed,
        images_per_cut: 25,
        recovery_cut_in: 40,
        images_per_recovery_cut: 2,
        checkers: 2,
        ..SimOptions::default()
    }
}
