//! Reads that meet a write which is not on all devices yet.

#[path = "gated/mod.rs"]
mod shelf;

use coreplane_engine::{Engine, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use shelf::{Kind, Shelf};

fn at(device: u8) -> Position {
    Position { group: 0, device }
}

fn wait_for(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

fn named<'scope, R: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> R + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, R> {
    std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run).expect("a thread")
}

/// A key that is read on the first device while no write is under way.
fn key_read_on_the_first(matrix: &Matrix, shelf: &Shelf) -> Vec<u8> {
    let keys = (0..64).map(|number| format!("key-{number}").into_bytes());
    let is_read_there = |key: &Vec<u8>| {
        matrix.put(key, b"old", &WriteOptions::default()).expect("put");
        let before = shelf.gate(at(0)).calls();
        assert!(matrix.get(key).expect("get").is_some());
        shelf.gate(at(0)).calls() > before
    };
    keys.into_iter().find(is_read_there).expect("half of them are")
}

/// A reader has chosen a device, and is late; a writer comes to that device, and has not come to the
/// other. Whoever reads after that reader must not see what was before.
fn late_reader(write: fn(&Matrix, &[u8])) {
    let shelf = Shelf::new(Kind::Bptree, 1 << 20);
    let shape = Shape { groups: 1, devices: 2, ack: Ack::All, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    let key = key_read_on_the_first(&matrix, &shelf);
    let (first, last) = (shelf.gate(at(0)), shelf.gate(at(1)));
    std::thread::scope(|scope| {
        let (matrix, key) = (&matrix, &key);
        first.hold(Some("reader"));
        let before = first.calls();
        let reader = named(scope, "reader", move || matrix.get(key).expect("get"));
        wait_for(|| first.calls() > before);
        last.hold(Some("writer"));
        let before = last.calls();
        named(scope, "writer", move || write(matrix, key));
        wait_for(|| last.calls() > before);
        first.hold(None);
        let early = reader.join().expect("the reader");
        let after = matrix.get(key).expect("get");
        last.hold(None);
        let is_old = |value: &Option<Vec<u8>>| value.as_deref() == Some(b"old");
        assert!(is_old(&early) || !is_old(&after), "{early:?} was read, and {after:?} afterwards");
    });
    assert_ne!(matrix.get(&key).expect("get").as_deref(), Some(&b"old"[..]));
}

#[test]
fn a_late_reader_sees_no_value_that_the_next_one_does_not() {
    late_reader(|matrix, key| {
        matrix.put(key, b"new", &WriteOptions::default()).expect("put");
    });
}

#[test]
fn a_late_reader_sees_no_delete_that_the_next_one_does_not() {
    late_reader(|matrix, key| {
        matrix.delete(key, &WriteOptions::default()).expect("delete");
    });
}
