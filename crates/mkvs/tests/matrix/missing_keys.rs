//! A bit flips in a key on a group's primary: its peers still have the key, and a device that is filled, a
//! group that is added and the filter get it from them.

use crate::shelf::sample::{FRESH, at, created, numbered as key, put};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState};

const KEYS: u64 = 500;

/// Keys that are damaged on the primary alone.
const HURT: [u64; 6] = [3, 99, 123, 222, 321, 456];

/// Flips a bit of a key in all places in a device's file.
fn damage(shelf: &Shelf, device: u8, number: u64) {
    assert!(shelf.damage(at(0, device), &key(number)) > 0);
}

/// A group of so many devices, the last of which is the primary.
fn hurt(kind: Kind, devices: u8) -> (Shelf, Matrix) {
    let shelf = Shelf::new(kind, 32 << 20);
    let matrix = created(&shelf, (1, devices), Ack::All);
    (0..KEYS).for_each(|it| put(&matrix, &key(it), b"value"));
    HURT.iter().for_each(|number| damage(&shelf, devices - 1, *number));
    (shelf, matrix)
}

fn check(matrix: &Matrix, kind: Kind) {
    // A thread that finds nothing asks the filter.
    (0..100).for_each(|it| assert_eq!(matrix.get(&key(100_000 + it)).expect("get"), None));
    for number in HURT.into_iter().chain(0..KEYS) {
        let found = matrix.get(&key(number)).expect("get");
        assert_eq!(found.as_deref(), Some(&b"value"[..]), "{kind:?}, {number}");
    }
}

#[test]
fn a_group_that_is_added_lacks_no_key_that_a_member_has() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (shelf, matrix) = hurt(kind, 2);
        let filled = matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add");
        assert_eq!(filled.lost, Vec::<Vec<u8>>::new());
        check(&matrix, kind);
    }
}

#[test]
fn a_device_that_is_filled_lacks_no_key_that_a_member_has() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (shelf, matrix) = hurt(kind, 3);
        shelf.pull(at(0, 0));
        put(&matrix, b"more", b"another");
        let filled = matrix.replace(&shelf, at(0, 0), &FRESH, &|_| {}).expect("replace");
        assert_eq!(filled.lost, Vec::<Vec<u8>>::new());
        assert!(matrix.member_states().contains(&(at(0, 0), MemberState::Current)));
        for number in 0..KEYS {
            let found = shelf.engine(at(0, 0)).get(&key(number)).expect("get");
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "{kind:?}, {number}");
        }
        check(&matrix, kind);
    }
}

/// No device has the keys then: that is reported, and nothing moves.
#[test]
fn a_key_that_nobody_has_any_more_stops_a_group_that_is_added() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (shelf, matrix) = hurt(kind, 2);
        HURT.iter().for_each(|number| damage(&shelf, 0, *number));
        let added = matrix.add_group(&shelf, &CopyOptions::default(), &|_| {});
        assert!(added.is_err() && matrix.is_moving(), "{kind:?}: {added:?}");
        HURT.iter().for_each(|number| put(&matrix, &key(*number), b"value"));
        if kind == Kind::Bptree {
            // The new records have replaced the damaged ones.
            matrix.finish_moves(&CopyOptions::default(), &|_| {}).expect("all of it is sound");
        }
        check(&matrix, kind);
    }
}

#[test]
fn what_a_scrub_has_healed_is_not_denied() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (_shelf, matrix) = hurt(kind, 2);
        // Enough that the filter is rebuilt.
        (0..40_000_u64).for_each(|it| put(&matrix, &it.to_le_bytes(), b"value"));
        while matrix.stats().figure("filter_growths") == Some(0) {
            std::thread::yield_now();
        }
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((scrubbed.repaired.len(), scrubbed.lost.len()), (HURT.len(), 0));
        check(&matrix, kind);
        let _outcome = matrix.put(b"one more", b"value", &WriteOptions::default()).expect("put");
    }
}
