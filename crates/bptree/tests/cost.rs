//! The cost of operations, counted by the simulated medium.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{
    Batch, Durability, Engine, Ordered, Replicated, TimeSource, UnixMillis, WriteOptions,
};
use coreplane_pmem::LINE;
use coreplane_pmem::media::sim::{Cost, Sim, SimOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const VALUE: [u8; 100] = [7; 100];
const PAGE: u32 = 16 << 10;

/// Bytes of a record with a key of 16 bytes and that value.
const RECORD: usize = (20_usize + 16 + 100).next_multiple_of(8);

/// The most lines that this many bytes touch.
fn lines(bytes: usize) -> usize {
    (bytes + LINE - 1).div_ceil(LINE)
}

fn key(number: u32) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

struct Counted {
    sim: Sim,
    store: Bptree,
}

impl Counted {
    fn new(non_temporal: bool) -> Self {
        Self::with(non_temporal, &Options::default())
    }

    fn with(non_temporal: bool, options: &Options) -> Self {
        let len = 4 << 20;
        let simulated = SimOptions {
            len,
            max_len: len,
            page_size: PAGE,
            non_temporal,
            ..SimOptions::default()
        };
        let sim = Sim::new(&simulated).expect("memory");
        let store = Bptree::simulated_create(Arc::clone(sim.space()), options);
        Self { store: store.expect("create"), sim }
    }

    fn cost(&self, operation: impl FnOnce(&Bptree)) -> Cost {
        self.sim.cost_of(|| operation(&self.store)).1
    }

    fn put(&self, number: u32) -> Cost {
        let options = WriteOptions::default();
        self.cost(|store| {
            let _outcome = store.put(&key(number), &VALUE, &options).expect("put");
        })
    }

    fn figure(&self, name: &str) -> u64 {
        self.store.stats().figure(name).expect("a figure")
    }
}

#[test]
fn a_write_is_one_fence_and_the_lines_of_its_record() {
    for non_temporal in [false, true] {
        let counted = Counted::new(non_temporal);
        counted.put(0);
        let options = WriteOptions::default();
        let flushed = |what: &str, cost: &Cost, bytes: usize| {
            assert_eq!(cost.fences, 1, "{what}: {cost:?}");
            assert!(cost.flushed_lines.len() <= lines(bytes), "{what}: {cost:?}");
        };
        flushed("put", &counted.put(1), RECORD);
        flushed("overwrite", &counted.put(1), RECORD);
        let delete = counted.cost(|store| {
            let _outcome = store.delete(&key(1), &options).expect("delete");
        });
        flushed("delete", &delete, RECORD - 100);
        let mut batch = Batch::new();
        (2..10).for_each(|number| _ = batch.put(&key(number), &VALUE));
        let batch = counted.cost(|store| {
            store.apply(&batch, &options).expect("a batch");
        });
        flushed("batch", &batch, 8 * RECORD + 40);
    }
}

/// A relaxed write gains nothing there.
#[test]
fn relaxed_is_strict_where_a_fence_is_an_instruction() {
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..WriteOptions::default() };
    for non_temporal in [false, true] {
        let counted = Counted::new(non_temporal);
        counted.put(0);
        let cost = counted.cost(|store| {
            let _outcome = store.put(&key(1), &VALUE, &relaxed).expect("put");
        });
        let strict = counted.put(2);
        assert_eq!((cost.fences, strict.fences), (1, 1), "{cost:?}");
        assert!(non_temporal || cost.flushed_lines.len() >= RECORD / LINE, "{cost:?}");
    }
}

#[test]
fn a_batch_over_several_leaves_is_one_fence_too() {
    let counted = Counted::new(false);
    (0..400).for_each(|number| drop(counted.put(number)));
    let leaves = counted.figure("leaves_split") + 1;
    assert!(leaves > 4, "{leaves} leaves");
    let mut batch = Batch::new();
    (0..400).step_by(100).for_each(|number| _ = batch.put(&key(number), &VALUE));
    let rewrites = counted.figure("leaves_rewritten") + counted.figure("leaves_split");
    let cost = counted.cost(|store| {
        store.apply(&batch, &WriteOptions::default()).expect("a batch");
    });
    let now = counted.figure("leaves_rewritten") + counted.figure("leaves_split");
    assert_eq!(now, rewrites, "all of them had room");
    assert_eq!(cost.fences, 1, "{cost:?}");
    assert!(cost.flushed_lines.len() <= 4 * lines(RECORD + 40), "{cost:?}");
}

/// Two fences for the leaves in place of one, with the record in them, and one that blanks sixteen pages.
#[test]
fn a_leaf_is_written_anew_with_two_fences() {
    let counted = Counted::new(false);
    let (mut anew, mut fences) = (0_u64, 0);
    for number in 0..2000 {
        let before = counted.figure("leaves_split") + counted.figure("leaves_rewritten");
        let cost = counted.put(number * 7919 % 2000);
        if counted.figure("leaves_split") + counted.figure("leaves_rewritten") > before {
            anew += 1;
            fences += cost.fences;
            assert!(cost.fences <= 3, "{cost:?}");
        } else {
            assert_eq!(cost.fences, 1, "{cost:?}");
        }
    }
    assert!(anew > 20 && fences <= 2 * anew + anew.div_ceil(8) + 1, "{fences} fences for {anew}");
}

#[test]
fn reading_flushes_nothing() {
    let counted = Counted::new(false);
    (0..300).for_each(|number| drop(counted.put(number)));
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
        assert_eq!(seen, 600);
        let keys = [key(1), key(2), key(200)];
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 16]>::as_slice).collect();
        let visibility = coreplane_engine::Visibility::Durable;
        store.multi_get(&keys, visibility, &mut |_, it| assert!(it.is_some())).expect("gets");
    });
    assert_eq!((cost.fences, cost.flushed_lines.len()), (0, 0), "{cost:?}");
}

/// That a record has expired is told by a change of the root, with four fences.
#[test]
fn expiries_are_told_leaf_by_leaf() {
    const KEYS: u32 = 400;
    type Look<'a> = (&'a str, &'a dyn Fn(&Bptree));
    let looks: [Look<'_>; 5] = [
        ("a sweep", &|store| assert_eq!(store.sweep_expired().expect("sweep"), u64::from(KEYS))),
        ("gets", &|store| {
            (0..KEYS).for_each(|number| assert_eq!(store.get(&key(number)).expect("get"), None));
        }),
        ("a scan", &|store| {
            let shown = &mut |_: coreplane_engine::Entry<'_>| panic!("it has expired");
            store.scan(b"", None, false, usize::MAX, shown).expect("scan");
        }),
        ("an iteration", &|store| {
            let shown = &mut |_: coreplane_engine::Entry<'_>| panic!("it has expired");
            assert_eq!(store.iterate(0, usize::MAX, shown).expect("iterate"), 0);
        }),
        ("changes", &|store| {
            store.changes_since(0, &mut |it| assert!(it.record.is_none())).expect("changes");
        }),
    ];
    for (what, look) in looks {
        let clock = Arc::new(AtomicU64::new(1));
        let time: TimeSource = {
            let clock = Arc::clone(&clock);
            Arc::new(move || UnixMillis(clock.load(Ordering::Relaxed)))
        };
        let counted = Counted::with(false, &Options { time: Some(time), ..Options::default() });
        counted.store.hold_tombstones(0).expect("hold");
        for number in 0..KEYS {
            let expires_at = Some(UnixMillis(1000 + u64::from(number)));
            let options = WriteOptions { expires_at, ..WriteOptions::default() };
            let _outcome = counted.store.put(&key(number), &VALUE, &options).expect("put");
        }
        let leaves = counted.figure("leaves_split") + 1;
        assert!(leaves > 4, "{leaves} leaves");
        clock.store(2000, Ordering::Relaxed);
        let cost = counted.cost(look);
        assert!(cost.fences <= 8 * leaves + 4, "{what}: {} for {leaves}", cost.fences);
    }
}

/// One for all values, one for the records; there are blank pages.
#[test]
fn the_large_values_of_a_batch_have_one_fence() {
    for values in [1, 8] {
        let counted = Counted::new(false);
        let mut batch = Batch::new();
        (0..values).for_each(|number| _ = batch.put(&key(number), &[7; 8000]));
        let cost = counted.cost(|store| {
            store.apply(&batch, &WriteOptions::default()).expect("a batch");
        });
        assert_eq!(cost.fences, 2, "{values} values");
    }
}
