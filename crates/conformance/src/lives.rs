//! Lives: one pool through dozens of power cuts and kills, with writes between them.
//!
//! # The problem
//!
//! A story with one cut tests whether recovery finds the records that must be there. Whether it has struck out,
//! durably, the parts that do not count shows only when pages were written anew since, and the power went again:
//! what one recovery leaves behind is met by a later one.
//!
//! # The picture
//!
//! ```text
//!  create ─▶ write, read, wait, close, be killed … ─▶ ✂ behind any store ─▶ image ─▶ open ─▶ check
//!            ▲                                                                         │
//!            └── check ◀── open ◀── image with this recovery in full, in part, or not at all
//! ```
//!
//! Each life begins with the image that the last one left, and with the expected state: what each key may be, as
//! far as no check has shown it. A life is drawn as a story and runs to its end; where the power was cut in it is
//! drawn afterwards, mostly in the middle of an operation, and in recovery too. The clock goes on, and is set back at
//! a restart.
//!
//! # What is checked, after each recovery
//!
//! - Every key is as an acknowledged operation, or one that a later cut could have lost, has left it.
//! - The operation in flight, and each batch that may be lost, is there as a whole or not at all.
//! - `verify` finds nothing, `len` is the number of records, no keys are in doubt, and the engine's own
//!   [audit](Subject::audit) passes.
//! - Where tombstones are held, every key that existed once is among the changes.
//!
//! An engine takes part as a [`Subject`]; a test is [`check`] in a [`World`]. `COREPLANE_TEST_SCALE=full` runs more
//! seeds.

mod states;
mod story;

use crate::model::{Clock, ManualClock};
use coreplane_engine::{Engine, Error, Repairable, Replicated, StorageEngine, UnixMillis};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use states::States;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use story::{Author, Op};

/// Lives of each pool.
const LIVES: u64 = 30;

/// The time at the beginning of the first life.
const START: u64 = 1_800_000_000_000;

/// An engine whose pools live.
pub trait Subject {
    /// A store of it.
    type Store: StorageEngine;

    /// The lengths of values that need pages of their own, or nearly.
    const LARGE: Range<u64>;

    /// Makes a store with this time and no threads of its own.
    ///
    /// # Errors
    /// As the engine's; none is expected.
    fn create(&self, space: Arc<Space>, clock: Clock) -> Result<Self::Store, Error>;

    /// Opens a store, as [`Subject::create`] has made it.
    ///
    /// # Errors
    /// As the engine's; none is expected.
    fn open(&self, space: Arc<Space>, clock: Clock) -> Result<Self::Store, Error>;

    /// Compares what the engine keeps in DRAM with the pool, beyond what `verify` does.
    ///
    /// # Errors
    /// What differs.
    fn audit(&self, _store: &Self::Store) -> Result<(), String> {
        Ok(())
    }
}

/// The properties of the pools of a test.
#[derive(Debug, Clone, Copy)]
pub struct World {
    /// What a fence is.
    pub model: Model,
    /// The length of the pool, in pages of 4 KiB.
    pub pages: u64,
    /// Keys, all of which are written all the time.
    pub keys: u16,
    /// One key in this many is long (0: none is).
    pub long_in: u16,
    /// Most writes may be lost until the next sync.
    pub is_relaxed: bool,
    /// The pool has no room for all of its records, none of which is large.
    pub is_full: bool,
    /// Writes have given sequences.
    pub is_given: bool,
    /// All tombstones are held, from the beginning.
    pub holds: bool,
}

impl World {
    /// With room, and writes that are waited for.
    pub const USUAL: Self = Self {
        model: Model::X86,
        pages: 64,
        keys: 40,
        long_in: 0,
        is_relaxed: false,
        is_full: false,
        is_given: false,
        holds: false,
    };

    fn key(&self, number: u16) -> Vec<u8> {
        let key = format!("key-{number:03}").into_bytes();
        let is_long = self.long_in > 0 && number.is_multiple_of(self.long_in);
        if is_long { [vec![b'k'; 460], key].concat() } else { key }
    }
}

/// Leads a pool of each seed through its lives.
///
/// # Panics
/// If a recovery has lost or invented something, with the seed, the life and the cut.
pub fn check<S: Subject>(subject: &S, world: World, seeds: Range<u64>) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let count = if is_full { 20 } else { 1 } * (seeds.end - seeds.start);
    let mut operations = 0;
    for seed in seeds.start..seeds.start + count {
        let mut biography = Biography::new(subject, world, seed);
        let mut image = None;
        for life in 0..LIVES {
            biography.life = life;
            image = Some(biography.live(image.as_ref()));
        }
        operations += biography.operations;
    }
    assert!(operations > 300 * count, "{operations} operations");
}

/// A pool and its past.
struct Biography<'a, S> {
    subject: &'a S,
    world: World,
    seed: u64,
    life: u64,
    author: Author,
    clock: ManualClock,
    states: States,
    /// Keys that existed once.
    known: BTreeSet<u16>,
    /// Operations behind which the power was cut.
    operations: u64,
    /// Seed, life and cut, for messages.
    moment: String,
}

impl<'a, S: Subject> Biography<'a, S> {
    fn new(subject: &'a S, world: World, seed: u64) -> Self {
        Self {
            subject,
            world,
            seed,
            life: 0,
            author: Author::new(world, S::LARGE, seed),
            clock: ManualClock::default(),
            states: States::empty(world.keys),
            known: BTreeSet::new(),
            operations: 0,
            moment: String::new(),
        }
    }

    /// Runs one life on `image`, or on a new pool; returns the image with which the next begins.
    fn live(&mut self, image: Option<&Image>) -> Image {
        self.moment = format!("seed {}, life {}", self.seed, self.life);
        self.clock.set(UnixMillis(START + self.life));
        let mut sim = self.machine(image);
        // The power may go in recovery: then no caller has seen what it found.
        let (mut store, mut first) = match image {
            None => (self.create(&sim), sim.events()),
            Some(_) => (self.open(&sim, None), 0),
        };
        let mut before = self.states.clone();
        let mut story: Vec<(Op, usize)> = Vec::new();
        for _ in 0..5 + self.author.draw.next(60) {
            let op = self.author.op(self.clock.now());
            let op = self.run(&store, op);
            self.states.acknowledge(&op, self.clock.now());
            let is_close = matches!(op, Op::Close);
            story.push((op, sim.events()));
            if is_close || self.author.draw.next(60) == 0 {
                // Or killed: every store instruction has taken effect, and a cut takes data that was not flushed.
                drop(store);
                self.states.make_all_durable();
                let closed = sim.events();
                sim = sim.killed().expect("memory");
                self.moment.push_str(", ended");
                store = self.open(&sim, None);
                first = if is_close { closed } else { sim.events() };
                before = self.states.clone();
                story.clear();
            }
        }
        self.operations += story.len() as u64;
        let end = sim.events();
        // At any event since `first`: most of what matters is in the middle of an operation.
        let at = first + self.author.draw.next((end - first) as u64 + 1) as usize;
        let eviction = match self.author.draw.next(5) {
            0 => Eviction::Nothing,
            1 => Eviction::Everything,
            seed => Eviction::Seeded(seed + (self.life << 8)),
        };
        let cut = sim.crash_at(at, eviction);
        drop(store);
        self.moment = format!("seed {}, life {}, cut at {at} of {end}", self.seed, self.life);
        self.clock.set(UnixMillis(START + self.life));
        self.states = before;
        self.recover(cut, &story, at)
    }

    /// Opens the image of a cut behind event `at`, given the operations and the events behind which they returned.
    fn recover(&mut self, cut: Image, story: &[(Op, usize)], at: usize) -> Image {
        let (acknowledged, rest) = story.split_at(story.partition_point(|(_, end)| *end <= at));
        for (op, _) in acknowledged {
            if let Op::Wait(millis) = op {
                self.clock.advance(*millis);
            }
            self.states.acknowledge(op, self.clock.now());
        }
        let sim = cut.reopen().expect("memory");
        drop(self.open(&sim, rest.first().map(|(op, _)| op)));
        // The next life begins with this recovery done, in full, in part, or not at all.
        match self.author.draw.next(3) {
            0 => cut,
            1 => sim.crash(Eviction::Everything),
            _ => {
                let at = self.author.draw.next(sim.events() as u64 + 1) as usize;
                sim.crash_at(at, Eviction::Seeded(self.life))
            }
        }
    }

    fn machine(&mut self, image: Option<&Image>) -> Sim {
        let len = self.world.pages * 4096;
        let options = SimOptions {
            len,
            max_len: len,
            page_size: 4096,
            model: self.world.model,
            non_temporal: self.author.draw.next(2) == 0,
            ..SimOptions::default()
        };
        image.map_or_else(|| Sim::new(&options), Image::reopen).expect("memory")
    }

    fn create(&self, sim: &Sim) -> S::Store {
        let store = self.subject.create(Arc::clone(sim.space()), self.clock.as_clock());
        let store = store.unwrap_or_else(|error| panic!("{}: {error}", self.moment));
        if self.world.holds {
            store.hold_tombstones(0).expect("held");
        }
        store
    }

    /// Opens a store and checks its state, which is the expected state from here on.
    fn open(&mut self, sim: &Sim, in_flight: Option<&Op>) -> S::Store {
        let moment = &self.moment;
        let store = self.subject.open(Arc::clone(sim.space()), self.clock.as_clock());
        let store = store.unwrap_or_else(|error| panic!("{moment}: {error}"));
        let get = |number| store.get(&self.world.key(number));
        let found = (0..self.world.keys).map(get).collect::<Result<Vec<_>, _>>();
        let found = found.unwrap_or_else(|error| panic!("{moment}: {error}"));
        let in_flight = in_flight.map(|op| op.changes(self.world.keys)).unwrap_or_default();
        self.states.narrow(&found, &in_flight, moment);
        let report = store.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{moment}: {report:?}");
        assert_eq!(store.len().expect("len"), report.records, "{moment}");
        assert_eq!(store.lost_ranges().expect("lost ranges"), [], "{moment}");
        self.subject.audit(&store).unwrap_or_else(|drift| panic!("{moment}: {drift}"));
        if self.world.holds {
            let mut changed = BTreeSet::new();
            let changes = store.changes_since(0, &mut |it| _ = changed.insert(it.key.to_vec()));
            changes.unwrap_or_else(|error| panic!("{moment}: {error}"));
            for number in &self.known {
                let is_there = changed.contains(&self.world.key(*number));
                assert!(is_there, "{moment}: nothing is known of {number}");
            }
            self.known.extend(self.states.existing());
        }
        store
    }

    /// Runs an operation; returns what it has come to.
    fn run(&self, store: &S::Store, op: Op) -> Op {
        let made = match &op {
            Op::Look(number) => store.get(&self.world.key(*number)).map(|found| {
                self.states.look(*number, found.as_ref(), self.clock.now(), &self.moment);
            }),
            Op::Wait(millis) => {
                self.clock.advance(*millis);
                Ok(())
            }
            op => op.make(store, &self.world),
        };
        let may_be_refused = self.world.is_full && op.needs_room();
        match made {
            Ok(()) => op,
            // A refused operation has changed nothing.
            Err(Error::NoSpace { .. }) if may_be_refused => Op::Wait(0),
            Err(error) => panic!("{}, {op:.100?}: {error}", self.moment),
        }
    }
}
