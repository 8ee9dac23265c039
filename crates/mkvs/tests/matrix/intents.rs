//! Batches over several groups whose intents are found at an open, or cannot be deleted.

use crate::shelf::sample::{at, created, key, opened, put, standing};
use crate::shelf::{Fault, Kind, Shelf};
use coreplane_engine::{Batch, Durability, Engine, Error, Repairable, Replicated, WriteOptions};
use coreplane_mkvs::filter::hash_of;
use coreplane_mkvs::slots::{deal, slot_of};
use coreplane_mkvs::{Ack, Matrix, MemberState, Options, Shape};
use std::sync::atomic::Ordering;

/// The keys of a group.
fn keys_of(group: u16) -> impl Iterator<Item = Vec<u8>> {
    let owners = deal(2);
    (0..100).map(|number| key(0, number)).filter(move |it| owners[slot_of(hash_of(it))] == group)
}

/// A batch of two keys that was interrupted when it was made, so that its intent still exists; and an earlier
/// write of another key that only the primary of group 0 has.
fn cut_off() -> (Shelf, [Vec<u8>; 3]) {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (2, 2), Ack::First);
    let (mut of_group_0, mut of_group_1) = (keys_of(0), keys_of(1));
    let mut next = || of_group_0.next().expect("a key");
    let [alone, one, other] = [next(), next(), of_group_1.next().expect("a key")];
    [&alone, &one, &other].into_iter().for_each(|key| put(&matrix, key, b"old"));
    matrix.sync().expect("all have all");
    let follower = shelf.gate(at(0, 0));
    follower.is_lagging.store(true, Ordering::SeqCst);
    put(&matrix, &alone, b"acknowledged");
    let mut batch = Batch::new();
    batch.put(&one, b"new").put(&other, b"new");
    follower.holds_deletes.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cut_off = matrix.apply(&batch, &WriteOptions::default());
            assert!(cut_off.is_err(), "its intent is there: it may be taken back yet");
        });
        while follower.held_deletes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        shelf.cut_power();
        follower.holds_deletes.store(false, Ordering::SeqCst);
        follower.is_lagging.store(false, Ordering::SeqCst);
    });
    drop(matrix);
    shelf.restore_power();
    (shelf, [alone, one, other])
}

/// A device without space to take a batch back is left out, but not before its peers have the write that it
/// alone has.
#[test]
fn one_that_has_no_space_is_not_left_out_before_its_peers_have_what_it_has() {
    let (shelf, [alone, one, other]) = cut_off();
    shelf.set_fault(at(0, 1), Some(Fault::Full));
    let matrix = opened(&shelf).expect("open");
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent);
    assert_eq!(matrix.get(&alone).expect("get").as_deref(), Some(&b"acknowledged"[..]));
    for key in [&one, &other] {
        assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&b"old"[..]));
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// If no device of a group has space to take it back nothing is changed, and nothing is lost once there is space.
#[test]
fn a_batch_that_nobody_has_space_to_take_back_is_there_as_a_whole_later() {
    let (shelf, [alone, one, other]) = cut_off();
    let full = [at(0, 0), at(0, 1)];
    full.iter().for_each(|place| shelf.set_fault(*place, Some(Fault::Full)));
    let refused = opened(&shelf);
    assert!(
        matches!(&refused, Err(Error::Unusable(what)) if what.contains("no space")),
        "{refused:?}"
    );
    drop(refused);
    full.iter().for_each(|place| shelf.set_fault(*place, None));
    let matrix = opened(&shelf).expect("there is space");
    assert_eq!(matrix.get(&alone).expect("get").as_deref(), Some(&b"acknowledged"[..]));
    for key in [&one, &other] {
        assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&b"old"[..]));
    }
    assert!(matrix.member_states().iter().all(|(_, it)| *it == MemberState::Current));
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// An intent that cannot be deleted, on a device that is alone in its group: its batch is made again when the
/// matrix is opened, and a key that was deleted meanwhile stays deleted.
#[test]
fn what_was_deleted_stays_deleted_though_an_intent_is_still_there() {
    for (fails, is_closed) in [(u64::MAX, false), (1, false), (1, true)] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (2, 1), Ack::All);
        let [one, other] = [0, 1].map(|group| keys_of(group).next().expect("a key"));
        shelf.gate(at(0, 0)).fails_deletes.store(fails, Ordering::SeqCst);
        let mut batch = Batch::new();
        batch.put(&one, b"new").put(&other, b"new");
        let made = matrix.apply(&batch, &WriteOptions::default());
        assert!(matches!(&made, Err(Error::Unusable(what)) if what.contains("made")), "{made:?}");
        for key in [&one, &other] {
            assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&b"new"[..]));
        }
        let _outcome = matrix.delete(&other, &WriteOptions::default()).expect("delete");
        // The watermark is raised, and leaves are rewritten without tombstones that are no longer needed.
        (0..1 << 20).for_each(|_| assert!(matrix.advance_sequence().is_ok()));
        (0..20_000).for_each(|number| put(&matrix, &key(1, number % 500), b"more"));
        if is_closed {
            matrix.close().expect("it is deleted by now");
        }
        drop(matrix);
        let matrix = opened(&shelf).expect("open");
        assert_eq!(matrix.get(&one).expect("get").as_deref(), Some(&b"new"[..]));
        assert_eq!(matrix.get(&other).expect("get"), None, "{fails}, {is_closed}");
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// At `relaxed`, too: a power cut after the intent is deleted must not leave a part of the batch.
#[test]
fn a_batch_is_taken_back_durably_before_its_intent_goes() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = Shape { groups: 2, devices: 1, ..Shape::default() };
    let options = Options { durability: Durability::RELAXED, ..Options::default() };
    let matrix = Matrix::create(&shelf, shape, &options).expect("create");
    let [one, other] = [0, 1].map(|group| keys_of(group).next().expect("a key"));
    put(&matrix, &one, b"old");
    shelf.gate(at(1, 0)).is_full.store(true, Ordering::SeqCst);
    let mut batch = Batch::new();
    batch.put(&one, b"new").put(&other, b"new");
    let refused = matrix.apply(&batch, &WriteOptions::default());
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(matrix.get(&one).expect("get").as_deref(), Some(&b"old"[..]));
    assert_eq!(*shelf.gate(at(0, 0)).undone_at.lock(), Some(Durability::Strict));
}

/// No group makes its part before another one refuses.
#[test]
fn a_batch_with_a_value_that_is_too_long_is_refused_as_a_whole() {
    let shelf = Shelf::new(Kind::Scmkv, 32 << 20);
    let matrix = Matrix::create(&shelf, Shape::default(), &Options::default()).expect("create");
    let long = vec![0; matrix.limits().value_len_max + 1];
    let [one, other] = [0, 1].map(|group| keys_of(group).next().expect("a key"));
    let mut batch = Batch::new();
    batch.put(&one, b"short").put(&other, &long);
    let error = matrix.apply(&batch, &WriteOptions::default()).expect_err("it is too long");
    assert!(matches!(error, Error::ValueTooLong { .. }), "{error}");
    assert_eq!(matrix.len().expect("len"), 0, "a refused batch was made in part");
}

/// The intent has the values that are replaced, too.
#[test]
fn a_batch_that_replaces_more_than_a_record_takes_is_too_long() {
    let shelf = Shelf::new(Kind::Scmkv, 512 << 10);
    let matrix = created(&shelf, (2, 1), Ack::All);
    let keys = [0, 1].map(|group| keys_of(group).next().expect("a key"));
    let value = vec![7; matrix.limits().value_len_max / 4 * 3];
    let mut batch = Batch::new();
    for key in &keys {
        put(&matrix, key, &value);
        batch.delete(key);
    }
    let error = matrix.apply(&batch, &WriteOptions::default()).expect_err("it is too long");
    assert!(matches!(error, Error::BatchTooLong { .. }), "{error}");
    for key in &keys {
        assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&value[..]));
    }
}
