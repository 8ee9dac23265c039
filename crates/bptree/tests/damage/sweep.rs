//! Damage in the way of a sweep.

use crate::{KEYS, PAGE, is_damage, key, options};
use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Engine, UnixMillis, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;

/// A leaf is damaged in its records, or in its head: expired records in all others are removed.
#[test]
fn a_damaged_leaf_keeps_no_other_from_being_swept() {
    for from in [20, 64] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let clock = ManualClock::starting_at(UnixMillis(1000));
        let options = Options { background: false, time: Some(clock.as_clock()), ..options() };
        let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, &options);
        let store = store.expect("create");
        let brief = WriteOptions { expires_at: Some(UnixMillis(2000)), ..WriteOptions::default() };
        for number in 0..KEYS {
            let _outcome = store.put(&key(number), &[7; 90], &brief).expect("put");
        }
        let pool = std::fs::read(&path).expect("read");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        let wanted = key(KEYS / 2);
        // Its leaf, and dead ones that had the key.
        let has_it = |page: &&[u8]| page.windows(wanted.len()).any(|it| *it == wanted);
        for (at, _) in pool.chunks(PAGE).enumerate().filter(|(_, page)| has_it(page)) {
            let start = (at * PAGE + from) as u64;
            file.write_all_at(&vec![0xff; PAGE - from], start).expect("write");
        }
        clock.set(UnixMillis(3000));
        let swept = store.sweep_expired();
        assert!(swept.as_ref().is_err_and(is_damage), "{swept:?}");
        let expired = store.stats().expired;
        // Records on both sides of the damage.
        assert!((u64::from(KEYS) / 2 + 1..u64::from(KEYS)).contains(&expired), "{expired}");
        assert_eq!(store.len().expect("len"), u64::from(KEYS) - expired);
        let again = store.sweep_expired();
        assert!(again.as_ref().is_err_and(is_damage), "{again:?}");
        assert_eq!(store.stats().expired, expired);
    }
}
