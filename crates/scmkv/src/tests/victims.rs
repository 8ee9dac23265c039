//! The page that is cleaned for a writer.

use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::counters::comparisons;
use crate::table::geometry::Geometry;
use crate::table::index::Verdict;
use coreplane_engine::WriteOptions;
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, spin, thread_number};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An empty store of tiny pages, and its memory.
fn new_store() -> (Sim, Store) {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    (sim, store)
}

/// A store that has been open for days has a page that is as old, with a few dead bytes, and a new one that is
/// half dead.
#[test]
fn a_writer_does_not_wait_for_an_old_page_that_gives_little() {
    let (_sim, mut store) = new_store();
    let days = Duration::from_secs(1_000_000);
    store.writer.cleaner.reader.table.opened = Instant::now().checked_sub(days).expect("a time");
    let mine = thread_number() % store.logs.len();
    let put = |key: &[u8], len: usize| {
        let outcome = store.put(key, &vec![7; len], &WriteOptions::default()).expect("put");
        assert!(outcome.is_written());
    };
    let page_of = |key: &[u8]| {
        let slot = store.index.find(store.place(key), |_| Verdict::Mine).expect("find");
        store.space.page_of(slot.expect("a slot").offset())
    };
    let seal = || store.logs[mine].lock().seal(&store).expect("sealed");
    put(b"short", 10);
    (0..9).for_each(|number| put(&[b'o', number], 400));
    let old = page_of(b"short");
    seal();
    (0..9).for_each(|number| put(&[b'n', number], 400));
    let new = page_of(&[b'n', 0]);
    seal();
    put(b"short", 10);
    (0..4).for_each(|number| put(&[b'n', number], 400));
    store.pages.cell(old).sealed_at.store(0, Ordering::Relaxed);
    let mut state = spin::lock(&store.cleaner_state);
    let mut own = store.logs[mine].lock();
    assert_eq!(store.pick(&mut state, 1), Some(old), "by the cost-benefit rule alone");
    let picked = store.pick_for_writer(&mut state, &mut own, 0).expect("a page");
    assert_eq!(picked, Some(new), "not {old}");
    let hour_ago = store.clock_seconds() - 3600;
    store.pages.cell(new).sealed_at.store(hour_ago, Ordering::Relaxed);
    assert_eq!(store.pick(&mut state, 1), Some(new), "an hour is as long as days");
}

/// All that is dead is in the open page of the writer, which has less room than a record takes.
#[test]
fn a_writer_takes_its_own_open_page_without_live_records() {
    let (_sim, store) = new_store();
    let put_all = || {
        for number in 0..9 {
            let put = store.put(&[b'k', number], &[7; 400], &WriteOptions::default());
            assert!(put.expect("put").is_written());
        }
    };
    put_all();
    let mine = thread_number() % store.logs.len();
    let (page, _) = store.logs[mine].lock().tail().expect("an open page");
    std::thread::scope(|scope| scope.spawn(put_all).join().expect("joined"));
    let mut state = spin::lock(&store.cleaner_state);
    let mut own = store.logs[mine].lock();
    assert_eq!(store.pick_for_writer(&mut state, &mut own, 1).expect("a page"), Some(page));
}

/// A pool of terabytes has millions of pages.
#[test]
fn a_writer_looks_at_each_page_once() {
    let (_sim, store) = new_store();
    let mine = thread_number() % store.logs.len();
    for round in 0..4 {
        for number in 0..9 {
            let put = store.put(&[b'k', number], &[round; 400], &WriteOptions::default());
            assert!(put.expect("put").is_written());
        }
        store.logs[mine].lock().seal(&store).expect("sealed");
    }
    let mut state = spin::lock(&store.cleaner_state);
    let mut own = store.logs[mine].lock();
    let looks = comparisons::of(|| {
        let picked = store.pick_for_writer(&mut state, &mut own, 1).expect("no failure");
        assert!(picked.is_some(), "nothing is dead");
    });
    assert_eq!(looks, u64::from(store.pages.len()));
}
