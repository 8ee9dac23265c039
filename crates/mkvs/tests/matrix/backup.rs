//! A file that is restored from a backup beside devices that have continued.

use crate::shelf::sample::{at, created, key, opened, put, refused};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, MemberState, Options, Position, Shape};
use std::sync::atomic::Ordering;

/// The last writes are found on every device.
fn check(matrix: &Matrix) {
    for number in (0..4).flat_map(|_| 0..200) {
        let is_there = number % 7 != 0;
        let found = matrix.get(&key(0, number)).expect("get");
        assert_eq!(found.as_deref(), is_there.then_some(&b"new"[..]), "{number}");
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A backup of one device at its place: it is given the writes that it has missed, and deleted keys are
/// absent, though no device has their tombstones any more.
#[test]
fn an_older_copy_of_a_device_is_not_believed() {
    for (kind, ack, is_closed, drops, device) in [
        (Kind::Bptree, Ack::All, true, false, 1),
        // Where writes wait for the primary alone a copy of the primary would be refused.
        (Kind::Bptree, Ack::First, false, false, 0),
        (Kind::Scmkv, Ack::All, true, false, 0),
        (Kind::Bptree, Ack::All, true, true, 0),
        (Kind::Bptree, Ack::All, false, true, 1),
        (Kind::Scmkv, Ack::First, true, true, 1),
    ] {
        let copied = Position { group: 0, device };
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), ack);
        (0..200).for_each(|number| put(&matrix, &key(0, number), b"old"));
        matrix.close().expect("close");
        drop(matrix);
        let (place, copy) = (shelf.path(copied), shelf.path(copied).with_extension("copy"));
        std::fs::copy(&place, &copy).expect("copy");
        // Twice, so that its epoch differs from that of an interrupted record.
        for round in 0..2 {
            let matrix = opened(&shelf).expect("open");
            (0..200).for_each(|number| put(&matrix, &key(0, number), b"new"));
            for number in (0..200).step_by(7) {
                let _outcome =
                    matrix.delete(&key(0, number), &WriteOptions::default()).expect("delete");
            }
            if drops {
                // Leaves and pages are rewritten, without tombstones that are no longer needed.
                (0..20_000).for_each(|number| put(&matrix, &key(1, number % 500), b"more"));
            }
            if round == 0 || is_closed {
                matrix.close().expect("close");
            }
        }
        std::fs::rename(&copy, &place).expect("put it back");
        let matrix = opened(&shelf).expect("open");
        check(&matrix);
        assert!(!matrix.is_moving(), "a group that is asked for would not be added");
    }
}

/// A backup of all devices of a group, at their places, though it is only one session old and the power has
/// failed since: it may be opened if the loss is accepted, and is refused otherwise.
#[test]
fn older_copies_of_a_whole_group_are_refused() {
    for (kind, is_closed, is_one_missing) in [
        (Kind::Bptree, true, false),
        (Kind::Bptree, false, false),
        (Kind::Scmkv, true, true),
        (Kind::Scmkv, false, false),
    ] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = Matrix::create(&shelf, Shape::default(), &Options::default()).expect("create");
        (0..200).for_each(|number| put(&matrix, &key(0, number), b"old"));
        matrix.close().expect("close");
        drop(matrix);
        let group: Vec<_> =
            (0..2).map(|device| shelf.path(Position { group: 0, device })).collect();
        let copy = |place: &std::path::PathBuf| place.with_extension("copy");
        for place in &group {
            std::fs::copy(place, copy(place)).expect("copy");
        }
        let matrix = opened(&shelf).expect("open");
        (0..200).for_each(|number| put(&matrix, &key(0, number), b"new"));
        if is_closed {
            matrix.close().expect("close");
        }
        drop(matrix);
        group.iter().for_each(|place| std::fs::rename(copy(place), place).expect("put it back"));
        if is_one_missing {
            std::fs::remove_file(&group[0]).expect("remove");
        }
        let refused = Matrix::open(&shelf, &Options::default(), &|_| {}).expect_err("it is old");
        assert!(refused.to_string().contains("older copies of themselves"), "{refused}");
        let accepts = Options { accept_loss: true, ..Options::default() };
        let matrix = Matrix::open(&shelf, &accepts, &|_| {}).expect("accepted");
        assert_eq!(matrix.losses().len(), 1);
        assert!(matrix.losses()[0].to_string().contains("since is lost"));
        let values = (0..200).map(|number| matrix.get(&key(0, number)).expect("get"));
        let (old, new): (Vec<_>, Vec<_>) = values.flatten().partition(|value| value == b"old");
        assert!(!old.is_empty() && !new.is_empty() && old.len() + new.len() == 200);
        matrix.close().expect("close");
        drop(matrix);
        // From here on the loss is final.
        let matrix = opened(&shelf).expect("open");
        assert!(
            matrix.losses().is_empty() && matrix.verify(&mut |_| {}).expect("verify").is_sound()
        );
    }
}

/// A copy of a device that was made while it was in use, restored after a close: it is no member until it has
/// the writes that it has missed, and no deleted key exists again.
#[test]
fn a_copy_of_a_running_device_is_not_believed_after_a_close() {
    for (kind, ack, device) in [
        (Kind::Bptree, Ack::All, 0),
        (Kind::Scmkv, Ack::All, 1),
        (Kind::Bptree, Ack::First, 1),
        (Kind::Scmkv, Ack::First, 0),
    ] {
        let copied = Position { group: 0, device };
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), ack);
        (0..200).for_each(|number| put(&matrix, &key(0, number), b"old"));
        matrix.sync().expect("sync");
        let (place, copy) = (shelf.path(copied), shelf.path(copied).with_extension("copy"));
        std::fs::copy(&place, &copy).expect("copy");
        (0..200).for_each(|number| put(&matrix, &key(0, number), b"new"));
        for number in (0..200).step_by(7) {
            let _outcome =
                matrix.delete(&key(0, number), &WriteOptions::default()).expect("delete");
        }
        matrix.close().expect("close");
        drop(matrix);
        std::fs::rename(&copy, &place).expect("put it back");
        let matrix = opened(&shelf).expect("open");
        check(&matrix);
        assert!(
            matrix.member_states().iter().all(|(_, it)| *it == MemberState::Current),
            "{kind:?}"
        );
        matrix.scrub(&|_| {}).expect("scrub");
        check(&matrix);
        // It has all records by itself.
        shelf.pull(Position { group: 0, device: 1 - device });
        for number in 0..200 {
            let found = matrix.get(&key(0, number)).expect("get");
            assert_eq!(found.as_deref(), (number % 7 != 0).then_some(&b"new"[..]), "{number}");
        }
    }
}

/// Where writes wait for the primary alone it may have writes that no other has, and an earlier copy of it
/// lacks them. A write that another member has and the copy lacks reveals that.
#[test]
fn an_older_copy_of_a_primary_that_is_waited_for_alone_is_refused() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (follower, primary) = (at(0, 0), at(0, 1));
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::First);
        put(&matrix, &key(0, 0), b"value");
        let copy = std::fs::read(shelf.path(primary)).expect("copy");
        put(&matrix, &key(0, 1), b"value");
        matrix.sync().expect("both have it");
        let lags = |lags| shelf.gate(follower).is_lagging.store(lags, Ordering::SeqCst);
        lags(true);
        put(&matrix, &key(0, 2), b"value");
        shelf.cut_power();
        lags(false);
        drop(matrix);
        shelf.restore_power();
        let newest = std::fs::read(shelf.path(primary)).expect("read");
        std::fs::write(shelf.path(primary), copy).expect("put it back");
        refused(&shelf, "it is an older copy of itself");
        std::fs::write(shelf.path(primary), newest).expect("bring it back");
        let matrix = opened(&shelf).expect("open");
        (0..3).for_each(|number| {
            let found = matrix.get(&key(0, number)).expect("get");
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "{kind:?}: {number}");
        });
    }
}
