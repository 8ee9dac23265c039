//! The power is cut at each write of a device while a matrix is emptied: it opens again, with all records or none.

use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Engine, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 10;
const LEN: u64 = 256 << 10;

fn options() -> Options {
    // In one thread, so that each run makes the same writes in the same order.
    Options { answers_within: None, threads: 1, ..Options::default() }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn opened(shelf: &Shelf, what: &str) -> Matrix {
    Matrix::open(shelf, &options(), &|_| {}).unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn put(matrix: &Matrix, number: u64, value: &[u8]) {
    let _outcome = matrix.put(&key(number), value, &WriteOptions::default()).expect("put");
}

/// How many of the keys are there with this value; there are no others.
fn count(matrix: &Matrix, value: &[u8], what: &str) -> u64 {
    (0..KEYS).fold(0, |count, number| match matrix.get(&key(number)).expect("get") {
        Some(found) if found == value => count + 1,
        None => count,
        Some(found) => panic!("{what}: {}", String::from_utf8_lossy(&found)),
    })
}

/// The power is cut after so many writes of an emptying, or after its end; false if it needed fewer.
fn is_cut_off(kind: Kind, shape: Shape, writes: u64) -> bool {
    let what = format!("{kind:?}, {shape:?}, {writes} writes");
    let shelf = Shelf::new(kind, LEN);
    let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
    (0..KEYS).for_each(|number| put(&matrix, number, b"old"));
    // So that the rings to the followers are empty.
    matrix.sync().expect("sync");
    let power = shelf.power();
    power.writes_left.store(writes, Ordering::SeqCst);
    let is_emptied = matrix.clear().is_ok();
    power.writes_left.store(u64::MAX, Ordering::SeqCst);
    let is_cut = power.is_dead.swap(true, Ordering::SeqCst);
    assert!(is_cut || is_emptied, "{what}: it fails by itself");
    drop(matrix);
    shelf.restore_power();
    let matrix = opened(&shelf, &what);
    let left = count(&matrix, b"old", &what);
    assert!(left == 0 || (!is_emptied && left == KEYS), "{what}: {left} of {KEYS} records");
    // New records are newer than the tombstones, also on a member that was not the primary.
    (0..KEYS).for_each(|number| put(&matrix, number, b"new"));
    matrix.sync().expect("sync");
    shelf.cut_power();
    drop(matrix);
    shelf.restore_power();
    if shape.groups > 1 {
        // Without another group a missing device cannot be proven to be up to date. At `first` the primary, the last of
        // its group, cannot be missing.
        let device = if shape.ack == Ack::First { 0 } else { shape.devices - 1 };
        std::fs::remove_file(shelf.path(Position { group: 0, device })).expect("remove");
    }
    assert_eq!(count(&opened(&shelf, &what), b"new", &what), KEYS, "{what}");
    is_cut
}

fn assert_opens(kind: Kind, shape: Shape, cuts_min: usize) {
    let cuts = (0..).take_while(|writes| is_cut_off(kind, shape, *writes)).count();
    assert!(cuts >= cuts_min, "{kind:?}, {shape:?}: {cuts} cuts");
}

#[test]
fn a_matrix_opens_after_each_cut_of_its_emptying() {
    // An engine whose keys go one by one, and one that is emptied at once unless it is the only device.
    for (kind, cuts_min) in [(Kind::Scmkv, 30), (Kind::Bptree, 10)] {
        for (groups, devices, ack) in [(2, 2, Ack::First), (2, 2, Ack::All), (1, 3, Ack::Majority)]
        {
            assert_opens(kind, Shape { groups, devices, ack, ..Shape::default() }, cuts_min);
        }
        assert_opens(kind, Shape { groups: 1, devices: 1, ..Shape::default() }, 10);
    }
}

/// The only device is full when the record of an emptying is written. If it has the first of the two and not what
/// takes that back, an open would go on with the emptying.
#[test]
fn what_is_written_after_an_emptying_that_failed_is_kept() {
    for (kind, records) in [(Kind::Bptree, 0), (Kind::Bptree, 1), (Kind::Scmkv, 1)] {
        let shelf = Shelf::new(kind, 16 << 20);
        let shape = Shape { groups: 1, devices: 1, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
        (0..KEYS).for_each(|number| put(&matrix, number, b"old"));
        let gate = shelf.gate(Position { group: 0, device: 0 });
        gate.records_left.store(records, Ordering::SeqCst);
        gate.refuses_records.store(true, Ordering::SeqCst);
        assert!(matrix.clear().is_err());
        let is_made = matrix.put(&key(0), b"old", &WriteOptions::default()).is_ok();
        assert_eq!(is_made, records == 0, "{kind:?}");
        gate.refuses_records.store(false, Ordering::SeqCst);
        (0..KEYS).for_each(|number| put(&matrix, number, b"new"));
        shelf.cut_power();
        drop(matrix);
        shelf.restore_power();
        assert_eq!(count(&opened(&shelf, "full"), b"new", "full"), KEYS, "{kind:?}");
    }
}

/// Two readers of all keys, each of which does not end before the other one has begun again, or waits: an emptying
/// comes between them.
#[test]
fn a_matrix_is_emptied_beside_readers_that_overlap() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = &Matrix::create(&shelf, Shape::default(), &options()).expect("create");
    put(matrix, 0, b"value");
    let (looks, is_over) = (&[const { AtomicU64::new(0) }; 2], &AtomicBool::new(false));
    let look = move |own: usize| {
        while !is_over.load(Ordering::SeqCst) {
            let next = matrix.iterate(0, 10, &mut |_| {
                let other = || looks[1 - own].load(Ordering::SeqCst);
                looks[own].fetch_add(1, Ordering::SeqCst);
                let (before, since) = (other(), Instant::now());
                let waits = || since.elapsed() > Duration::from_millis(300);
                wait_until(|| other() > before || is_over.load(Ordering::SeqCst) || waits());
            });
            assert_eq!(next.expect("iterate"), 0);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || look(0));
        scope.spawn(move || look(1));
        wait_until(|| looks.iter().all(|looks| looks.load(Ordering::SeqCst) > 10));
        scope.spawn(|| {
            matrix.clear().expect("clear");
            is_over.store(true, Ordering::SeqCst);
        });
        wait_until(|| is_over.load(Ordering::SeqCst));
    });
    assert_eq!(matrix.len().expect("len"), 0);
}

/// The record of a device that is being emptied is changed meanwhile: the device gets the changed one.
#[test]
fn a_matrix_is_emptied_beside_a_change_of_its_record() {
    for devices in [1, 2] {
        let shelf = Shelf::new(Kind::Scmkv, 16 << 20);
        let shape = Shape { groups: 1, devices, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
        put(&matrix, 0, b"old");
        matrix.sync().expect("sync");
        let gate = shelf.gate(Position { group: 0, device: 0 });
        gate.holds_deletes.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let clear = scope.spawn(|| matrix.clear());
            wait_until(|| gate.held_deletes.load(Ordering::SeqCst) > 0);
            matrix.hold_tombstones(0).expect("hold");
            gate.holds_deletes.store(false, Ordering::SeqCst);
            clear.join().expect("it does not panic").expect("clear");
        });
        assert!(matrix.departures().is_empty(), "{devices} devices");
        put(&matrix, 1, b"new");
        shelf.cut_power();
        drop(matrix);
        shelf.restore_power();
        let matrix = opened(&shelf, "after the change");
        assert_eq!(count(&matrix, b"new", "after the change"), 1, "{devices} devices");
    }
}
