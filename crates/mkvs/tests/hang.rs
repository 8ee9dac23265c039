//! Devices that hang: no error, and no answer.

mod shelf;

use coreplane_engine::{Engine, Error, Replicated, WriteOptions};
use coreplane_mkvs::{
    Ack, CopyOptions, Matrix, MemberState, Options, Position, Prototype, ReadPath, Shape,
};
use shelf::sample::{FRESH, device as at};
use shelf::{Kind, Shelf, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Short, so that the tests are, but longer than any thread is without a processor.
const WITHIN: Duration = Duration::from_millis(750);

const KEYS: u64 = 200;

fn shape(ack: Ack, prototype: Prototype) -> Shape {
    Shape { groups: 1, devices: 2, ack, prototype }
}

fn options() -> Options {
    let answers_within = Some(WITHIN);
    Options { read_path: ReadPath::Rings, answers_within, ..Options::default() }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn put_all(matrix: &Matrix, value: &[u8]) {
    for number in 0..KEYS {
        let _outcome = matrix.put(&key(number), value, &WriteOptions::default()).expect("put");
    }
}

fn check_all(matrix: &Matrix, value: &[u8]) {
    for number in 0..KEYS {
        assert_eq!(matrix.get(&key(number)).expect("get").as_deref(), Some(value), "{number}");
    }
}

/// Releases the held calls, even if the test fails: otherwise it could not end.
struct LetsGo<'a>(&'a AtomicBool);

impl Drop for LetsGo<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn is_absent(matrix: &Matrix, device: u8) -> bool {
    matrix.member_states().contains(&(at(device), MemberState::Absent))
}

/// A follower that no write waits for hangs in a write: it is left out, and then neither the close nor a sync
/// waits for it. The later effects of the call do not count.
#[test]
fn a_follower_that_hangs_is_left_out_and_not_waited_for() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = shape(Ack::First, Prototype::Mkvs);
    let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
    put_all(&matrix, b"old");
    matrix.sync().expect("both have it");
    let gate = shelf.gate(at(0));
    gate.holds_puts.store(true, Ordering::SeqCst);
    let lets_go = LetsGo(&gate.holds_puts);
    put_all(&matrix, b"new");
    wait_until(|| gate.held_puts.load(Ordering::SeqCst) > 0);
    check_all(&matrix, b"new");
    matrix.sync().expect("the other one has it");
    assert!(is_absent(&matrix, 0));
    let damaged = matrix.damaged();
    let is_named = |(place, why): &(Position, String)| {
        *place == at(0) && why.contains("has not answered for 0.75 s")
    };
    assert!(damaged.iter().any(is_named), "{damaged:?}");
    // It is there, and cannot be used again: the call may still return to it.
    let refused = matrix.replace(&shelf, at(0), &CopyOptions::default(), &|_| {});
    assert!(refused.is_err_and(|error| error.to_string().contains("does not return")));
    matrix.replace(&shelf, at(0), &FRESH, &|_| {}).expect("a new one takes its place");
    put_all(&matrix, b"newer");
    matrix.close().expect("nobody waits for it");
    drop(lets_go);
    drop(matrix);
    // Once the call has returned its thread releases the matrix.
    let mut opened = None;
    while opened.is_none() {
        opened = Matrix::open(&shelf, &options(), &|_| {}).ok();
    }
    let matrix = opened.expect("it is open");
    assert!(!is_absent(&matrix, 0));
    check_all(&matrix, b"newer");
}

/// The device that serves all reads hangs in one: its reader continues with the other, as do all others.
#[test]
fn a_read_that_hangs_is_made_on_another() {
    let shelf = Shelf::new(Kind::Scmkv, 16 << 20);
    let shape = shape(Ack::All, Prototype::Gekv);
    let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
    put_all(&matrix, b"value");
    let gate = shelf.gate(at(1));
    gate.holds_gets.store(true, Ordering::SeqCst);
    let _lets_go = LetsGo(&gate.holds_gets);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| check_all(&matrix, b"value"));
        }
    });
    assert!(is_absent(&matrix, 1) && !is_absent(&matrix, 0));
    put_all(&matrix, b"another");
    check_all(&matrix, b"another");
}

/// A write hangs on a device, and so does a change of the membership, which is written to that device as
/// well. Queries of the matrix's state need neither a lock that these hold nor an answer of the device.
#[test]
fn who_asks_how_it_is_is_told_while_a_device_hangs() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = Shape { groups: 1, devices: 3, ack: Ack::All, prototype: Prototype::Mkvs };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    put_all(&matrix, b"value");
    let gate = shelf.gate(at(0));
    for holds in [&gate.holds_puts, &gate.holds_gets, &gate.holds_looks] {
        holds.store(true, Ordering::SeqCst);
    }
    let told = std::thread::scope(|scope| {
        let let_go = || {
            for holds in [&gate.holds_puts, &gate.holds_gets, &gate.holds_looks] {
                holds.store(false, Ordering::SeqCst);
            }
        };
        scope.spawn(|| matrix.put(b"key", b"value", &WriteOptions::default()).expect("put"));
        // The put first, since a write that comes while members change waits until they have.
        wait_until(|| gate.held_puts.load(Ordering::SeqCst) == 1);
        scope.spawn(|| matrix.retire(at(2)).expect("retire"));
        wait_until(|| gate.held_puts.load(Ordering::SeqCst) == 2);
        let (says, told) = std::sync::mpsc::channel();
        let asked = || {
            let (standings, epoch, slots) =
                (matrix.member_states(), matrix.epoch(), matrix.slots());
            let (stats, backings) = (matrix.stats(), matrix.backings());
            let is_told = matrix.damaged().is_empty() && matrix.departures().is_empty();
            (standings.len(), epoch > 0, slots.1, stats.devices.len(), backings.len(), is_told)
        };
        scope.spawn(move || says.send(asked()));
        let told = told.recv_timeout(Duration::from_secs(60));
        let_go();
        told
    });
    assert_eq!(told, Ok((3, true, 0, 3, 3, true)));
    assert!(is_absent(&matrix, 2) && !is_absent(&matrix, 0));
    check_all(&matrix, b"value");
}

/// A current device whose processor hangs can be retired as well.
#[test]
fn one_that_hangs_is_retired() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = shape(Ack::First, Prototype::default());
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    let gate = shelf.gate(at(0));
    let lets_go = LetsGo(&gate.holds_puts);
    gate.holds_puts.store(true, Ordering::SeqCst);
    let _outcome = matrix.put(&key(1), b"one", &WriteOptions::default()).expect("put");
    wait_until(|| gate.held_puts.load(Ordering::SeqCst) > 0);
    let engine = shelf.weak_engine(at(0));
    matrix.retire(at(0)).expect("retire");
    assert!(is_absent(&matrix, 0));
    assert_eq!(matrix.get(&key(1)).expect("get").as_deref(), Some(&b"one"[..]));
    matrix.replace(&shelf, at(0), &FRESH, &|_| {}).expect("replace");
    assert!(engine.upgrade().is_some(), "a call is in it");
    drop(lets_go);
    wait_until(|| engine.upgrade().is_none());
    matrix.close().expect("close");
}

/// A matrix of one device a group, on which the record of an emptying is not written in time.
fn held_up(groups: u16, records: u64, then: impl Fn(&Matrix, LetsGo<'_>)) {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let shape = Shape { groups, devices: 1, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
        put_all(&matrix, b"value");
        let gate = shelf.gate(at(0));
        gate.records_to_hold.store(records, Ordering::SeqCst);
        gate.holds_records.store(true, Ordering::SeqCst);
        let lets_go = LetsGo(&gate.holds_records);
        assert!(matrix.clear().is_err());
        then(&matrix, lets_go);
        wait_until(|| gate.held_records.load(Ordering::SeqCst) == 0);
        shelf.cut_power();
        drop(matrix);
        shelf.restore_power();
        // Once the writes have returned their threads release the devices.
        let mut opened = Err(Error::Locked(String::new()));
        while matches!(opened, Err(Error::Locked(_))) {
            opened = Matrix::open(&shelf, &options(), &|_| {});
        }
        let matrix = opened.expect("open");
        check_all(&matrix, b"value");
        assert_eq!(matrix.get(b"later").expect("get").as_deref(), Some(&b"value"[..]));
    }
}

/// The record comes to the device behind later ones.
#[test]
fn a_record_that_comes_late_changes_nothing() {
    for groups in [1, 2] {
        held_up(groups, 1, |matrix, lets_go| {
            let options = WriteOptions::default();
            let _outcome = matrix.put(b"later", b"value", &options).expect("put");
            if groups > 1 {
                // All devices have had its record.
                matrix.hold_tombstones(7).expect("hold");
            }
            drop(lets_go);
        });
    }
}

/// Neither it nor the record that takes it back is written in time: an open would find either.
#[test]
fn nothing_is_written_until_a_record_is() {
    held_up(1, u64::MAX, |matrix, lets_go| {
        let put = || matrix.put(b"later", b"value", &WriteOptions::default());
        assert!(put().is_err());
        check_all(matrix, b"value");
        drop(lets_go);
        let _outcome = put().expect("the device has the record");
    });
}
