//! Devices that are retired while they are current. A device that hangs is tested in `hang.rs`: a call in it
//! keeps the pools of the whole process that leave after it has begun.

use crate::shelf::sample::{FRESH, created, device as at};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Backing, Engine, Repairable, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn standing(matrix: &Matrix, device: u8) -> MemberState {
    let all = matrix.member_states();
    all.into_iter().find(|(place, _)| *place == at(device)).expect("a place").1
}

fn put(matrix: &Matrix, number: u64, serial: u64) {
    let key = number.to_le_bytes();
    let _outcome = matrix.put(&key, &serial.to_le_bytes(), &WriteOptions::default()).expect("put");
}

fn serial(matrix: &Matrix, number: u64) -> u64 {
    let value = matrix.get(&number.to_le_bytes()).expect("get").expect("it is there");
    u64::from_le_bytes(value.try_into().expect("eight bytes"))
}

fn refused(done: coreplane_engine::Result<()>, why: &str) {
    let error = done.expect_err(why).to_string();
    assert!(error.contains(why), "{error}");
}

/// Retires each device in turn, beside a writer: the others have the acknowledged writes, also after a kill.
fn retired_under_load(kind: Kind, ack: Ack) {
    const KEYS: u64 = 50;
    let shelf = Shelf::new(kind, 16 << 20);
    let mut matrix = created(&shelf, (1, 2), ack);
    (0..KEYS).for_each(|number| put(&matrix, number, 0));
    for device in [1, 0, 1] {
        let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let engine = shelf.weak_engine(at(device));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    (0..KEYS).for_each(|number| put(&matrix, number, round));
                    written.store(round, Ordering::Release);
                }
            });
            while written.load(Ordering::Acquire) < 3 {
                std::thread::yield_now();
            }
            matrix.retire(at(device)).expect("retire");
            is_over.store(true, Ordering::SeqCst);
        });
        assert!(engine.upgrade().is_none(), "its engine is there still");
        assert_eq!(standing(&matrix, device), MemberState::Absent);
        assert!(
            matrix
                .damaged()
                .iter()
                .any(|(place, why)| { *place == at(device) && why.contains("it was retired") })
        );
        refused(matrix.retire(at(device)), "is not a current device");
        refused(matrix.retire(at(1 - device)), "is the last current device of its group");
        let round = written.load(Ordering::Acquire);
        assert!((0..KEYS).all(|number| serial(&matrix, number) >= round));
        // After a kill it is still out.
        drop(matrix);
        matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
        assert_eq!(standing(&matrix, device), MemberState::Absent);
        assert!((0..KEYS).all(|number| serial(&matrix, number) >= round));
        matrix.replace(&shelf, at(device), &FRESH, &|_| {}).expect("replace");
        assert_eq!(standing(&matrix, device), MemberState::Current);
    }
    let report = matrix.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
}

#[test]
fn a_current_device_of_bptree_is_retired_and_replaced() {
    retired_under_load(Kind::Bptree, Ack::All);
}

#[test]
fn a_current_device_of_scmkv_is_retired_where_writes_wait_for_one() {
    retired_under_load(Kind::Scmkv, Ack::First);
}

/// The only other device cannot write the record: the device stays, and then leaves for another reason.
#[test]
fn one_that_could_not_be_retired_leaves_for_its_own_reason() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    shelf.gate(at(0)).refuses_records.store(true, Ordering::SeqCst);
    assert!(matrix.retire(at(1)).is_err());
    assert_eq!(standing(&matrix, 1), MemberState::Current);
    shelf.gate(at(0)).refuses_records.store(false, Ordering::SeqCst);
    shelf.pull(at(1));
    put(&matrix, 1, 1);
    assert_eq!(standing(&matrix, 1), MemberState::Absent);
    let why = matrix.departures().into_iter().map(|it| it.why).collect::<Vec<_>>();
    assert!(matches!(&why[..], [why] if why.contains("pulled out")), "{why:?}");
}

/// A retired device is brought up to date if that is requested.
#[test]
fn one_that_was_retired_comes_back_as_it_is() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    put(&matrix, 1, 1);
    refused(matrix.replace(&shelf, at(1), &FRESH, &|_| {}).map(|_| ()), "is to be retired first");
    matrix.retire(at(1)).expect("retire");
    put(&matrix, 1, 2);
    matrix.replace(&shelf, at(1), &CopyOptions::default(), &|_| {}).expect("replace");
    matrix.retire(at(0)).expect("retire");
    assert_eq!(serial(&matrix, 1), 2);
}

/// No call has used the missing files yet.
#[test]
fn files_that_were_removed_or_cut_short_are_told() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 3), Ack::All);
        assert!(matrix.backings().iter().all(|(_, backing)| *backing == Backing::Whole));
        std::fs::remove_file(shelf.path(at(1))).expect("remove");
        let file = std::fs::OpenOptions::new().write(true).open(shelf.path(at(2))).expect("open");
        let (len, expected) = (8 << 20, 16 << 20);
        file.set_len(len).expect("cut");
        let cut = Backing::Shortened { len, expected };
        let expected = [(at(0), Backing::Whole), (at(1), Backing::Removed), (at(2), cut)];
        assert_eq!(matrix.backings(), expected);
        file.set_len(16 << 20).expect("make it long again");
    }
}
