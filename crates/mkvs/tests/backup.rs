//! A file that is put back from a backup beside devices that have gone on.

mod shelf;

use coreplane_engine::{Engine, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use shelf::{Kind, Shelf};

const COPIED: Position = Position { group: 0, device: 1 };

fn key(thread: u64, number: u64) -> Vec<u8> {
    format!("thread-{thread} key-{number:04}").into_bytes()
}

fn put(matrix: &Matrix, key: &[u8], value: &[u8]) {
    matrix.put(key, value, &WriteOptions::default()).expect("put");
}

fn opened(shelf: &Shelf) -> Matrix {
    Matrix::open(shelf, &Options::default(), &|_| {}).expect("open")
}

/// All that was written last, whichever device is asked.
fn check(matrix: &Matrix) {
    for number in (0..4).flat_map(|_| 0..200) {
        let is_there = number % 7 != 0;
        let found = matrix.get(&key(0, number)).expect("get");
        assert_eq!(found.as_deref(), is_there.then_some(&b"new"[..]), "{number}");
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A backup of one device, put in its place: what it has missed it is given, and what was deleted
/// since is not there, though nobody knows it any more.
#[test]
fn an_older_copy_of_a_device_is_not_believed() {
    for (kind, ack, is_closed, drops) in [
        (Kind::Bptree, Ack::All, true, false),
        (Kind::Bptree, Ack::First, false, false),
        (Kind::Scmkv, Ack::All, true, false),
        (Kind::Bptree, Ack::All, true, true),
        (Kind::Scmkv, Ack::First, true, true),
    ] {
        let shelf = Shelf::new(kind, 16 << 20);
        let shape = Shape { groups: 1, devices: 2, ack, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
        (0..200).for_each(|number| put(&matrix, &key(0, number), b"old"));
        matrix.close().expect("close");
        drop(matrix);
        let (place, copy) = (shelf.path(COPIED), shelf.path(COPIED).with_extension("copy"));
        std::fs::copy(&place, &copy).expect("copy");
        // Twice, so that its epoch is no more what a label that is cut off leaves.
        for round in 0..2 {
            let matrix = opened(&shelf);
            (0..200).for_each(|number| put(&matrix, &key(0, number), b"new"));
            for number in (0..200).step_by(7) {
                matrix.delete(&key(0, number), &WriteOptions::default()).expect("delete");
            }
            if drops {
                // Leaves and pages are written anew, without what nobody needs any more.
                (0..20_000).for_each(|number| put(&matrix, &key(1, number % 500), b"more"));
            }
            if round == 0 || is_closed {
                matrix.close().expect("close");
            }
        }
        std::fs::rename(&copy, &place).expect("put it back");
        check(&opened(&shelf));
    }
}
