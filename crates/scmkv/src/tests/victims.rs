//! The page that is cleaned for a writer.

use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Verdict;
use coreplane_engine::WriteOptions;
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, spin, thread_number};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A store that has been open for days has a page that is as old, with a few dead bytes, and a new one that is
/// half dead.
#[test]
fn a_writer_does_not_wait_for_an_old_page_that_gives_little() {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let mut store = Store::format(pool, Placement::Dram, &options).expect("a store");
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
