//! Slots that a power cut has emptied, and keys whose probes have passed them.

use crate::engine::Scmkv;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Verdict;
use coreplane_engine::{Engine, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, spin, thread_number};
use std::sync::Arc;

type Key = [u8; 4];

/// The first keys whose home is bucket `home`. There is one group.
fn keys_of(store: &Store, home: u32, count: usize) -> Vec<Key> {
    let is_of = |key: &Key| store.place(key).home(Geometry::TINY.buckets) == home;
    (0_u32..).map(u32::to_le_bytes).filter(is_of).take(count).collect()
}

/// Works in a thread whose log has this number.
fn on_log(store: &Store, log: usize, work: impl Fn() + Sync) {
    let is_done = || {
        let attempt = || {
            let is_its = thread_number() % store.logs.len() == log;
            if is_its {
                work();
            }
            is_its
        };
        std::thread::scope(|scope| scope.spawn(attempt).join().expect("joined"))
    };
    while !is_done() {}
}

/// Bucket 0 is full, and one of its slots is a tombstone's. A key goes to the last slot of bucket 1, which does not
/// become durable, and the next key of bucket 1 goes to bucket 2. Then the cleaner drops the tombstone: the first key
/// could go to its slot when it is replayed, and the hole in bucket 1 would stay before the other key.
#[test]
fn a_hole_that_a_key_was_probed_past_is_filled_by_a_recovery() {
    let options = Options { background: false, ..Options::default() };
    let write = WriteOptions::default();
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let store = Store::format(pool, Placement::Pool, &options).expect("a store");
    let (first, second) = (keys_of(&store, 0, 9), keys_of(&store, 1, 8));
    let put = |key: &Key| assert!(store.put(key, b"value", &write).expect("put").is_written());
    on_log(&store, 0, || {
        first[..8].iter().for_each(put);
        assert!(store.erase(&first[0], &write).expect("delete").is_written());
        store.logs[0].lock().seal(&store).expect("sealed");
    });
    on_log(&store, 1, || {
        second[..7].iter().for_each(put);
        store.logs[1].lock().settle(&store).expect("durable");
    });
    on_log(&store, 2, || put(&first[8]));
    on_log(&store, 1, || {
        put(&second[7]);
        store.logs[1].lock().settle(&store).expect("durable");
    });
    let of_deleted = || store.index.find(store.place(&first[0]), |_| Verdict::Mine).expect("find");
    let tombstone = of_deleted().expect("a tombstone");
    let mut state = spin::lock(&store.cleaner_state);
    store.clean_page(&mut state, store.space.page_of(tombstone.offset())).expect("cleaned");
    assert_eq!(of_deleted(), None, "the tombstone stays");
    let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let store = Scmkv::simulated_open(Arc::clone(cut.space()), options).expect("opened");
    for key in first[1..].iter().chain(&second) {
        assert!(store.get(key).expect("get").is_some(), "{key:?} is lost");
    }
}
