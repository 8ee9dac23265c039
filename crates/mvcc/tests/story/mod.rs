//! A workload of the crash simulator, and the records that must exist after a power cut.

use coreplane_conformance::model::ManualClock;
use coreplane_engine::{
    Batch, Completion, Deferred, Durability, Engine, Error, Horizon, Ordered, Repairable, Snapshot,
    Snapshots, Ticket, UnixMillis, WriteOptions,
};
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Run, Sim, SimOptions, Standing, Subject, explore};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) const KINDS: [MapKind; 2] = MapKind::ALL;

/// The time when a store is created, and at each recovery.
const START: u64 = 1_800_000_000_000;

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    bytes: Vec<u8>,
    expires_at: Option<u64>,
}

type Changes = Vec<(u16, Option<Value>)>;

/// A possible state of a key, and the operation that made it.
type State<'v> = (usize, Option<&'v Value>);

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Create,
    /// Changes that are made together: a key's number, and its value or none.
    Write(Changes),
    Close,
}

fn key(number: u16) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

/// One thread, or two with keys of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Story {
    pub(crate) kind: MapKind,
    pub(crate) seed: u64,
    pub(crate) threads: u16,
    pub(crate) keys: u16,
    pub(crate) operations: u64,
    /// So many operations share a wait.
    pub(crate) waits_for: u64,
    /// All but one operation in so many are `relaxed` (0: none is).
    pub(crate) strict_in: u64,
    /// One value in so many has pages of its own (0: none has).
    pub(crate) large_in: u64,
    /// One operation in so many is a batch (0: none is).
    pub(crate) batch_in: u64,
    /// Every so many operations the store is emptied (0: never). Of one thread.
    pub(crate) clears_in: u64,
    /// Every so many operations a snapshot is taken, and the one before it goes (0: never).
    pub(crate) pins_in: u64,
    /// Of ten changes so many are deletes.
    pub(crate) deletes: u64,
    /// One value in so many expires (0: none does). Of one thread.
    pub(crate) expires_in: u64,
    /// Tombstones are held, as for a replica.
    pub(crate) holds: bool,
    pub(crate) closes: bool,
    /// Writes may find no room.
    pub(crate) is_full: bool,
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    /// True once in so many; never of 0.
    fn hits(&mut self, once_in: u64) -> bool {
        once_in > 0 && self.next(once_in) == 0
    }
}

fn options_at(clock: &ManualClock) -> Options {
    Options {
        time: Some(clock.as_clock()),
        background: false,
        check_reads: true,
        ..Options::default()
    }
}

fn at_start() -> ManualClock {
    ManualClock::starting_at(UnixMillis(START))
}

fn scan(show: impl FnOnce(&mut dyn FnMut(coreplane_engine::Entry<'_>) -> bool)) -> Map {
    let mut map = Map::new();
    show(&mut |entry| {
        let value = entry.record.map(|record| record.value.to_vec()).unwrap_or_default();
        map.insert(entry.key.to_vec(), value);
        true
    });
    map
}

/// A snapshot, and the records that it showed first.
struct Pin {
    snapshot: Box<dyn Snapshot>,
    shown: Map,
}

impl Pin {
    fn new(store: &MapEngine) -> Self {
        let snapshot = store.snapshot().expect("a snapshot");
        let shown = Self::scan(&*snapshot);
        Self { snapshot, shown }
    }

    fn scan(snapshot: &dyn Snapshot) -> Map {
        scan(|take| snapshot.scan(b"", None, false, usize::MAX, take).expect("a scan"))
    }

    /// Checks that it shows the same records, except those that have expired.
    fn check(&self, may_expire: bool) {
        let now = Self::scan(&*self.snapshot);
        for (key, value) in &now {
            let mut is_it = false;
            let got = self.snapshot.get_with(key, &mut |record| is_it = record.value.equals(value));
            assert!(got.expect("get") && is_it);
        }
        if may_expire {
            assert!(now.iter().all(|(key, value)| self.shown.get(key) == Some(value)));
        } else {
            assert!(now == self.shown, "a snapshot has changed");
        }
    }
}

impl Story {
    pub(crate) fn new(kind: MapKind, seed: u64, operations: u64) -> Self {
        Self {
            kind,
            seed,
            threads: 1 + (seed % 2) as u16,
            keys: 24,
            operations,
            waits_for: 1,
            strict_in: 0,
            large_in: 14,
            batch_in: 6,
            clears_in: 0,
            pins_in: 0,
            deletes: 2,
            expires_in: 0,
            holds: false,
            closes: seed.is_multiple_of(3),
            is_full: false,
        }
    }

    fn changes(&self, draw: &mut Draw, serial: u64, thread: u16, clock: &ManualClock) -> Changes {
        let count = if draw.hits(self.batch_in) { 2 + draw.next(14) } else { 1 };
        let mut changes = BTreeMap::new();
        for at in 0..count {
            let number = draw.next(u64::from(self.keys)) as u16 * self.threads + thread;
            let is_large = draw.hits(self.large_in);
            let len = if is_large { 2100 + draw.next(9000) } else { 8 + draw.next(400) };
            let bytes = (0..len).map(|byte| (serial * 31 + at * 7 + byte) as u8).collect();
            let expires_at = draw.hits(self.expires_in).then(|| clock.now().0 + 1 + draw.next(20));
            let value = Value { bytes, expires_at };
            changes.insert(number, (draw.next(10) >= self.deletes).then_some(value));
        }
        changes.into_iter().collect()
    }

    fn write(&self, run: &Run<'_, Op>, store: &MapEngine, thread: u16, clock: &ManualClock) {
        let mut draw = Draw(self.seed * 64 + u64::from(thread));
        let completion = if self.waits_for > 1 { Completion::Early } else { Completion::Wait };
        let options = WriteOptions { completion, ..WriteOptions::default() };
        let (mut begun, mut horizon) = (VecDeque::new(), Horizon::new());
        let (mut relaxed, mut pin): (Vec<_>, Option<Pin>) = (Vec::new(), None);
        for serial in 0..self.operations {
            if self.clears_in > 0 && serial % self.clears_in + 1 == self.clears_in {
                let all = (0..self.keys).map(|number| (number, None)).collect();
                run.acknowledged(Op::Write(all), || store.clear().expect("clear"));
                continue;
            }
            if self.pins_in > 0 && serial % self.pins_in == 0 {
                if let Some(pin) = &pin {
                    pin.check(self.expires_in > 0);
                }
                pin = Some(Pin::new(store));
            }
            if self.expires_in > 0 {
                clock.advance(draw.next(4));
                self.look(run, store, &mut draw);
            }
            let changes = self.changes(&mut draw, serial, thread, clock);
            if self.strict_in > 0 && draw.next(self.strict_in) > 0 {
                let call = run.began(Op::Write(changes.clone()));
                let durability = Some(Durability::RELAXED);
                match make(store, &changes, &WriteOptions { durability, ..options }) {
                    Some(_) => relaxed.push(call),
                    None => call.refused(),
                }
                if draw.next(24) == 0 {
                    store.sync().expect("sync");
                    relaxed.drain(..).for_each(|call| call.returned());
                }
                continue;
            }
            let call = run.began(Op::Write(changes.clone()));
            match make(store, &changes, &options) {
                Some(ticket) => {
                    horizon.include(ticket);
                    begun.push_back((ticket, call));
                }
                None => {
                    assert!(self.is_full, "there is room");
                    call.refused();
                }
            }
            if serial % self.waits_for == 0 {
                store.wait_durable(&horizon).expect("wait");
                horizon.clear();
            }
            // Some may be durable without a wait.
            let is_durable = |ticket| store.is_durable(&Horizon::from(ticket)).expect("durable");
            while let Some((_, call)) = begun.pop_front_if(|it: &mut (Ticket, _)| is_durable(it.0))
            {
                call.returned();
            }
        }
        store.wait_durable(&horizon).expect("wait");
        begun.into_iter().for_each(|(_, call)| call.returned());
        if !relaxed.is_empty() {
            store.sync().expect("sync");
            relaxed.into_iter().for_each(|call| call.returned());
        }
    }

    /// A reader that was told that a record has expired is not told otherwise.
    fn look(&self, run: &Run<'_, Op>, store: &MapEngine, draw: &mut Draw) {
        let number = draw.next(u64::from(self.keys)) as u16;
        let call = run.began(Op::Write(vec![(number, None)]));
        match store.get(&key(number)).expect("get") {
            None => call.returned(),
            Some(_) => call.refused(),
        }
    }
}

/// Makes changes together; returns the ticket, or none if there is no room.
fn make(store: &MapEngine, changes: &Changes, options: &WriteOptions) -> Option<Ticket> {
    let made = match changes.as_slice() {
        [(number, Some(value))] => {
            let expires_at = value.expires_at.map(UnixMillis);
            let options = WriteOptions { expires_at, ..*options };
            store.put(&key(*number), &value.bytes, &options).map(|it| it.ticket())
        }
        [(number, None)] => store.delete(&key(*number), options).map(|it| it.ticket()),
        several => {
            let mut batch = Batch::new();
            for (number, value) in several {
                match value {
                    Some(Value { bytes, expires_at }) => {
                        batch.put_until(&key(*number), bytes, expires_at.map(UnixMillis))
                    }
                    None => batch.delete(&key(*number)),
                };
            }
            store.apply(&batch, options).map(|it| it.ticket)
        }
    };
    match made {
        Ok(ticket) => Some(ticket),
        Err(Error::NoSpace { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Closes and opens again, writes beside every key, and opens once more: records that a crash has left behind the
/// last one must not come to life.
fn live_on(story: &Story, store: MapEngine, space: &Arc<Space>) -> Result<MapEngine, Error> {
    let open = |space: &Arc<Space>| {
        let sim = Sim::after(space, &options(story.seed, 1 << 20)).expect("memory");
        MapEngine::simulated_open(story.kind, Arc::clone(sim.space()), &options_at(&at_start()))
            .map(|store| (store, Arc::clone(sim.space())))
    };
    let needed = audited(&store);
    store.close()?;
    drop(store);
    let (store, space) = open(space)?;
    assert_eq!(needed, audited(&store), "bytes that live, counted by a fresh opening");
    for number in 0..story.keys * story.threads {
        let extra = [key(number), b"!".to_vec()].concat();
        match store.put(&extra, b"extra", &WriteOptions::default()) {
            Ok(_) | Err(Error::NoSpace { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    drop(store);
    open(&space).map(|(store, _)| store)
}

/// Live bytes, after all counts were found to be right.
pub(crate) fn audited(store: &MapEngine) -> u64 {
    store.audit().unwrap_or_else(|drift| panic!("{drift}"))
}

impl Subject for Story {
    type Op = Op;
    type Store = Option<MapEngine>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let clock = at_start();
        let options = options_at(&clock);
        let store = run.acknowledged(Op::Create, || {
            MapEngine::simulated_create(self.kind, Arc::clone(run.space()), &options)
                .expect("create")
        });
        if self.holds {
            let replicated: &dyn coreplane_engine::Replicated = &store;
            replicated.hold_tombstones(1).expect("held");
        }
        run.threads(|threads| {
            for thread in 0..self.threads {
                let (store, clock) = (&store, &clock);
                threads.spawn(move || self.write(run, store, thread, clock));
            }
        });
        audited(&store);
        if self.closes {
            run.acknowledged(Op::Close, || store.close().expect("close"));
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<MapEngine>, String> {
        match MapEngine::simulated_open(self.kind, Arc::clone(space), &options_at(&at_start())) {
            Ok(store) if self.seed % 4 == 1 => {
                let store = live_on(self, store, space);
                store.map(Some).map_err(|error| format!("afterwards: {error}"))
            }
            Ok(store) => Ok(Some(store)),
            // Distinguished by `check`: only before the creation is acknowledged may there be none.
            Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<MapEngine>) -> Result<Option<Map>, String> {
        let Some(store) = store else { return Ok(None) };
        let map = scan(|take| store.scan(b"", None, false, usize::MAX, take).expect("a scan"));
        for (key, value) in &map {
            let found = store.get(key).map_err(|error| error.to_string())?;
            if found.as_ref() != Some(value) {
                return Err(format!("{key:?} is scanned and not found"));
            }
        }
        let back = scan(|take| store.scan(b"", None, true, usize::MAX, take).expect("a scan"));
        if back != map {
            return Err("backwards it is not the same".to_owned());
        }
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        let len = store.len().map_err(|error| error.to_string())?;
        let is_all = self.expires_in > 0 || len == map.len() as u64;
        if !report.is_sound() || report.records != len || !is_all {
            return Err(format!("{} records, {len} counted, verified {report:?}", map.len()));
        }
        audited(store);
        // How many of those have found room does not matter.
        let map = map.into_iter().filter(|(key, _)| !key.ends_with(b"!")).collect();
        Ok(Some(map))
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        let Some(map) = contents else {
            let is_created = history.acknowledged().next().is_some();
            return if is_created { Err("the store is lost".to_owned()) } else { Ok(()) };
        };
        // The possible states of each key, with the number of the operation.
        let mut allowed: BTreeMap<u16, Vec<State<'_>>> = BTreeMap::new();
        let mut open = Vec::new();
        for (at, (op, standing)) in (1..).zip(history.operations()) {
            let Op::Write(changes) = op else { continue };
            if standing == Standing::Refused {
                continue;
            }
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
        // The operations that can have left a key in its state.
        let makers = |number: &u16| {
            let found = map.get(&key(*number));
            let states = allowed.get(number).into_iter().flatten();
            let is_it = move |(_, state): &&State<'_>| match state {
                None => found.is_none(),
                Some(value) => {
                    found == Some(&value.bytes) || found.is_none() && value.expires_at.is_some()
                }
            };
            states.filter(is_it).map(|(at, _)| *at)
        };
        for (number, states) in &allowed {
            if makers(number).next().is_none() {
                let found = map.get(&key(*number)).map(Vec::len);
                let states: Vec<_> =
                    states.iter().map(|(at, it)| (at, it.map(|it| it.bytes.len()))).collect();
                return Err(format!("{number} has {found:?} bytes, not one of {states:?}"));
            }
        }
        for (at, changes) in open {
            // All of it or nothing.
            let is_made = |(number, _): &(u16, _)| makers(number).all(|maker| maker == at);
            let may_be_made = |(number, _): &(u16, _)| makers(number).any(|maker| maker >= at);
            if changes.iter().any(is_made) && !changes.iter().all(may_be_made) {
                let made = changes.iter().map(|it| (it.0, makers(&it.0).collect::<Vec<_>>()));
                let made: Vec<_> = made.collect();
                return Err(format!("operation {at} was made in part, by {made:?}"));
            }
        }
        let names: BTreeSet<Vec<u8>> = allowed.keys().map(|number| key(*number)).collect();
        match map.keys().find(|key| !names.contains(*key)) {
            Some(key) => Err(format!("{key:?} was never written")),
            None => Ok(()),
        }
    }
}

pub(crate) fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

pub(crate) fn options(seed: u64, len: u64) -> SimOptions {
    SimOptions {
        len,
        max_len: len,
        page_size: 4096,
        seed,
        images_per_cut: if is_full_scale() { 8 } else { 3 },
        recovery_cut_in: 20,
        images_per_recovery_cut: 3,
        checkers: 2,
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

pub(crate) fn explored(story: &Story, options: &SimOptions) -> usize {
    let report = explore(options, story);
    let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
    assert!(messages.is_empty(), "{:?} {story:?}: {messages:.400?}", options.model);
    report.images as usize
}
