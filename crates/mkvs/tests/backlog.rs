//! What waits for a slow device: the bytes are bounded, and a batch does not wait for ever.

mod shelf;

use coreplane_engine::{Batch, Engine, Repairable, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use shelf::sample::created;
use shelf::{Kind, Shelf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: usize = 1 << 20;
const FOLLOWER: Position = Position { group: 0, device: 0 };

fn figure(matrix: &Matrix, name: &str) -> u64 {
    let stats = matrix.stats();
    let device = stats.devices.iter().find(|it| it.name == "g0d0").expect("the follower");
    let figure = device.figures.iter().find(|(known, _)| *known == name);
    figure.unwrap_or_else(|| panic!("{name} is not told")).1
}

/// With a follower whose puts are held, and values of these lengths: the acknowledged puts before a writer waits.
fn acknowledged(lens: &[usize], total: u64) -> u64 {
    let shelf = Shelf::new(Kind::Scmkv, 128 << 20);
    let shape = Shape { groups: 1, devices: 2, ack: Ack::First, ..Shape::default() };
    let options = Options { answers_within: None, ..Options::default() };
    let matrix = Matrix::create(&shelf, shape, &options).expect("create");
    let gate = shelf.gate(FOLLOWER);
    gate.holds_puts.store(true, Ordering::SeqCst);
    let (made, value) = (AtomicU64::new(0), vec![7; 32 * MIB]);
    let put = |number: u64| {
        let len = lens[(number as usize).min(lens.len() - 1)];
        let (key, options) = (number.to_le_bytes(), WriteOptions::default());
        let _outcome = matrix.put(&key, &value[..len], &options).expect("put");
        made.fetch_add(1, Ordering::SeqCst);
    };
    let mut before = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..total).for_each(put));
        while figure(&matrix, "queue_waits") == 0 && !writer.is_finished() {
            std::thread::yield_now();
        }
        before = made.load(Ordering::SeqCst);
        let bytes = figure(&matrix, "queue_bytes");
        let max = figure(&matrix, "queue_bytes_max").max(lens[0] as u64 + 8);
        gate.holds_puts.store(false, Ordering::SeqCst);
        assert!(bytes > 0 && bytes <= max, "{bytes} bytes wait, of {max}");
    });
    matrix.sync().expect("the follower has all");
    assert_eq!((made.load(Ordering::SeqCst), figure(&matrix, "queue_bytes")), (total, 0));
    let report = matrix.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
    before
}

#[test]
fn values_of_a_mebibyte_wait_up_to_the_limit() {
    let before = acknowledged(&[MIB], 40);
    assert!((8..=16).contains(&before), "{before}");
}

/// A value larger than all that may wait passes alone.
#[test]
fn one_that_is_larger_than_the_limit_passes_when_nothing_waits() {
    assert_eq!(acknowledged(&[17 * MIB, MIB], 3), 1);
}

/// Writers keep the ring of a slow follower full, so that single writes always wait there: a batch is made between
/// them, and a sync that waits for the batch returns while the writers continue.
#[test]
fn a_batch_is_made_although_single_writes_never_cease() {
    const PUTS: u64 = 10_000;
    let shelf = Shelf::new(Kind::Bptree, 64 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    shelf.gate(FOLLOWER).slows_puts.store(true, Ordering::SeqCst);
    let (is_synced, running) = (AtomicBool::new(false), AtomicU64::new(4));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (matrix, is_synced, running) = (&matrix, &is_synced, &running);
            scope.spawn(move || {
                for number in (0..PUTS).take_while(|_| !is_synced.load(Ordering::SeqCst)) {
                    let key = [thread.to_le_bytes(), (number % 100).to_le_bytes()].concat();
                    let _outcome =
                        matrix.put(&key, b"value", &WriteOptions::default()).expect("put");
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while figure(&matrix, "queue") < 100 && running.load(Ordering::SeqCst) == 4 {
            std::thread::yield_now();
        }
        let mut batch = Batch::new();
        batch.put(b"one", b"value");
        batch.put(b"other", b"value");
        matrix.apply(&batch, &WriteOptions::default()).expect("apply");
        matrix.sync().expect("sync");
        let still_running = running.load(Ordering::SeqCst);
        is_synced.store(true, Ordering::SeqCst);
        assert!(still_running > 0, "the batch has waited for all single writes");
    });
    matrix.sync().expect("sync");
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}
