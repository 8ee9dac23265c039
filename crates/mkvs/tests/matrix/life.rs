//! Devices that are replaced, and groups that are added, while the matrix is in use, with interruptions in
//! the middle.

use crate::shelf::sample::{FRESH, at, created, key, opened, put, standing};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Error, Expected, Outcome, Repairable, UnixMillis, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;
const KEYS: u64 = 400;

/// The last acknowledged serial of each key of each writer.
#[derive(Default)]
struct Load {
    written: Vec<Vec<AtomicU64>>,
    stop: AtomicBool,
    total: AtomicU64,
}

/// One write in seven of each key is a delete.
fn is_delete(serial: u64) -> bool {
    serial % 7 == 3
}

impl Load {
    fn new() -> Self {
        let keys = || (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        Self { written: (0..WRITERS).map(|_| keys()).collect(), ..Self::default() }
    }

    fn write(&self, matrix: &Matrix, thread: u64) {
        let mut serial = 1 + self.written[thread as usize]
            .iter()
            .map(|it| it.load(Ordering::SeqCst))
            .max()
            .unwrap_or(0);
        while !self.stop.load(Ordering::Relaxed) {
            let number = serial * 7919 % KEYS;
            let key = key(thread, number);
            if is_delete(serial) {
                let _outcome = matrix.delete(&key, &WriteOptions::default()).expect("delete");
            } else {
                put(matrix, &key, &serial.to_le_bytes());
            }
            self.written[thread as usize][number as usize].store(serial, Ordering::SeqCst);
            self.total.fetch_add(1, Ordering::Relaxed);
            serial += 1;
        }
    }

    /// No read fails, and none returns a value older than the last one acknowledged before it.
    fn read(&self, matrix: &Matrix, reader: u64) {
        let mut serial = reader;
        while !self.stop.load(Ordering::Relaxed) {
            serial += 1;
            let (thread, number) = (serial % WRITERS, serial * 31 % KEYS);
            let known = &self.written[thread as usize][number as usize];
            let before = known.load(Ordering::SeqCst);
            let value = matrix.get(&key(thread, number)).expect("no read fails");
            let after = known.load(Ordering::SeqCst);
            match value {
                Some(value) => {
                    let found = u64::from_le_bytes(value.try_into().expect("eight bytes"));
                    assert!(found >= before, "{found} was read after {before} was acknowledged");
                }
                // An acknowledged write, or one under way, has deleted it.
                None => assert!(
                    before == 0 || (before..=after + KEYS).step_by(KEYS as usize).any(is_delete),
                    "{thread} {number}: nothing was read after {before} was acknowledged"
                ),
            }
        }
    }

    /// Runs writers and readers while `act` acts.
    fn run(&self, matrix: &Matrix, act: impl FnOnce(&dyn Fn(u64))) {
        self.stop.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for thread in 0..WRITERS {
                scope.spawn(move || self.write(matrix, thread));
            }
            for reader in 0..2 {
                scope.spawn(move || self.read(matrix, reader));
            }
            let wait = |count: u64| {
                let goal = self.total.load(Ordering::Relaxed) + count;
                while self.total.load(Ordering::Relaxed) < goal {
                    std::thread::yield_now();
                }
            };
            let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&wait)));
            self.stop.store(true, Ordering::SeqCst);
            if let Err(panic) = acted {
                std::panic::resume_unwind(panic);
            }
        });
    }

    fn expected(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut expected = BTreeMap::new();
        for (thread, mine) in (0..).zip(&self.written) {
            for (number, serial) in (0..).zip(mine) {
                let serial = serial.load(Ordering::SeqCst);
                if serial > 0 && !is_delete(serial) {
                    expected.insert(key(thread, number), serial.to_le_bytes().to_vec());
                }
            }
        }
        expected
    }

    /// Gets, iterations and scans find the acknowledged records and nothing else, and the members of each
    /// group agree.
    fn check(&self, matrix: &Matrix) {
        let expected = self.expected();
        for thread in 0..WRITERS {
            for number in 0..KEYS {
                let key = key(thread, number);
                assert_eq!(matrix.get(&key).expect("get"), expected.get(&key).cloned());
            }
        }
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            cursor =
                matrix.iterate(cursor, 100, &mut |it| seen.push(it.key.to_vec())).expect("iterate");
            if cursor == 0 {
                break;
            }
        }
        seen.sort();
        assert!(seen.iter().eq(expected.keys()), "{} and not {}", seen.len(), expected.len());
        assert_eq!(matrix.len().expect("len"), expected.len() as u64);
        if let Some(ordered) = matrix.ordered() {
            let mut scanned = Vec::new();
            let visit = &mut |it: coreplane_engine::Entry<'_>| {
                scanned.push(it.key.to_vec());
                true
            };
            ordered.scan(b"", None, false, usize::MAX, visit).expect("scan");
            assert!(scanned.iter().eq(expected.keys()));
        }
        let report = matrix.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{:?}", report.damages);
    }
}

fn replaced_under_load(kind: Kind, ack: Ack) {
    let shelf = Shelf::new(kind, 64 << 20);
    let matrix = created(&shelf, (2, 2), ack);
    let load = Load::new();
    load.run(&matrix, |wait| {
        wait(3_000);
        shelf.pull(at(0, 1));
        wait(3_000);
        // Writes go on a moment before the record without it is shown.
        let since = Instant::now();
        while standing(&matrix, at(0, 1)) != MemberState::Absent {
            assert!(since.elapsed() < Duration::from_secs(60), "it is a member still");
            std::thread::yield_now();
        }
        // A new device in its place.
        let filled = matrix.replace(&shelf, at(0, 1), &FRESH, &|_| {}).expect("replace");
        assert!(filled.records > 0);
        assert_eq!(standing(&matrix, at(0, 1)), MemberState::Current);
        wait(3_000);
    });
    load.check(&matrix);
    // Now the new device alone has the records of its group.
    shelf.pull(at(0, 0));
    load.check(&matrix);
    // More writes, after which the remaining members are known to be equal at `first`, too.
    let _outcome = matrix.delete(b"nothing", &WriteOptions::default()).expect("delete");
    put(&matrix, b"more", b"");
    let _outcome = matrix.delete(b"more", &WriteOptions::default()).expect("delete");
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(standing(&matrix, at(0, 0)), MemberState::Absent);
    load.check(&matrix);
}

#[test]
fn a_device_of_bptree_is_replaced_under_load() {
    replaced_under_load(Kind::Bptree, Ack::All);
}

#[test]
fn a_device_of_scmkv_is_replaced_under_load() {
    replaced_under_load(Kind::Scmkv, Ack::All);
}

#[test]
fn a_device_is_replaced_where_writes_wait_for_the_first() {
    replaced_under_load(Kind::Bptree, Ack::First);
}

#[test]
fn a_device_that_was_away_is_brought_up_to_date() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 32 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        let load = Load::new();
        load.run(&matrix, |wait| {
            wait(2_000);
            shelf.pull(at(0, 0));
            wait(2_000);
            shelf.put_back(at(0, 0));
            let options = CopyOptions::default();
            matrix.replace(&shelf, at(0, 0), &options, &|_| {}).expect("replace");
            wait(1_000);
        });
        assert_eq!(standing(&matrix, at(0, 0)), MemberState::Current);
        load.check(&matrix);
        shelf.pull(at(0, 1));
        load.check(&matrix);
    }
}

/// Records that a device alone has, and keys deleted while it was away, do not come back with it.
#[test]
fn nothing_is_resurrected_by_a_device_that_was_away() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    for name in [b"kept", b"gone", b"over"] {
        put(&matrix, name, b"old");
    }
    shelf.pull(at(0, 1));
    let _outcome = matrix.delete(b"gone", &WriteOptions::default()).expect("delete");
    put(&matrix, b"over", b"new");
    drop(matrix);
    // The device is written to without the matrix, with sequences of its own.
    let clock: coreplane_mkvs::TimeSource = std::sync::Arc::new(UnixMillis::now);
    let engine = coreplane_mkvs::Rack::open(&shelf, at(0, 1), &clock).expect("open");
    for name in [b"kept", b"gone", b"only"] {
        let _outcome = engine.put(name, b"stray", &WriteOptions::default()).expect("put");
    }
    drop(engine);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent);
    matrix.replace(&shelf, at(0, 1), &CopyOptions::default(), &|_| {}).expect("replace");
    let check = |matrix: &Matrix| {
        assert_eq!(matrix.get(b"kept").expect("get").as_deref(), Some(&b"old"[..]));
        assert_eq!(matrix.get(b"over").expect("get").as_deref(), Some(&b"new"[..]));
        assert_eq!(matrix.get(b"gone").expect("get"), None);
        assert_eq!(matrix.get(b"only").expect("get"), None);
        assert_eq!(matrix.len().expect("len"), 2);
    };
    check(&matrix);
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    shelf.pull(at(0, 0));
    check(&matrix);
}

#[test]
fn a_device_is_replaced_after_the_filling_was_cut_off() {
    let shelf = Shelf::new(Kind::Bptree, 32 << 20);
    let matrix = created(&shelf, (2, 2), Ack::All);
    let load = Load::new();
    load.run(&matrix, |wait| {
        wait(3_000);
        shelf.pull(at(1, 0));
        wait(1_000);
        // The new device fails, too, as soon as it has received something.
        let failing = |_| shelf.pull(at(1, 0));
        matrix.replace(&shelf, at(1, 0), &FRESH, &failing).expect_err("it fails");
        assert_eq!(standing(&matrix, at(1, 0)), MemberState::Joining);
        wait(1_000);
    });
    load.check(&matrix);
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(standing(&matrix, at(1, 0)), MemberState::Joining);
    load.run(&matrix, |wait| {
        wait(1_000);
        matrix.replace(&shelf, at(1, 0), &CopyOptions::default(), &|_| {}).expect("replace");
    });
    load.check(&matrix);
    shelf.pull(at(1, 1));
    load.check(&matrix);
}

#[test]
fn what_cannot_be_replaced_is_said() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    put(&matrix, b"key", b"value");
    let refused = |place, words: &str| {
        let options = CopyOptions::default();
        match matrix.replace(&shelf, place, &options, &|_| {}) {
            Err(Error::Unusable(what) | Error::Occupied { what, .. }) => {
                assert!(what.contains(words), "{what}");
            }
            other => panic!("{other:?}"),
        }
    };
    refused(at(0, 1), "is a current device");
    refused(at(0, 2), "no place");
    refused(at(1, 0), "no place");
    drop(matrix);
    // A device of another matrix is at the place of ours.
    let other = Shelf::new(Kind::Bptree, 16 << 20);
    created(&other, (1, 2), Ack::All).close().expect("close");
    std::fs::remove_file(shelf.path(at(0, 1))).expect("remove");
    let options = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &options, &|_| {}).expect("open");
    std::fs::copy(other.path(at(0, 1)), shelf.path(at(0, 1))).expect("copy");
    let options = CopyOptions::default();
    let foreign = matrix.replace(&shelf, at(0, 1), &options, &|_| {});
    assert!(
        matches!(
            &foreign,
            Err(Error::Unusable(what) | Error::Occupied { what, .. }) if what.contains("another matrix")
        ),
        "{foreign:?}"
    );
    assert!(other.path(at(0, 1)).exists() && shelf.path(at(0, 1)).exists(), "it was left alone");
    assert_eq!(matrix.get(b"key").expect("get").as_deref(), Some(&b"value"[..]));
}

fn grown_under_load(kind: Kind, ack: Ack) {
    let shelf = Shelf::new(kind, 64 << 20);
    let matrix = created(&shelf, (1, 2), ack);
    let load = Load::new();
    load.run(&matrix, |wait| {
        wait(3_000);
        matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
        let (slots, moving) = matrix.slots();
        assert_eq!((slots.len(), moving), (2, 0));
        assert!(slots.iter().all(|owned| *owned > 400), "{slots:?}");
        wait(2_000);
        matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add another");
        assert_eq!(matrix.slots().0.len(), 3);
        wait(2_000);
    });
    load.check(&matrix);
    assert!(!matrix.is_moving());
    matrix.close().expect("close");
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(matrix.slots().0.len(), 3);
    load.check(&matrix);
    // One device of each group has all records of its group.
    (0..3).for_each(|group| shelf.pull(at(group, group as u8 % 2)));
    load.check(&matrix);
}

#[test]
fn groups_of_bptree_are_added_under_load() {
    grown_under_load(Kind::Bptree, Ack::All);
}

#[test]
fn groups_of_scmkv_are_added_under_load() {
    grown_under_load(Kind::Scmkv, Ack::All);
}

#[test]
fn groups_are_added_where_writes_wait_for_the_first() {
    grown_under_load(Kind::Bptree, Ack::First);
}

#[test]
fn a_group_that_fails_while_it_is_filled_takes_nothing_with_it() {
    let shelf = Shelf::new(Kind::Bptree, 32 << 20);
    let matrix = created(&shelf, (2, 1), Ack::All);
    let load = Load::new();
    load.run(&matrix, |wait| {
        wait(2_000);
        let mut is_pulled = std::cell::Cell::new(false);
        let failing = |_| {
            if !is_pulled.replace(true) {
                shelf.pull(at(2, 0));
            }
        };
        matrix.add_group(&shelf, &CopyOptions::default(), &failing).expect_err("it fails");
        assert!(*is_pulled.get_mut());
        wait(1_000);
    });
    load.check_readable(&matrix);
    drop(matrix);
    // The device is back: the slots that had not moved move now.
    let matrix = opened(&shelf).expect("open");
    assert!(matrix.is_moving());
    load.check(&matrix);
    load.run(&matrix, |wait| {
        wait(500);
        matrix.finish_moves(&CopyOptions::default(), &|_| {}).expect("finish");
    });
    assert!(!matrix.is_moving());
    load.check(&matrix);
}

impl Load {
    fn check_readable(&self, matrix: &Matrix) {
        for (key, value) in self.expected() {
            assert_eq!(matrix.get(&key).expect("get"), Some(value));
        }
    }
}

/// Batches over several groups, conditions and expiries hold while slots move.
#[test]
fn conditions_and_batches_hold_while_slots_move() {
    let shelf = Shelf::new(Kind::Bptree, 32 << 20);
    let matrix = created(&shelf, (2, 2), Ack::All);
    let names: Vec<Vec<u8>> = (0..64).map(|it| format!("counter-{it}").into_bytes()).collect();
    names.iter().for_each(|name| put(&matrix, name, &0_u64.to_le_bytes()));
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // All keys of a batch have one value in every read.
        scope.spawn(|| {
            for round in 1_u64.. {
                let mut batch = coreplane_engine::Batch::new();
                for name in &names[..32] {
                    batch.put(name, &round.to_le_bytes());
                }
                matrix.apply(&batch, &WriteOptions::default()).expect("apply");
                rounds.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        // Counters that two threads increment lose no increment.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for name in &names[32..] {
                        let old = matrix.get(name).expect("get").expect("it is there");
                        let number = u64::from_le_bytes(old.clone().try_into().expect("eight")) + 1;
                        let options = WriteOptions::default();
                        let expected = Expected::Value(&old);
                        let outcome =
                            matrix.compare_and_set(name, expected, &number.to_le_bytes(), &options);
                        if matches!(outcome.expect("compare and set"), Outcome::Written(_)) {
                            rounds.fetch_add(1 << 32, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let keys: Vec<&[u8]> = names[..32].iter().map(Vec::as_slice).collect();
                let mut seen = Vec::new();
                matrix
                    .multi_get(&keys, coreplane_engine::Visibility::Durable, &mut |_, record| {
                        seen.push(record.map(|record| record.value.to_vec()));
                    })
                    .expect("multi_get");
                assert!(seen.iter().all(|it| it == &seen[0]), "a part of a batch was seen");
            }
        });
        let grown = matrix.add_group(&shelf, &CopyOptions::default(), &|_| {});
        while rounds.load(Ordering::Relaxed) & 0xffff_ffff < 20 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        grown.expect("add a group");
    });
    let counted: u64 = names[32..]
        .iter()
        .map(|name| matrix.get(name).expect("get").expect("it is there"))
        .map(|value| u64::from_le_bytes(value.try_into().expect("eight")))
        .sum();
    assert_eq!(counted, rounds.load(Ordering::Relaxed) >> 32);
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}
