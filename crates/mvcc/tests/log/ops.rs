//! The operations on a log.

use crate::model::{Bytes, Contents, Entry, State, contents};
use coreplane_engine::{Batch, Error};
use coreplane_mvcc::{
    ENTRY_HEADER_MAX, LogMap, LogSnapshot, MEMBERS_MAX, MapKind, Options, SnapshotRecord,
};
use coreplane_pmem::media::sim::{Model, SimOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    pub(crate) kind: MapKind,
    pub(crate) model: Model,
    pub(crate) keys: u64,
    pub(crate) pages: u64,
    pub(crate) page_size: u32,
    /// One value in so many has pages of its own (0: none has).
    pub(crate) large_in: u64,
    /// One operation in so many is a commit.
    pub(crate) commit_in: u64,
    /// One operation in so many begins to install a snapshot (0: none does).
    pub(crate) install_in: u64,
    /// One operation in so many takes a snapshot (0: none does).
    pub(crate) pin_in: u64,
    /// One operation in so many rolls back.
    pub(crate) roll_back_in: u64,
    /// Entries may find no room.
    pub(crate) is_full: bool,
}

pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    pub(crate) fn hits(&mut self, once_in: u64) -> bool {
        once_in > 0 && self.next(once_in) == 0
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Append(Entry, bool),
    Apply(u64),
    RollBack(u64),
    Vote(u64, u64),
    Members(Vec<u8>),
    Commit,
    BeginInstall(u64),
    Install(Contents),
    EndInstall(u64, Vec<u8>, Contents),
    Pin,
    Unpin,
    Look,
}

/// A log, and its expected state.
pub(crate) struct Driver {
    pub(crate) world: World,
    pub(crate) draw: Draw,
    pub(crate) state: State,
    serial: u64,
    pins: Vec<(LogSnapshot, Contents)>,
    /// The installation under way: the timestamp, and the records installed so far.
    install: Option<(u64, Contents)>,
}

pub(crate) fn options() -> Options {
    Options { background: false, check_reads: true, ..Options::default() }
}

pub(crate) fn sim_options(world: &World, seed: u64) -> SimOptions {
    let len = world.pages * u64::from(world.page_size);
    SimOptions {
        len,
        max_len: len,
        page_size: world.page_size,
        model: world.model,
        seed,
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

impl Driver {
    pub(crate) fn new(world: World, seed: u64) -> Self {
        let draw = Draw(seed << 8);
        Self { world, draw, state: State::default(), serial: 0, pins: Vec::new(), install: None }
    }

    /// A log was opened: nothing is pinned, and no installation is under way.
    pub(crate) fn begin(&mut self, state: State) {
        self.state = state;
        self.pins.clear();
        self.install = None;
    }

    pub(crate) fn forget_pins(&mut self) {
        self.pins.clear();
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key-{:03}", self.draw.next(self.world.keys)).into_bytes()
    }

    fn value(&mut self) -> Bytes {
        self.serial += 1;
        let size = u64::from(self.world.page_size);
        let len = match self.draw.hits(self.world.large_in) {
            true => size / 2 + self.draw.next(2 * size),
            false => self.draw.next(size / 16),
        };
        let serial = self.serial;
        Arc::new((0..len).map(|at| (serial * 31 + at) as u8).collect())
    }

    fn entry(&mut self) -> Entry {
        let count = match self.draw.next(8) {
            0 => 0,
            1 => 2 + self.draw.next(12),
            2 if self.draw.next(4) == 0 => 10 + self.draw.next(40),
            _ => 1,
        };
        let mut changes = BTreeMap::new();
        for _ in 0..count {
            let value = (self.draw.next(10) > 2).then(|| self.value());
            changes.insert(self.key(), value);
        }
        let header = self.header();
        Entry { header, changes }
    }

    fn header(&mut self) -> Vec<u8> {
        self.serial += 1;
        let most = if self.draw.next(10) == 0 { ENTRY_HEADER_MAX as u64 + 1 } else { 20 };
        vec![self.serial as u8; self.draw.next(most) as usize]
    }

    pub(crate) fn op(&mut self) -> Op {
        let World { commit_in, install_in, pin_in, roll_back_in, .. } = self.world;
        if self.draw.hits(commit_in) {
            return Op::Commit;
        }
        if self.state.is_installing {
            return self.op_of_install();
        }
        if self.draw.hits(install_in) {
            return Op::BeginInstall(self.state.applied + 1 + self.draw.next(9));
        }
        if self.draw.hits(pin_in) {
            return if self.pins.len() < 2 { Op::Pin } else { Op::Unpin };
        }
        let (applied, newest) = (self.state.applied, self.state.newest());
        if self.draw.hits(roll_back_in) {
            return Op::RollBack(applied + self.draw.next(newest - applied + 1));
        }
        match self.draw.next(30) {
            0 => Op::Look,
            1 => self.vote(),
            2 if self.draw.next(4) == 0 => self.members(),
            3..12 => Op::Apply(applied + self.draw.next(newest - applied + 1)),
            _ => {
                let uses_reserve = self.draw.next(2) == 0;
                Op::Append(self.entry(), uses_reserve)
            }
        }
    }

    fn vote(&mut self) -> Op {
        let State { term, vote, .. } = self.state;
        match self.draw.next(3) {
            0 if vote == 0 => Op::Vote(term, 1 + self.draw.next(3)),
            1 => Op::Vote(term + 1, 0),
            _ => Op::Vote(term + 1 + self.draw.next(2), 1 + self.draw.next(3)),
        }
    }

    fn members(&mut self) -> Op {
        let most = if self.draw.next(5) == 0 { MEMBERS_MAX as u64 + 1 } else { 60 };
        let len = self.draw.next(most) as usize;
        self.serial += 1;
        Op::Members(vec![self.serial as u8; len])
    }

    fn op_of_install(&mut self) -> Op {
        // The applied state at a timestamp is the same everywhere; the one drawn here is not.
        let least = self.state.applied.max(1) + u64::from(!self.pins.is_empty());
        let Some((timestamp, installed)) = self.install.clone() else {
            return Op::BeginInstall(least + self.draw.next(9));
        };
        match self.draw.next(8) {
            0 => self.vote(),
            1 if self.draw.next(4) == 0 => Op::BeginInstall(least + self.draw.next(9)),
            2 | 3 => Op::EndInstall(timestamp, self.header(), installed),
            _ => {
                let mut more = Contents::new();
                for _ in 0..self.draw.next(12) {
                    let (key, version) = (self.key(), 1 + self.draw.next(timestamp));
                    if !installed.contains_key(&key) {
                        more.insert(key, (self.value(), version));
                    }
                }
                Op::Install(more)
            }
        }
    }

    /// Changes for which appends leave pages find room, unless snapshots hold the dead records. Then nothing has
    /// changed, and they find room as soon as the snapshots are gone.
    fn unpinned_if_full(&mut self, log: &LogMap, call: impl Fn() -> Result<(), Error>) {
        let before = log.control();
        match call() {
            Err(Error::NoSpace { .. }) if self.world.is_full && !self.pins.is_empty() => {
                assert_eq!(log.control(), before);
                self.pins.clear();
                call().expect("room without snapshots");
            }
            called => called.expect("room"),
        }
    }

    /// Runs an operation on the log and the model; false if there was no room.
    pub(crate) fn run(&mut self, log: &LogMap, op: &Op) -> bool {
        let is_full = self.world.is_full;
        let made = |made: Result<(), Error>| match made {
            Err(Error::NoSpace { .. }) if is_full => false,
            made => made.map(|()| true).expect("it can be done"),
        };
        match op {
            Op::Append(entry, uses_reserve) => {
                let batch = batch_of(entry);
                let next = self.state.newest() + 1;
                if !made(log.append(next, &entry.header, &batch, *uses_reserve)) {
                    return false;
                }
            }
            Op::Apply(to) => self.unpinned_if_full(log, || log.apply(*to)),
            Op::RollBack(to) => self.unpinned_if_full(log, || log.roll_back(*to)),
            Op::Vote(term, vote) => self.unpinned_if_full(log, || log.set_vote(*term, *vote)),
            Op::Members(members) => self.unpinned_if_full(log, || log.set_members(members)),
            Op::Commit => {
                let ticket = log.commit().expect("commit");
                log.wait_durable(ticket).expect("durable");
                assert!(log.is_durable(ticket).expect("durable"));
            }
            Op::BeginInstall(timestamp) => {
                self.unpinned_if_full(log, || log.begin_install(*timestamp));
                self.install = Some((*timestamp, Contents::new()));
            }
            Op::Install(more) => {
                for (key, (value, timestamp)) in more {
                    let (value, timestamp) = (value.as_slice(), *timestamp);
                    let record = SnapshotRecord { key, value, timestamp, expires_at: None };
                    if made(log.install([record])) {
                        let installed = &mut self.install.as_mut().expect("begun").1;
                        installed.insert(key.clone(), more[key].clone());
                    }
                }
            }
            Op::EndInstall(_, header, _) => {
                let end = || log.end_install(header, b"members of a snapshot");
                self.unpinned_if_full(log, end);
                self.install = None;
            }
            Op::Pin => {
                let snapshot = log.snapshot().expect("snapshot");
                assert_eq!(snapshot.timestamp(), self.state.applied);
                assert_eq!(snapshot.header(), self.state.applied_header);
                self.pins.push((snapshot, self.state.map.clone()));
            }
            Op::Unpin => drop(self.pins.remove(self.draw.next(2) as usize)),
            Op::Look => self.look(log),
        }
        self.state.make(op);
        true
    }

    /// Checks the log and all snapshots against the model.
    pub(crate) fn look(&self, log: &LogMap) {
        assert_eq!(State::of(log), self.state);
        for (snapshot, map) in &self.pins {
            let records = snapshot.records();
            let shown =
                contents(|take| records.scan(b"", None, false, usize::MAX, take).expect("scan"));
            assert!(shown == *map, "a snapshot has changed");
        }
        for (key, (value, _)) in self.state.map.iter().take(5) {
            assert!(log.get(key).expect("get").as_ref() == Some(&**value));
        }
        let oldest = self.pins.iter().map(|it| it.0.timestamp()).min().unwrap_or(u64::MAX);
        assert_eq!(log.control().purged, oldest.min(self.state.applied));
        log.audit().unwrap_or_else(|drift| panic!("{drift}"));
    }
}

impl State {
    /// Applies an operation to the state.
    pub(crate) fn make(&mut self, op: &Op) {
        match op {
            Op::Append(entry, _) => self.pending.push(entry.clone()),
            Op::Apply(to) => self.apply(*to),
            Op::RollBack(to) => self.roll_back(*to),
            Op::Vote(term, vote) => (self.term, self.vote) = (*term, *vote),
            Op::Members(members) => self.members.clone_from(members),
            Op::BeginInstall(_) => {
                self.is_installing = true;
                self.map.clear();
                self.pending.clear();
            }
            Op::EndInstall(timestamp, header, installed) => {
                self.is_installing = false;
                self.applied = *timestamp;
                self.applied_header.clone_from(header);
                self.map.clone_from(installed);
                self.members = b"members of a snapshot".to_vec();
            }
            Op::Commit | Op::Install(_) | Op::Pin | Op::Unpin | Op::Look => {}
        }
    }
}

fn batch_of(entry: &Entry) -> Batch {
    let mut batch = Batch::new();
    // Of several changes of a key the last counts.
    if let Some(key) = entry.changes.keys().next() {
        batch.put(key, b"another value");
    }
    for (key, value) in entry.changes.iter().rev() {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        };
    }
    batch
}
