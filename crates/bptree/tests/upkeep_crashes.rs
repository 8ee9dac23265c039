//! Power cuts at every fence and every return of operations that a matrix and time cause: given sequences, held
//! tombstones, records that expire, sweeps, and a pool that grows.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{
    Batch, Engine, Error, Outcome, Repairable, Replicated, UnixMillis, WriteOptions,
};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Fault, History, Model, Run, SimOptions, Standing, Subject, explore,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const KEYS: u16 = 36;
const LEN: u64 = 256 << 10;
const LEN_MAX: u64 = 512 << 10;

/// The time at the beginning, and by the clock after a power cut.
const START: u64 = 1_800_000_000_000;

/// The number of a key; its value and the expiry of that, or none.
type Change = (u16, Option<Value>);

type Value = (Vec<u8>, Option<u64>);

/// True if an operation is of a kind.
type Kind = fn(&Op) -> bool;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    Create,
    /// From now on all tombstones are kept.
    Hold,
    /// More than one change is a batch. With a given sequence.
    Write(u64, Vec<Change>),
    /// The clock goes on.
    Wait(u64),
    /// Reads every key, and so learns which have expired.
    Look,
    Sweep,
    Grow,
}

/// The expected state of a store.
#[derive(Debug, Clone, Default)]
struct Expected {
    is_created: bool,
    is_held: bool,
    held: BTreeMap<u16, (u64, Option<Value>)>,
    now: u64,
    /// Records that expire by then are gone for good: a caller was told so.
    told: u64,
    has_grown: bool,
}

/// The state that was found.
#[derive(Debug)]
struct Found {
    values: BTreeMap<u16, Vec<u8>>,
    /// With those of tombstones; none if tombstones were not held.
    sequences: Option<BTreeMap<Vec<u8>, u64>>,
    len: u64,
}

/// Compares two recoveries from the same power cut, the first of which was cut itself: so no caller was told what
/// it found, and a change of the root in flight may have become visible since. Such a change concerns the held
/// tombstones and the told expiries.
impl PartialEq for Found {
    fn eq(&self, other: &Self) -> bool {
        let of_both = |number: &&u16| other.values.contains_key(*number);
        let mut of_both = self.values.keys().filter(of_both);
        let known = self.sequences.iter().zip(&other.sequences);
        of_both.all(|number| self.values[number] == other.values[number])
            && known.into_iter().all(|(mine, others)| mine == others)
    }
}

fn key(number: u16) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

impl Expected {
    fn after(&self, op: &Op) -> Self {
        let mut next = self.clone();
        match op {
            Op::Create => (next.is_created, next.now) = (true, START),
            Op::Hold => next.is_held = true,
            Op::Write(sequence, changes) => {
                for (number, record) in changes {
                    let held = next.held.entry(*number).or_default();
                    if held.0 < *sequence {
                        *held = (*sequence, record.clone());
                    }
                }
            }
            Op::Wait(millis) => next.now += millis,
            Op::Look | Op::Sweep => {
                let ends = self.held.values().filter_map(|(_, record)| record.as_ref()?.1);
                next.told = ends.filter(|at| *at <= self.now).fold(self.told, u64::max);
            }
            Op::Grow => next.has_grown = true,
        }
        next
    }

    /// The difference, if there is one.
    fn differs(&self, found: &Found) -> Option<String> {
        for (number, (_, record)) in &self.held {
            let value = found.values.get(number);
            let is_right = match record {
                None => value.is_none(),
                Some((_, Some(at))) if *at <= self.told => value.is_none(),
                // A caller, for example a split, may have been told of some of the expired ones.
                Some((_, Some(at))) if *at <= self.now && value.is_none() => true,
                Some((expected, _)) => value == Some(expected),
            };
            if !is_right {
                let len = value.map(Vec::len);
                let record = record.as_ref().map(|(value, at)| (value.len(), *at));
                return Some(format!("{number} has {len:?} bytes, not {record:?}: {self:.60?}"));
            }
        }
        if found.values.keys().any(|number| !self.held.contains_key(number)) {
            return Some("a key that was never written".to_owned());
        }
        let Some(sequences) = &found.sequences else {
            return self.is_held.then(|| "tombstones were forgotten".to_owned());
        };
        let mine = self.held.iter().filter(|(_, held)| held.0 > 0);
        let mine: BTreeMap<_, _> = mine.map(|(number, held)| (key(*number), held.0)).collect();
        if mine != *sequences {
            return Some(format!("sequences {sequences:?}, not {mine:?}"));
        }
        (self.has_grown && found.len < LEN_MAX).then(|| format!("a pool of {}", found.len))
    }
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// A new value, sometimes a large one, and its expiry; or none.
    fn record(&mut self, now: u64, serial: u64) -> Option<(Vec<u8>, Option<u64>)> {
        let len = if self.next(14) == 0 { 1100 + self.next(5000) } else { 8 + self.next(250) };
        let value = (0..len).map(|at| (serial * 31 + at) as u8).collect();
        let expires_at = (self.next(3) == 0).then(|| now + self.next(60));
        (self.next(10) > 2).then_some((value, expires_at))
    }
}

/// A life of a store, drawn from a seed.
struct Story {
    seed: u64,
    operations: u64,
    /// The numbers of the fences of each operation of a run.
    done: Mutex<Vec<(Op, Range<u64>)>>,
}

impl Story {
    fn new(seed: u64) -> Self {
        Self { seed, operations: 130, done: Mutex::default() }
    }

    fn ops(&self) -> Vec<Op> {
        let mut draw = Draw(self.seed << 8);
        let (mut ops, mut now) = (vec![Op::Hold], START);
        for serial in 0..self.operations {
            if serial == self.operations / 2 {
                ops.push(Op::Grow);
            }
            ops.push(match draw.next(24) {
                0..=1 => {
                    let millis = draw.next(40);
                    now += millis;
                    Op::Wait(millis)
                }
                2 => Op::Look,
                3 => Op::Sweep,
                kind => {
                    let count = if kind > 20 { 2 + draw.next(8) } else { 1 };
                    let numbers = (0..count).map(|_| draw.next(u64::from(KEYS)) as u16);
                    let mut changes: BTreeMap<_, _> = numbers.map(|it| (it, None)).collect();
                    changes.values_mut().for_each(|it| *it = draw.record(now, serial));
                    // Some come late: the old record may be newer.
                    let late = if draw.next(5) == 0 { draw.next(12) } else { 0 };
                    Op::Write(1000 + serial - late, changes.into_iter().collect())
                }
            });
        }
        ops
    }

    /// The fences of all operations of a kind, as faults: each of them is dropped in turn.
    fn faults(&self, is_one: impl Fn(&Op) -> bool) -> Vec<Fault> {
        let done = self.done.lock().expect("a run that has ended");
        let mine = done.iter().filter(|(op, _)| is_one(op));
        mine.flat_map(|(_, fences)| fences.clone().map(Fault::DropFence)).collect()
    }
}

fn perform(store: &Bptree, clock: &ManualClock, op: &Op) -> Result<(), Error> {
    match op {
        Op::Create => Ok(()),
        Op::Hold => store.hold_tombstones(0),
        Op::Write(sequence, changes) => write(store, *sequence, changes),
        Op::Wait(millis) => {
            clock.advance(*millis);
            Ok(())
        }
        Op::Look => (0..KEYS).try_for_each(|number| store.get(&key(number)).map(drop)),
        Op::Sweep => store.sweep_expired().map(drop),
        Op::Grow => store.grow(LEN_MAX),
    }
}

fn write(store: &Bptree, sequence: u64, changes: &[Change]) -> Result<(), Error> {
    let given = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
    let expiring = |at: &Option<u64>| WriteOptions { expires_at: at.map(UnixMillis), ..given };
    let outcome = match changes {
        [(number, Some((value, at)))] => store.put(&key(*number), value, &expiring(at))?,
        [(number, None)] => store.delete(&key(*number), &given)?,
        several => {
            let mut batch = Batch::new();
            for (number, record) in several {
                let key = key(*number);
                match record {
                    Some((value, at)) => batch.put_until(&key, value, at.map(UnixMillis)),
                    None => batch.delete(&key),
                };
            }
            return store.apply(&batch, &given).map(drop);
        }
    };
    assert!(matches!(outcome, Outcome::Written(_) | Outcome::NotNewer(..)), "{outcome:?}");
    Ok(())
}

fn options(clock: &ManualClock) -> Options {
    Options { background: false, time: Some(clock.as_clock()), ..Options::default() }
}

impl Subject for Story {
    type Op = Op;
    type Store = Option<Bptree>;
    type Contents = Option<Found>;

    fn work(&self, run: &Run<'_, Op>) {
        let clock = ManualClock::starting_at(UnixMillis(START));
        let store = run.acknowledged(Op::Create, || {
            Bptree::simulated_create(Arc::clone(run.space()), &options(&clock)).expect("create")
        });
        let mut done = Vec::new();
        for op in self.ops() {
            let (_, before) = run.space().flushes_and_fences();
            run.acknowledged(op.clone(), || perform(&store, &clock, &op).expect("an operation"));
            let (_, after) = run.space().flushes_and_fences();
            done.push((op, before..after));
        }
        *self.done.lock().expect("nobody has it") = done;
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Bptree>, String> {
        let clock = ManualClock::starting_at(UnixMillis(START));
        match Bptree::simulated_open(Arc::clone(space), &options(&clock)) {
            Ok(store) => Ok(Some(store)),
            // The cut came before the creation was acknowledged.
            Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Bptree>) -> Result<Option<Found>, String> {
        let Some(store) = store else { return Ok(None) };
        let mut values = BTreeMap::new();
        for number in 0..KEYS {
            let value = store.get(&key(number)).map_err(|error| error.to_string())?;
            values.extend(value.map(|value| (number, value)));
        }
        let mut sequences = BTreeMap::new();
        let mut take = |entry: coreplane_engine::Entry<'_>| {
            sequences.insert(entry.key.to_vec(), entry.sequence);
        };
        let sequences = match store.changes_since(0, &mut take) {
            Ok(()) => Some(sequences),
            Err(Error::HistoryGone { .. }) => None,
            Err(error) => return Err(error.to_string()),
        };
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        let counted = store.len().map_err(|error| error.to_string())?;
        if !report.is_sound() || report.records != counted {
            return Err(format!("{counted} records are counted, verified {report:?}"));
        }
        Ok(Some(Found { values, sequences, len: store.stats().pool_bytes }))
    }

    fn check(&self, found: &Option<Found>, history: &History<'_, Op>) -> Result<(), String> {
        let (mut made, mut open) = (Expected::default(), None);
        for (op, standing) in history.operations() {
            match standing {
                Standing::Acknowledged => made = made.after(op),
                _ => open = Some(made.after(op)),
            }
        }
        let Some(found) = found else {
            let lost = made.is_created.then(|| "the store is lost".to_owned());
            return lost.map_or(Ok(()), Err);
        };
        // All of the operation in flight, or nothing of it.
        match (made.differs(found), open.map(|open| open.differs(found))) {
            (None, _) | (_, Some(None)) => Ok(()),
            (Some(what), _) => Err(what),
        }
    }
}

fn sim_options(seed: u64) -> SimOptions {
    SimOptions {
        len: LEN,
        max_len: LEN_MAX,
        page_size: 4096,
        seed,
        images_per_cut: 6,
        recovery_cut_in: 30,
        images_per_recovery_cut: 2,
        checkers: 2,
        model: if seed % 4 == 3 { Model::File } else { Model::X86 },
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

#[test]
fn what_peers_and_time_do_to_a_store_outlives_a_power_cut() {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let mut images = 0;
    for seed in 1..=if is_full { 60 } else { 4 } {
        let story = Story::new(seed);
        let report = explore(&sim_options(seed), &story);
        let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
        assert!(messages.is_empty(), "seed {seed}: {messages:.300?}");
        images += report.images;
    }
    assert!(images > 1000, "{images}");
}

/// A missing flush or fence may be harmless in places, such as the last of a root, behind which nothing is told.
#[test]
fn a_flush_or_a_fence_of_these_that_is_missing_is_found() {
    let story = || Story { operations: 40, ..Story::new(2) };
    let sim = SimOptions {
        images_per_cut: 10,
        recovery_cut_in: 0,
        max_violations: 1,
        shrink: false,
        non_temporal: false,
        ..sim_options(2)
    };
    let whole = story();
    assert!(explore(&sim, &whole).violations.is_empty());
    let caught = |faults: Vec<Fault>| {
        let is_caught = |fault: &Fault| {
            let sim = SimOptions { fault: Some(fault.clone()), ..sim.clone() };
            !explore(&sim, &story()).violations.is_empty()
        };
        let step = (faults.len() / 6).max(1);
        faults.into_iter().step_by(step).filter(is_caught).count()
    };
    let all: [(&str, Kind); 5] = [
        ("held tombstones", |op| *op == Op::Hold),
        ("given sequences", |op| matches!(op, Op::Write(..))),
        ("expiry", |op| *op == Op::Look),
        ("sweeps", |op| *op == Op::Sweep),
        ("growth", |op| *op == Op::Grow),
    ];
    for (what, is_one) in all {
        let found = caught(whole.faults(is_one));
        assert!(found > 0, "{what}: no fence that is missing is found");
    }
    let found = caught((40..120).map(Fault::DropFlush).collect());
    assert!(found > 2, "{found} flushes that are missing are found");
}
