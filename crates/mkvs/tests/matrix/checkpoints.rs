//! Checkpoints: the watermark that they record, and the tombstones below it that devices drop. Both are used
//! to make the members of an interrupted matrix equal.

use crate::shelf::sample::{at, created, key, opened, put};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Batch, Engine, Repairable, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Shape};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const KEY: &[u8] = b"key";

/// The primary has deleted a key, and the power fails before another member does. If the primary had dropped
/// the tombstone by then, the other would give it the key again.
#[test]
fn tombstones_above_the_watermark_are_kept() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    (0..20).for_each(|number| put(&matrix, &key(0, number), b"old"));
    put(&matrix, KEY, b"old");
    matrix.sync().expect("both have it");
    // The caller needs none.
    matrix.hold_tombstones(u64::MAX).expect("hold");
    let lags = |lags| shelf.gate(at(0, 0)).is_lagging.store(lags, Ordering::SeqCst);
    lags(true);
    let _outcome = matrix.delete(KEY, &WriteOptions::default()).expect("delete");
    // Its leaf is rewritten, without tombstones that are not needed.
    (0..1000).for_each(|number| put(&matrix, &key(0, number % 20), b"new"));
    shelf.cut_power();
    lags(false);
    drop(matrix);
    shelf.restore_power();
    let matrix = opened(&shelf).expect("open");
    assert_eq!(matrix.get(KEY).expect("get"), None);
    assert_eq!(matrix.len().expect("len"), 20);
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A write is on the primary and in the ring of another member when a checkpoint is due, and the power fails
/// before the other executes it: the watermark does not cover it.
#[test]
fn the_watermark_is_not_above_what_is_in_a_ring() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    put(&matrix, KEY, b"old");
    matrix.sync().expect("both have it");
    let lags = |lags| shelf.gate(at(0, 0)).is_lagging.store(lags, Ordering::SeqCst);
    lags(true);
    put(&matrix, KEY, b"new");
    let sequence = Some(matrix.advance_sequence().expect("sequence") + (1 << 20));
    let given = WriteOptions { sequence, ..WriteOptions::default() };
    std::thread::scope(|scope| {
        let due = scope.spawn(|| matrix.put(b"other", b"value", &given).is_ok());
        // A checkpoint that does not wait for the ring is done within that time.
        let since = Instant::now();
        while !due.is_finished() && since.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
        }
        shelf.cut_power();
        lags(false);
    });
    drop(matrix);
    shelf.restore_power();
    let matrix = opened(&shelf).expect("open");
    for device in [0, 1] {
        let found = shelf.engine(at(0, device)).get(KEY).expect("get");
        assert_eq!(found.as_deref(), Some(&b"new"[..]), "device {device}");
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// The power fails while a checkpoint writes its record, and one device is a copy of itself from before, in
/// the same epoch. The writes that the copy lacks are below the watermark of the other's record, and above
/// that of its own.
#[test]
fn the_least_watermark_of_all_members_counts() {
    for copied in [at(0, 0), at(0, 1)] {
        for writes in 0.. {
            let shelf = Shelf::new(Kind::Bptree, 1 << 20);
            let shape = Shape { groups: 1, ack: Ack::All, ..Shape::default() };
            // In one thread, so that records are written in their order.
            let options = Options { answers_within: None, threads: 1, ..Options::default() };
            let matrix = Matrix::create(&shelf, shape, &options).expect("create");
            put(&matrix, KEY, b"old");
            let copy = std::fs::read(shelf.path(copied)).expect("copy");
            put(&matrix, KEY, b"new");
            let power = shelf.power();
            power.writes_left.store(writes, Ordering::SeqCst);
            // So great that a checkpoint is due.
            let sequence = Some(matrix.advance_sequence().expect("sequence") + (1 << 20));
            let given = WriteOptions { sequence, ..WriteOptions::default() };
            let _cut_off = matrix.put(b"other", b"value", &given).is_err();
            let is_over = !shelf.is_dead();
            shelf.cut_power();
            drop(matrix);
            shelf.restore_power();
            std::fs::write(shelf.path(copied), copy).expect("put it back");
            let matrix = opened(&shelf).expect("the other has all");
            for device in [0, 1] {
                let found = shelf.engine(at(0, device)).get(KEY).expect("get");
                let what = format!("{copied} is a copy, after {writes} writes: device {device}");
                assert_eq!(found.as_deref(), Some(&b"new"[..]), "{what}");
            }
            assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
            if is_over {
                assert!(writes > 5, "the put, and a record that is written twice");
                break;
            }
        }
    }
}

/// The matrix draws sequences above every given one, and its engines take those below 2^61: greater given ones than
/// 2^60 are refused, and all others leave room for very many writes.
#[test]
fn a_given_sequence_leaves_sequences_for_all_later_writes() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = Matrix::create(&shelf, Shape::default(), &Options::default()).expect("create");
    let mut batch = Batch::new();
    batch.put(KEY, b"value");
    for given in [(1 << 61) - 1, 1 << 60, (1 << 60) - 1] {
        let options = WriteOptions { sequence: Some(given), ..WriteOptions::default() };
        let found = matrix.put(KEY, b"value", &options);
        let is_taken = given < 1 << 60;
        assert_eq!(found.is_ok(), is_taken, "{given}: {found:?}");
        assert_eq!(matrix.apply(&batch, &options).is_ok(), is_taken, "{given}");
        put(&matrix, b"other", b"value");
    }
    drop(matrix);
    put(&opened(&shelf).expect("open"), KEY, b"later");
}

/// A write with an older sequence lowers the watermark first. If that could not be made durable, the next such write
/// tries it again.
#[test]
fn the_watermark_is_lowered_again_if_that_has_failed() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 1), Ack::All);
    let watermark = || {
        let record = shelf.engine(at(0, 0)).get(b"\0coreplane matrix\0membership").expect("get");
        let record: serde_json::Value =
            serde_json::from_slice(&record.expect("one")).expect("JSON");
        record["watermark"].as_u64().expect("a number")
    };
    let put_at = |sequence| {
        let given = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
        matrix.put(&key(0, sequence), b"value", &given)
    };
    // So great that a checkpoint is due.
    let newest = matrix.advance_sequence().expect("sequence") + (1 << 20);
    let _outcome = put_at(newest).expect("put");
    assert!(watermark() >= newest - 1);
    shelf.pull(at(0, 0));
    assert!(put_at(100).is_err());
    shelf.put_back(at(0, 0));
    let _outcome = put_at(200).expect("put");
    assert!(watermark() < 200, "{}", watermark());
}
