//! The cluster, and the events of a story.

use crate::draw::Draw;
use crate::history::History;
use crate::network::Network;
use crate::seat::Seat;
use coreplane_engine::{
    Completion, Deferred, Engine, Error, Horizon, Ticket, UnixMillis, Visibility, WriteOptions,
};
use coreplane_mvcc::MapKind;
use coreplane_replica::{Envelope, Replica, Role, Settings, Status};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of nodes that form the cluster, and of all nodes.
pub(crate) const FIRST: u64 = 3;
pub(crate) const NODES: u64 = 4;
const KEYS: u8 = 6;
/// Keys from this one on expire.
const MORTAL: u8 = 4;
/// Ticks of the story, and ticks that it has to come to rest.
const STORY: u64 = 400;
const REST: u64 = 600;

/// The faults that may happen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) loses: bool,
    pub(crate) crashes: bool,
    pub(crate) partitions: bool,
    pub(crate) members: bool,
    pub(crate) pools: bool,
}

/// The result of a story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) acknowledged: u64,
    pub(crate) reads: u64,
    pub(crate) elections: u64,
    pub(crate) installed: u64,
    pub(crate) lost: u64,
    hash: u64,
}

/// A call that a client waits for.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Write {
        key: u8,
        number: u64,
    },
    /// The value that was found, the least that had to be found, and the newest that must not be.
    Read {
        key: u8,
        found: u64,
        floor: u64,
        gone: u64,
    },
    Members,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    pub(crate) draw: Draw,
    pub(crate) now: u64,
    pub(crate) seats: BTreeMap<u64, Seat>,
    pub(crate) network: Network,
    pub(crate) history: History,
    /// Open calls, by node; keys whose writer waits, and the node that it waits for.
    pub(crate) open: BTreeMap<u64, Vec<(Ticket, Call)>>,
    pub(crate) busy: BTreeMap<u8, u64>,
    pub(crate) leaders: BTreeMap<u64, u64>,
    /// The header of each entry that a node has applied.
    pub(crate) applied: BTreeMap<u64, Vec<u8>>,
    pub(crate) installed: u64,
    /// Pools that were replaced, and those that were lost.
    pub(crate) pools: u64,
    pub(crate) lost: u64,
    pub(crate) hasher: DefaultHasher,
}

impl World {
    pub(crate) fn new(kind: MapKind, seed: u64, faults: Faults) -> Self {
        let peers: Vec<u64> = (1..=FIRST).collect();
        let seats = (1..=NODES).map(|id| {
            let settings = Settings {
                id,
                contacts: peers.clone(),
                identity: draw_identity(seed, id, 0),
                peers: if id <= FIRST { peers.clone() } else { Vec::new() },
                seed,
                // Followers lag behind the ring from time to time.
                ring_bytes: if seed.is_multiple_of(5) { 1 << 20 } else { 600 },
                page_bytes: 60,
                ..Settings::default()
            };
            (id, Seat::new(kind, settings))
        });
        let seats = seats.collect();
        let network = Network::new(faults.loses);
        Self {
            seed,
            faults,
            draw: Draw::new(seed.wrapping_mul(0x1234_5677) ^ kind as u64),
            now: 0,
            seats,
            network,
            history: History::default(),
            open: BTreeMap::new(),
            busy: BTreeMap::new(),
            leaders: BTreeMap::new(),
            applied: BTreeMap::new(),
            installed: 0,
            pools: 0,
            lost: 0,
            hasher: DefaultHasher::new(),
        }
    }

    /// Runs the story, and checks the final state.
    pub(crate) fn run(mut self) -> Report {
        while self.now < STORY {
            self.tick();
            self.clients();
            self.troubles();
        }
        self.network.cut.clear();
        self.network.loses = false;
        self.start_all();
        while self.now < STORY + REST && !self.is_at_rest() {
            self.tick();
        }
        self.check_end();
        let History { acknowledged, reads, .. } = self.history;
        let elections = self.leaders.len() as u64;
        let hash = self.hasher.finish();
        Report { acknowledged, reads, elections, installed: self.installed, lost: self.lost, hash }
    }

    fn fail(&self, what: &str) -> ! {
        panic!("seed {} at {}: {what} (COREPLANE_WORLD={})", self.seed, self.now, self.seed)
    }

    fn tick(&mut self) {
        self.now += 1;
        for id in 1..=NODES {
            if let Some(seat) = self.seats.get(&id) {
                let jumps = self.faults.crashes && self.draw.once_in(100);
                let to = if jumps { self.now + self.draw.below(60) } else { seat.clock() + 1 };
                seat.set_clock(to);
            }
            // The clocks differ.
            if !self.draw.once_in(10) {
                self.call(id, Replica::tick);
            }
            if !self.draw.once_in(4) {
                self.call(id, |node| {
                    node.with_map(|map| map.wait_durable(map.commit()?))?;
                    node.persisted()
                });
            }
        }
        while let Some((to, bytes)) = self.network.next(self.now) {
            let envelope = Envelope::decode(&bytes).expect("what was sent");
            self.call(to, |node| node.receive(envelope));
        }
    }

    /// Calls a node and sends all its messages, unless the power fails during the call.
    pub(crate) fn call(&mut self, id: u64, call: impl FnOnce(&Replica) -> Result<(), Error>) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        match seat.call(call) {
            None => return,
            Some(Ok(())) => {}
            Some(Err(error)) => self.fail(&format!("node {id}: {error}")),
        }
        let crashes = self.faults.crashes && self.now < STORY && self.draw.once_in(1500);
        if crashes {
            let Some(seat) = self.seats.get_mut(&id) else { return };
            seat.cut(true, &mut self.draw);
            self.forget(id);
            return;
        }
        self.hear(id);
    }

    /// Takes the output of a node.
    pub(crate) fn hear(&mut self, id: u64) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let Some(node) = seat.node.as_ref() else { return };
        let (envelopes, status) = (node.take_envelopes(), node.status());
        let header = node.with_map(|map| map.control().applied_header);
        let calls = self.open.remove(&id).unwrap_or_default();
        let done = |ticket: &Ticket| node.is_durable(&Horizon::from(*ticket));
        let calls: Vec<_> = calls.into_iter().map(|it| (done(&it.0), it)).collect();
        self.look(id, &status, header);
        let mut bytes = Vec::new();
        for envelope in envelopes {
            bytes.clear();
            envelope.encode(&mut bytes);
            bytes.hash(&mut self.hasher);
            self.network.send(self.now, (id, envelope.to), &bytes, &mut self.draw);
        }
        for (done, (ticket, call)) in calls {
            match done {
                Ok(false) => self.open.entry(id).or_default().push((ticket, call)),
                Ok(true) => self.answer(id, call),
                Err(Error::Indeterminate) => self.let_go(&call),
                Err(error) => self.fail(&format!("node {id}: {error}")),
            }
        }
    }

    /// The call is not waited for any more.
    fn let_go(&mut self, call: &Call) {
        if let Call::Write { key, .. } = call {
            self.busy.remove(key);
        }
    }

    fn answer(&mut self, id: u64, call: Call) {
        self.let_go(&call);
        match call {
            Call::Write { key, number } => {
                let found = self.value(id, key);
                if found < number && key < MORTAL {
                    self.fail(&format!(
                        "{id} says of key {key} that {number} is there, not {found}"
                    ));
                }
                self.history.acknowledge(key, number);
            }
            Call::Read { key, found, floor, gone } => {
                let read = match key < MORTAL {
                    true => self.history.read(key, floor, found),
                    false => self.history.read_mortal(key, (floor, gone), found),
                };
                if let Err(what) = read {
                    self.fail(&format!("node {id}: {what}"));
                }
            }
            Call::Members => {}
        }
    }

    /// The number that a node's map has for a key; 0 if it has none.
    fn value(&self, id: u64, key: u8) -> u64 {
        let node = self.seats.get(&id).and_then(|seat| seat.node.as_ref());
        let value = node.map(|node| node.with_map(|map| map.get(&[key])));
        match value {
            Some(Ok(Some(value))) => value.first_chunk().map_or(0, |it| u64::from_le_bytes(*it)),
            Some(Ok(None)) | None => 0,
            Some(Err(error)) => self.fail(&format!("node {id} cannot be read: {error}")),
        }
    }

    /// Compares the state that a node reports with that of the others.
    fn look(&mut self, id: u64, status: &Status, header: Vec<u8>) {
        if status.role == Role::Leader {
            let leader = *self.leaders.entry(status.term).or_insert(id);
            if leader != id {
                self.fail(&format!("{leader} and {id} lead in term {}", status.term));
            }
        }
        if status.role == Role::Installing {
            return;
        }
        if status.applied > status.committed {
            self.fail(&format!("{id} has applied what is not committed: {status:?}"));
        }
        let known = self.applied.entry(status.applied).or_insert_with(|| header.clone());
        if *known != header {
            let what = format!("{id} has applied {header:?}, not {known:?}");
            self.fail(&format!("{what} as entry {}", status.applied));
        }
    }

    /// The power of a node fails: callers that wait for it get no answer.
    pub(crate) fn forget(&mut self, id: u64) {
        self.open.remove(&id);
        self.busy.retain(|_, node| *node != id);
    }

    /// Clients write and read, at the node that they take for the leader.
    fn clients(&mut self) {
        for _ in 0..3 {
            let (id, key) = (1 + self.draw.below(NODES), self.draw.below(u64::from(KEYS)) as u8);
            let Some(seat) = self.seats.get(&id) else { continue };
            let Some(node) = seat.node.as_ref().filter(|node| node.leads()) else { continue };
            if self.draw.once_in(3) {
                let (floor, gone) = (self.history.floor(key), self.history.gone(key));
                let mut found = 0;
                let read = node.get_with(&[key], Visibility::Early, &mut |record| {
                    let value = record.value.to_vec();
                    found = value.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
                });
                if let Ok(read) = read {
                    let call = Call::Read { key, found, floor, gone };
                    self.open.entry(id).or_default().push((read.ticket, call));
                }
            } else if !self.busy.contains_key(&key) {
                let number = self.history.propose(key);
                let mut value = number.to_le_bytes().to_vec();
                value.resize(8 + self.draw.below(80) as usize, 7);
                let expires = seat.clock() + 1 + self.draw.below(20);
                let options = WriteOptions {
                    completion: Completion::Early,
                    expires_at: (key >= MORTAL).then_some(UnixMillis(expires)),
                    ..WriteOptions::default()
                };
                if let Ok(outcome) = node.put(&[key], &value, &options) {
                    let call = Call::Write { key, number };
                    self.open.entry(id).or_default().push((outcome.ticket(), call));
                    self.busy.insert(key, id);
                }
            }
            // The next client may find changes that are not sent yet.
            if !self.draw.once_in(4) {
                self.call(id, Replica::persisted);
            }
        }
    }

    pub(crate) fn start(&mut self, id: u64) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        if seat.node.is_none() {
            seat.start();
            self.hear(id);
        }
    }

    fn start_all(&mut self) {
        (1..=NODES).for_each(|id| self.start(id));
    }

    /// The status of all members, according to the leader of the newest term.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let all =
            self.seats.iter().filter_map(|(id, seat)| Some((*id, seat.node.as_ref()?.status())));
        let all: Vec<(u64, Status)> = all.collect();
        let leader = all.iter().filter(|it| it.1.role == Role::Leader).max_by_key(|it| it.1.term);
        let Some(members) = leader.map(|it| it.1.members.clone()) else { return Vec::new() };
        let of_cluster = |it: &(u64, Status)| members.has(it.0);
        all.into_iter().filter(of_cluster).map(|it| it.1).collect()
    }

    /// True if one node leads, and all have everything.
    fn is_at_rest(&self) -> bool {
        let all = self.statuses();
        let newest = all.iter().map(|it| it.newest).max();
        let is_one = all.iter().filter(|it| it.role == Role::Leader).count() == 1;
        let is_answered = self.open.values().all(Vec::is_empty);
        is_one && all.iter().all(|it| Some(it.applied) == newest) && is_answered
    }

    fn check_end(&mut self) {
        if !self.is_at_rest() {
            let all =
                self.seats.values().filter_map(|seat| seat.node.as_ref().map(Replica::status));
            let all: Vec<String> = all.map(|status| format!("{status:?}")).collect();
            self.fail(&format!("it has not come to rest:\n{}", all.join("\n")));
        }
        let members: Vec<_> = self.statuses().into_iter().map(|it| it.members).collect();
        if members.iter().any(|it| *it != members[0]) {
            self.fail(&format!("members are {members:?}"));
        }
        for key in 0..MORTAL {
            let members = self.statuses().first().map(|it| it.members.clone()).unwrap_or_default();
            let members = (1..=NODES).filter(|id| members.has(*id));
            let found: Vec<u64> = members.map(|id| self.value(id, key)).collect();
            if found.iter().any(|it| *it != found[0]) {
                self.fail(&format!("key {key} is {found:?}"));
            }
            if let Err(what) = self.history.check_end(key, found[0]) {
                self.fail(&what);
            }
        }
        self.installed = self.count_installed();
    }

    fn count_installed(&self) -> u64 {
        self.seats.values().filter_map(|seat| seat.node.as_ref()).map(Replica::installed).sum()
    }
}

/// An identity that no other pool of the story has.
pub(crate) fn draw_identity(seed: u64, id: u64, pool: u64) -> u64 {
    Draw::new(seed ^ id << 40 ^ pool << 48).next() | 1
}
