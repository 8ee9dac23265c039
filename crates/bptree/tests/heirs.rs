//! Batches that replace one leaf by many, beside other threads that use that leaf.

mod persist;

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Engine, Repairable, WriteOptions};
use coreplane_pmem::MediaChoice;
use persist::persist;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Above all keys of the batches, so that its leaf is the one that they split.
const GREATEST: &[u8] = b"z";

fn is_full() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// Some hundred small values, or a few that fill a leaf each.
fn batch_of(round: u64) -> Batch {
    let (keys, len) = if round.is_multiple_of(4) { (8, 2000) } else { (300, 60) };
    let mut batch = Batch::new();
    for number in 0..keys {
        batch.put(format!("{round:08} {number:03}").as_bytes(), &vec![round as u8; len]);
    }
    batch
}

/// Stops the other threads when it is dropped, by a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_key_behind_those_of_a_batch_is_found_and_written_as_ever() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 64 << 20, 4096, MediaChoice::Auto, &Options::default());
    let store = store.expect("create");
    let options = WriteOptions::default();
    let _outcome = store.put(GREATEST, &0_u64.to_le_bytes(), &options).expect("put");
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let read = || {
        let value = store.get(GREATEST).expect("get").expect("the greatest key is missing");
        u64::from_le_bytes(value.as_slice().try_into().expect("eight bytes"))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                persist(|| store.put(GREATEST, &u64::to_le_bytes(number), &options).map(drop));
                acknowledged.store(number, Ordering::Release);
                assert_eq!(read(), number, "an acknowledged write is lost");
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let least = acknowledged.load(Ordering::Acquire);
                assert!(read() >= least, "an acknowledged write is lost");
            }
        });
        let _stop = Stop(&stop);
        for round in 0..if is_full() { 20_000 } else { 800 } {
            let batch = batch_of(round);
            persist(|| store.apply(&batch, &options).map(drop));
            // Frees the space of an earlier round.
            if round >= 20 {
                let mut batch = Batch::new();
                for change in batch_of(round - 20).changes() {
                    batch.delete(change.key());
                }
                persist(|| store.apply(&batch, &options).map(drop));
            }
        }
    });
    let figure = |name| store.stats().figure(name).unwrap_or(0);
    assert!(figure("leaves_split") > 400, "{}", figure("leaves_split"));
    assert_eq!(read(), acknowledged.into_inner());
    assert!(store.verify(&mut |_| ()).expect("verify").is_sound());
}
