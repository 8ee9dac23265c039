//! Pending entries in many pages, over many lives.

use crate::ops::{World, options, sim_options};
use crate::worlds::{FILE, WORLD};
use coreplane_engine::{Batch, Error};
use coreplane_mvcc::{LogMap, MapKind, SnapshotRecord};
use coreplane_pmem::media::sim::{Eviction, Sim};
use std::sync::Arc;

fn created(world: &World, seed: u64) -> (Sim, LogMap) {
    let sim = Sim::new(&sim_options(world, seed)).expect("memory");
    let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
    (sim, log.expect("create"))
}

fn opened(kind: MapKind, sim: &Sim) -> LogMap {
    LogMap::simulated_open(kind, Arc::clone(sim.space()), &options()).expect("open")
}

/// The log after a power cut that takes everything that was not flushed.
fn cut(world: &World, sim: &Sim) -> (Sim, LogMap) {
    let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let log = opened(world.kind, &sim);
    (sim, log)
}

fn committed(log: &LogMap) {
    let ticket = log.commit().expect("commit");
    log.wait_durable(ticket).expect("wait");
}

/// The numbers of changes of the entries from one on.
fn pending(log: &LogMap, from: u64) -> Vec<usize> {
    let (mut counts, to) = (Vec::new(), log.control().newest);
    let mut show = |entry: coreplane_mvcc::LogEntry<'_>| {
        counts.push(entry.changes.len());
        true
    };
    log.entries(from..=to, &mut show).expect("entries");
    counts
}

/// Pending entries fill more pages than an open searches for the commit that counts.
#[test]
fn entries_are_found_however_far_back_they_are() {
    for kind in MapKind::ALL {
        let world = World { kind, page_size: 1024, pages: 9600, ..WORLD };
        let (sim, log) = created(&world, 1);
        let entry = |value: u64| Batch::new().put(&[value as u8 % 16], &[value as u8; 700]).clone();
        let append = |log: &LogMap, timestamp: u64, header: &[u8]| {
            log.append(timestamp, header, &entry(timestamp), true).expect("append");
            if timestamp.is_multiple_of(50) {
                committed(log);
            }
        };
        let vote = |log: &LogMap, terms: std::ops::Range<u64>| {
            terms.for_each(|term| {
                log.set_vote(term, 1).expect("vote");
                committed(log);
            });
        };
        // The next entries are written to their pages.
        (1..=900).for_each(|timestamp| append(&log, timestamp, b"rolled back"));
        log.roll_back(0).expect("roll back");
        vote(&log, 1..20);
        (1..=5000).for_each(|timestamp| append(&log, timestamp, b"first"));
        let (sim, log) = cut(&world, &sim);
        assert_eq!(pending(&log, 1), vec![1; 5000]);
        log.roll_back(4000).expect("roll back");
        vote(&log, 20..40);
        (4001..=4800).for_each(|timestamp| append(&log, timestamp, b"second"));
        let (sim, log) = cut(&world, &sim);
        assert_eq!(pending(&log, 1), vec![1; 4800]);
        let header = |timestamp| log.header(timestamp).expect("header");
        assert_eq!(header(4000).as_deref(), Some(b"first".as_slice()));
        assert_eq!(header(4001).as_deref(), Some(b"second".as_slice()));
        log.apply(4800).expect("apply");
        committed(&log);
        let (_sim, log) = cut(&world, &sim);
        assert_eq!((log.control().newest, log.control().applied), (4800, 4800));
        for key in 0..16_u64 {
            let last = 4800 - (4800 - key) % 16;
            let value = log.get(&[key as u8]).expect("get");
            assert_eq!(value.as_deref(), Some([last as u8; 700].as_slice()), "{key}");
        }
        log.audit().unwrap_or_else(|drift| panic!("{drift}"));
    }
}

/// Entries of many pages, of none, and with large values: a cut between each two steps, and each step in a life of
/// its own.
#[test]
fn each_step_of_an_entry_may_be_in_a_life_of_its_own() {
    for kind in MapKind::ALL {
        for world in [WORLD, FILE] {
            let world = World { kind, page_size: 1024, pages: 400, ..world };
            let (mut sim, mut log) = created(&world, 2);
            let wide = |value: u8| {
                let mut batch = Batch::new();
                (0..60_u8).for_each(|key| _ = batch.put(&[b'w', key], &[value; 200]));
                batch.delete(b"gone").put(b"large", &[value; 5000]).clone()
            };
            let mut newest = 0;
            for round in 0..6_u8 {
                let applied = newest;
                for batch in [wide(round), Batch::new(), wide(round + 100)] {
                    newest += 1;
                    log.append(newest, &[round], &batch, true).expect("append");
                    committed(&log);
                    (sim, log) = cut(&world, &sim);
                    log.audit().unwrap_or_else(|drift| panic!("{world:?}: {drift}"));
                }
                assert_eq!(pending(&log, applied + 1), [62, 0, 62]);
                log.roll_back(applied + 2).expect("roll back");
                newest = applied + 2;
                committed(&log);
                (sim, log) = cut(&world, &sim);
                assert_eq!(pending(&log, applied + 1), [62, 0]);
                for to in applied + 1..=newest {
                    log.apply(to).expect("apply");
                    let is_shown = |value: u8| {
                        let large = log.get(b"large").expect("get");
                        assert_eq!(large.as_deref(), Some([value; 5000].as_slice()));
                    };
                    is_shown(round);
                    // The application may be lost, and nothing else.
                    let (_sim, left) = cut(&world, &sim);
                    assert_eq!(left.control().newest, newest);
                    committed(&log);
                    (sim, log) = cut(&world, &sim);
                    assert_eq!(log.control().applied, to);
                    let report = log.verify(&mut |_| {}).expect("verify");
                    assert!(report.is_sound(), "{report:?}");
                }
            }
        }
    }
}

/// A snapshot is installed over pending entries, in many pages; later entries have their timestamps.
#[test]
fn a_snapshot_replaces_what_is_pending() {
    for kind in MapKind::ALL {
        for world in [WORLD, FILE] {
            let world = World { kind, page_size: 1024, pages: 200, ..world };
            let (mut sim, mut log) = created(&world, 3);
            for round in 0..12_u64 {
                let applied = log.control().applied;
                let mut batch = Batch::new();
                (0..40_u8).for_each(|key| _ = batch.put(&[b'p', key], &[round as u8; 150]));
                for more in 1..=3 {
                    log.append(applied + more, b"pending", &batch, true).expect("append");
                }
                if round % 3 == 1 {
                    committed(&log);
                    (sim, log) = cut(&world, &sim);
                }
                log.begin_install(applied + 2).expect("begin");
                if round % 4 == 2 {
                    committed(&log);
                    (sim, log) = cut(&world, &sim);
                    assert!(matches!(
                        log.apply(applied + 1),
                        Err(Error::Installing | Error::OutOfRange { .. })
                    ));
                    assert!(matches!(log.get(b"key"), Err(Error::Installing)));
                    log.begin_install(applied + 2).expect("begin");
                }
                let value = [round as u8; 100];
                for key in 0..30_u8 {
                    let timestamp = 1 + applied;
                    let record = SnapshotRecord {
                        key: &[b's', key],
                        value: &value,
                        timestamp,
                        expires_at: None,
                    };
                    log.install([record]).expect("install");
                }
                log.end_install(b"snapshot", b"").expect("end");
                if round % 2 == 0 {
                    (sim, log) = cut(&world, &sim);
                }
                let control = log.control();
                assert_eq!((control.applied, control.newest), (applied + 2, applied + 2));
                assert_eq!(log.get(&[b'p', 0]).expect("get"), None);
                assert_eq!(log.get(&[b's', 7]).expect("get").as_deref(), Some(value.as_slice()));
                let next = applied + 3;
                log.append(next, b"next", Batch::new().delete(&[b's', 7]), true).expect("append");
                assert_eq!(pending(&log, next), [1]);
                log.apply(next).expect("apply");
                committed(&log);
                assert_eq!(log.get(&[b's', 7]).expect("get"), None);
                log.audit().unwrap_or_else(|drift| panic!("{drift}"));
            }
        }
    }
}

/// More records than are sealed at once, in one call.
#[test]
fn a_snapshot_of_many_records_is_installed_at_once() {
    for kind in MapKind::ALL {
        for world in [WORLD, FILE] {
            let world = World { kind, pages: 1000, ..world };
            let (_sim, log) = created(&world, 5);
            log.begin_install(7).expect("begin");
            let keys: Vec<[u8; 4]> = (0..3000_u32).map(u32::to_be_bytes).collect();
            let record =
                |key| SnapshotRecord { key, value: b"value", timestamp: 1, expires_at: None };
            log.install(keys.iter().map(|key| record(&key[..]))).expect("install");
            log.end_install(b"header", b"").expect("end");
            for key in &keys {
                assert_eq!(log.get(key).expect("get").as_deref(), Some(b"value".as_slice()));
            }
        }
    }
}
