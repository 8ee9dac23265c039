//! Headers of index segments that were not durable when a process was killed.

use super::kill::{killed_at, undurable_at};
use crate::engine::Scmkv;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use coreplane_engine::{Engine, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool};
use std::sync::Arc;

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn put(store: &Store, number: u32) {
    let outcome = store.put(&key(number), b"value", &WriteOptions::default()).expect("put");
    assert!(outcome.is_written());
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// A process is killed when it has split a segment, and the cleared header of that segment is in the caches alone.
/// The next process splits one of the halves, and the power fails.
#[test]
fn a_segment_that_a_killed_process_has_split_does_not_come_back() {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let store = Store::format(pool, Placement::Pool, &options()).expect("a store");
    let depth_of = |store: &Store, number| store.index.leaf(store.place(&key(number))).depth();
    // Pages of the index begin with them, and no log page is used again.
    let is_header =
        |at: &u64| at % u64::from(Geometry::TINY.page_size) < Geometry::TINY.segment_bytes();
    let mut kills = Vec::new();
    for number in 0..300 {
        let (events, before) = (sim.events(), depth_of(&store, number));
        put(&store, number);
        if depth_of(&store, number) > before {
            let is_cleared = |at: &usize| {
                let left = undurable_at(&sim, *at);
                left.iter()
                    .any(|(at, durable, cached)| is_header(at) && *durable != 0 && *cached == 0)
            };
            let at = (events..sim.events()).find(is_cleared).expect("the header");
            kills.push((number, at));
        }
    }
    assert!(kills.len() > 10, "{kills:?}");
    for ((number, at), half) in kills.iter().flat_map(|kill| [(kill, 0), (kill, 1)]) {
        let sim = killed_at(&sim, *at);
        let pool = Pool::simulated_open(Arc::clone(sim.space())).expect("a pool");
        let store = Store::open(pool, &options(), &|_| {}).expect("opened");
        let depth = depth_of(&store, *number);
        let prefix_of = |number| store.place(&key(number)).y >> (32 - depth);
        let is_in_half = |other: &u32| prefix_of(*other) == prefix_of(*number) ^ half;
        let mut more = Vec::new();
        for other in (1000..).filter(is_in_half) {
            put(&store, other);
            more.push(other);
            if depth_of(&store, other) > depth {
                break;
            }
        }
        let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let what = format!("killed at {at}, half {half}");
        let opened = Scmkv::simulated_open(Arc::clone(cut.space()), options()).expect(&what);
        for number in (0..*number).chain(more) {
            assert!(opened.get(&key(number)).expect(&what).is_some(), "{what}: {number} is lost");
        }
    }
}
