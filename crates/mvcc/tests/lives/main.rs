//! One pool that lives through dozens of power cuts and kills, with writes between them: work that one recovery
//! leaves undone shows in a later one.
//!
//! A story with one cut checks whether recovery finds the records that must be there. Whether it has durably removed
//! the records that do not count shows only when pages were written anew since, and the power was cut again. So here
//! each life begins with the image that the last one left; the power is cut behind any store, in recovery too; and
//! the state that a life has shown is the one with which the next begins. The clock goes on, and is set back at a
//! restart.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

mod ops;
mod verdict;

use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Error, Replicated, UnixMillis};
use coreplane_mvcc::{MapEngine, MapKind};
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const KINDS: [MapKind; 2] = MapKind::ALL;

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
    /// May be lost until the next sync.
    Relaxed(Changes),
    Sync,
    Clear,
    /// Replaces expired records by tombstones.
    Sweep,
    Look(u16),
    Wait(u64),
    Close,
}

/// The properties of the pools of a test.
#[derive(Clone, Copy)]
struct World {
    kind: MapKind,
    model: Model,
    keys: u16,
    /// All tombstones stay.
    holds: bool,
    /// Sequences are given.
    is_given: bool,
    is_relaxed: bool,
    pages: u64,
    /// It has no room for all of its records, none of which is large.
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

/// A pool, and its known states.
struct Pool {
    world: World,
    draw: Draw,
    clock: ManualClock,
    states: BTreeMap<u16, States>,
    /// Keys that were absent after a cut, for one of several reasons: which of their states is the newest is unknown.
    unclear: BTreeSet<u16>,
    /// Batches that may be lost, as a whole: for each key, the state that they have made.
    batches: Vec<Vec<(u16, usize)>>,
    serial: u64,
    /// Keys that existed once.
    known: BTreeSet<u16>,
}

impl Pool {
    fn new(world: World, seed: u64) -> Self {
        let states = (0..world.keys).map(|number| (number, vec![None])).collect();
        let clock = ManualClock::starting_at(UnixMillis(START));
        let (draw, unclear) = (Draw(seed << 8), BTreeSet::new());
        Self {
            world,
            draw,
            clock,
            states,
            unclear,
            batches: Vec::new(),
            serial: 0,
            known: BTreeSet::new(),
        }
    }

    /// Runs a life; returns what a power cut leaves of it, and the number of operations.
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
        // With the same clock as the recovery that follows.
        self.clock.set(UnixMillis(START + life));
        let space = || Arc::clone(sim.space());
        let store = match image {
            None => MapEngine::simulated_create(world.kind, space(), &self.options()),
            Some(_) => MapEngine::simulated_open(world.kind, space(), &self.options()),
        };
        let mut store = store.unwrap_or_else(|error: Error| panic!("{what}: {error}"));
        if image.is_some() {
            self.check(&store, None, what);
        } else if world.holds {
            store.hold_tombstones(0).expect("held");
        }
        // The power may be cut in recovery: then no reader has seen what it found.
        let mut first = if image.is_some() { 0 } else { sim.events() };
        let mut done: Vec<(Op, usize)> = Vec::new();
        let mut kept = (self.states.clone(), self.unclear.clone());
        self.batches.clear();
        for _ in 0..5 + self.draw.next(60) {
            let op = if self.draw.next(80) == 0 { Op::Close } else { self.op() };
            // An operation that was refused has changed nothing.
            let op = if self.run(&store, &op) { op } else { Op::Wait(0) };
            self.acknowledge(&op);
            let is_close = matches!(op, Op::Close);
            done.push((op, sim.events()));
            if is_close || self.draw.next(60) == 0 {
                // Or killed: everything that was stored is there, and a cut takes what was not flushed.
                drop(store);
                self.make_all_durable();
                first = sim.events();
                done.clear();
                sim = sim.killed().expect("memory");
                store = MapEngine::simulated_open(
                    self.world.kind,
                    Arc::clone(sim.space()),
                    &self.options(),
                )
                .unwrap_or_else(|error| panic!("{what}, killed: {error}"));
                self.check(&store, None, what);
                kept = (self.states.clone(), self.unclear.clone());
                self.batches.clear();
                first = if is_close { first } else { sim.events() };
            }
        }
        let operations = done.len() as u64;
        let end = sim.events();
        // Most cuts should be in an operation, where they matter.
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

    /// Opens what a cut after so many events has left of the operations of a life, each of which returns after its
    /// own events; returns the image with which the next life begins.
    fn go_on(
        &mut self,
        cut: Image,
        (done, at): (Vec<(Op, usize)>, usize),
        (life, what): (u64, &str),
    ) -> Image {
        // The operations that were acknowledged by then.
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
        let found =
            MapEngine::simulated_open(self.world.kind, Arc::clone(sim.space()), &self.options())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        self.check(&found, in_flight.as_ref(), what);
        drop(found);
        // The next life begins with this recovery done in full, in part, or not at all.
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
    KINDS.into_iter().for_each(|kind| live(World { kind, ..world }, seeds.clone()));
}

fn live(world: World, seeds: std::ops::Range<u64>) {
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

const WORLD: World = World {
    kind: KINDS[0],
    model: Model::X86,
    keys: 40,
    holds: false,
    is_given: false,
    is_relaxed: false,
    pages: 64,
    is_full: false,
};

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

/// Many writes share a sync: batches come behind pages whose lives are not durable yet.
#[test]
fn where_most_writes_are_relaxed_and_a_fence_is_a_sync() {
    lives(World { model: Model::File, is_relaxed: true, ..WORLD }, 560..568);
}

/// The fate of every key that ever existed is known.
#[test]
fn where_tombstones_are_held() {
    for (model, seeds) in [(Model::X86, 301..304), (Model::File, 311..314)] {
        let is_given = model == Model::File;
        lives(World { model, holds: true, is_given, pages: 48, ..WORLD }, seeds);
    }
}

#[test]
fn where_sequences_are_given() {
    lives(World { is_given: true, ..WORLD }, 331..334);
}

#[test]
fn where_there_is_no_room() {
    let full = World { keys: 300, pages: 22, is_full: true, ..WORLD };
    lives(full, 601..607);
    lives(World { model: Model::File, is_relaxed: true, ..full }, 621..625);
}

/// The cleaner works all the time.
#[test]
fn where_pages_are_few() {
    for (model, seeds) in [(Model::X86, 401..405), (Model::File, 411..415)] {
        lives(World { model, keys: 8, pages: 36, ..WORLD }, seeds);
    }
}
