//! A few nodes in one thread: messages wait in order until they are delivered.

use coreplane_engine::Batch;
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use coreplane_replica::{
    Envelope, MemberChange, Node, Output, Proposal, Role, Settings, map_options,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn options() -> Options {
    map_options(&Options { background: false, ..Options::default() })
}

/// Bytes of a pool, by default.
pub(crate) const LEN: u64 = 1 << 20;

fn sim(model: Model, len: u64) -> Sim {
    let page_size = 4096;
    Sim::new(&SimOptions { len, max_len: len, page_size, model, ..SimOptions::default() })
        .expect("memory")
}

/// A node, and its results of proposals and reads.
pub(crate) struct Seat {
    pub(crate) sim: Sim,
    pub(crate) node: Option<Node>,
    pub(crate) settings: Settings,
    kind: MapKind,
    pub(crate) settled: Vec<u64>,
    pub(crate) reads: Vec<u64>,
    pub(crate) fresh: Vec<u64>,
}

impl Seat {
    pub(crate) fn new(kind: MapKind, settings: Settings, model: Model, len: u64) -> Self {
        let sim = sim(model, len);
        let map = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options());
        let node = Node::open(Box::new(map.expect("create")), settings.clone()).expect("open");
        let (settled, reads, fresh) = (Vec::new(), Vec::new(), Vec::new());
        Self { sim, node: Some(node), settings, kind, settled, reads, fresh }
    }

    /// The power fails; everything that is not fenced is lost.
    pub(crate) fn cut(&mut self) {
        let image = self.sim.crash(Eviction::Nothing);
        self.node = None;
        self.sim = image.reopen().expect("memory");
    }

    /// Replaces its pool by a new one.
    pub(crate) fn wipe(&mut self, identity: u64) {
        self.settings.identity = identity;
        self.settings.life += 1;
        let settings = self.settings.clone();
        *self = Self::new(self.kind, settings, Model::X86, LEN);
    }

    /// A copy of the pool.
    pub(crate) fn copy(&mut self) -> Image {
        self.sim.crash(Eviction::Everything)
    }

    /// Puts a copy in place of the pool, and starts the node.
    pub(crate) fn put_back(&mut self, copy: Image) {
        self.node = None;
        self.sim = copy.reopen().expect("memory");
        self.start();
    }

    /// The process ends, and one bit of these bytes is flipped.
    pub(crate) fn damage(&mut self, bytes: &[u8]) {
        let mut image = self.sim.crash(Eviction::Everything);
        let found = image.bytes().windows(bytes.len()).position(|it| it == bytes);
        image.flip_bit(found.expect("the bytes are there") as u64, 3);
        self.node = None;
        self.sim = image.reopen().expect("memory");
    }

    pub(crate) fn start(&mut self) {
        self.settings.life += 1;
        self.node = Some(self.open().expect("a node that opens"));
    }

    pub(crate) fn open(&self) -> coreplane_engine::Result<Node> {
        let map = LogMap::simulated_open(self.kind, Arc::clone(self.sim.space()), &options())?;
        Node::open(Box::new(map), self.settings.clone())
    }
}

/// The most letters of one tick.
const LETTERS_MAX: usize = 100_000;

pub(crate) struct Table {
    pub(crate) seats: BTreeMap<u64, Seat>,
    /// From, to and message, in the order in which they were sent.
    pub(crate) letters: Vec<(u64, u64, Vec<u8>)>,
    /// Pairs of nodes between which no message arrives.
    pub(crate) cut: BTreeSet<(u64, u64)>,
}

impl Table {
    /// So many nodes, the first of which form the cluster.
    pub(crate) fn new(kind: MapKind, (first, all): (u64, u64)) -> Self {
        Self::with(kind, (first, all), Model::X86, |_| {})
    }

    pub(crate) fn with(
        kind: MapKind,
        (first, all): (u64, u64),
        model: Model,
        set: impl Fn(&mut Settings),
    ) -> Self {
        let peers: Vec<u64> = (1..=first).collect();
        let seats = (1..=all).map(|id| {
            let peers = if id <= first { peers.clone() } else { Vec::new() };
            let (contacts, seed, life) = ((1..=first).collect(), 5, 1);
            let mut settings = Settings {
                id,
                peers,
                contacts,
                seed,
                life,
                identity: 100 + id,
                ..Settings::default()
            };
            set(&mut settings);
            (id, Seat::new(kind, settings, model, LEN))
        });
        Self { seats: seats.collect(), letters: Vec::new(), cut: BTreeSet::new() }
    }

    pub(crate) fn seat(&mut self, id: u64) -> &mut Seat {
        self.seats.get_mut(&id).expect("a seat")
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut Node {
        self.seat(id).node.as_mut().expect("a node that runs")
    }

    pub(crate) fn hear(&mut self, id: u64) {
        let seat = self.seat(id);
        let Some(node) = seat.node.as_mut() else { return };
        let Output { envelopes, settled, reads, fresh, .. } = node.take_output();
        seat.settled.extend(settled.iter().map(|it| it.0));
        seat.reads.extend(reads);
        seat.fresh.extend(fresh);
        for envelope in envelopes {
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            self.letters.push((id, envelope.to, bytes));
        }
    }

    pub(crate) fn tick(&mut self, id: u64) {
        if self.seat(id).node.is_some() {
            self.node(id).tick().expect("a node that goes on");
            self.hear(id);
        }
    }

    /// A part of a long message of another node arrives.
    pub(crate) fn hear_part(&mut self, id: u64, from: u64) {
        self.node(id).hear_part(from);
        self.hear(id);
    }

    /// Delivers the first letter; false if there is none.
    pub(crate) fn deliver(&mut self) -> bool {
        if self.letters.is_empty() {
            return false;
        }
        let (from, to, bytes) = self.letters.remove(0);
        if !self.cut.contains(&(from, to))
            && self.seats.get(&to).is_some_and(|it| it.node.is_some())
        {
            let envelope = Envelope::decode(&bytes).expect("what was sent");
            self.node(to).step(envelope).expect("a node that goes on");
            self.hear(to);
        }
        true
    }

    /// Delivers the messages of this node, and drops the others.
    pub(crate) fn deliver_of(&mut self, id: u64) {
        self.letters.retain(|(from, _, _)| *from == id);
        (0..self.letters.len()).for_each(|_| _ = self.deliver());
        self.letters.clear();
    }

    pub(crate) fn run(&mut self, ticks: usize) {
        for _ in 0..ticks {
            let all: Vec<u64> = self.seats.keys().copied().collect();
            all.into_iter().for_each(|id| self.tick(id));
            let delivered = (0..LETTERS_MAX).take_while(|_| self.deliver()).count();
            assert!(delivered < LETTERS_MAX, "they talk without an end");
        }
    }

    pub(crate) fn leader(&self) -> Option<u64> {
        let all = self.seats.iter();
        let all = all.filter_map(|(id, seat)| Some((*id, seat.node.as_ref()?.status())));
        let leaders = all.filter(|it| it.1.role == Role::Leader);
        leaders.max_by_key(|it| it.1.term).map(|it| it.0)
    }

    /// Makes a node the leader.
    pub(crate) fn lead(&mut self, id: u64) {
        for _ in 0..100 {
            self.run(1);
            match self.leader() {
                Some(leader) if leader == id => return self.run(3),
                Some(leader) => {
                    self.node(leader).transfer_leadership(id);
                    self.flush(leader);
                }
                None => {}
            }
        }
        panic!("{id} does not lead");
    }

    pub(crate) fn flush(&mut self, id: u64) {
        self.node(id).flush().expect("a node that goes on");
        self.hear(id);
    }

    /// Proposes a write of the key `k`.
    pub(crate) fn put(&mut self, id: u64, value: &[u8]) -> u64 {
        let mut batch = Batch::new();
        batch.put(b"k", value);
        let Proposal { number, .. } = self.node(id).propose(&batch, None).expect("a leader");
        self.flush(id);
        number
    }

    /// Writes so many other keys, one after the other.
    pub(crate) fn fill_keys(&mut self, id: u64, count: u32) {
        for number in 0..count {
            let mut batch = Batch::new();
            batch.put(&number.to_le_bytes(), &[7; 100]);
            self.node(id).propose(&batch, None).expect("a leader");
            self.flush(id);
            self.run(2);
        }
    }

    pub(crate) fn change(&mut self, id: u64, changes: &[MemberChange]) {
        self.node(id).propose_members(changes).expect("a change");
        self.flush(id);
    }

    pub(crate) fn part(&mut self, these: &[u64], those: &[u64]) {
        for (one, other) in these.iter().flat_map(|one| those.iter().map(move |it| (*one, *it))) {
            self.cut.extend([(one, other), (other, one)]);
        }
    }

    pub(crate) fn value(&mut self, id: u64) -> Option<Vec<u8>> {
        self.node(id).with_map(|map| map.get(b"k")).expect("a map that can be read")
    }
}
