//! Large values beside writes that come all the time.

use crate::read::Reader;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::write::{Plan, RestsOn};
use coreplane_engine::{Outcome, WriteOptions};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{MediaChoice, Pool};
use coreplane_record::View;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

/// The decision is made once for each put, however often other threads put the key, some of them
/// through another log.
#[test]
fn a_large_value_is_written_once_beside_writers_of_its_key() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(32 << 20, Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    assert!(store.logs.len() > 1, "there is no other log");
    let (write, value) = (WriteOptions::default(), vec![7; 40_000]);
    let stop = AtomicBool::new(false);
    let decisions: Vec<u32> = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let _outcome = store.put(b"key", b"small", &write).expect("put");
                }
            });
        }
        let decided = (0..30).map(|_| {
            let mut decisions = 0;
            let checked = store.check(b"key", &write).expect("a write");
            let mut decide = |_: &Reader, _: &Guard, _: Option<&View<'_>>| {
                decisions += 1;
                Ok(match decisions {
                    1 => Plan::Put { value: Cow::Borrowed(&value), expires_at: None },
                    // It would go on like this.
                    _ => Plan::Refuse(Outcome::Kept),
                })
            };
            let outcome = store.write_in_sight(checked, (RestsOn::Nothing, &mut decide));
            let _outcome = outcome.expect("put");
            decisions
        });
        let decided = decided.collect();
        stop.store(true, Ordering::Release);
        decided
    });
    assert_eq!(decisions, [1; 30]);
}
