//! A machine: its medium, and the node that runs on it while it has power.

use coreplane_engine::UnixMillis;
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use coreplane_replica::{Replica, Settings, map_options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u32 = 4096;
const LEN: u64 = 1 << 20;

pub(crate) struct Seat {
    pub(crate) kind: MapKind,
    pub(crate) settings: Settings,
    sim: Sim,
    /// None while the power is off.
    pub(crate) node: Option<Replica>,
    /// Its own clock.
    clock: Arc<AtomicU64>,
    /// The events of the medium before the last call.
    events: usize,
    /// A copy of the pool, and the life in which it was made.
    copy: Option<(Image, u64)>,
}

fn options() -> Options {
    map_options(&Options { background: false, ..Options::default() })
}

fn open(map: LogMap, settings: &Settings, clock: &Arc<AtomicU64>) -> Replica {
    let clock = Arc::clone(clock);
    let time = Arc::new(move || UnixMillis(clock.load(Ordering::Relaxed)));
    Replica::open(Box::new(map), settings.clone(), Some(time)).expect("a node that opens")
}

impl Seat {
    pub(crate) fn new(kind: MapKind, settings: Settings) -> Self {
        let options_of_sim = SimOptions {
            len: LEN,
            max_len: LEN,
            page_size: PAGE,
            seed: settings.seed,
            // Durable at once, or by a later sync.
            model: if settings.seed % 4 == 3 { Model::File } else { Model::X86 },
            ..SimOptions::default()
        };
        let sim = Sim::new(&options_of_sim).expect("memory");
        let map = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options());
        let clock = Arc::default();
        let node = Some(open(map.expect("create"), &settings, &clock));
        Self { kind, settings, sim, node, clock, events: 0, copy: None }
    }

    /// Sets its clock.
    pub(crate) fn set_clock(&self, to: u64) {
        self.clock.store(to, Ordering::Relaxed);
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Calls the node, if it has power.
    pub(crate) fn call<R>(&mut self, call: impl FnOnce(&Replica) -> R) -> Option<R> {
        self.events = self.sim.events();
        self.node.as_ref().map(call)
    }

    /// Cuts the power after the last call, or at a fence in the middle of it: then its messages were never sent.
    pub(crate) fn cut(&mut self, within: bool, draw: &mut crate::draw::Draw) {
        let eviction = match draw.below(4) {
            0 => Eviction::Nothing,
            1 => Eviction::Everything,
            _ => Eviction::Seeded(draw.next()),
        };
        let image: Image = match within {
            true => {
                let fences = draw.below(self.sim.fences_since(self.events) as u64 + 1);
                self.sim.crash_at_fence(self.events, fences as usize, eviction)
            }
            false => self.sim.crash(eviction),
        };
        self.node = None;
        self.sim = image.reopen().expect("memory");
    }

    /// The process ends, and the power stays on.
    pub(crate) fn kill(&mut self) {
        self.node = None;
        let image = self.sim.crash(Eviction::Everything);
        self.sim = image.reopen().expect("memory");
    }

    /// Replaces its pool by a new one.
    pub(crate) fn wipe(&mut self, identity: u64) {
        let (life, clock) = (self.settings.life + 1, self.clock());
        let settings = Settings { identity, life, ..self.settings.clone() };
        *self = Self::new(self.kind, settings);
        self.set_clock(clock);
    }

    /// Makes a copy of the pool.
    pub(crate) fn copy(&mut self) {
        self.copy = Some((self.sim.crash(Eviction::Everything), self.settings.life));
    }

    /// Puts the copy back, if it is one of an earlier life, and starts; false if there is none.
    pub(crate) fn put_back(&mut self) -> bool {
        match self.copy.take() {
            Some((copy, life)) if life < self.settings.life => {
                self.node = None;
                self.sim = copy.reopen().expect("memory");
                self.start();
                true
            }
            copy => {
                self.copy = copy;
                false
            }
        }
    }

    /// The power is back.
    pub(crate) fn start(&mut self) {
        self.settings.life += 1;
        let space = Arc::clone(self.sim.space());
        let map = LogMap::simulated_open(self.kind, space, &options()).expect("a map that opens");
        self.node = Some(open(map, &self.settings, &self.clock));
        self.events = self.sim.events();
    }
}
