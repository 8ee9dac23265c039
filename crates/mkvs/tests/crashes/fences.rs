//! The cost of a put of a matrix for the medium: one fence, however many devices it waits for.

use crate::shelf::Kind;
use crate::shelf::sample::{FRESH, at};
use crate::story::SimRack;
use coreplane_bptree::Bptree;
use coreplane_engine::{Brief, Engine, Error, StorageEngine, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Shape};
use coreplane_mvcc::MapEngine;
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Cost, Fault, History, Report, Run, Sim, SimOptions, Standing, Subject, explore,
};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::collections::BTreeMap;
use std::sync::Arc;

const KINDS: [Kind; 2] = [Kind::Bptree, Kind::Scmkv];

const VALUE: [u8; 100] = [7; 100];

/// Cache lines of a record with a key of eight bytes and the value, at any place; and of an index slot that
/// the previous write has published.
const LINES: usize = (20_usize + 8 + 100 + 7 + 63).div_ceil(64) + 1;

/// Above all versions with which a new store begins.
const FIRST: u64 = 1 << 40;

fn machine(spaces: usize, non_temporal: bool) -> SimOptions {
    let len = 512 << 10;
    SimOptions { spaces, len, max_len: len, page_size: 4096, non_temporal, ..SimOptions::default() }
}

fn engine(kind: Kind, space: &Arc<Space>) -> Arc<dyn StorageEngine> {
    let space = Arc::clone(space);
    match kind {
        Kind::Bptree => {
            let options = coreplane_bptree::Options { background: false, ..Default::default() };
            Arc::new(Bptree::simulated_create(space, &options).expect("create"))
        }
        Kind::Scmkv => {
            let options = coreplane_scmkv::Options { background: false, ..Default::default() };
            let (geometry, placement) = (Geometry::TINY, Placement::Pool);
            let store = Scmkv::simulated_create(space, geometry, placement, options);
            Arc::new(store.expect("create"))
        }
        Kind::Map(kind) => {
            let options = coreplane_mvcc::Options { background: false, ..Default::default() };
            Arc::new(MapEngine::simulated_create(kind, space, &options).expect("create"))
        }
    }
}

/// The cost of puts of a matrix with one group that is warm, of new keys and of existing ones.
fn costs(kind: Kind, (devices, ack): (u8, Ack), non_temporal: bool) -> Vec<Cost> {
    let sim = Sim::new(&machine(1 + usize::from(devices), non_temporal)).expect("memory");
    let shape = Shape { groups: 1, devices, ack, ..Shape::default() };
    let rack = SimRack::new(kind, shape, sim.spaces(), &[]);
    let options = Options { threads: 1, answers_within: None, ..Options::default() };
    let matrix = Matrix::create(&rack, shape, &options).expect("create");
    let put = |key: u64| {
        let put = || matrix.put(&key.to_le_bytes(), &VALUE, &WriteOptions::default());
        let (outcome, cost) = sim.cost_of(put);
        assert!(outcome.expect("put").written().is_some());
        // A follower opens a page in its processor, or in the caller of a later put that waits for it: the same
        // in each run, if it has made this put by then.
        matrix.sync().expect("sync");
        cost
    };
    // The first puts open pages, and note that there is something in them.
    (0..4).for_each(|key| drop(put(key)));
    let costs = (4..12).chain(6..10).map(put).collect();
    matrix.close().expect("close");
    costs
}

#[test]
fn a_put_has_one_fence_however_many_devices_it_waits_for() {
    for kind in KINDS {
        let shapes =
            [(2, Ack::All), (3, Ack::All), (3, Ack::Majority), (2, Ack::First), (1, Ack::First)];
        for (shape, copies) in shapes.into_iter().zip([2, 3, 2, 1, 1]) {
            for non_temporal in [false, true] {
                let costs = costs(kind, shape, non_temporal);
                for cost in costs.iter().filter(|cost| cost.fences == 1) {
                    let lines = cost.flushed_lines.len();
                    assert!(lines <= copies * LINES, "{kind:?}, {shape:?}: {cost:?}");
                }
                // A put for which a page is opened is made on one device after the other. So is a put right
                // behind a record of the matrix's own in the same leaf, with a sequence that is not above that
                // record's version.
                let with_one = costs.iter().filter(|cost| cost.fences == 1).count();
                assert!(with_one + 2 >= costs.len(), "{kind:?}, {shape:?}: {costs:?}");
            }
        }
    }
}

/// A device is retired, and another takes its place: the primary is not the device with the greatest number any more.
#[test]
fn a_put_has_one_fence_after_the_primary_was_replaced() {
    for kind in KINDS {
        let sim = Sim::new(&machine(4, false)).expect("memory");
        let shape = Shape { groups: 1, devices: 2, ack: Ack::All, ..Shape::default() };
        let rack = SimRack::new(kind, shape, sim.spaces(), &[]);
        let options = Options { threads: 1, answers_within: None, ..Options::default() };
        let matrix = Matrix::create(&rack, shape, &options).expect("create");
        let put = |key: u64| {
            let put = || matrix.put(&key.to_le_bytes(), &VALUE, &WriteOptions::default());
            let (outcome, cost) = sim.cost_of(put);
            assert!(outcome.expect("put").written().is_some());
            cost.fences
        };
        for key in 0..4 {
            put(key);
        }
        matrix.retire(at(0, 1)).expect("retire");
        matrix.replace(&rack, at(0, 1), &FRESH, &|_| {}).expect("replace");
        // The group is looked after once in so many sequences.
        for number in 0..1024 {
            put(number % 4);
        }
        let fences: Vec<_> = (0..12).map(|number| put(number % 4)).collect();
        let with_one = fences.iter().filter(|fences| **fences == 1).count();
        assert!(with_one + 2 >= fences.len(), "{kind:?}: {fences:?}");
    }
}

/// Puts beside others, some of which do not proceed.
struct Beside {
    kind: Kind,
    non_temporal: bool,
    /// A fault: a put that does not proceed is taken for one that does.
    goes_on_always: bool,
}

/// A put of a value for a key.
#[derive(Debug, Clone)]
struct Put {
    key: u64,
    value: u64,
}

type Values = BTreeMap<u64, u64>;

impl Beside {
    /// Records of different lengths, so that a shorter one leaves a part of the one that it replaces.
    fn value_of(value: u64) -> Vec<u8> {
        value.to_le_bytes().repeat(1 + value as usize % 5)
    }

    fn explored(&self) -> Report {
        let options = SimOptions { recovery_cut_in: 40, ..machine(1, self.non_temporal) };
        explore(&options, self)
    }
}

impl Subject for Beside {
    type Op = Put;
    type Store = Option<Arc<dyn StorageEngine>>;
    type Contents = Option<Values>;

    fn work(&self, run: &Run<'_, Put>) {
        let store = engine(self.kind, run.space());
        let mut made = 0;
        for value in 1..40 {
            let op = Put { key: value * value % 5, value };
            let (goes_on, is_recorded) = (value % 3 != 0, value % 4 != 0);
            let options = WriteOptions { sequence: Some(FIRST + value), ..WriteOptions::default() };
            let call = run.began(op.clone());
            let mut calls = 0;
            let mut beside = |record: &mut dyn FnMut() -> bool| {
                calls += 1;
                (is_recorded || goes_on) && record() && (goes_on || self.goes_on_always)
            };
            let (key, bytes) = (op.key.to_le_bytes(), Self::value_of(value));
            let put = || store.put_briefly(&key, &bytes, &options, Some(&mut beside));
            let (brief, cost) = run.cost_of(put);
            match brief {
                Brief::New | Brief::Replaced => {
                    assert_eq!(calls, 1);
                    made += 1;
                    assert!(cost.fences >= 1 && goes_on | self.goes_on_always, "{op:?}: {cost:?}");
                    if goes_on { call.returned() } else { call.refused() }
                }
                Brief::Declined => {
                    let is_untouched = calls == 0 || !is_recorded && !goes_on;
                    assert!(!is_untouched || cost.stored_bytes == 0, "{op:?}: {cost:?}");
                    call.refused();
                    if calls == 0 {
                        // It declines for lack of room: an ordinary put.
                        let put = || store.put(&key, &bytes, &options).expect("put");
                        let _outcome = run.acknowledged(op, put);
                    }
                }
                Brief::Else(outcome) => panic!("{op:?}: {outcome:?}"),
            }
        }
        assert!(made > 20, "{made}");
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Self::Store, String> {
        let space = Arc::clone(space);
        let opened: Result<Arc<dyn StorageEngine>, Error> = match self.kind {
            Kind::Bptree => {
                let options = coreplane_bptree::Options { background: false, ..Default::default() };
                Bptree::simulated_open(space, &options)
                    .map(|it| Arc::new(it) as Arc<dyn StorageEngine>)
            }
            Kind::Scmkv => {
                let options = coreplane_scmkv::Options { background: false, ..Default::default() };
                Scmkv::simulated_open(space, options)
                    .map(|it| Arc::new(it) as Arc<dyn StorageEngine>)
            }
            Kind::Map(kind) => {
                let options = coreplane_mvcc::Options { background: false, ..Default::default() };
                MapEngine::simulated_open(kind, space, &options)
                    .map(|it| Arc::new(it) as Arc<dyn StorageEngine>)
            }
        };
        match opened {
            Ok(store) => Ok(Some(store)),
            // The store is not created yet.
            Err(Error::NotAPool(_) | Error::Unusable(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Self::Store) -> Result<Option<Values>, String> {
        let Some(store) = store else { return Ok(None) };
        let mut values = Values::new();
        for key in 0..5_u64 {
            let found = store.get(&key.to_le_bytes()).map_err(|error| error.to_string())?;
            if let Some(bytes) = found {
                let value = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
                if bytes != Self::value_of(value) {
                    return Err(format!("key {key}: {bytes:?}"));
                }
                values.insert(key, value);
            }
        }
        let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
        report.is_sound().then_some(Some(values)).ok_or_else(|| format!("{:?}", report.damages))
    }

    fn check(&self, contents: &Option<Values>, history: &History<'_, Put>) -> Result<(), String> {
        let none = Values::new();
        let values = contents.as_ref().unwrap_or(&none);
        let operations = history.operations();
        for key in 0..5 {
            let of_key = || operations.iter().filter(|(put, _)| put.key == key);
            let last = of_key().rfind(|(_, it)| *it == Standing::Acknowledged);
            let under_way = of_key().filter(|(_, standing)| *standing == Standing::InFlight);
            let mut allowed: Vec<_> = under_way.map(|(put, _)| Some(put.value)).collect();
            allowed.push(last.map(|(put, _)| put.value));
            let found = values.get(&key).copied();
            if !allowed.contains(&found) {
                return Err(format!("key {key} is {found:?}, and may be {allowed:?}"));
            }
        }
        Ok(())
    }
}

/// After a power cut at any point no put that did not proceed reappears, and no put that did is lost.
#[test]
fn what_does_not_go_on_was_never_there() {
    for kind in KINDS {
        for non_temporal in [false, true] {
            let beside = Beside { kind, non_temporal, goes_on_always: false };
            let report = beside.explored();
            let violations: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
            assert!(violations.is_empty(), "{kind:?}: {}", violations.join("\n"));
            assert!(report.images > 100, "{report}");
            let faulty = Beside { goes_on_always: true, ..beside };
            assert!(!faulty.explored().violations.is_empty(), "{kind:?}: nothing is found");
        }
    }
}

/// The same put on two engines: the fence of one is the other's, unless it is left out.
struct Pair(Kind);

impl Subject for Pair {
    type Op = u64;
    type Store = Vec<Option<Arc<dyn StorageEngine>>>;
    type Contents = Vec<u64>;

    fn work(&self, run: &Run<'_, u64>) {
        let [one, other] = [0, 1].map(|at| engine(self.0, &run.spaces()[at]));
        for value in 1..12_u64 {
            let options = WriteOptions { sequence: Some(FIRST + value), ..WriteOptions::default() };
            let put = |store: &Arc<dyn StorageEngine>, beside: coreplane_engine::Beside<'_>| {
                let brief = store.put_briefly(b"key", &value.to_le_bytes(), &options, Some(beside));
                matches!(brief, Brief::New | Brief::Replaced)
            };
            let call = run.began(value);
            let (is_made, cost) = run.cost_of(|| {
                put(&one, &mut |record| {
                    put(&other, &mut |others_record| others_record() && record())
                })
            });
            assert!(is_made || value < 3, "there is room");
            if !is_made {
                // There is no page yet.
                for store in [&one, &other] {
                    let _outcome = store.put(b"key", &value.to_le_bytes(), &options).expect("put");
                }
            } else if value > 2 {
                assert_eq!(cost.fences, 1, "{cost:?}");
            }
            call.returned();
        }
    }

    fn recover(&self, _: &Arc<Space>) -> Result<Self::Store, String> {
        Err("there are two".to_owned())
    }

    fn recover_all(&self, spaces: &[Arc<Space>]) -> Result<Self::Store, String> {
        let beside = Beside { kind: self.0, non_temporal: false, goes_on_always: false };
        spaces.iter().map(|space| beside.recover(space)).collect()
    }

    fn contents(&self, stores: &Self::Store) -> Result<Vec<u64>, String> {
        let value = |store: &Option<Arc<dyn StorageEngine>>| {
            let Some(store) = store else { return Ok(0) };
            let found = store.get(b"key").map_err(|error| error.to_string())?;
            let word = found.as_ref().and_then(|it| it.first_chunk());
            Ok(word.map_or(0, |word| u64::from_le_bytes(*word)))
        };
        stores.iter().map(value).collect()
    }

    fn check(&self, contents: &Vec<u64>, history: &History<'_, u64>) -> Result<(), String> {
        let acknowledged = history.acknowledged().last().copied().unwrap_or(0);
        let under_way = history.in_flight().last().copied().unwrap_or(0);
        let is_right = |found: &u64| *found == acknowledged || *found == under_way;
        match contents.iter().all(is_right) {
            true => Ok(()),
            false => Err(format!("{contents:?}, and {acknowledged} was acknowledged")),
        }
    }
}

#[test]
fn one_fence_makes_the_same_put_durable_on_two_devices() {
    for kind in KINDS {
        for non_temporal in [false, true] {
            let options = SimOptions { recovery_cut_in: 0, ..machine(2, non_temporal) };
            let report = explore(&options, &Pair(kind));
            let violations: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
            assert!(violations.is_empty(), "{kind:?}: {}", violations.join("\n"));
            // Without any of its fences something is lost, at least on one of them.
            let fault = Some(Fault::DropEveryFence);
            let faulty = SimOptions { fault, max_violations: 1, ..options };
            assert!(!explore(&faulty, &Pair(kind)).violations.is_empty(), "{kind:?}");
        }
    }
}
