//! Upkeep beside writes also happens beside batches, although the caller sees only some of their sequences.

use crate::shelf::sample::created;
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Batch, Engine, Progress, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options};
use std::sync::atomic::{AtomicU64, Ordering};

fn apply(matrix: &Matrix, keys: std::ops::Range<u64>) {
    let mut batch = Batch::new();
    for key in keys {
        batch.put(&key.to_le_bytes(), b"value");
    }
    matrix.apply(&batch, &WriteOptions::default()).expect("apply");
}

/// With sequences of batches of either parity.
#[test]
fn a_filter_grows_although_there_are_batches_alone() {
    for singles in [0, 1] {
        let shelf = Shelf::new(Kind::Bptree, 4 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        for _ in 0..singles {
            let _outcome = matrix.put(b"single", b"value", &WriteOptions::default()).expect("put");
        }
        (0..8192).step_by(4).for_each(|from| apply(&matrix, from..from + 4));
        let growths = || matrix.stats().figure("filter_growths").expect("a figure");
        for _ in 0..10_000 {
            if growths() > 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(growths() > 0);
    }
}

/// The number of keys that are compared after a crash.
fn compared(shelf: &Shelf) -> u64 {
    let most = AtomicU64::new(0);
    let note = |progress: Progress| {
        if progress.stage == "comparing members" {
            most.fetch_max(progress.total, Ordering::SeqCst);
        }
    };
    drop(Matrix::open(shelf, &Options::default(), &note).expect("open"));
    most.into_inner()
}

#[test]
fn the_mark_is_raised_although_there_are_batches_alone() {
    for before in [6, 7] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        (0..500).step_by(4).for_each(|from| apply(&matrix, from..from + 4));
        let next = matrix.advance_sequence().expect("sequence").next_multiple_of(1 << 20);
        let options = WriteOptions { sequence: Some(next - before), ..Default::default() };
        let _outcome = matrix.put(b"single", b"value", &options).expect("put");
        (500..600).step_by(4).for_each(|from| apply(&matrix, from..from + 4));
        drop(matrix);
        let compared = compared(&shelf);
        assert!((1..200).contains(&compared), "{compared}");
    }
}
