//! A workload of the crash simulator, and the state that it must have after a power cut.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{
    Batch, Completion, Deferred, Durability, Engine, Error, Horizon, Ordered, Outcome, Repairable,
    Ticket, WriteOptions,
};
use coreplane_pmem::media::sim::{History, Run, Sim, SimOptions, Standing, Subject, explore};
use coreplane_pmem::{Space, epoch};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A possible state of a key, and the operation that made it.
type State<'v> = (usize, Option<&'v Vec<u8>>);

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Create,
    /// Changes that are made together: the number of a key, and its value or none.
    Write(Vec<(u16, Option<Vec<u8>>)>),
    Close,
}

/// The key with a number.
pub(crate) type Keys = fn(u16) -> Vec<u8>;

pub(crate) fn short_key(number: u16) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

/// One in three is short. Of the others a record has a part, in which they are all alike. The rests of some are in
/// several pages.
pub(crate) fn long_key(number: u16) -> Vec<u8> {
    let alike = [0, 450, 4700][usize::from(number % 3)];
    [vec![b'k'; alike], short_key(number)].concat()
}

/// One thread, or two with keys of their own.
pub(crate) struct Story {
    pub(crate) seed: u64,
    pub(crate) threads: u16,
    pub(crate) keys: u16,
    pub(crate) key: Keys,
    pub(crate) operations: u64,
    /// The number of operations that share a wait.
    pub(crate) waits_for: u64,
    /// All but one operation in this many are `relaxed` (0: none is).
    pub(crate) strict_in: u64,
    /// One value in this many has pages of its own.
    pub(crate) large_in: u64,
    /// The store is emptied every so many operations (0: never). For one thread.
    pub(crate) clears_in: u64,
    /// The store is closed at the end.
    pub(crate) closes: bool,
    /// The recovered store is written to, and the power is cut in that too.
    pub(crate) goes_on: bool,
    pub(crate) splits: AtomicU64,
    pub(crate) merges: AtomicU64,
    /// Images that were opened with a checkpoint.
    pub(crate) with_checkpoint: AtomicU64,
    /// The effects of the close, or of the last clear.
    pub(crate) done: Mutex<Option<Done>>,
}

pub(crate) struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// The effects of an operation.
pub(crate) struct Done {
    /// The numbers of its fences.
    pub(crate) fences: Range<u64>,
    /// The places of the pages in use that hold data for it.
    pub(crate) pages: Vec<Range<u64>>,
}

impl Done {
    fn of(run: &Run<'_, Op>, kind: u8, operation: impl FnOnce()) -> Self {
        let (_, first) = run.space().flushes_and_fences();
        operation();
        let (_, end) = run.space().flushes_and_fences();
        let guard = epoch::pin();
        let is_of_kind = |page: &u32| {
            let head = run.space().bytes(&guard, run.space().start_of(*page), 8);
            head.is_some_and(|head| head[4] == kind)
        };
        let pages = (1..run.space().pages()).filter(is_of_kind);
        let range = |page| run.space().start_of(page)..run.space().start_of(page + 1);
        Self { fences: first..end, pages: pages.map(range).collect() }
    }
}

impl Story {
    pub(crate) fn new(seed: u64, threads: u16, operations: u64) -> Self {
        Self {
            seed,
            threads,
            keys: 40,
            key: short_key,
            operations,
            waits_for: 1,
            strict_in: 0,
            large_in: 12,
            clears_in: 0,
            closes: seed.is_multiple_of(3),
            goes_on: false,
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            with_checkpoint: AtomicU64::new(0),
            done: Mutex::new(None),
        }
    }

    fn write(&self, run: &Run<'_, Op>, store: &Bptree, thread: u16) {
        let mut draw = Draw(self.seed * 64 + u64::from(thread));
        let completion = if self.waits_for > 1 { Completion::Early } else { Completion::Wait };
        let options = WriteOptions { completion, ..WriteOptions::default() };
        let (mut begun, mut horizon) = (Vec::new(), Horizon::new());
        let mut relaxed = Vec::new();
        for serial in 0..self.operations {
            if self.clears_in > 0 && serial % self.clears_in + 1 == self.clears_in {
                let all = (0..self.keys).map(|number| (number, None)).collect();
                let done = Done::of(run, 0x4c, || {
                    run.acknowledged(Op::Write(all), || store.clear().expect("clear"));
                });
                *self.done.lock().unwrap() = Some(done);
                continue;
            }
            // Some batches are in one leaf, some in many, some fill leaves.
            let count = if draw.next(6) == 0 { 2 + draw.next(16) } else { 1 };
            let mut changes = BTreeMap::new();
            for at in 0..count {
                let number = draw.next(u64::from(self.keys)) as u16 * self.threads + thread;
                changes.insert(number, self.value(&mut draw, serial, at));
            }
            let changes: Vec<_> = changes.into_iter().collect();
            if self.strict_in > 0 && draw.next(self.strict_in) > 0 {
                relaxed.push(run.began(Op::Write(changes.clone())));
                let durability = Some(Durability::RELAXED);
                make(store, self.key, &changes, &WriteOptions { durability, ..options });
                if draw.next(24) == 0 {
                    store.sync().expect("sync");
                    relaxed.drain(..).for_each(|call| call.returned());
                }
                continue;
            }
            begun.push(run.began(Op::Write(changes.clone())));
            horizon.include(make(store, self.key, &changes, &options));
            if serial % self.waits_for == 0 {
                store.wait_durable(&horizon).expect("wait");
                horizon.clear();
                begun.drain(..).for_each(|call| call.returned());
            }
        }
        store.wait_durable(&horizon).expect("wait");
        begun.into_iter().for_each(|call| call.returned());
        if !relaxed.is_empty() {
            store.sync().expect("sync");
            relaxed.into_iter().for_each(|call| call.returned());
        }
    }

    fn value(&self, draw: &mut Draw, serial: u64, at: u64) -> Option<Vec<u8>> {
        // Some are large enough for pages of their own, one or several.
        let len =
            if draw.next(self.large_in) == 0 { 500 + draw.next(9000) } else { 8 + draw.next(300) };
        // Phases of growth and phases of decay.
        let deletes = if (serial / 60).is_multiple_of(2) { 1 } else { 9 };
        let value = (0..len).map(|byte| (serial * 31 + at * 7 + byte) as u8).collect();
        (draw.next(10) >= deletes).then_some(value)
    }
}

/// Makes changes together; returns the ticket.
fn make(
    store: &Bptree,
    key: Keys,
    changes: &[(u16, Option<Vec<u8>>)],
    options: &WriteOptions,
) -> Ticket {
    match changes {
        [(number, Some(value))] => store.put(&key(*number), value, options).expect("put").ticket(),
        [(number, None)] => {
            let outcome = store.delete(&key(*number), options).expect("delete");
            assert!(matches!(outcome, Outcome::Written(_) | Outcome::Missing(_)));
            outcome.ticket()
        }
        several => {
            let mut batch = Batch::new();
            for (number, value) in several {
                match value {
                    Some(value) => batch.put(&key(*number), value),
                    None => batch.delete(&key(*number)),
                };
            }
            store.apply(&batch, options).expect("a batch").ticket
        }
    }
}

/// Closes and opens again, writes beside every key, and opens once more: remains of a crash behind the last record
/// of a leaf must not come to life.
fn live_on(story: &Story, store: Bptree, space: &Arc<Space>) -> Result<Bptree, Error> {
    let open = |space: &Arc<Space>| {
        let sim = Sim::after(space, &options(story.seed)).expect("memory");
        Bptree::simulated_open(Arc::clone(sim.space()), &Options::default())
            .map(|store| (store, Arc::clone(sim.space())))
    };
    store.close()?;
    let (store, space) = open(space)?;
    write_beside(&store, story)?;
    drop(store);
    open(&space).map(|(store, _)| store)
}

/// Writes beside every key, as far as there is room.
fn write_beside(store: &Bptree, story: &Story) -> Result<(), Error> {
    for number in 0..story.keys * story.threads {
        for len in [1, 17] {
            let extra = [(story.key)(number), vec![b'!'; len]].concat();
            match store.put(&extra, b"extra", &WriteOptions::default()) {
                Ok(_) | Err(Error::NoSpace { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Subject for Story {
    type Op = Op;
    type Store = Option<Bptree>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = run.acknowledged(Op::Create, || {
            Bptree::simulated_create(Arc::clone(run.space()), &Options::default()).expect("create")
        });
        run.threads(|threads| {
            for thread in 0..self.threads {
                let store = &store;
                threads.spawn(move || self.write(run, store, thread));
            }
        });
        let figure = |name| store.stats().figure(name).unwrap_or(0);
        self.splits.fetch_add(figure("leaves_split"), Ordering::Relaxed);
        self.merges.fetch_add(figure("leaves_merged"), Ordering::Relaxed);
        if self.closes {
            let done = Done::of(run, 0x43, || {
                run.acknowledged(Op::Close, || store.close().expect("close"));
            });
            *self.done.lock().unwrap() = Some(done);
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Bptree>, String> {
        match Bptree::simulated_open(Arc::clone(space), &Options::default()) {
            Ok(store) if self.goes_on => {
                let with = store.stats().figure("opened_with_checkpoint").unwrap_or(0);
                self.with_checkpoint.fetch_add(with, Ordering::Relaxed);
                let written = write_beside(&store, self);
                written.map(|()| Some(store)).map_err(|error| format!("going on: {error}"))
            }
            Ok(store) if self.seed % 4 == 1 => {
                let store = live_on(self, store, space);
                store.map(Some).map_err(|error| format!("afterwards: {error}"))
            }
            Ok(store) => Ok(Some(store)),
            // `check` tells these errors apart: only before the creation is acknowledged may there be no store.
            Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Bptree>) -> Result<Option<Map>, String> {
        let Some(store) = store else { return Ok(None) };
        if store.stats().figure("checkpoints_damaged") != Some(0) {
            return Err("the root names a checkpoint that is not whole".to_owned());
        }
        let mut map = Map::new();
        let mut take = |entry: coreplane_engine::Entry<'_>| {
            let value = entry.record.map(|record| record.value.to_vec()).unwrap_or_default();
            map.insert(entry.key.to_vec(), value);
            true
        };
        store.scan(b"", None, false, usize::MAX, &mut take).map_err(|error| error.to_string())?;
        for (key, value) in &map {
            let found = store.get(key).map_err(|error| error.to_string())?;
            if found.as_ref() != Some(value) {
                return Err(format!("{key:?} is scanned and not found"));
            }
        }
        let mut backwards = Vec::new();
        let mut take = |entry: coreplane_engine::Entry<'_>| {
            backwards.push(entry.key.to_vec());
            true
        };
        store.scan(b"", None, true, usize::MAX, &mut take).map_err(|error| error.to_string())?;
        backwards.reverse();
        if !backwards.iter().eq(map.keys()) {
            return Err("backwards it is not the same".to_owned());
        }
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        if !report.is_sound() || report.records != map.len() as u64 {
            return Err(format!("{} records, verified {report:?}", map.len()));
        }
        if store.len().map_err(|error| error.to_string())? != map.len() as u64 {
            return Err(format!("{} records, counted {:?}", map.len(), store.len()));
        }
        Ok(Some(map))
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        let Some(map) = contents else {
            let is_created = history.acknowledged().next().is_some();
            return if is_created { Err("the store is lost".to_owned()) } else { Ok(()) };
        };
        // The possible states of each key, by the number of the operation.
        let mut allowed: BTreeMap<u16, Vec<State<'_>>> = BTreeMap::new();
        let mut open = Vec::new();
        for (at, (op, standing)) in (1..).zip(history.operations()) {
            let Op::Write(changes) = op else { continue };
            let is_made = standing == Standing::Acknowledged;
            for (number, value) in changes {
                let states = allowed.entry(*number).or_insert_with(|| vec![(0, None)]);
                if is_made {
                    states.clear();
                }
                states.push((at, value.as_ref()));
            }
            if !is_made {
                open.push((at, changes));
            }
        }
        // The operations that can have left a key in its present state.
        let makers = |number: &u16| {
            let found = map.get(&(self.key)(*number));
            let states = allowed.get(number).into_iter().flatten();
            states.filter(move |(_, state)| *state == found).map(|(at, _)| *at)
        };
        for (number, states) in &allowed {
            if makers(number).next().is_none() {
                let key = (self.key)(*number);
                let found = map.get(&key).map(Vec::len);
                let states: Vec<_> = states.iter().map(|(_, it)| it.map(Vec::len)).collect();
                let key = String::from_utf8_lossy(&key).into_owned();
                return Err(format!("{key} has {found:?} bytes, not one of {states:?}"));
            }
        }
        for (at, changes) in open {
            // All of the operation or nothing.
            let is_made = |(number, _): &(u16, _)| makers(number).all(|maker| maker == at);
            let may_be_made = |(number, _): &(u16, _)| makers(number).any(|maker| maker >= at);
            if changes.iter().any(is_made) && !changes.iter().all(may_be_made) {
                let keys = || changes.iter().map(|(number, _)| number);
                let made: Vec<Vec<usize>> = keys().map(|it| makers(it).collect()).collect();
                let keys: Vec<&u16> = keys().collect();
                return Err(format!("operation {at} on {keys:?} was made in part, by {made:?}"));
            }
        }
        let names: BTreeSet<Vec<u8>> = allowed.keys().map(|number| (self.key)(*number)).collect();
        match map.keys().find(|key| !key.ends_with(b"!") && !names.contains(*key)) {
            Some(key) => Err(format!("{key:?} was never written")),
            None => Ok(()),
        }
    }
}

pub(crate) fn options(seed: u64) -> SimOptions {
    SimOptions {
        len: 512 << 10,
        max_len: 512 << 10,
        page_size: 4096,
        seed,
        images_per_cut: 12,
        recovery_cut_in: 20,
        images_per_recovery_cut: 2,
        checkers: 2,
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

pub(crate) fn explored(story: &Story, options: &SimOptions) -> usize {
    let report = explore(options, story);
    let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
    assert!(messages.is_empty(), "seed {}: {messages:.300?}", story.seed);
    report.images as usize
}
