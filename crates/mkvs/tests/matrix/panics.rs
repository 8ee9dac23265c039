//! A device's processor that panics: the device counts as failed, and no thread waits for it.

use crate::shelf::sample::{at, numbered as key};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Batch, Engine, Entry, Record, Repairable, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options, ReadPath, Shape};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

fn created(shelf: &Shelf, ack: Ack, read_path: ReadPath) -> Matrix {
    let shape = Shape { groups: 1, ack, ..Shape::default() };
    Matrix::create(shelf, shape, &Options { read_path, ..Options::default() }).expect("create")
}

fn panics(shelf: &Shelf, device: u8, times: u64) {
    shelf.gate(at(0, device)).panics.store(times, Ordering::SeqCst);
}

fn is_current(matrix: &Matrix, device: u8) -> bool {
    matrix.member_states().contains(&(at(0, device), MemberState::Current))
}

/// Waits until a device is left out: a sync skips a device as soon as it begins to leave.
fn is_left_out(matrix: &Matrix, device: u8) -> bool {
    (0..10_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        !is_current(matrix, device)
    })
}

/// All records are there, by gets and by a scan.
fn check(matrix: &Matrix, count: u64) {
    for number in 0..count {
        let found = matrix.get(&key(number)).expect("get");
        assert_eq!(found.as_deref(), Some(&number.to_le_bytes()[..]));
    }
    let mut seen = 0;
    let visit = &mut |_: Entry<'_>| {
        seen += 1;
        true
    };
    matrix.ordered().expect("trees").scan(b"", None, false, usize::MAX, visit).expect("scan");
    assert_eq!((seen, matrix.len().expect("len")), (count, count));
}

#[test]
fn who_follows_and_panics_is_left_out() {
    for is_batch in [false, true] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, Ack::First, ReadPath::default());
        panics(&shelf, 0, 1);
        let options = WriteOptions::default();
        for number in (0..200).step_by(2) {
            let (one, other) = (number, number + 1);
            if is_batch {
                let mut batch = Batch::new();
                batch.put(&key(one), &one.to_le_bytes()).put(&key(other), &other.to_le_bytes());
                matrix.apply(&batch, &options).expect("apply");
            } else {
                let _outcome = matrix.put(&key(one), &one.to_le_bytes(), &options).expect("put");
                let _outcome =
                    matrix.put(&key(other), &other.to_le_bytes(), &options).expect("put");
            }
        }
        // It waits for all writes in rings.
        matrix.sync().expect("sync");
        assert!(is_left_out(&matrix, 0) && is_current(&matrix, 1), "{is_batch}");
        check(&matrix, 200);
        let filled = matrix.replace(&shelf, at(0, 0), &CopyOptions::default(), &|_| {});
        assert!(filled.is_ok_and(|filled| filled.records == 200));
        shelf.pull(at(0, 1));
        check(&matrix, 200);
    }
}

/// It panics a second time when it reports the first panic.
#[test]
fn who_panics_over_a_panic_is_left_out_too() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, Ack::First, ReadPath::default());
    panics(&shelf, 0, 1);
    panics(&shelf, 1, 1);
    for number in 0..200_u64 {
        let _outcome =
            matrix.put(&key(number), &number.to_le_bytes(), &WriteOptions::default()).expect("put");
    }
    matrix.sync().expect("sync");
    assert!(is_left_out(&matrix, 0) && is_current(&matrix, 1));
    check(&matrix, 200);
    matrix.close().expect("close");
}

#[test]
fn a_read_that_panics_is_answered_by_a_peer() {
    [ReadPath::Rings, ReadPath::Inline].into_iter().for_each(answered_by_a_peer);
}

fn answered_by_a_peer(read_path: ReadPath) {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, Ack::All, read_path);
    for number in 0..200_u64 {
        let _outcome =
            matrix.put(&key(number), &number.to_le_bytes(), &WriteOptions::default()).expect("put");
    }
    check(&matrix, 200);
    for device in [0, 1] {
        let gate = shelf.gate(at(0, device));
        let is_inline = read_path == ReadPath::Inline;
        let counter = if is_inline { &gate.read_panics } else { &gate.panics };
        counter.store(1, Ordering::SeqCst);
        // Each thread prefers a device.
        while is_current(&matrix, device) {
            std::thread::scope(|scope| {
                (0..4).for_each(|_| drop(scope.spawn(|| check(&matrix, 200))));
            });
        }
        let filled = matrix.replace(&shelf, at(0, device), &CopyOptions::default(), &|_| {});
        assert!(filled.is_ok_and(|filled| filled.records == 200));
    }
}

/// A panic in the caller's own code affects neither the key nor later callers.
#[test]
fn a_decision_that_panics_changes_nothing_and_holds_nobody_up() {
    for ack in [Ack::All, Ack::First] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, ack, ReadPath::default());
        let options = WriteOptions::default();
        let _outcome = matrix.put(&key(0), b"old", &options).expect("put");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let decide = &mut |_: Option<Record<'_>>| panic!("a bug in the caller");
            matrix.modify(&key(0), &options, decide).map(|_| ())
        }));
        let what = panicked.expect_err("it is the caller's");
        assert_eq!(what.downcast_ref(), Some(&"a bug in the caller"));
        assert_eq!(matrix.get(&key(0)).expect("get").as_deref(), Some(&b"old"[..]));
        let _outcome = matrix.put(&key(0), b"new", &options).expect("put");
        assert_eq!(matrix.get(&key(0)).expect("get").as_deref(), Some(&b"new"[..]));
        assert!(is_current(&matrix, 0) && is_current(&matrix, 1));
        matrix.close().expect("close");
    }
}

/// The same for code that is called while a device is read.
#[test]
fn a_visit_that_panics_is_no_fault_of_the_device() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, Ack::All, ReadPath::default());
    let _outcome = matrix.put(&key(0), b"value", &WriteOptions::default()).expect("put");
    let panics = |visits: &dyn Fn()| {
        let what = catch_unwind(AssertUnwindSafe(visits)).expect_err("it is the caller's");
        assert_eq!(what.downcast_ref(), Some(&"a bug in the caller"));
        assert!(is_current(&matrix, 0) && is_current(&matrix, 1));
    };
    panics(&|| {
        let shown = matrix.changes_since(0, &mut |_| panic!("a bug in the caller"));
        panic!("{shown:?}");
    });
    panics(&|| drop(matrix.verify(&mut |_| panic!("a bug in the caller"))));
    panics(&|| drop(matrix.scrub(&|_| panic!("a bug in the caller"))));
    assert_eq!(matrix.get(&key(0)).expect("get").as_deref(), Some(&b"value"[..]));
    matrix.close().expect("close");
}

/// The intent of a batch over groups: readers of its keys would wait for ever.
#[test]
fn who_panics_over_an_intent_is_left_out() {
    for device in [0, 1] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let shape = Shape { groups: 2, devices: 2, ack: Ack::All, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
        shelf.gate(at(0, device)).write_panics.store(1, Ordering::SeqCst);
        let mut batch = Batch::new();
        for number in 0..100_u64 {
            batch.put(&key(number), &number.to_le_bytes());
        }
        matrix.apply(&batch, &WriteOptions::default()).expect("its peer has it");
        assert_eq!((is_current(&matrix, device), is_current(&matrix, 1 - device)), (false, true));
        check(&matrix, 100);
        matrix.close().expect("close");
    }
}

/// In the caller's thread, if the engine is called there.
#[test]
fn who_is_written_to_and_panics_is_left_out() {
    let all = [(0, false), (1, false), (0, true), (1, true)].map(|it| (Ack::All, it));
    // Its processor writes to the follower.
    let first = [(1, false), (1, true)].map(|it| (Ack::First, it));
    for (ack, (device, is_batch)) in all.into_iter().chain(first) {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, ack, ReadPath::default());
        let options = WriteOptions::default();
        (0..100_u64).for_each(|it| {
            let _outcome = matrix.put(&key(it), &it.to_le_bytes(), &options).expect("put");
        });
        shelf.gate(at(0, device)).write_panics.store(1, Ordering::SeqCst);
        let number = 100_u64;
        if is_batch {
            let mut batch = Batch::new();
            batch.put(&key(number), &number.to_le_bytes());
            matrix.apply(&batch, &options).expect("its peer has it");
        } else {
            let _outcome =
                matrix.put(&key(number), &number.to_le_bytes(), &options).expect("its peer has it");
        }
        assert_eq!((is_current(&matrix, device), is_current(&matrix, 1 - device)), (false, true));
        check(&matrix, 101);
        matrix.close().expect("close");
    }
}
