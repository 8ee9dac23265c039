//! Devices in the simulator's memory.

use super::{Draw, NOW};
use crate::shelf::Kind;
use crate::shelf::pulled::{Gate, Pulled};
use coreplane_bptree::Bptree;
use coreplane_engine::{Engine, Result};
use coreplane_mkvs::{Ack, Position, Rack, Shape, TimeSource};
use coreplane_pmem::Space;
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rack of simulated spaces, by group and device.
pub(crate) struct SimRack {
    kind: Kind,
    shape: Shape,
    spaces: Vec<Arc<Space>>,
    missing: Vec<Position>,
    gates: Vec<Arc<Gate>>,
    /// Milliseconds, for whoever tells the time.
    pub(crate) clock: Arc<AtomicU64>,
}

impl SimRack {
    pub(crate) fn new(
        kind: Kind,
        shape: Shape,
        spaces: &[Arc<Space>],
        missing: &[Position],
    ) -> Self {
        let gates = spaces.iter().map(|_| Arc::new(Gate::by_turns())).collect();
        let (spaces, missing) = (spaces.to_vec(), missing.to_vec());
        let clock = Arc::new(AtomicU64::new(NOW.0));
        Self { kind, shape, spaces, missing, gates, clock }
    }

    fn number(&self, place: Position) -> usize {
        usize::from(place.group) * usize::from(self.shape.devices) + usize::from(place.device)
    }

    pub(crate) fn gate(&self, place: Position) -> &Gate {
        &self.gates[self.number(place)]
    }

    pub(crate) fn each_gate(&self, each: impl Fn(&Gate)) {
        self.gates.iter().for_each(|gate| each(gate));
    }

    /// Now and then a device falls behind, or catches up: one of a group, since a batch waits until
    /// one device has all that it needs, and none where one was pulled out, since the others must
    /// catch up then.
    pub(crate) fn lag(&self, draw: &mut Draw) {
        let (drawn, device) = (draw.next(6), draw.next(self.gates.len() as u64) as usize);
        let devices = usize::from(self.shape.devices);
        let group = &self.gates[device / devices * devices..][..devices];
        let is_out = self.gates.iter().any(|gate| gate.is_out.load(Ordering::SeqCst));
        let is_lagging = group.iter().any(|gate| gate.is_lagging.load(Ordering::SeqCst));
        if drawn == 0 && self.shape.ack != Ack::All && !is_out {
            group.iter().for_each(|gate| gate.is_lagging.store(false, Ordering::SeqCst));
            self.gates[device].is_lagging.store(!is_lagging, Ordering::SeqCst);
        }
    }

    /// All devices catch up.
    pub(crate) fn let_go(&self) {
        self.each_gate(|gate| gate.is_lagging.store(false, Ordering::SeqCst));
    }

    fn gated(&self, place: Position, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        Arc::new(Pulled { engine, gate: Arc::clone(&self.gates[self.number(place)]) })
    }
}

fn of_bptree(time: &TimeSource) -> coreplane_bptree::Options {
    let time = Some(Arc::clone(time));
    coreplane_bptree::Options { time, background: false, ..Default::default() }
}

fn of_scmkv(time: &TimeSource) -> coreplane_scmkv::Options {
    let time = Some(Arc::clone(time));
    coreplane_scmkv::Options { time, background: false, ..Default::default() }
}

impl Rack for SimRack {
    fn present(&self) -> Result<Vec<Position>> {
        let Shape { groups, devices, .. } = self.shape;
        let places = (0..groups)
            .flat_map(|group| (0..devices).map(move |device| Position { group, device }));
        Ok(places.filter(|place| !self.missing.contains(place)).collect())
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>> {
        let space = Arc::clone(&self.spaces[self.number(place)]);
        let engine: Arc<dyn Engine> = match self.kind {
            Kind::Bptree => Arc::new(Bptree::simulated_create(space, &of_bptree(time))?),
            Kind::Scmkv => {
                let (geometry, placement) = (Geometry::TINY, Placement::Pool);
                Arc::new(Scmkv::simulated_create(space, geometry, placement, of_scmkv(time))?)
            }
        };
        Ok(self.gated(place, engine))
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>> {
        let space = Arc::clone(&self.spaces[self.number(place)]);
        let engine: Arc<dyn Engine> = match self.kind {
            Kind::Bptree => Arc::new(Bptree::simulated_open(space, &of_bptree(time))?),
            Kind::Scmkv => Arc::new(Scmkv::simulated_open(space, of_scmkv(time))?),
        };
        Ok(self.gated(place, engine))
    }

    fn remove(&self, _place: Position) -> Result<()> {
        Ok(())
    }
}
