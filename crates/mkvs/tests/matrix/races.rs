//! Moments that a history seldom meets, held open: writes on the primary, and in a ring.

use crate::shelf;
use crate::shelf::sample::{FRESH, at, created, put, standing};
use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Engine, Entry, Outcome, Progress, WriteOptions};
use coreplane_mkvs::{Ack, MemberState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEY: &[u8] = b"key";

/// The primary may be read at any time: so all other devices that a write waits for have it first.
#[test]
fn the_primary_gets_a_write_when_all_others_that_are_waited_for_have_it() {
    for (devices, ack) in [(2, Ack::All), (3, Ack::All), (3, Ack::Majority)] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, devices), ack);
        let primary = devices - 1;
        let others: Vec<_> = (0..primary).map(|device| shelf.gate(at(0, device))).collect();
        let hold = |holds| {
            others.iter().for_each(|gate| gate.holds_puts.store(holds, Ordering::SeqCst));
        };
        // Each key has another order of the others.
        for number in 0..8_u64 {
            let key = number.to_le_bytes();
            hold(true);
            std::thread::scope(|scope| {
                let matrix = &matrix;
                scope.spawn(move || put(matrix, &key, b"value"));
                let is_held = |gate: &_| held(gate) > 0;
                wait_until(|| others.iter().any(|gate| is_held(gate)));
                let known = shelf.engine(at(0, primary)).get(&key).expect("get");
                hold(false);
                assert_eq!(known, None, "{devices} devices at {ack:?}: it is on no other yet");
            });
            assert_eq!(matrix.get(&key).expect("get").as_deref(), Some(b"value".as_slice()));
        }
    }
}

fn held(gate: &shelf::gate::Gate) -> u64 {
    AtomicU64::load(&gate.held_puts, Ordering::SeqCst)
}

/// A key is written after a device that is being filled has been compared with its peers, and the write is in
/// its ring: readers find it, whichever device they ask.
#[test]
fn what_lies_in_a_queue_is_made_before_its_device_is_read() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        put(&matrix, KEY, b"old");
        let place = at(0, 0);
        shelf.pull(place);
        let mut number = 0_u64;
        while standing(&matrix, place) == MemberState::Current {
            put(&matrix, &number.to_le_bytes(), b"");
            number += 1;
        }
        let (is_queued, is_filled) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (matrix, shelf) = (&matrix, &shelf);
            let (is_queued, is_filled) = (&is_queued, &is_filled);
            scope.spawn(move || {
                let has_been_held = AtomicBool::new(false);
                let write_late = |progress: Progress| match progress.stage {
                    "holding against peers" => has_been_held.store(true, Ordering::SeqCst),
                    _ if has_been_held.load(Ordering::SeqCst) => {
                        shelf.gate(place).is_lagging.store(true, Ordering::SeqCst);
                        put(matrix, KEY, b"new");
                        is_queued.store(true, Ordering::SeqCst);
                    }
                    _ => {}
                };
                matrix.replace(shelf, place, &FRESH, &write_late).expect("replace");
                is_filled.store(true, Ordering::SeqCst);
            });
            wait_until(|| is_queued.load(Ordering::SeqCst));
            // A fill that does not wait for the ring is done within that time.
            let since = Instant::now();
            let is_over = || since.elapsed() > Duration::from_millis(200);
            wait_until(|| is_filled.load(Ordering::SeqCst) || is_over());
            // Threads prefer different devices.
            let readers = [(); 4].map(|()| scope.spawn(move || matrix.get(KEY).expect("get")));
            let seen = readers.map(|reader| reader.join().expect("a reader"));
            shelf.gate(place).is_lagging.store(false, Ordering::SeqCst);
            assert!(seen.iter().all(|value| value.as_deref() == Some(b"new")), "{seen:?}");
        });
        assert_eq!(standing(&matrix, place), MemberState::Current);
    }
}

/// A write is made on the primary, where a reader has seen it, and on no other when the primary fails. A scan
/// of the successor shows it, too.
#[test]
fn what_was_seen_on_a_primary_is_in_a_scan_of_its_successor() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = &created(&shelf, (1, 2), Ack::First);
    put(matrix, KEY, b"old");
    matrix.sync().expect("both have it");
    let primary = shelf.gate(at(0, 1));
    primary.holds_answers.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let update = move || matrix.update(KEY, b"new", &WriteOptions::default());
        let writer = scope.spawn(update);
        wait_until(|| primary.holds_an_answer.load(Ordering::SeqCst));
        let seen = matrix.get(KEY).expect("get");
        shelf.pull(at(0, 1));
        // The primary gets each of these, until it has failed.
        let successor = || standing(matrix, at(0, 1)) == MemberState::Absent;
        (0_u64..).take_while(|_| !successor()).for_each(|it| put(matrix, &it.to_le_bytes(), b""));
        let scan = move || {
            let mut found = None;
            let visit = &mut |entry: Entry<'_>| {
                found = entry.record.filter(|_| entry.key == KEY).map(|it| it.value.to_vec());
                found.is_none()
            };
            let ordered = matrix.ordered().expect("trees have an order");
            ordered.scan(KEY, None, false, 1, visit).map(|()| found)
        };
        let reader = scope.spawn(scan);
        // A scan that does not wait for the writer is done within that time.
        let since = Instant::now();
        wait_until(|| reader.is_finished() || since.elapsed() > Duration::from_millis(100));
        primary.holds_answers.store(false, Ordering::SeqCst);
        assert!(writer.join().expect("a writer").expect("update").written().is_some());
        assert_eq!(seen.as_deref(), Some(&b"new"[..]));
        assert_eq!(reader.join().expect("a reader").expect("scan"), seen);
    });
}

/// A write is about to be decided by a device that fails, and that is replaced at once: the new device does not have
/// the key, and decides nothing.
#[test]
fn no_write_is_decided_by_a_device_that_is_not_filled() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = &created(&shelf, (1, 2), Ack::All);
    put(matrix, KEY, b"old");
    let (place, other) = (at(0, 0), shelf.gate(at(0, 1)));
    let is_held = || other.holds_a_hint.load(Ordering::SeqCst);
    // One before the key lock, and one when the devices are chosen.
    other.hints_left.store(2, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| matrix.insert(KEY, b"new", &WriteOptions::default()));
        wait_until(is_held);
        shelf.pull(place);
        let is_there = || standing(matrix, place) == MemberState::Current;
        (0_u64..).take_while(|_| is_there()).for_each(|it| put(matrix, &it.to_le_bytes(), b""));
        let before = shelf.gate(place);
        let filler = scope.spawn(|| matrix.replace(&shelf, place, &FRESH, &|_| {}));
        wait_until(|| {
            let gate = shelf.gate(place);
            !std::sync::Arc::ptr_eq(&gate, &before) && gate.gets.load(Ordering::SeqCst) > 0
        });
        // A device that does not wait for the writer is in its place within that time.
        let since = Instant::now();
        wait_until(|| since.elapsed() > Duration::from_millis(300));
        other.holds_a_hint.store(false, Ordering::SeqCst);
        let outcome = writer.join().expect("a writer").expect("insert");
        assert!(matches!(outcome, Outcome::Exists(_)), "{outcome:?}");
        filler.join().expect("a filler").expect("replace");
    });
    assert_eq!(matrix.get(KEY).expect("get").as_deref(), Some(&b"old"[..]));
}
