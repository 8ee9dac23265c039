//! A group that could not be added, since a device failed in the middle, is added the next time.

mod shelf;

use coreplane_engine::{Engine, Result, WriteOptions};
use coreplane_mkvs::{FillOptions, Matrix, Options, Position, Rack, Shape, TimeSource};
use shelf::{Kind, Shelf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device of another group fails when a new one has been made.
struct Failing<'s> {
    shelf: &'s Shelf,
    fails: AtomicBool,
}

const OTHER: Position = Position { group: 1, device: 0 };

impl Rack for Failing<'_> {
    fn present(&self) -> Result<Vec<Position>> {
        self.shelf.present()
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>> {
        let made = self.shelf.create(place, time);
        if self.fails.load(Ordering::SeqCst) {
            self.shelf.pull(OTHER);
        }
        made
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>> {
        self.shelf.open(place, time)
    }

    fn remove(&self, place: Position) -> Result<()> {
        self.shelf.remove(place)
    }
}

#[test]
fn a_group_is_added_after_a_try_that_failed() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = Shape { groups: 2, devices: 1, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    let key = |number: u32| format!("key {number}").into_bytes();
    for number in 0..300 {
        matrix.put(&key(number), b"value", &WriteOptions::default()).expect("put");
    }
    let rack = Failing { shelf: &shelf, fails: AtomicBool::new(true) };
    matrix.add_group(&rack, &FillOptions::default(), &|_| {}).expect_err("a group has no device");
    assert_eq!(matrix.slots().0.len(), 2);
    shelf.put_back(OTHER);
    rack.fails.store(false, Ordering::SeqCst);
    matrix.add_group(&rack, &FillOptions::default(), &|_| {}).expect("add a group");
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
