//! Writes with given sequences that are older than deletes whose tombstones some devices have dropped.

use crate::shelf::sample::{FRESH, at, created, key, put};
use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Batch, Engine, Outcome, Repairable, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions};
use std::sync::atomic::Ordering;

/// A device that is filled is not given tombstones that its peers may drop, though they may still have them.
#[test]
fn what_was_deleted_is_not_there_again_on_some() {
    for (kind, fresh, is_batch) in [
        (Kind::Bptree, 0, false),
        (Kind::Bptree, 1, false),
        (Kind::Scmkv, 0, false),
        (Kind::Scmkv, 1, false),
        (Kind::Bptree, 0, true),
        (Kind::Bptree, 1, true),
    ] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        for key in [&b"deleted"[..], b"there"] {
            put(&matrix, key, b"old");
        }
        let sequence = matrix.advance_sequence().expect("sequence");
        let given = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
        (0..500).for_each(|number| put(&matrix, &key(9, number), b"value"));
        // The neighbouring keys are in leaves that are not rewritten.
        for (around, number) in (0..400).flat_map(|number| [("a", number), ("k", number)]) {
            put(&matrix, format!("{around} {number:040}").as_bytes(), b"value");
        }
        for key in [b"deleted".to_vec(), key(9, 77)] {
            let _outcome = matrix.delete(&key, &WriteOptions::default()).expect("delete");
        }
        put(&matrix, b"there", b"newer");
        // The watermark is raised: all have the deletes, so that the tombstones may be dropped.
        (0..1 << 20).for_each(|_| assert!(matrix.advance_sequence().is_ok()));
        // One of the tombstones is dropped, as its leaf is rewritten, and the other is kept.
        let numbers = (0..20_000).map(|number| number % 500).filter(|number| *number != 77);
        numbers.for_each(|number| put(&matrix, &key(9, number), b"more"));
        let is_dropped = matrix.tombstone_horizon() > sequence;
        assert!(is_dropped || kind == Kind::Scmkv);
        shelf.pull(at(0, fresh));
        put(&matrix, b"more", b"value");
        matrix.replace(&shelf, at(0, fresh), &FRESH, &|_| {}).expect("replace");
        for number in 0..2 {
            if is_batch {
                let mut batch = Batch::new();
                batch.put(b"deleted", b"given").put(b"there", b"given").put(b"never", b"given");
                matrix.apply(&batch, &given).expect("apply");
            } else {
                let outcome = matrix.put(b"deleted", b"given", &given).expect("put");
                let is_newer = matches!(outcome, Outcome::NotNewer(..));
                assert!(is_newer, "{kind:?}, {fresh}: {outcome:?}");
                let _outcome = matrix.put(b"there", b"given", &given).expect("put");
                let outcome = matrix.put(b"never", b"given", &given).expect("put");
                assert_eq!(outcome.written().is_some(), number == 0, "{outcome:?}");
            }
            let expected = [
                (&b"deleted"[..], None),
                (b"there", Some(&b"newer"[..])),
                (b"never", Some(b"given")),
            ];
            for device in 0..2 {
                for (key, value) in expected {
                    let found = shelf.engine(at(0, device)).get(key).expect("get");
                    assert_eq!(found.as_deref(), value, "{kind:?}, {fresh}, {is_batch}: {device}");
                }
            }
            assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
        }
    }
}

/// A device that may have dropped the tombstone of a key keeps it once a caller gives older sequences: otherwise it
/// could drop it between the look for a delete and the put, and have the key again, which its peer has not.
#[test]
fn a_delete_is_kept_from_the_first_older_write_on() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let sequence = matrix.advance_sequence().expect("sequence");
    let given = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
    (0..500).for_each(|number| put(&matrix, &key(9, number), b"value"));
    let gone = key(9, 77);
    let _outcome = matrix.delete(&gone, &WriteOptions::default()).expect("delete");
    // The watermark is raised: the tombstone may be dropped when its leaf is rewritten.
    (0..1 << 20).for_each(|_| assert!(matrix.advance_sequence().is_ok()));
    put(&matrix, b"more", b"value");
    let engine = shelf.engine(at(0, 0));
    assert!(engine.tombstone_horizon() < sequence);
    let _outcome = matrix.put(b"other", b"given", &given).expect("put");
    let gate = shelf.gate(at(0, 0));
    gate.holds_puts.store(true, Ordering::SeqCst);
    let outcome = std::thread::scope(|scope| {
        let puts = scope.spawn(|| matrix.put(&gone, b"given", &given));
        wait_until(|| gate.held_puts.load(Ordering::SeqCst) > 0);
        for number in (0..20_000).map(|number| number % 500).filter(|number| *number != 77) {
            let put = engine.put(&key(9, number), b"more", &WriteOptions::default());
            assert!(put.expect("put").written().is_some());
        }
        gate.holds_puts.store(false, Ordering::SeqCst);
        puts.join().expect("no panic").expect("put")
    });
    assert!(matches!(outcome, Outcome::NotNewer(..)), "{outcome:?}");
    for device in 0..2 {
        assert_eq!(shelf.engine(at(0, device)).get(&gone).expect("get"), None, "{device}");
    }
}

/// A new device, and a group that is added, get their peers' tombstones: they refuse older writes.
#[test]
fn who_is_filled_knows_what_was_deleted() {
    for (kind, fresh) in
        [Kind::Bptree, Kind::Scmkv].into_iter().flat_map(|kind| [0, 1].map(|fresh| (kind, fresh)))
    {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        // Some of them move to the group that is added.
        let all = || (0..40).map(|number| key(0, number));
        all().for_each(|key| put(&matrix, &key, b"old"));
        let sequence = matrix.advance_sequence().expect("sequence");
        let older = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
        for key in all() {
            let _outcome = matrix.delete(&key, &WriteOptions::default()).expect("delete");
        }
        shelf.pull(at(0, fresh));
        put(&matrix, b"more", b"value");
        matrix.replace(&shelf, at(0, fresh), &FRESH, &|_| {}).expect("replace");
        let check = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                let outcome = matrix.put(&key(0, number), b"given", &older).expect("put");
                let is_refused = matches!(outcome, Outcome::NotNewer(..));
                assert!(is_refused, "{kind:?}, {fresh}, {number}: {outcome:?}");
            }
            assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
            assert_eq!(matrix.len().expect("len"), 1);
        };
        check(0..20);
        matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
        check(20..40);
    }
}
