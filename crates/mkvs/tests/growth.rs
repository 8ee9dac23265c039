//! A group that could not be added, or a device that could not be replaced, because something failed in the
//! middle: the next try succeeds.

mod shelf;

use coreplane_engine::{Engine, Repairable, Result, StorageEngine, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options, Position, Rack, TimeSource};
use shelf::sample::{FRESH, created};
use shelf::{Kind, Shelf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A rack one of whose devices fails when a new one has been created.
struct Failing<'s> {
    shelf: &'s Shelf,
    fails: AtomicBool,
    /// The device that fails.
    failing: Position,
}

const OTHER: Position = Position { group: 1, device: 0 };

impl Rack for Failing<'_> {
    fn present(&self) -> Result<Vec<Position>> {
        self.shelf.present()
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        let made = self.shelf.create(place, time);
        if self.fails.load(Ordering::SeqCst) {
            self.shelf.pull(self.failing);
        }
        made
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        self.shelf.open(place, time)
    }

    fn remove(&self, place: Position) -> Result<()> {
        self.shelf.remove(place)
    }
}

#[test]
fn a_group_is_added_after_a_try_that_failed() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (2, 1), Ack::All);
    let key = |number: u32| format!("key {number}").into_bytes();
    for number in 0..300 {
        let _outcome = matrix.put(&key(number), b"value", &WriteOptions::default()).expect("put");
    }
    let rack = Failing { shelf: &shelf, fails: AtomicBool::new(true), failing: OTHER };
    matrix.add_group(&rack, &CopyOptions::default(), &|_| {}).expect_err("a group has no device");
    assert_eq!(matrix.slots().0.len(), 2);
    shelf.put_back(OTHER);
    rack.fails.store(false, Ordering::SeqCst);
    matrix.add_group(&rack, &CopyOptions::default(), &|_| {}).expect("add a group");
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
    check(&Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open"));
}

/// Its limits are those of the devices: one that takes shorter values could not store what the others do.
#[test]
fn a_device_that_takes_less_than_the_matrix_does_not_join() {
    let (large, small) = (16 << 20, 12 << 20);
    let shelf = Shelf::new(Kind::Scmkv, large);
    let mut matrix = created(&shelf, (1, 2), Ack::All);
    let put = |matrix: &Matrix| {
        let _outcome = matrix.put(b"key", b"value", &WriteOptions::default()).expect("put");
    };
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
    matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
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
        let (options, open) = (WriteOptions::default(), || {
            Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open")
        });
        for name in [b"kept", b"gone", b"late"] {
            let _outcome = matrix.put(name, b"value", &options).expect("put");
        }
        let new = Position { group: 0, device: 1 };
        shelf.pull(new);
        let _outcome = matrix.delete(b"gone", &options).expect("delete");
        let rack = Failing { shelf: &shelf, fails: AtomicBool::new(true), failing: new };
        matrix.replace(&rack, new, &FRESH, &|_| {}).expect_err("it fails");
        drop(matrix);
        matrix = open();
        matrix.replace(&shelf, new, &CopyOptions::default(), &|_| {}).expect("replace");
        let _outcome = matrix.put(b"more", b"value", &options).expect("put");
        drop(matrix);
        // The power failed when the new device had one delete, and its peer another.
        let clock: TimeSource = Arc::new(coreplane_engine::UnixMillis::now);
        for (device, name) in [(1, b"late"), (0, b"more")] {
            let engine = shelf.open(Position { group: 0, device }, &clock).expect("open");
            let _outcome = engine.delete(name, &options).expect("delete");
        }
        for reopened in 0..2 {
            matrix = open();
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
