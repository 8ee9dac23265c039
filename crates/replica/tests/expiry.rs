//! Expired records, many of them in a row.

use coreplane_engine::{Batch, Completion, Engine, Entry, Ordered, UnixMillis, WriteOptions};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_replica::{Replica, Settings, map_options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const EXPIRED: u32 = 5000;
/// The time at which the last of them expires.
const LATEST: u64 = 2000 + EXPIRED as u64;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn node(kind: MapKind, id: u64, peers: &[u64], clock: &Arc<AtomicU64>) -> Replica {
    let (len, page_size) = (4 << 20, 4096);
    let sim = Sim::new(&SimOptions { len, max_len: len, page_size, ..SimOptions::default() });
    let options = map_options(&Options { background: false, ..Options::default() });
    let space = Arc::clone(sim.expect("memory").space());
    let map = LogMap::simulated_create(kind, space, &options).expect("create");
    let settings = Settings { id, identity: id, peers: peers.to_vec(), ..Settings::default() };
    let told = Arc::clone(clock);
    let time = Arc::new(move || UnixMillis(told.load(Ordering::Relaxed)));
    Replica::open(Box::new(map), settings, Some(time)).expect("open")
}

/// Ticks all nodes, and delivers all their messages.
fn run(all: &[Replica], ticks: usize) {
    for _ in 0..ticks {
        all.iter().for_each(|it| it.tick().expect("tick"));
        loop {
            let letters: Vec<_> = all.iter().flat_map(Replica::take_envelopes).collect();
            if letters.is_empty() {
                break;
            }
            for letter in letters {
                all[letter.to as usize - 1].receive(letter).expect("receive");
            }
        }
    }
}

/// A cluster of so many nodes, the leader first, with many expired records and a live one behind them; and its clock.
fn cluster(kind: MapKind, count: u64) -> (Vec<Replica>, Arc<AtomicU64>) {
    let peers: Vec<u64> = (1..=count).collect();
    let clock = Arc::new(AtomicU64::new(1000));
    let mut all: Vec<Replica> = peers.iter().map(|id| node(kind, *id, &peers, &clock)).collect();
    while !all.iter().any(Replica::leads) {
        run(&all, 1);
    }
    let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    let mut batch = Batch::new();
    for number in 0..EXPIRED {
        batch.put_until(&key(number), b"v", Some(UnixMillis(2001 + u64::from(number))));
    }
    batch.put(&key(EXPIRED), b"lives");
    let leader = all.iter().position(Replica::leads).expect("a leader");
    all[leader].apply(&batch, &early).expect("write");
    run(&all, 3);
    clock.store(LATEST, Ordering::Relaxed);
    all.swap(0, leader);
    (all, clock)
}

/// A cluster of one node.
fn replica(kind: MapKind) -> (Replica, Arc<AtomicU64>) {
    let (mut all, clock) = cluster(kind, 1);
    (all.remove(0), clock)
}

/// A call of an iteration passes at most as many expired records as it would show live ones.
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

/// A scan that meets many expired records proposes one entry, which states for all of them that their time has
/// passed: no node's clock is before that any more.
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
        // A sweep deletes the records that the scan has not deleted.
        replica.sweep_expired().expect("sweep");
        assert_eq!(replica.stats().expired, u64::from(EXPIRED), "{kind:?}");
        assert_eq!(replica.len().expect("len"), 1, "{kind:?}");
    }
}

/// A sweep goes on as long as many records are due, it has time, and not too many of its proposals are open.
#[test]
fn a_sweep_goes_on_while_much_is_due() {
    for kind in MapKind::ALL {
        let (replica, _) = replica(kind);
        let mut from = Vec::new();
        let mut steps = 0;
        let swept = replica.sweep_on(&mut from, &mut || {
            steps += 1;
            steps < 10
        });
        assert_eq!(swept.expect("sweep"), 10 * 64, "{kind:?}");
        let rest = replica.sweep_on(&mut from, &mut || true).expect("sweep");
        assert_eq!(10 * 64 + rest, u64::from(EXPIRED), "{kind:?}");
        assert!(from.is_empty(), "it has come to the end");
        replica.persisted().expect("a turn");
        assert_eq!(replica.len().expect("len"), 1, "{kind:?}");
    }
}

/// The proposals of a sweep are not applied: it goes on slowly.
#[test]
fn a_sweep_is_no_faster_than_the_followers() {
    for kind in MapKind::ALL {
        let (all, _) = cluster(kind, 3);
        let mut from = Vec::new();
        let swept = all[0].sweep_on(&mut from, &mut || true).expect("sweep");
        assert_eq!(swept, 4096, "{kind:?}");
        assert_eq!(all[0].sweep_on(&mut from, &mut || true).expect("sweep"), 64, "{kind:?}");
    }
}
