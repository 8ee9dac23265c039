//! The end of a snapshot: what it alone has seen goes bit by bit, with the changes to come or in time, and sooner if
//! changes lack room.

use crate::ops::{World, options, sim_options};
use crate::worlds::WORLD;
use coreplane_engine::{Batch, Error};
use coreplane_mvcc::{LogMap, LogSnapshot, MapKind};
use coreplane_pmem::media::sim::{Model, Sim};
use std::sync::Arc;

const KEYS: u64 = 3_000;

/// A log with entries that are applied and committed at once.
struct Driven {
    sim: Sim,
    log: LogMap,
    newest: u64,
}

impl Driven {
    fn new(kind: MapKind, model: Model, pages: u64) -> Self {
        let world = World { pages, model, kind, ..WORLD };
        let sim = Sim::new(&sim_options(&world, 7)).expect("memory");
        let log = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options());
        Self { sim, log: log.expect("create"), newest: 0 }
    }

    fn put(&mut self, keys: impl Iterator<Item = u64>, byte: u8) -> Result<(), Error> {
        let mut batch = Batch::new();
        keys.for_each(|key| _ = batch.put(format!("key-{key:05}").as_bytes(), &[byte; 100]));
        self.log.append(self.newest + 1, b"header", &batch, false)?;
        self.newest += 1;
        let ticket = self.log.commit().expect("commit");
        self.log.wait_durable(ticket).expect("durable");
        self.log.apply(self.newest)
    }

    fn put_all(&mut self, byte: u8) {
        for first in (0..KEYS).step_by(50) {
            self.put(first..first + 50, byte).expect("room");
        }
    }

    fn live(&self) -> u64 {
        self.log.stats().live_bytes
    }

    fn audit(&self) {
        self.log.audit().unwrap_or_else(|drift| panic!("{drift}"));
    }
}

fn records_of(snapshot: &LogSnapshot, byte: u8) -> u64 {
    let mut count = 0;
    let mut take = |entry: coreplane_engine::Entry<'_>| {
        let value = entry.record.expect("a record").value.to_vec();
        count += u64::from(value == [byte; 100]);
        true
    };
    snapshot.records().scan(b"", None, false, usize::MAX, &mut take).expect("scan");
    count
}

/// The thread that ends a snapshot may be the one that serves all clients.
#[test]
fn the_end_of_a_snapshot_takes_no_longer_the_more_was_written_meanwhile() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            let case = format!("{kind:?} {model:?}");
            let mut it = Driven::new(kind, model, 2_000);
            it.put_all(1);
            let before = it.live();
            let snapshot = it.log.snapshot().expect("snapshot");
            it.put_all(2);
            assert_eq!(records_of(&snapshot, 1), KEYS, "{case}");
            let full = it.live();
            assert!(full > before + KEYS * 100, "{case}: {before} and {full}");
            drop(snapshot);
            assert_eq!(it.live(), full, "{case}: nothing is released yet");
            let mut commits = 0;
            while it.live() > before + before / 8 {
                let last = it.live();
                it.put([commits * 7 % KEYS].into_iter(), 3).expect("room");
                assert!(last - it.live().min(last) < full / 8, "{case}: much at once");
                commits += 1;
                assert!(commits < KEYS, "{case}: {} live, {before} before", it.live());
            }
            assert!(commits > 8, "{case}: {commits}");
            it.put_all(4);
            it.audit();
        }
    }
}

/// Where no entries come, they go in time.
#[test]
fn what_a_snapshot_has_seen_goes_without_writes() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            let mut it = Driven::new(kind, model, 2_000);
            it.put_all(1);
            let before = it.live();
            let snapshot = it.log.snapshot().expect("snapshot");
            it.put_all(2);
            drop(snapshot);
            for _ in 0..KEYS {
                let last = it.live();
                it.log.release_in_time().expect("a medium that works");
                assert!(last - it.live() < before * 3 / 4, "{kind:?} {model:?}: much at once");
            }
            let left = it.live();
            assert!(left <= before + before / 8, "{kind:?} {model:?}: {left}, {before} before");
            it.audit();
        }
    }
}

/// The thread that looks for room may be the one that serves all clients.
#[test]
fn a_full_pool_drops_what_a_snapshot_has_seen_in_parts() {
    for kind in MapKind::ALL {
        let pages = if kind == MapKind::List { 190 } else { 260 };
        let mut it = Driven::new(kind, Model::X86, pages);
        it.put_all(1);
        let snapshot = it.log.snapshot().expect("snapshot");
        let refused = (0..100_000).map(|round| it.put([round * 7 % KEYS].into_iter(), 2));
        let _full = refused.filter_map(Result::err).next().expect("the pool is full");
        drop(snapshot);
        it.log.apply(it.newest).expect("room without a snapshot");
        let mut batch = Batch::new();
        batch.put(b"another", &[3; 100]);
        let (full, mut last, mut calls) = (it.live(), it.live(), 0);
        loop {
            let answer = it.log.check_room(&batch, 0);
            let left = it.live();
            assert!(last - left < full / 2, "{kind:?}: {last} and {left} of {full}");
            (last, calls) = (left, calls + 1);
            match answer {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, Error::Busy) && calls < 100, "{error}"),
            }
        }
        it.audit();
    }
}

/// Long entries release more, so that what they replace does not pile up.
#[test]
fn snapshots_that_follow_each_other_leave_no_more_and_more_behind() {
    for kind in MapKind::ALL {
        let mut it = Driven::new(kind, Model::X86, 2_000);
        it.put_all(1);
        let before = it.live();
        for round in 2..12 {
            let snapshot = it.log.snapshot().expect("snapshot");
            it.put_all(round);
            assert_eq!(records_of(&snapshot, round - 1), KEYS, "{kind:?}");
        }
        it.put_all(20);
        it.audit();
        assert!(it.live() < 2 * before, "{kind:?}: {} live, {before} before", it.live());
    }
}

#[test]
fn a_pool_that_is_full_of_what_a_snapshot_has_seen_takes_changes_when_it_is_gone() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            // Room for all keys, and not for two versions of each.
            let pages = if kind == MapKind::List { 190 } else { 260 };
            let mut it = Driven::new(kind, model, pages);
            it.put_all(1);
            let snapshot = it.log.snapshot().expect("snapshot");
            let refused = (0..100_000).map(|round| it.put([round * 7 % KEYS].into_iter(), 2));
            let error = refused.filter_map(Result::err).next().expect("the pool is full");
            assert!(matches!(error, Error::NoSpace { .. }), "{error}");
            assert_eq!(records_of(&snapshot, 1), KEYS, "{kind:?} {model:?}");
            drop(snapshot);
            // The last entry may have been appended, and not applied.
            it.log.apply(it.newest).expect("room without a snapshot");
            for round in 0..KEYS {
                it.put([round * 11 % KEYS].into_iter(), 3).expect("room without a snapshot");
            }
            it.audit();
        }
    }
}

/// The thread that takes a snapshot may be the one that serves all clients, and the medium may have stalled.
#[test]
fn a_snapshot_waits_for_no_sync() {
    for kind in MapKind::ALL {
        let mut it = Driven::new(kind, Model::File, 200);
        it.put(0..10, 1).expect("room");
        it.sim.stall_syncs();
        let mut batch = Batch::new();
        batch.put(b"stalled", b"value");
        it.log.append(it.newest + 1, b"header", &batch, false).expect("room");
        let ticket = it.log.commit().expect("commit");
        let snapshot = it.log.snapshot().expect("snapshot");
        assert!(!it.log.is_durable(ticket).expect("a medium that works"), "{kind:?}");
        assert_eq!(records_of(&snapshot, 1), 10, "{kind:?}");
        let ticket = it.log.commit().expect("commit");
        it.log.wait_durable(ticket).expect("durable");
        assert_eq!(snapshot.timestamp(), it.newest, "{kind:?}");
    }
}
