//! Large values beside a constant stream of writes.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::write::plan::{Plan, RestsOn};
use coreplane_engine::{Outcome, WriteOptions};
use coreplane_pmem::{MediaChoice, Pool};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

fn new_store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    // Enough space even if readers of other tests keep pages for long.
    let create = create_options(64 << 20, 4096, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    (directory, Store::format(pool, &options).expect("a store"))
}

/// The value is decided once for each put, however often another writer puts the key.
#[test]
fn a_large_value_is_written_once_beside_a_writer_of_its_key() {
    let (_directory, store) = new_store();
    let options = WriteOptions::default();
    let value = vec![7; 200_000];
    let stop = AtomicBool::new(false);
    let decisions: Vec<u32> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let _outcome = store.put(b"key", b"small", &options).expect("put");
            }
        });
        let decided = (0..20).map(|_| {
            let mut decisions = 0;
            let outcome = store.write(b"key", (&options, RestsOn::Nothing), &mut |_| {
                decisions += 1;
                Ok(match decisions {
                    1 => Plan::Put { value: Cow::Borrowed(&value), expires_at: None },
                    // Without this, it would go on like this.
                    _ => Plan::Refuse(Outcome::Kept),
                })
            });
            let _outcome = outcome.expect("put");
            decisions
        });
        let decided = decided.collect();
        stop.store(true, Ordering::Release);
        decided
    });
    assert_eq!(decisions, [1; 20]);
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}
