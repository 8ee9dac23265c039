//! Records that members are given when a matrix is opened are durable before its record says that nothing
//! need be compared, at every durability level, and with any number of threads.

use crate::scale::scaled;
use crate::shelf::Kind;
use crate::shelf::sample::at;
use crate::story::SimRack;
use coreplane_engine::{Batch, Durability, Engine, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// On files `relaxed` writes are durable by a later sync; elsewhere they are strict.
const MACHINES: [(Kind, Model); 4] = [
    (Kind::Scmkv, Model::X86),
    (Kind::Bptree, Model::X86),
    (Kind::Scmkv, Model::File),
    (Kind::Bptree, Model::File),
];

const RELAXED: Durability =
    Durability::Relaxed { window_bytes: 1 << 20, window: Duration::from_hours(1) };

/// Enough for several leaves: a record in the same leaf would make them durable with it.
const KEYS: u64 = 64;

const OLD: [u8; 150] = [1; 150];
const NEW: [u8; 150] = [2; 150];

/// The followers of both groups, which lack the newest write of each key; the primaries are enough by themselves.
const FOLLOWERS: [Position; 2] = [at(0, 0), at(1, 0)];
const PRIMARIES: [Position; 2] = [at(0, 1), at(1, 1)];

fn shape() -> Shape {
    Shape { ack: Ack::First, ..Shape::default() }
}

fn rack_of(kind: Kind, sim: &Sim, missing: &[Position]) -> SimRack {
    let mut rack = SimRack::new(kind, shape(), sim.spaces(), missing);
    rack.durability = RELAXED;
    rack
}

/// Opens with two threads: each reconciles a group.
fn opened(rack: &SimRack) -> coreplane_engine::Result<Matrix> {
    let options =
        Options { threads: 2, answers_within: None, durability: RELAXED, ..Options::default() };
    Matrix::open(rack, &options, &|_| {})
}

fn machine(model: Model) -> Sim {
    let len = 512 << 10;
    let options = SimOptions {
        spaces: 5,
        len,
        max_len: len,
        page_size: 4096,
        model,
        ..SimOptions::default()
    };
    Sim::new(&options).expect("memory")
}

/// A machine whose matrix was killed while its followers lacked the newest write of each key.
fn killed(kind: Kind, model: Model) -> Sim {
    let sim = machine(model);
    let rack = SimRack::new(kind, shape(), sim.spaces(), &[]);
    let options = Options { threads: 1, answers_within: None, ..Options::default() };
    let matrix = Matrix::create(&rack, shape(), &options).expect("create");
    let put_all = |value: &[u8]| {
        for key in 0..KEYS {
            let options = WriteOptions::default();
            let outcome = matrix.put(&key.to_le_bytes(), value, &options).expect("put");
            assert!(outcome.written().is_some());
        }
    };
    let lag = |lags| {
        let each = |place: &Position| rack.gate(*place).is_lagging.store(lags, Ordering::SeqCst);
        FOLLOWERS.iter().for_each(each);
    };
    put_all(&OLD);
    matrix.sync().expect("all have it");
    lag(true);
    put_all(&NEW);
    let image = sim.crash(Eviction::Nothing);
    lag(false);
    drop(matrix);
    image.reopen().expect("memory")
}

/// All keys have their newest values.
fn check(matrix: &Matrix, what: &str) {
    for key in 0..KEYS {
        let found = matrix.get(&key.to_le_bytes()).expect("get");
        assert!(found.as_deref() == Some(&NEW), "{what}: key {key}");
    }
}

#[test]
fn what_an_opening_gives_is_durable_before_a_close_says_so() {
    for (kind, model) in MACHINES {
        let sim = killed(kind, model);
        let matrix = opened(&rack_of(kind, &sim, &[])).expect("open");
        let from = sim.events();
        matrix.close().expect("close");
        let mut were_clean = 0;
        let step = (sim.events() - from) / scaled(24, 400);
        for cut in from..=sim.events() {
            let left = sim.crash_at(cut, Eviction::Nothing);
            let what = format!("{kind:?} {model:?}, cut {cut} of {from}..");
            // A follower alone is enough after a close, and not before. The other group is whole, or else it
            // would be unknown whether the record is the latest.
            for primary in PRIMARIES {
                let left = left.reopen().expect("memory");
                if let Ok(matrix) = opened(&rack_of(kind, &left, &[primary])) {
                    check(&matrix, &format!("{what}, without {primary}"));
                    were_clean += 1;
                }
            }
            if model == Model::X86 || !(cut - from).is_multiple_of(step) {
                continue;
            }
            // Writes that the record calls compared are not compared again: they are on all members, or never
            // will be.
            let whole = left.reopen().expect("memory");
            opened(&rack_of(kind, &whole, &[])).expect(&what).close().expect(&what);
            let closed = whole.crash(Eviction::Nothing);
            for primary in PRIMARIES {
                let alone = closed.reopen().expect("memory");
                let matrix = opened(&rack_of(kind, &alone, &[primary])).expect(&what);
                check(&matrix, &format!("{what}, closed, without {primary}"));
            }
        }
        assert!(were_clean > 0, "{kind:?} {model:?}");
    }
}

#[test]
fn a_reconciliation_by_two_threads_is_cut_off_anywhere() {
    for (kind, model) in MACHINES {
        let sim = killed(kind, model);
        let matrix = opened(&rack_of(kind, &sim, &[])).expect("open");
        let events = sim.events();
        for cut in (0..events).step_by(events / scaled(40, 400) as usize) {
            let what = format!("{kind:?} {model:?}, cut {cut} of {events}");
            let left = sim.crash_at(cut, Eviction::Seeded(cut as u64)).reopen().expect("memory");
            let again = opened(&rack_of(kind, &left, &[])).expect(&what);
            check(&again, &what);
            again.close().expect("close");
            let closed = left.crash(Eviction::Nothing);
            for primary in PRIMARIES {
                let alone = closed.reopen().expect("memory");
                let matrix = opened(&rack_of(kind, &alone, &[primary])).expect(&what);
                check(&matrix, &format!("{what}, without {primary}"));
            }
        }
        matrix.close().expect("close");
    }
}

/// The power fails in the middle of a batch over both groups, and again in the middle of the open that finishes it.
#[test]
fn a_batch_that_an_opening_finishes_is_whole_before_its_intent_goes() {
    for (kind, model) in MACHINES {
        let sim = machine(model);
        let rack = SimRack::new(kind, shape(), sim.spaces(), &[]);
        let options = Options { threads: 1, answers_within: None, ..Options::default() };
        let matrix = Matrix::create(&rack, shape(), &options).expect("create");
        let mut batch = Batch::new();
        for key in 0..KEYS {
            let outcome = matrix.put(&key.to_le_bytes(), &OLD, &WriteOptions::default());
            assert!(outcome.expect("put").written().is_some());
            batch.put(&key.to_le_bytes(), &NEW);
        }
        matrix.sync().expect("all have it");
        let from = sim.events();
        let _written = matrix.apply(&batch, &WriteOptions::default()).expect("apply");
        let to = sim.events();
        let mut were_whole = 0;
        for first in (from..to).step_by((to - from) / scaled(10, 60)) {
            let left = sim.crash_at(first, Eviction::Nothing).reopen().expect("memory");
            let _opened = opened(&rack_of(kind, &left, &[])).expect("open");
            let events = left.events();
            for cut in (0..events).step_by(events / scaled(30, 300)) {
                let again = left.crash_at(cut, Eviction::Nothing).reopen().expect("memory");
                let matrix = opened(&rack_of(kind, &again, &[])).expect("open again");
                let is_new = |key: &u64| {
                    let found = matrix.get(&key.to_le_bytes()).expect("get");
                    found.as_deref() == Some(&NEW)
                };
                let new = (0..KEYS).filter(is_new).count() as u64;
                let what = format!(
                    "{kind:?} {model:?}: {new} after cuts {first} of {to} and {cut} of {events}"
                );
                assert!(new == 0 || new == KEYS, "{what}");
                were_whole += u64::from(new == KEYS);
            }
        }
        assert!(were_whole > 0, "{kind:?} {model:?}: none was made");
    }
}
