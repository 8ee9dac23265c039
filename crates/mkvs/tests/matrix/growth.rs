//! A group that could not be added, or a device that could not be replaced, because something failed in the
//! middle: the next try succeeds.

use crate::shelf::sample::{FRESH, created, opened, put};
use crate::shelf::{Fault, Kind, Shelf};
use coreplane_engine::{Engine, Repairable, Result, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Position, Rack, TimeSource};
use std::sync::Arc;

const OTHER: Position = Position { group: 1, device: 0 };
const NEW: Position = Position { group: 2, device: 0 };

#[test]
fn a_group_is_added_after_a_try_that_failed() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (2, 1), Ack::All);
    let key = |number: u32| format!("key {number}").into_bytes();
    (0..300).for_each(|number| put(&matrix, &key(number), b"value"));
    shelf.set_fault(NEW, Some(Fault::Pulls(OTHER)));
    matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect_err("a group has no device");
    assert_eq!(matrix.slots().0.len(), 2);
    shelf.put_back(OTHER);
    shelf.set_fault(NEW, None);
    matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
    let check = |matrix: &Matrix| {
        let (slots, moving) = matrix.slots();
        assert_eq!((slots.len(), moving), (3, 0));
        assert!(slots.iter().all(|owned| *owned > 200), "{slots:?}");
        for number in 0..300 {
            assert_eq!(matrix.get(&key(number)).expect("get").as_deref(), Some(&b"value"[..]));
        }
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    };
    check(&matrix);
    drop(matrix);
    check(&opened(&shelf).expect("open"));
}

/// Its limits are those of the devices: one that takes shorter values could not store what the others do.
#[test]
fn a_device_that_takes_less_than_the_matrix_does_not_join() {
    let (large, small) = (16 << 20, 12 << 20);
    let shelf = Shelf::new(Kind::Scmkv, large);
    let mut matrix = created(&shelf, (1, 2), Ack::All);
    let put = |matrix: &Matrix| put(matrix, b"key", b"value");
    put(&matrix);
    let (new, group) = (Position { group: 0, device: 0 }, Position { group: 1, device: 0 });
    let replace = |matrix: &Matrix| matrix.replace(&shelf, new, &FRESH, &|_| {});
    let add = |matrix: &Matrix| matrix.add_group(&shelf, &CopyOptions::default(), &|_| {});
    let refused = |outcome: Result<_>, place: Position| {
        let error = outcome.expect_err("it takes less").to_string();
        assert!(error.contains(&format!("{place} only")), "{error}");
    };
    shelf.pull(new);
    put(&matrix);
    shelf.size(new, small);
    shelf.size(group, small);
    refused(replace(&matrix), new);
    refused(add(&matrix), group);
    put(&matrix);
    // It opens beside what they have left.
    drop(matrix);
    matrix = opened(&shelf).expect("open");
    put(&matrix);
    shelf.size(new, large);
    shelf.size(group, large);
    let _copied = replace(&matrix).expect("replace");
    let _copied = add(&matrix).expect("add a group");
    assert_eq!(matrix.get(b"key").expect("get").as_deref(), Some(&b"value"[..]));
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A device that was being created when the power failed, and was not yet told to keep tombstones, knows of
/// none from before the restart: less than the matrix needs to make its members equal.
#[test]
fn a_device_that_was_half_made_is_brought_level_like_others() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let mut matrix = created(&shelf, (1, 2), Ack::All);
        let options = WriteOptions::default();
        [b"kept", b"gone", b"late"].iter().for_each(|name| put(&matrix, *name, b"value"));
        let new = Position { group: 0, device: 1 };
        shelf.pull(new);
        let _outcome = matrix.delete(b"gone", &options).expect("delete");
        shelf.set_fault(new, Some(Fault::Pulls(new)));
        matrix.replace(&shelf, new, &FRESH, &|_| {}).expect_err("it fails");
        drop(matrix);
        matrix = opened(&shelf).expect("open");
        matrix.replace(&shelf, new, &CopyOptions::default(), &|_| {}).expect("replace");
        put(&matrix, b"more", b"value");
        drop(matrix);
        // The power failed when the new device had one delete, and its peer another.
        let clock: TimeSource = Arc::new(coreplane_engine::UnixMillis::now);
        for (device, name) in [(1, b"late"), (0, b"more")] {
            let engine = shelf.open(Position { group: 0, device }, &clock).expect("open");
            let _outcome = engine.delete(name, &options).expect("delete");
        }
        for reopened in 0..2 {
            matrix = opened(&shelf).expect("open");
            let standings = matrix.member_states();
            assert!(
                standings.iter().all(|it| it.1 == MemberState::Current),
                "{kind:?}, {reopened}"
            );
            for (name, is_there) in [(b"kept", true), (b"gone", false), (b"late", false)] {
                let found = matrix.get(name).expect("get");
                assert_eq!(found.is_some(), is_there, "{kind:?}, {reopened}: {name:?}");
            }
            assert_eq!(matrix.len().expect("len"), 1, "{kind:?}, {reopened}");
            assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
            drop(matrix);
        }
    }
}
