//! The cost of operations, counted by the simulated medium.

use coreplane_engine::{
    Batch, Completion, Deferred, Engine, Horizon, Ordered, Replicated, Snapshots, TimeSource,
    UnixMillis, Visibility, WriteOptions,
};
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::LINE;
use coreplane_pmem::media::sim::{Cost, Model, Sim, SimOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: [MapKind; 2] = MapKind::ALL;
const VALUE: [u8; 100] = [7; 100];

/// Bytes of a record with a key of 16 bytes and that value.
const RECORD: usize = (20_usize + 16 + 100).next_multiple_of(8);

/// The most lines that so many bytes touch.
fn lines(bytes: usize) -> usize {
    (bytes + LINE - 1).div_ceil(LINE)
}

fn key(number: u32) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

/// Bytes of a node of a tree: seven entries with keys of 16 bytes.
const NODE: usize = (20 + 8 + 7 * (12 + 16_usize)).next_multiple_of(8);
/// Bytes of the record of a commit of a tree.
const COMMIT: usize = 64;

struct Counted {
    kind: MapKind,
    sim: Sim,
    store: MapEngine,
}

impl Counted {
    fn new(kind: MapKind, non_temporal: bool, model: Model) -> Self {
        Self::with(kind, non_temporal, model, None)
    }

    fn with(kind: MapKind, non_temporal: bool, model: Model, time: Option<TimeSource>) -> Self {
        let len = 4 << 20;
        let options =
            SimOptions { len, max_len: len, non_temporal, model, ..SimOptions::default() };
        let sim = Sim::new(&SimOptions { page_size: 16 << 10, ..options }).expect("memory");
        let options = Options { background: false, time, ..Options::default() };
        let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options);
        Self { kind, store: store.expect("create"), sim }
    }

    /// The bytes that a commit writes beside its records: none in a list; in a tree at most these nodes, and its
    /// record.
    fn beside(&self, nodes: usize) -> usize {
        match self.kind {
            MapKind::List => 0,
            MapKind::CowTree => nodes * NODE + COMMIT,
        }
    }

    fn cost(&self, operation: impl FnOnce(&MapEngine)) -> Cost {
        self.sim.cost_of(|| operation(&self.store)).1
    }

    fn put(&self, number: u32, completion: Completion) -> Cost {
        let options = WriteOptions { completion, ..WriteOptions::default() };
        self.cost(|store| {
            let _outcome = store.put(&key(number), &VALUE, &options).expect("put");
        })
    }
}

fn each(test: impl Fn(Counted)) {
    for kind in KINDS {
        for non_temporal in [false, true] {
            test(Counted::new(kind, non_temporal, Model::X86));
        }
    }
}

#[test]
fn a_write_is_one_fence_and_the_lines_of_its_record() {
    each(|counted| {
        counted.put(0, Completion::Wait);
        let options = WriteOptions::default();
        let flushed = |what: &str, cost: &Cost, bytes: usize| {
            assert_eq!(cost.fences, 1, "{what}: {cost:?}");
            // The root and a leaf, each of which may be split; of eight new keys each may split its leaf.
            let nodes = if what == "batch" { 10 } else { 3 };
            let bytes = bytes + counted.beside(nodes);
            assert!(cost.flushed_lines.len() <= lines(bytes), "{what}: {cost:?}");
        };
        flushed("put", &counted.put(1, Completion::Wait), RECORD);
        flushed("overwrite", &counted.put(1, Completion::Wait), RECORD);
        let delete = counted.cost(|store| {
            let _outcome = store.delete(&key(1), &options).expect("delete");
        });
        flushed("delete", &delete, RECORD - 92);
        let mut batch = Batch::new();
        (2..10).for_each(|number| _ = batch.put(&key(number), &VALUE));
        let batch = counted.cost(|store| {
            store.apply(&batch, &options).expect("a batch");
        });
        flushed("batch", &batch, 8 * RECORD);
    });
}

#[test]
fn ten_early_puts_share_a_fence() {
    each(|counted| {
        counted.put(0, Completion::Wait);
        let fences: Vec<_> =
            (1..21).map(|number| counted.put(number, Completion::Early).fences).collect();
        assert_eq!(fences.iter().sum::<u64>(), 2, "{fences:?}");
        assert_eq!((fences[9], fences[19]), (1, 1), "{fences:?}");
        counted.put(21, Completion::Early);
        let horizon = Horizon::from(counted.store.visible_ticket());
        let wait = counted.cost(|store| store.wait_durable(&horizon).expect("wait"));
        let again = counted.cost(|store| store.wait_durable(&horizon).expect("wait"));
        assert_eq!((wait.fences, again.fences), (1, 0));
    });
}

/// Also where a page is full, or is used again: pages become free by fences that are made anyway.
#[test]
fn a_put_is_one_fence_while_pages_come_round() {
    each(|counted| {
        let (mut fences, mut more) = (0, 0);
        for number in 0..20_000 {
            let cost = counted.put(number % 1000, Completion::Wait);
            fences += cost.fences;
            more += u64::from(cost.fences != 1);
        }
        assert_eq!((fences, more), (20_000, 0));
        // Of a thousand keys a put writes four levels anew, and as many bytes again are moved.
        let written = counted.store.stats().log_bytes_written;
        let most = 23_000 * (RECORD + 2 * counted.beside(4)) as u64;
        println!("{:?}: {written} of {most}", counted.kind);
        assert!(written < most, "{:?}: {written} bytes", counted.kind);
    });
}

/// In a list the pages of a group that is longer than a page have durable lives first. A tree's commit states how
/// many pages it spans.
#[test]
fn a_batch_of_several_pages_is_two_fences_in_a_list_and_one_in_a_tree() {
    each(|counted| {
        let mut batch = Batch::new();
        (0..400).for_each(|number| _ = batch.put(&key(number), &VALUE));
        let cost = counted.cost(|store| {
            store.apply(&batch, &WriteOptions::default()).expect("a batch");
        });
        let fences = if counted.kind == MapKind::List { 2 } else { 1 };
        assert_eq!(cost.fences, fences, "{:?}", counted.kind);
    });
}

#[test]
fn reading_flushes_nothing() {
    each(|counted| {
        (0..300).for_each(|number| drop(counted.put(number, Completion::Wait)));
        let snapshot = counted.store.snapshot().expect("a snapshot");
        let cost = counted.cost(|store| {
            assert!(store.get(&key(7)).expect("get").is_some());
            assert!(store.get(&key(7000)).expect("get").is_none());
            let mut seen = 0;
            let mut count = |_: coreplane_engine::Entry<'_>| {
                seen += 1;
                true
            };
            store.scan(b"", None, false, usize::MAX, &mut count).expect("scan");
            store.scan(b"", None, true, usize::MAX, &mut count).expect("scan");
            snapshot.scan(b"", None, true, usize::MAX, &mut count).expect("scan");
            assert_eq!(seen, 900);
            let keys = [key(1), key(2), key(200)];
            let keys: Vec<&[u8]> = keys.iter().map(<[u8; 16]>::as_slice).collect();
            let visibility = Visibility::Durable;
            store.multi_get(&keys, visibility, &mut |_, it| assert!(it.is_some())).expect("gets");
        });
        assert_eq!((cost.fences, cost.flushed_lines.len()), (0, 0), "{cost:?}");
    });
}

/// Where a fence is a sync, a put is one sync, and a read that waits for it makes it.
#[test]
fn a_put_is_one_sync() {
    for kind in KINDS {
        let counted = Counted::new(kind, false, Model::File);
        counted.put(0, Completion::Wait);
        assert_eq!(counted.put(1, Completion::Wait).fences, 1);
        assert_eq!(counted.put(2, Completion::Early).fences, 0);
        let get = || counted.cost(|store| assert!(store.get(&key(2)).expect("get").is_some()));
        assert_eq!((get().fences, get().fences), (1, 0));
    }
}

/// Keys that have expired, in the order of their expiries.
const EXPIRED: u32 = 400;

/// The fences of a call on a store with such keys alone.
fn fences_of_expired(kind: MapKind, model: Model, call: &dyn Fn(&MapEngine)) -> u64 {
    let clock = Arc::new(AtomicU64::new(1));
    let source = Arc::clone(&clock);
    let time: TimeSource = Arc::new(move || UnixMillis(source.load(Ordering::Relaxed)));
    let counted = Counted::with(kind, false, model, Some(time));
    for number in 0..EXPIRED {
        let expires_at = Some(UnixMillis(1000 + u64::from(number)));
        let options = WriteOptions { expires_at, ..WriteOptions::default() };
        let _outcome = counted.store.put(&key(number), &VALUE, &options).expect("put");
    }
    clock.store(2000, Ordering::Relaxed);
    counted.cost(call).fences
}

/// That a record has expired is told by a change of the root, with four fences.
#[test]
fn expiries_are_told_for_many_keys_at_a_time() {
    type Look<'a> = (&'a str, &'a dyn Fn(&MapEngine));
    let scan = |store: &MapEngine, reverse| {
        let shown = &mut |_: coreplane_engine::Entry<'_>| panic!("it has expired");
        store.scan(b"", None, reverse, usize::MAX, shown).expect("scan");
    };
    let looks: [Look<'_>; 4] = [
        ("a scan", &|store| scan(store, false)),
        ("a scan down", &|store| scan(store, true)),
        ("an iteration", &|store| {
            let shown = &mut |_: coreplane_engine::Entry<'_>| panic!("it has expired");
            assert_eq!(store.iterate(0, usize::MAX, shown).expect("iterate"), 0);
        }),
        ("changes", &|store| {
            store.changes_since(0, &mut |it| assert!(it.record.is_none())).expect("changes");
        }),
    ];
    for kind in KINDS {
        for (what, look) in looks {
            let fences = fences_of_expired(kind, Model::X86, look);
            assert!(fences <= u64::from(EXPIRED / 6), "{kind:?}, {what}: {fences}");
        }
    }
}

/// Tombstones share their commits, and where a fence is a sync, their syncs.
#[test]
fn a_sweep_takes_few_fences() {
    for kind in KINDS {
        for model in [Model::X86, Model::File] {
            let fences = fences_of_expired(kind, model, &|store| {
                assert_eq!(store.sweep_expired().expect("swept"), u64::from(EXPIRED));
            });
            assert!(fences <= u64::from(EXPIRED / 3), "{kind:?}, {model:?}: {fences}");
        }
    }
}
