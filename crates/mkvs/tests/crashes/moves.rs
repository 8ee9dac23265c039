//! Writes while slots move to a group that is added, at each point of the move.

use crate::shelf::sample::{at, created, put};
use crate::shelf::{Kind, Shelf, wait_until};
use crate::story::SimRack;
use coreplane_engine::{
    Batch, Durability, Engine, Entry, Error, Progress, Repairable, Replicated, WriteOptions,
};
use coreplane_mkvs::filter::hash_of;
use coreplane_mkvs::slots::{deal, slot_of};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, Options, Shape};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Model, Run, SimOptions, Subject, explore};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn slot(key: &[u8]) -> usize {
    slot_of(hash_of(key))
}

/// Keys that a second group takes from the first.
fn moving() -> impl Iterator<Item = Vec<u8>> {
    let owners = deal(2);
    let keys = (0_u64..).map(|number| format!("key-{number:04}").into_bytes());
    keys.filter(move |key| owners[slot(key)] == 1)
}

/// The existing records are given to the new group, one by one.
#[test]
fn a_group_that_is_added_is_given_what_it_takes() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let keys: Vec<Vec<u8>> = moving().take(50).collect();
    keys.iter().for_each(|key| put(&matrix, key, b"value"));
    let _outcome = matrix.delete(&keys[0], &WriteOptions::default()).expect("delete");
    let copied = matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
    // A tombstone, too.
    assert_eq!(copied.records, 50);
    for device in [0, 1] {
        let engine = shelf.engine(at(1, device));
        let found = keys[1..].iter().filter(|key| engine.get(key).expect("get").is_some());
        assert_eq!((found.count(), engine.get(&keys[0]).expect("get")), (49, None));
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// So are values that are longer together than what is read at a time.
#[test]
fn long_values_are_given_too_and_counted() {
    let shelf = Shelf::new(Kind::Bptree, 64 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let keys: Vec<Vec<u8>> = moving().take(12).collect();
    let value = |number: usize| vec![number as u8; 1 << 20];
    (0..).zip(&keys).for_each(|(number, key)| put(&matrix, key, &value(number)));
    let copied = matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
    let len: usize = keys.iter().map(Vec::len).sum();
    assert_eq!((copied.records, copied.bytes), (12, (12 << 20) + len as u64));
    for (number, key) in (0..).zip(&keys) {
        let found = shelf.engine(at(1, 0)).get(key).expect("get");
        assert!(found == Some(value(number)), "{number}");
    }
}

/// Everything has been copied and compared with its owner, and no slot has changed hands: later writes are
/// not checked again.
#[test]
fn what_is_written_before_slots_change_hands_is_in_the_new_group() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let keys: Vec<Vec<u8>> = moving().take(50).collect();
    keys[..40].iter().for_each(|key| put(&matrix, key, b"old"));
    let (options, has_written) = (WriteOptions::default(), Cell::new(false));
    let write = |progress: Progress| {
        if progress.stage == "moving slots" && !has_written.replace(true) {
            keys[..10].iter().for_each(|key| put(&matrix, key, b"new"));
            for key in &keys[10..20] {
                assert!(matrix.delete(key, &options).expect("delete").written().is_some());
            }
            let mut batch = Batch::new();
            for key in keys[20..25].iter().chain(&keys[40..]) {
                batch.put(key, b"new");
            }
            for key in &keys[25..30] {
                batch.delete(key);
            }
            matrix.apply(&batch, &options).expect("apply");
        }
    };
    matrix.add_group(&shelf, &CopyOptions::default(), &write).expect("add a group");
    assert!(has_written.get());
    for (number, key) in keys.iter().enumerate() {
        let expected = match number {
            10..20 | 25..30 => None,
            30..40 => Some(&b"old"[..]),
            _ => Some(&b"new"[..]),
        };
        for device in [0, 1] {
            let found = shelf.engine(at(1, device)).get(key).expect("get");
            assert_eq!(found.as_deref(), expected, "{number} on device {device}");
        }
        assert_eq!(matrix.get(key).expect("get").as_deref(), expected, "{number}");
    }
}

/// New keys are refused for lack of space while their slots move: nothing is left of that on a device that is full,
/// nor in the new group. It would take what is left for deletes, and then the slots could not move.
#[test]
fn what_is_refused_beside_a_move_takes_no_space() {
    for full in [0, 1] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        matrix.hold_tombstones(0).expect("hold");
        let keys: Vec<Vec<u8>> = moving().take(50).collect();
        let has_written = Cell::new(false);
        let write = |progress: Progress| {
            if progress.stage == "moving slots" && !has_written.replace(true) {
                let gate = shelf.gate(at(0, full));
                gate.is_full.store(true, Ordering::SeqCst);
                for key in &keys {
                    let refused = matrix.insert(key, b"new", &WriteOptions::default());
                    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
                }
                gate.is_full.store(false, Ordering::SeqCst);
            }
        };
        matrix.add_group(&shelf, &CopyOptions::default(), &write).expect("add a group");
        assert!(has_written.get());
        for place in [at(0, 0), at(0, 1), at(1, 0), at(1, 1)] {
            let mut left = 0;
            let count = &mut |entry: Entry<'_>| left += usize::from(entry.key.starts_with(b"key-"));
            shelf.engine(place).changes_since(0, count).expect("changes");
            // The first device has had the keys, and deleted them, where the second was full.
            let expected = if (place, full) == (at(0, 0), 1) { keys.len() } else { 0 };
            assert_eq!(left, expected, "on {place}, while {full} was full");
        }
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// A write of a key in a moving slot is on its owner, where readers see it, and not yet in the new group: the
/// slot does not change hands before that.
#[test]
fn slots_change_hands_when_writes_that_have_begun_have_ended() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = &created(&shelf, (1, 2), Ack::All);
    // Slots move in their order. A key of the first slots will not do: before those, the check of the new
    // group waits for writers in any case.
    let key = &moving().take(200).max_by_key(|key| slot(key)).expect("a key");
    put(matrix, key, b"old");
    let primary = &shelf.gate(at(0, 1));
    let has_begun = Cell::new(false);
    std::thread::scope(|scope| {
        let begin = |progress: Progress| {
            if progress.stage == "moving slots" && progress.done > 0 && !has_begun.replace(true) {
                primary.holds_answers.store(true, Ordering::SeqCst);
                scope.spawn(|| put(matrix, key, b"new"));
                wait_until(|| primary.holds_an_answer.load(Ordering::SeqCst));
                scope.spawn(|| {
                    let before = matrix.get(key).expect("get");
                    // A move that does not wait for the write is done within that time.
                    let since = Instant::now();
                    let is_over = || since.elapsed() > Duration::from_millis(600);
                    wait_until(|| matrix.slots().1 == 0 || is_over());
                    let after = matrix.get(key).expect("get");
                    primary.holds_answers.store(false, Ordering::SeqCst);
                    let seen = [before, after].map(|it| String::from_utf8(it.expect("a value")));
                    assert_eq!(seen, [Ok("new".to_owned()), Ok("new".to_owned())]);
                });
            }
        };
        matrix.add_group(&shelf, &CopyOptions::default(), &begin).expect("add a group");
    });
    assert!(has_begun.get());
    assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&b"new"[..]));
    assert_eq!(matrix.slots().1, 0);
}

/// Synced writes of a matrix whose writes return before they are durable, also in a group that is added.
struct DurableLater(Kind);

impl DurableLater {
    const SHAPE: Shape =
        Shape { groups: 1, devices: 1, ack: Ack::All, prototype: coreplane_mkvs::Prototype::Mkvs };

    fn rack(&self, spaces: &[Arc<Space>]) -> SimRack {
        let mut rack = SimRack::new(self.0, Self::SHAPE, spaces, &[]);
        rack.durability = Durability::RELAXED;
        rack
    }

    fn options() -> Options {
        // The simulator knows one thread.
        let options = Options { threads: 1, answers_within: None, ..Options::default() };
        Options { durability: Durability::RELAXED, ..options }
    }

    /// Keys of the slots that move first: no record is written between the copy and the record of that move.
    fn keys() -> impl Iterator<Item = Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = moving().take(200).collect();
        keys.sort_by_key(|key| slot(key));
        keys.into_iter().take(3)
    }
}

impl Subject for DurableLater {
    type Op = ();
    type Store = Option<Matrix>;
    type Contents = usize;

    fn work(&self, run: &Run<'_, ()>) {
        let rack = self.rack(run.spaces());
        let matrix = Matrix::create(&rack, Self::SHAPE, &Self::options()).expect("create");
        Self::keys().for_each(|key| put(&matrix, &key, b"value"));
        run.acknowledged((), || matrix.sync().expect("sync"));
        let fail = |progress: Progress| {
            if progress.stage == "moving slots" && progress.done > 0 {
                rack.gate(at(1, 0)).is_out.store(true, Ordering::SeqCst);
            }
        };
        // The moves after the first slots are the same again.
        let cut_short = matrix.add_group(&rack, &CopyOptions::default(), &fail);
        assert!(cut_short.is_err() && matrix.slots().0[1] > 0);
    }

    fn recover(&self, _: &Arc<Space>) -> Result<Self::Store, String> {
        Err("there are several".to_owned())
    }

    fn recover_all(&self, spaces: &[Arc<Space>]) -> Result<Self::Store, String> {
        match Matrix::open(&self.rack(spaces), &Self::options(), &|_| {}) {
            Ok(matrix) => Ok(Some(matrix)),
            // The matrix is not created yet.
            Err(Error::Unusable(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, matrix: &Self::Store) -> Result<usize, String> {
        let Some(matrix) = matrix else { return Ok(0) };
        let values = Self::keys().map(|key| matrix.get(&key)).collect::<Result<Vec<_>, _>>();
        Ok(values.map_err(|error| error.to_string())?.into_iter().flatten().count())
    }

    fn check(&self, found: &usize, history: &History<'_, ()>) -> Result<(), String> {
        let is_right = history.acknowledged().next().is_none() || *found == Self::keys().count();
        if is_right { Ok(()) } else { Err(format!("of what was synced {found} keys are there")) }
    }
}

/// After a power cut at any point: records given to a new group are durable before it owns the slots.
#[test]
fn what_was_synced_is_there_while_slots_move() {
    // Only on files does a `relaxed` write become durable by a later sync.
    let machines = [Model::X86, Model::File]
        .map(|model| [Kind::Bptree, Kind::Scmkv].map(|kind| (kind, model)));
    for (kind, model) in machines.into_iter().flatten() {
        let options = SimOptions {
            model,
            spaces: 3,
            len: 256 << 10,
            max_len: 256 << 10,
            images_per_cut: 2,
            recovery_cut_in: 0,
            early_reads: false,
            shrink: false,
            ..SimOptions::default()
        };
        let report = explore(&options, &DurableLater(kind));
        let violations: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{kind:?} {model:?}: {}", violations.join("\n"));
        assert!(report.images > 100, "{report}");
    }
}
