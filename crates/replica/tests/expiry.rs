//! Records that have expired, many of them behind each other.

use coreplane_engine::{Batch, Completion, Engine, Entry, Ordered, UnixMillis, WriteOptions};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_replica::{Replica, Settings, map_options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const EXPIRED: u32 = 5000;
/// When the last of them expires.
const LATEST: u64 = 2000 + EXPIRED as u64;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A cluster of one, which has many records that have expired, and behind them one that lives; and its clock.
fn replica(kind: MapKind) -> (Replica, Arc<AtomicU64>) {
    let (len, page_size) = (4 << 20, 4096);
    let sim = Sim::new(&SimOptions { len, max_len: len, page_size, ..SimOptions::default() });
    let options = map_options(&Options { background: false, ..Options::default() });
    let space = Arc::clone(sim.expect("memory").space());
    let map = LogMap::simulated_create(kind, space, &options).expect("create");
    let settings = Settings { peers: vec![1], ..Settings::default() };
    let clock = Arc::new(AtomicU64::new(1000));
    let told = Arc::clone(&clock);
    let time = Arc::new(move || UnixMillis(told.load(Ordering::Relaxed)));
    let replica = Replica::open(Box::new(map), settings, Some(time)).expect("open");
    while !replica.leads() {
        replica.tick().expect("tick");
    }
    let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    let mut batch = Batch::new();
    for number in 0..EXPIRED {
        batch.put_until(&key(number), b"v", Some(UnixMillis(2001 + u64::from(number))));
    }
    batch.put(&key(EXPIRED), b"lives");
    replica.apply(&batch, &early).expect("write");
    replica.persisted().expect("a turn");
    clock.store(LATEST, Ordering::Relaxed);
    (replica, clock)
}

/// A call of an iteration passes by no more of them than it would show of those that live.
#[test]
fn what_has_expired_is_a_step_of_an_iteration() {
    const COUNT: usize = 10;
    for kind in MapKind::ALL {
        let (replica, _) = replica(kind);
        let (mut cursor, mut shown, mut before) = (0, Vec::new(), 0);
        loop {
            let visit = &mut |entry: Entry<'_>| shown.push(entry.key.to_vec());
            cursor = replica.iterate(cursor, COUNT, visit).expect("iterate");
            replica.persisted().expect("a turn");
            let expired = replica.stats().expired;
            assert!(expired - before <= COUNT as u64, "{} in one call", expired - before);
            before = expired;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(shown, [key(EXPIRED)], "{kind:?}");
    }
}

/// A scan that meets many of them proposes one entry, which says for all of them that their time has passed: nobody's clock
/// is before that any more.
#[test]
fn a_scan_says_once_that_a_time_has_passed() {
    for kind in MapKind::ALL {
        let (replica, clock) = replica(kind);
        let mut shown = Vec::new();
        let before = replica.status().newest;
        let visit = &mut |entry: Entry<'_>| {
            shown.push(entry.key.to_vec());
            true
        };
        Ordered::scan(&replica, &[], None, false, 10, visit).expect("scan");
        assert_eq!(shown, [key(EXPIRED)], "{kind:?}");
        replica.persisted().expect("a turn");
        assert_eq!(replica.status().newest, before + 1, "{kind:?}");
        clock.store(1000, Ordering::Relaxed);
        assert_eq!(Engine::now(&replica), UnixMillis(LATEST), "{kind:?}");
        // Those that it has not deleted are swept.
        replica.sweep_expired().expect("sweep");
        assert_eq!(replica.stats().expired, u64::from(EXPIRED), "{kind:?}");
        assert_eq!(replica.len().expect("len"), 1, "{kind:?}");
    }
}
