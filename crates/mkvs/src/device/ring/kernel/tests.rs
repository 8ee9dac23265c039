//! Interleavings of writers and the reader of a ring, up to a number of preemptions: loom.

use super::{Atomic, LINES_MAX, Ring, WORDS};
use loom::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// loom's atomic; if `IS_WEAK`, a store of a mark or of the head does not release.
#[derive(Debug)]
struct Word<const IS_WEAK: bool>(loom::sync::atomic::AtomicU64);

impl<const IS_WEAK: bool> Atomic for Word<IS_WEAK> {
    fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, if IS_WEAK { Ordering::Relaxed } else { order });
    }

    fn replace(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
}

/// Words of a record of two lines; every word has the number of its record.
const RECORD: usize = WORDS + 1;

fn write<A: Atomic>(ring: &Ring<A>, which: u64) -> bool {
    let written = ring.write(RECORD, |writer| {
        writer.push(which);
        (1..RECORD).for_each(|_| writer.push(which));
    });
    written.is_some()
}

fn read<A: Atomic>(ring: &Ring<A>) -> Option<u64> {
    let mut reader = ring.front()?;
    let which = reader.pop();
    (1..RECORD).for_each(|_| assert_eq!(reader.pop(), which, "a record is torn"));
    reader.free();
    Some(which)
}

/// Two writers into a ring of so many lines, which has gone round `before` the reader comes: every record that was
/// written is read once and whole, and those of a writer in their order.
fn model<const IS_WEAK: bool>(lines: usize, before: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let ring = Arc::new(Ring::<Word<IS_WEAK>>::new(lines));
        for which in 0..before {
            assert!(write(&ring, which) && read(&ring) == Some(which));
        }
        let writers = [1, 3].map(|first| {
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || {
                (first..first + 2).filter(|which| write(&ring, *which)).collect::<Vec<u64>>()
            })
        });
        let mut found = Vec::new();
        for _ in 0..2 {
            found.extend(read(&ring));
            loom::thread::yield_now();
        }
        let written = writers.map(|writer| writer.join().unwrap());
        found.extend(std::iter::from_fn(|| read(&ring)));
        for written in &written {
            let of_one: Vec<u64> =
                found.iter().copied().filter(|which| written.contains(which)).collect();
            assert_eq!(of_one, *written);
        }
        assert_eq!(found.len(), written.iter().map(Vec::len).sum::<usize>());
    });
}

#[test]
fn every_record_is_read_once_and_whole() {
    model::<false>(2, 0);
}

/// A writer uses the position of the reader that another writer saw.
#[test]
fn a_writer_need_not_look_at_the_reader_itself() {
    model::<false>(8, 3);
}

#[test]
fn the_model_finds_a_mark_that_releases_nothing() {
    assert!(catch_unwind(AssertUnwindSafe(|| model::<true>(2, 0))).is_err());
}

#[test]
fn a_record_that_is_too_long_is_refused() {
    loom::model(|| {
        let ring = Ring::<Word<false>>::new(4);
        let too_long = ring.write(WORDS * 4 + 1, |_| unreachable!());
        assert!(too_long.is_none());
        assert!(ring.write(WORDS * (LINES_MAX + 1), |_| unreachable!()).is_none());
        assert!(write(&ring, 1) && write(&ring, 2) && !write(&ring, 3));
        assert_eq!((read(&ring), read(&ring), read(&ring)), (Some(1), Some(2), None));
        assert!(write(&ring, 4), "room again");
        assert_eq!(ring.tail(), 6);
    });
}
