//! A machine: its medium, and the node that runs on it as long as it has power.

use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Image, Sim, SimOptions};
use coreplane_replica::{Node, Settings};
use std::sync::Arc;

const PAGE: u32 = 4096;
const LEN: u64 = 1 << 20;

pub(crate) struct Seat {
    pub(crate) kind: MapKind,
    pub(crate) settings: Settings,
    sim: Sim,
    /// None while the power is off.
    pub(crate) node: Option<Node>,
    /// What the medium had seen before the last call.
    events: usize,
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

impl Seat {
    pub(crate) fn new(kind: MapKind, settings: Settings) -> Self {
        let options_of_sim = SimOptions {
            len: LEN,
            max_len: LEN,
            page_size: PAGE,
            seed: settings.seed,
            ..SimOptions::default()
        };
        let sim = Sim::new(&options_of_sim).expect("memory");
        let map = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options());
        let node = Node::open(map.expect("create"), settings.clone()).expect("open");
        Self { kind, settings, sim, node: Some(node), events: 0 }
    }

    /// Calls the node, if it has power.
    pub(crate) fn call<R>(&mut self, call: impl FnOnce(&mut Node) -> R) -> Option<R> {
        self.events = self.sim.events();
        self.node.as_mut().map(call)
    }

    /// Cuts the power behind the last call, or at a fence in the midst of it: what it has said then was not said.
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

    /// The process ends, and the power stays.
    pub(crate) fn kill(&mut self) {
        self.node = None;
        let image = self.sim.crash(Eviction::Everything);
        self.sim = image.reopen().expect("memory");
    }

    /// The power is back.
    pub(crate) fn start(&mut self) {
        self.settings.start += 1;
        let space = Arc::clone(self.sim.space());
        let map = LogMap::simulated_open(self.kind, space, &options()).expect("a map that opens");
        let node = Node::open(map, self.settings.clone()).expect("a node that opens");
        self.node = Some(node);
        self.events = self.sim.events();
    }
}
