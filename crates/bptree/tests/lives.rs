//! One pool that lives through dozens of power cuts and kills, with writes between them: remains that one recovery
//! leaves behind are met by a later one.
//!
//! A story with one cut tests whether recovery finds the records. Whether it has struck out, durably, the parts
//! that do not count, shows only when pages were rewritten since, and the power went again. So here each life
//! begins with the image that the last one left. The power goes behind any store instruction, in recovery too, and
//! the state that a life has shown is the start of the next. The clock goes on, and is set back at a restart.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Batch, Durability, Engine, Error, Repairable, UnixMillis, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The time at the beginning of each life.
const START: u64 = 1_800_000_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    bytes: Vec<u8>,
    expires_at: Option<u64>,
}

/// The possible states of a key.
type States = Vec<Option<Value>>;

type Changes = Vec<(u16, Option<Value>)>;

#[derive(Debug, Clone)]
enum Op {
    /// More than one change is a batch.
    Write(Changes),
    /// These changes may be lost until the next sync.
    Relaxed(Changes),
    Sync,
    Clear,
    Look(u16),
    Wait(u64),
    Close,
}

/// The properties of the pools of a test.
#[derive(Clone, Copy)]
struct World {
    model: Model,
    keys: u16,
    /// One key in this many is long (0: none is).
    long_in: u16,
    is_relaxed: bool,
    pages: u64,
    /// The pool has no room for all of its records, none of which is large.
    is_full: bool,
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// A pool, and the expected state of it.
struct Pool {
    world: World,
    draw: Draw,
    clock: ManualClock,
    states: BTreeMap<u16, States>,
    /// Keys that were absent after a cut, for one of several reasons: it is unknown which of their states is the
    /// newest.
    unclear: BTreeSet<u16>,
    /// Batches that may be lost, as a whole: for each key, the state that the batch has made, by its number.
    batches: Vec<Vec<(u16, usize)>>,
    serial: u64,
}

impl Pool {
    fn new(world: World, seed: u64) -> Self {
        let states = (0..world.keys).map(|number| (number, vec![None])).collect();
        let clock = ManualClock::starting_at(UnixMillis(START));
        let (draw, unclear) = (Draw(seed << 8), BTreeSet::new());
        Self { world, draw, clock, states, unclear, batches: Vec::new(), serial: 0 }
    }

    fn key(&self, number: u16) -> Vec<u8> {
        let key = format!("key-{number:03}").into_bytes();
        let is_long = self.world.long_in > 0 && number.is_multiple_of(self.world.long_in);
        if is_long { [vec![b'k'; 460], key].concat() } else { key }
    }

    fn options(&self) -> Options {
        Options { time: Some(self.clock.as_clock()), background: false, ..Options::default() }
    }

    fn value(&mut self) -> Option<Value> {
        self.serial += 1;
        let (serial, draw) = (self.serial, &mut self.draw);
        let is_large = !self.world.is_full && draw.next(20) == 0;
        let len = if is_large { 1100 + draw.next(3000) } else { 8 + draw.next(250) };
        let bytes = (0..len).map(|at| (serial * 31 + at) as u8).collect();
        let expires_at = (draw.next(6) == 0).then(|| self.clock.now().0 + draw.next(60));
        (draw.next(10) > 2).then_some(Value { bytes, expires_at })
    }

    fn op(&mut self) -> Op {
        let count = match self.draw.next(40) {
            0 => return Op::Sync,
            1 => return Op::Wait(self.draw.next(30)),
            2..6 => return Op::Look(self.draw.next(u64::from(self.world.keys)) as u16),
            6 if self.draw.next(4) == 0 => return Op::Clear,
            7..14 => 2 + self.draw.next(10),
            _ => 1,
        };
        let numbers: BTreeSet<u16> =
            (0..count).map(|_| self.draw.next(u64::from(self.world.keys)) as u16).collect();
        let changes = numbers.into_iter().map(|number| (number, self.value())).collect();
        let is_relaxed = self.world.is_relaxed && self.draw.next(3) > 0;
        if is_relaxed { Op::Relaxed(changes) } else { Op::Write(changes) }
    }

    /// False if there was no room, which happens in some pools.
    fn write(&self, store: &Bptree, changes: &Changes, durability: Option<Durability>) -> bool {
        let of = |value: &Option<Value>| {
            let expires_at = value.as_ref().and_then(|it| it.expires_at).map(UnixMillis);
            WriteOptions { durability, expires_at, ..WriteOptions::default() }
        };
        let made = match changes.as_slice() {
            [(number, Some(value))] => {
                let options = of(&Some(value.clone()));
                store.put(&self.key(*number), &value.bytes, &options).map(drop)
            }
            [(number, None)] => store.delete(&self.key(*number), &of(&None)).map(drop),
            several => {
                let mut batch = Batch::new();
                for (number, value) in several {
                    let key = self.key(*number);
                    match value {
                        Some(Value { bytes, expires_at }) => {
                            batch.put_until(&key, bytes, expires_at.map(UnixMillis))
                        }
                        None => batch.delete(&key),
                    };
                }
                store.apply(&batch, &of(&None)).map(drop)
            }
        };
        match made {
            Err(Error::NoSpace { .. }) if self.world.is_full => false,
            made => made.map(|()| true).expect("there is room"),
        }
    }

    fn run(&self, store: &Bptree, op: &Op) -> bool {
        match op {
            Op::Write(it) => return self.write(store, it, None),
            Op::Relaxed(it) => return self.write(store, it, Some(Durability::RELAXED)),
            Op::Sync => store.sync().expect("sync"),
            Op::Clear => store.clear().expect("clear"),
            Op::Look(number) => {
                let found = store.get(&self.key(*number)).expect("get");
                if self.unclear.contains(number) {
                    return true;
                }
                // All changes are this thread's own.
                let newest = self.states[number].last().expect("a state");
                let newest = newest.as_ref().filter(|it| !self.has_expired(it));
                // By a clock that was set back since, a caller may have been told that it has expired.
                let may_be_told = newest.is_none_or(|it| it.expires_at.is_some());
                let is_right = found.as_ref() == newest.map(|it| &it.bytes);
                assert!(is_right || found.is_none() && may_be_told, "{number}: {newest:.100?}");
            }
            Op::Wait(millis) => self.clock.advance(*millis),
            Op::Close => store.close().expect("close"),
        }
        true
    }

    fn has_expired(&self, value: &Value) -> bool {
        value.expires_at.is_some_and(|at| at <= self.clock.now().0)
    }

    /// Applies an operation that has returned to the expected state.
    fn acknowledge(&mut self, op: &Op) {
        let now = self.clock.now().0;
        match op {
            Op::Write(changes) | Op::Relaxed(changes) => {
                self.unclear.retain(|number| changes.iter().all(|it| it.0 != *number));
            }
            Op::Clear => self.unclear.clear(),
            _ => {}
        }
        match op {
            Op::Write(changes) => {
                for (number, value) in changes {
                    self.states.insert(*number, vec![value.clone()]);
                    // Its effect on earlier batches is unknown.
                    self.batches.iter_mut().for_each(|batch| batch.retain(|it| it.0 != *number));
                }
            }
            Op::Relaxed(changes) => {
                let mut batch = Vec::new();
                for (number, value) in changes {
                    let states = self.states.entry(*number).or_default();
                    batch.push((*number, states.len()));
                    states.push(value.clone());
                }
                self.batches.push(batch);
            }
            Op::Sync | Op::Close => self.make_all_durable(),
            Op::Clear => {
                self.states.values_mut().for_each(|it| *it = vec![None]);
                self.batches.clear();
            }
            Op::Look(number) => {
                // A caller that was told that a record has expired is not told otherwise later; the same holds for
                // any other record that expires no later.
                let states = &self.states[number];
                let told = states.last().and_then(|it| it.as_ref()?.expires_at);
                let Some(told) = told.filter(|at| *at <= now) else { return };
                let is_told = |it: &Option<Value>| {
                    it.as_ref().is_some_and(|it| it.expires_at.is_some_and(|at| at <= told))
                };
                for states in self.states.values_mut() {
                    states.iter_mut().filter(|it| is_told(it)).for_each(|it| *it = None);
                }
            }
            Op::Wait(_) => {}
        }
    }

    fn make_all_durable(&mut self) {
        let clear = self.states.iter_mut().filter(|it| !self.unclear.contains(it.0));
        clear.for_each(|(_, states)| drop(states.drain(..states.len() - 1)));
        self.batches.clear();
    }

    /// Of a batch that may be lost all keys are as it has made them, or later, or none is.
    fn check_batches(&mut self, store: &Bptree, what: &str) {
        for batch in std::mem::take(&mut self.batches) {
            let (mut made, mut lost) = (Vec::new(), Vec::new());
            for (number, at) in batch {
                let found = store.get(&self.key(number)).expect("get");
                let is_it = |state: &Option<Value>| match state {
                    None => found.is_none(),
                    Some(it) => found.as_ref() == Some(&it.bytes) || it.expires_at.is_some(),
                };
                let (before, after) = self.states[&number].split_at(at);
                match (before.iter().any(is_it), after.iter().any(is_it)) {
                    (true, false) => lost.push(number),
                    (false, true) => made.push(number),
                    _ => {}
                }
            }
            assert!(made.is_empty() || lost.is_empty(), "{what}: {made:?} without {lost:?}");
        }
    }

    /// Checks the state of a pool, which is the expected state from here on.
    fn check(&mut self, store: &Bptree, open: Option<&Op>, what: &str) {
        let mut is_made = BTreeSet::new();
        // The operation in flight may have come behind any of them.
        match open {
            Some(Op::Clear) => self.batches.clear(),
            Some(Op::Write(changes) | Op::Relaxed(changes)) => {
                let is_other = |number: u16| changes.iter().all(|it| it.0 != number);
                self.batches.iter_mut().for_each(|batch| batch.retain(|it| is_other(it.0)));
            }
            _ => {}
        }
        self.check_batches(store, what);
        for number in 0..self.world.keys {
            let found = store.get(&self.key(number)).unwrap_or_else(|it| panic!("{what}: {it}"));
            let is_it = |state: &Option<Value>| match state {
                None => found.is_none(),
                // A caller, for example a split, may have been told that an expired record is gone.
                Some(value) => {
                    found.as_ref() == Some(&value.bytes)
                        || found.is_none() && value.expires_at.is_some()
                }
            };
            let new: Option<Option<Value>> = match open {
                Some(Op::Write(changes) | Op::Relaxed(changes)) => {
                    changes.iter().find(|it| it.0 == number).map(|it| it.1.clone())
                }
                Some(Op::Clear) => Some(None),
                _ => None,
            };
            let states = self.states.get_mut(&number).expect("a key");
            // An absent key was deleted, or has expired by a clock that will be set back.
            let mut left: States = states.iter().filter(|it| is_it(it)).cloned().collect();
            left.dedup();
            let new = new.filter(|it| is_it(it));
            if left.is_empty() && new.is_some() {
                is_made.insert(number);
            }
            left.extend(new);
            if left.is_empty() {
                let found = found.map(|it| it.len());
                panic!("{what}: key {number} has {found:?} bytes, not one of {states:.300?}")
            }
            *states = left;
            if states.len() > 1 {
                self.unclear.insert(number);
            } else {
                self.unclear.remove(&number);
            }
        }
        // All of the operation or nothing.
        let all: Changes = match open {
            Some(Op::Write(changes)) => changes.clone(),
            Some(Op::Clear) => (0..self.world.keys).map(|number| (number, None)).collect(),
            _ => Vec::new(),
        };
        if !is_made.is_empty() {
            for (number, value) in all {
                let states = self.states.get_mut(&number).expect("a key");
                assert!(states.contains(&value), "{what}: {number} was not made with {is_made:?}");
                *states = vec![value];
                self.unclear.remove(&number);
            }
        }
        let report = store.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{what}: {report:?}");
        assert_eq!(store.len().expect("len"), report.records, "{what}");
        assert_eq!(store.lost_ranges().expect("doubts"), [], "{what}");
    }

    /// Runs one life; returns the image that the power cut leaves, and the number of operations.
    fn live(&mut self, image: Option<&Image>, life: u64, what: &str) -> (Image, u64) {
        let world = self.world;
        let len = world.pages * 4096;
        let options = SimOptions {
            len,
            max_len: len,
            page_size: 4096,
            model: world.model,
            non_temporal: self.draw.next(2) == 0,
            ..SimOptions::default()
        };
        let mut sim = match image {
            None => Sim::new(&options).expect("memory"),
            Some(image) => image.reopen().expect("memory"),
        };
        // By the clock of the next life.
        self.clock.set(UnixMillis(START + life));
        let space = || Arc::clone(sim.space());
        let store = match image {
            None => Bptree::simulated_create(space(), &self.options()),
            Some(_) => Bptree::simulated_open(space(), &self.options()),
        };
        let mut store = store.unwrap_or_else(|error: Error| panic!("{what}: {error}"));
        if image.is_some() {
            self.check(&store, None, what);
        }
        // The power may go in recovery: then no caller has seen what it found.
        let mut first = if image.is_some() { 0 } else { sim.events() };
        let mut done: Vec<(Op, usize)> = Vec::new();
        let mut kept = (self.states.clone(), self.unclear.clone());
        self.batches.clear();
        for _ in 0..5 + self.draw.next(60) {
            let op = if self.draw.next(80) == 0 { Op::Close } else { self.op() };
            // A refused operation has changed nothing.
            let op = if self.run(&store, &op) { op } else { Op::Wait(0) };
            self.acknowledge(&op);
            let is_close = matches!(op, Op::Close);
            done.push((op, sim.events()));
            if is_close || self.draw.next(60) == 0 {
                // Or killed: every store instruction has taken effect, and a cut takes data that was not flushed.
                drop(store);
                self.make_all_durable();
                first = sim.events();
                done.clear();
                sim = sim.killed().expect("memory");
                store = Bptree::simulated_open(Arc::clone(sim.space()), &self.options())
                    .unwrap_or_else(|error| panic!("{what}, killed: {error}"));
                self.check(&store, None, what);
                kept = (self.states.clone(), self.unclear.clone());
                self.batches.clear();
                first = if is_close { first } else { sim.events() };
            }
        }
        let operations = done.len() as u64;
        let end = sim.events();
        // The cut comes at any event since `first`: most of what matters is in the middle of an operation.
        let at = first + self.draw.next((end - first) as u64 + 1) as usize;
        let eviction = match self.draw.next(5) {
            0 => Eviction::Nothing,
            1 => Eviction::Everything,
            seed => Eviction::Seeded(seed + (life << 8)),
        };
        let cut = sim.crash_at(at, eviction);
        drop(store);
        (self.states, self.unclear) = kept;
        let what = format!("{what}, cut at {at} of {end}");
        (self.go_on(cut, (done, at), (life, &what)), operations)
    }

    /// Opens the image of a cut behind event `at`, given the operations of a life and the events behind which they
    /// returned; returns the image with which the next life begins.
    fn go_on(
        &mut self,
        cut: Image,
        (done, at): (Vec<(Op, usize)>, usize),
        (life, what): (u64, &str),
    ) -> Image {
        // Applies the operations that were acknowledged by then.
        self.batches.clear();
        self.clock.set(UnixMillis(START + life));
        let mut in_flight = None;
        for (op, returned) in done {
            if returned > at {
                in_flight = Some(op);
                break;
            }
            if let Op::Wait(millis) = op {
                self.clock.advance(millis);
            }
            self.acknowledge(&op);
        }
        let sim = cut.reopen().expect("memory");
        let found = Bptree::simulated_open(Arc::clone(sim.space()), &self.options())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        self.check(&found, in_flight.as_ref(), what);
        drop(found);
        // The next life begins with this recovery done, in full, in part, or not at all.
        match self.draw.next(3) {
            0 => cut,
            1 => sim.crash(Eviction::Everything),
            _ => {
                let at = self.draw.next(sim.events() as u64 + 1) as usize;
                sim.crash_at(at, Eviction::Seeded(life))
            }
        }
    }
}

fn lives(world: World, seeds: std::ops::Range<u64>) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let seeds =
        if is_full { seeds.start..seeds.start + 20 * (seeds.end - seeds.start) } else { seeds };
    let mut operations = 0;
    for seed in seeds.clone() {
        let mut pool = Pool::new(world, seed);
        let mut image = None;
        for life in 0..30 {
            let (next, made) =
                pool.live(image.as_ref(), life, &format!("seed {seed}, life {life}"));
            (image, operations) = (Some(next), operations + made);
        }
    }
    assert!(operations > 300 * (seeds.end - seeds.start), "{operations} operations");
}

const WORLD: World =
    World { model: Model::X86, keys: 40, long_in: 0, is_relaxed: false, pages: 40, is_full: false };

#[test]
fn a_pool_lives_through_dozens_of_power_cuts() {
    lives(WORLD, 1..9);
}

#[test]
fn where_a_fence_is_a_sync() {
    lives(World { model: Model::File, ..WORLD }, 101..107);
}

#[test]
fn where_most_writes_are_relaxed() {
    lives(World { is_relaxed: true, ..WORLD }, 201..207);
}

/// Where many writes share a sync: batches come behind splits that are not durable yet.
#[test]
fn where_most_writes_are_relaxed_and_a_fence_is_a_sync() {
    lives(World { model: Model::File, is_relaxed: true, ..WORLD }, 560..568);
}

#[test]
fn where_keys_are_long() {
    lives(World { long_in: 3, pages: 96, ..WORLD }, 301..305);
}

/// Leaves are merged for lack of pages, several at a time.
#[test]
fn where_there_is_no_room() {
    let full = World { keys: 900, pages: 20, is_full: true, ..WORLD };
    lives(full, 601..607);
    lives(World { model: Model::File, is_relaxed: true, ..full }, 621..625);
}

/// A leaf is split and merged all the time, and its pages are soon reused.
#[test]
fn where_pages_are_few() {
    lives(World { keys: 12, pages: 24, ..WORLD }, 401..409);
}
