//! Devices in the simulator's memory.

use super::{Draw, NOW};
use crate::shelf::Kind;
use crate::shelf::gate::Gate;
use coreplane_bptree::Bptree;
use coreplane_conformance::interceptor::Intercepted;
use coreplane_engine::{Durability, Error, Result, StorageEngine};
use coreplane_mkvs::{Ack, Position, Rack, Shape, TimeSource};
use coreplane_mvcc::MapEngine;
use coreplane_pmem::{Claim, Durable, Space};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The offset in the directory of the number of used spaces.
const USED: u64 = 4088;

/// A rack of simulated spaces: a directory, which has the space of the device at each place, and the spaces,
/// each of which is used once. So a cut may leave a device that has a space and is not created, or no entry
/// at all.
pub(crate) struct SimRack {
    kind: Kind,
    shape: Shape,
    /// The durability of writes that name none.
    pub(crate) durability: Durability,
    spaces: Vec<Arc<Space>>,
    missing: Vec<Position>,
    gates: Vec<Arc<Gate>>,
    /// The opened engines, by their spaces: a simulated space is opened once.
    opened: Mutex<HashMap<u64, Arc<dyn StorageEngine>>>,
    /// No device falls behind any more.
    is_prompt: AtomicBool,
    /// So many threads wait until all devices have caught up.
    waiting: AtomicU64,
    /// The time in milliseconds.
    pub(crate) clock: Arc<AtomicU64>,
}

impl SimRack {
    pub(crate) fn new(
        kind: Kind,
        shape: Shape,
        spaces: &[Arc<Space>],
        missing: &[Position],
    ) -> Self {
        // It may have been claimed by an earlier rack.
        let _claimed = spaces[0].claim_words(0, Claim::WordsAsStored);
        // A group may be added.
        let gates = usize::from(shape.groups + 1) * usize::from(shape.devices);
        let gates = (0..gates).map(|_| Arc::new(Gate::by_turns())).collect();
        let (spaces, missing) = (spaces.to_vec(), missing.to_vec());
        let (is_prompt, clock) = (AtomicBool::new(false), Arc::new(AtomicU64::new(NOW.0)));
        let (opened, waiting) = (Mutex::default(), AtomicU64::new(0));
        let durability = Durability::default();
        Self { kind, shape, durability, spaces, missing, gates, opened, is_prompt, waiting, clock }
    }

    fn word(&self, offset: u64) -> u64 {
        self.spaces[0].word::<Durable>(offset).expect("a word").load()
    }

    /// Writes a word of the directory; durable when it returns.
    fn write_word(&self, offset: u64, value: u64) {
        self.spaces[0].word::<Durable>(offset).expect("a word").store(value);
        self.spaces[0].persist(offset, 8).expect("persist");
    }

    fn entry(place: Position) -> u64 {
        8 * (u64::from(place.group) * 8 + u64::from(place.device))
    }

    /// The space of the device at a place, if there is one.
    fn space(&self, place: Position) -> Option<&Arc<Space>> {
        match self.word(Self::entry(place)) {
            0 => None,
            number => self.spaces.get(number as usize),
        }
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

    /// Lets a device fall behind, or catch up, now and then: only one of a group, since a batch waits until
    /// one device has all writes that it needs.
    pub(crate) fn lag(&self, draw: &mut Draw) {
        let (drawn, device) = (draw.next(6), draw.next(self.gates.len() as u64) as usize);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return self.let_go();
        }
        let devices = usize::from(self.shape.devices);
        let group = &self.gates[device / devices * devices..][..devices];
        let is_lagging = group.iter().any(|gate| gate.is_lagging.load(Ordering::SeqCst));
        if drawn == 0 && self.shape.ack != Ack::All && !self.is_prompt.load(Ordering::SeqCst) {
            group.iter().for_each(|gate| gate.is_lagging.store(false, Ordering::SeqCst));
            self.gates[device].is_lagging.store(!is_lagging, Ordering::SeqCst);
        }
    }

    /// Makes a device full, or gives it space again, now and then; or does so to all.
    pub(crate) fn fill(&self, draw: &mut Draw) {
        let (drawn, device) = (draw.next(12), draw.next(self.gates.len() as u64) as usize);
        match drawn {
            0..=2 => drop(self.gates[device].is_full.fetch_xor(true, Ordering::SeqCst)),
            3 | 4 => self.each_gate(|gate| gate.is_full.store(drawn == 3, Ordering::SeqCst)),
            _ => {}
        }
    }

    /// Lets all devices catch up.
    pub(crate) fn let_go(&self) {
        self.each_gate(|gate| gate.is_lagging.store(false, Ordering::SeqCst));
    }

    /// Lets all devices catch up during a call that waits for that.
    pub(crate) fn while_prompt<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.let_go();
        let waited = wait();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        waited
    }

    /// Lets all devices catch up for good: from now on some calls wait for them.
    pub(crate) fn be_prompt(&self) {
        self.is_prompt.store(true, Ordering::SeqCst);
        self.let_go();
    }

    fn of_bptree(&self, time: &TimeSource) -> coreplane_bptree::Options {
        let (time, durability) = (Some(Arc::clone(time)), self.durability);
        coreplane_bptree::Options { time, durability, background: false, ..Default::default() }
    }

    fn of_map(&self, time: &TimeSource) -> coreplane_mvcc::Options {
        let (time, durability) = (Some(Arc::clone(time)), self.durability);
        coreplane_mvcc::Options { time, durability, background: false, ..Default::default() }
    }

    fn of_scmkv(&self, time: &TimeSource) -> coreplane_scmkv::Options {
        let (time, durability) = (Some(Arc::clone(time)), self.durability);
        coreplane_scmkv::Options { time, durability, background: false, ..Default::default() }
    }

    fn gated(&self, place: Position, engine: Arc<dyn StorageEngine>) -> Arc<dyn StorageEngine> {
        Arc::new(Intercepted { engine, around: Arc::clone(&self.gates[self.number(place)]) })
    }
}

impl Rack for SimRack {
    fn present(&self) -> Result<Vec<Position>> {
        let Shape { groups, devices, .. } = self.shape;
        let places = (0..=groups)
            .flat_map(|group| (0..devices).map(move |device| Position { group, device }));
        let is_there =
            |place: &Position| self.space(*place).is_some() && !self.missing.contains(place);
        Ok(places.filter(is_there).collect())
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        let number = self.word(USED) + 1;
        let spare = self.spaces.get(number as usize);
        let space = Arc::clone(spare.ok_or_else(|| Error::Unusable("no spare space".to_owned()))?);
        self.write_word(USED, number);
        self.write_word(Self::entry(place), number);
        let engine: Arc<dyn StorageEngine> = match self.kind {
            Kind::Bptree => Arc::new(Bptree::simulated_create(space, &self.of_bptree(time))?),
            Kind::Scmkv => {
                let (geometry, placement) = (Geometry::TINY, Placement::Auto);
                Arc::new(Scmkv::simulated_create(space, geometry, placement, self.of_scmkv(time))?)
            }
            Kind::Map(kind) => {
                Arc::new(MapEngine::simulated_create(kind, space, &self.of_map(time))?)
            }
        };
        Ok(self.gated(place, engine))
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        let number = self.word(Self::entry(place));
        if let Some(engine) = self.opened.lock().get(&number) {
            return Ok(self.gated(place, Arc::clone(engine)));
        }
        let found = self.space(place);
        let space = found.ok_or_else(|| Error::Unusable(format!("there is no {place}")))?;
        let space = Arc::clone(space);
        let engine: Arc<dyn StorageEngine> = match self.kind {
            Kind::Bptree => Arc::new(Bptree::simulated_open(space, &self.of_bptree(time))?),
            Kind::Scmkv => Arc::new(Scmkv::simulated_open(space, self.of_scmkv(time))?),
            Kind::Map(kind) => {
                Arc::new(MapEngine::simulated_open(kind, space, &self.of_map(time))?)
            }
        };
        self.opened.lock().insert(number, Arc::clone(&engine));
        Ok(self.gated(place, engine))
    }

    fn remove(&self, place: Position) -> Result<()> {
        self.write_word(Self::entry(place), 0);
        Ok(())
    }
}
