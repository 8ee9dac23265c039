//! A small matrix, and helpers of several tests.

use super::{Kind, Shelf};
use coreplane_engine::{Engine, Error, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options, Position, Shape};

/// A new device is filled from nothing.
pub(crate) const FRESH: CopyOptions = CopyOptions { is_fresh: true, bytes_per_second_max: None };

/// A place.
pub(crate) const fn at(group: u16, device: u8) -> Position {
    Position { group, device }
}

/// A place in the first group.
pub(crate) const fn device(device: u8) -> Position {
    at(0, device)
}

pub(crate) fn numbered(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

/// A key of a thread.
pub(crate) fn key(thread: u64, number: u64) -> Vec<u8> {
    format!("thread-{thread} key-{number:04}").into_bytes()
}

/// Creates a matrix of so many groups of so many devices.
pub(crate) fn created(shelf: &Shelf, (groups, devices): (u16, u8), ack: Ack) -> Matrix {
    let shape = Shape { groups, devices, ack, ..Shape::default() };
    Matrix::create(shelf, shape, &Options::default()).expect("create")
}

/// Opens the matrix on the shelf.
pub(crate) fn opened(shelf: &Shelf) -> Result<Matrix, Error> {
    Matrix::open(shelf, &Options::default(), &|_| {})
}

/// Checks that an open is refused, with these words in the error.
pub(crate) fn refused(shelf: &Shelf, words: &str) {
    match opened(shelf) {
        Err(Error::Unusable(what)) => assert!(what.contains(words), "{what}"),
        other => panic!("{other:?}, and not refused since {words}"),
    }
}

pub(crate) fn put(matrix: &Matrix, key: &[u8], value: &[u8]) {
    let _outcome = matrix.put(key, value, &WriteOptions::default()).expect("put");
}

pub(crate) fn standing(matrix: &Matrix, position: Position) -> MemberState {
    matrix.member_states().into_iter().find(|(at, _)| *at == position).expect("a device").1
}

/// A matrix with a hundred keys that was killed.
pub(crate) fn two_by_two(ack: Ack) -> Shelf {
    two_by_two_of(Kind::Bptree, ack)
}

/// A matrix with a hundred keys that was killed, of this engine.
pub(crate) fn two_by_two_of(kind: Kind, ack: Ack) -> Shelf {
    let shelf = Shelf::new(kind, 16 << 20);
    let matrix = created(&shelf, (2, 2), ack);
    (0..100).for_each(|number| put(&matrix, &key(0, number), b"value"));
    shelf
}

/// Removes a device.
pub(crate) fn take_out(shelf: &Shelf, place: Position) {
    std::fs::rename(shelf.path(place), shelf.path(place).with_extension("out")).expect("rename");
}

/// Puts a removed device back.
pub(crate) fn put_back(shelf: &Shelf, place: Position) {
    std::fs::rename(shelf.path(place).with_extension("out"), shelf.path(place)).expect("rename");
}
