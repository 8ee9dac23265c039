//! The cost of a log, counted by the simulated medium.

use coreplane_engine::{Batch, Error, Visibility};
use coreplane_mvcc::{LogMap, MapEngine, MapKind, Options};
use coreplane_pmem::media::sim::{Cost, Eviction, Model, Sim, SimOptions};
use std::sync::Arc;

const VALUE: [u8; 100] = [7; 100];

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

struct Counted {
    sim: Sim,
    log: LogMap,
}

impl Counted {
    fn new(kind: MapKind, model: Model) -> Self {
        let len = 4 << 20;
        let options_of_sim =
            SimOptions { len, max_len: len, model, page_size: 4096, ..SimOptions::default() };
        let sim = Sim::new(&options_of_sim).expect("memory");
        let log = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options());
        Self { log: log.expect("create"), sim }
    }

    fn append(&self, timestamp: u64) {
        let mut batch = Batch::new();
        batch.put(&(timestamp % 100).to_be_bytes(), &VALUE);
        self.log.append(timestamp, b"a header", &batch, false).expect("append");
    }

    fn cost(&self, operation: impl FnOnce(&Self)) -> Cost {
        self.sim.cost_of(|| operation(self)).1
    }
}

/// Also where pages are full, and are used again: the lives of pages become durable before by fences that are made
/// anyway.
#[test]
fn a_commit_is_one_fence_whatever_was_done() {
    for kind in MapKind::ALL {
        let counted = Counted::new(kind, Model::X86);
        counted.append(1);
        assert!(counted.log.commit().expect("commit").is_durable());
        let mut more = 0;
        for timestamp in 2..20_000 {
            let cost = counted.cost(|it| {
                it.append(timestamp);
                it.log.apply(timestamp - 1).expect("apply");
                if timestamp % 100 == 0 {
                    it.append(timestamp + 1);
                    it.log.roll_back(timestamp).expect("roll back");
                    it.log.set_vote(timestamp, 1).expect("vote");
                }
            });
            assert_eq!(cost.fences, 0, "{timestamp}: before the commit: {cost:?}");
            let cost = counted.cost(|it| assert!(it.log.commit().expect("commit").is_durable()));
            more += u64::from(cost.fences != 1);
        }
        assert_eq!(more, 0, "{kind:?}");
        let again = counted.cost(|it| assert!(it.log.commit().expect("commit").is_durable()));
        assert_eq!(again.fences, 0, "there is nothing new");
    }
}

/// An entry is written once: applying it writes a control record, however large the entry is, and in a tree the nodes
/// that lead to it.
#[test]
fn what_is_applied_is_not_written_again() {
    for kind in MapKind::ALL {
        let counted = Counted::new(kind, Model::X86);
        let mut batch = Batch::new();
        (0..300_u32).for_each(|number| _ = batch.put(&number.to_be_bytes(), &VALUE));
        counted.log.append(1, b"", &batch, false).expect("append");
        counted.log.commit().expect("commit");
        let before = counted.log.stats().log_bytes_written;
        counted.log.apply(1).expect("apply");
        counted.log.commit().expect("commit");
        let written = counted.log.stats().log_bytes_written - before;
        let most = if kind == MapKind::List { 80 } else { 12_000 };
        assert!(written <= most, "{kind:?}: {written} bytes");
    }
}

/// Where a fence is a sync, a commit requests one, and no thread waits for it while it holds the map.
#[test]
fn a_commit_is_one_sync() {
    for kind in MapKind::ALL {
        let counted = Counted::new(kind, Model::File);
        counted.append(1);
        let ticket = counted.log.commit().expect("commit");
        counted.log.wait_durable(ticket).expect("wait");
        for timestamp in 2..200 {
            let cost = counted.cost(|it| {
                it.append(timestamp);
                it.log.apply(timestamp - 1).expect("apply");
                let ticket = it.log.commit().expect("commit");
                assert!(!ticket.is_durable());
                it.log.wait_durable(ticket).expect("wait");
                assert!(it.log.is_durable(ticket).expect("durable"));
            });
            assert_eq!(cost.fences, 1, "{timestamp}");
        }
    }
}

/// A caller applies before it has committed: readers wait for the records they see, or have them made durable.
#[test]
fn nobody_reads_what_may_be_lost() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            for commits in [false, true] {
                let Counted { sim, log } = Counted::new(kind, model);
                let mut batch = Batch::new();
                batch.put(b"key", &VALUE);
                log.append(1, b"one", &batch, false).expect("append");
                if commits {
                    // Requested, and not waited for.
                    log.commit().expect("commit");
                }
                assert_eq!(log.get(b"key").expect("get"), None);
                log.apply(1).expect("apply");
                let mut shown = false;
                let found = log.get_with(b"key", Visibility::Durable, &mut |record| {
                    shown = record.value.equals(&VALUE) && record.sequence == 1;
                });
                assert!(found.expect("get").hit && shown);
                let image = sim.crash(Eviction::Nothing).reopen().expect("memory");
                let log = LogMap::simulated_open(kind, Arc::clone(image.space()), &options());
                let log = log.expect("open");
                let (newest, header) = (log.control().newest, log.header(1).expect("header"));
                assert_eq!((newest, header.as_deref()), (1, Some(b"one".as_slice())), "{model:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_done_is_an_error_and_leaves_nothing() {
    for kind in MapKind::ALL {
        let Counted { sim, log } = Counted::new(kind, Model::X86);
        let (empty, mut batch) = (Batch::new(), Batch::new());
        batch.put(b"key", &VALUE);
        let is_out = |made: Result<(), Error>| matches!(made, Err(Error::OutOfRange { .. }));
        assert!(is_out(log.append(2, b"", &batch, false)));
        assert!(is_out(log.append(0, b"", &batch, false)));
        assert!(is_out(log.apply(1)));
        let long = vec![0; 257];
        let refused = log.append(1, &long, &batch, false);
        assert!(matches!(refused, Err(Error::ValueTooLong { len: 257, max: 256 })));
        batch.put(&vec![0; 3000], b"");
        assert!(matches!(log.append(1, b"", &batch, false), Err(Error::KeyTooLong { .. })));
        (1..=3).for_each(|at| log.append(at, &long[..256], &empty, false).expect("append"));
        log.apply(2).expect("apply");
        assert!(is_out(log.apply(1)) && is_out(log.apply(4)) && is_out(log.roll_back(1)));
        log.apply(2).expect("it is");
        assert_eq!(log.header(2).expect("header"), Some(vec![0; 256]));
        assert_eq!((log.header(1).expect("gone"), log.header(9).expect("none")), (None, None));
        let show = |range| log.entries(range, &mut |_| true);
        assert!(matches!(show(2..=3), Err(Error::HistoryGone { asked: 2, horizon: 2 })));
        assert!(matches!(show(3..=4), Err(Error::OutOfRange { given: 4, .. })));
        log.set_vote(7, 2).expect("vote");
        assert!(is_out(log.set_vote(6, 0)) && is_out(log.set_vote(7, 3)));
        log.set_vote(7, 2).expect("the same");
        assert!(matches!(log.set_members(&[0; 513]), Err(Error::ValueTooLong { .. })));
        assert!(is_out(log.begin_install(2)));
        assert!(matches!(log.install([]), Err(Error::Unusable(_))));
        log.commit().expect("commit");
        log.close().expect("close");
        drop(log);
        let sim = sim.killed().expect("memory");
        let space = || Arc::clone(sim.space());
        assert!(matches!(
            MapEngine::simulated_open(kind, space(), &options()),
            Err(Error::Unusable(what)) if what.contains("replica")
        ));
    }
}

#[test]
fn a_store_is_no_log() {
    for kind in MapKind::ALL {
        let len = 1 << 20;
        let sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
        let sim = Sim::new(&sim).expect("memory");
        let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
        drop(store.expect("create"));
        let sim = sim.killed().expect("memory");
        let refused = LogMap::simulated_open(kind, Arc::clone(sim.space()), &options());
        assert!(matches!(refused, Err(Error::Unusable(what)) if what.contains("of its own")));
    }
}
