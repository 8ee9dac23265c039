//! Pools with pages that this engine cannot have.

use crate::engine::Scmkv;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::demand::Demand;
use crate::table::geometry::Geometry;
use coreplane_engine::Error;
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, Space};
use std::sync::Arc;

fn with_pages_of(page_size: u32) -> (Sim, Arc<Space>) {
    let sim = Sim::new(&SimOptions { page_size, ..SimOptions::default() }).expect("memory");
    let space = Arc::clone(sim.space());
    (sim, space)
}

#[test]
fn pages_of_less_than_4_kib_or_of_another_size_than_the_geometry_says_are_refused() {
    let options = || Options { background: false, ..Options::default() };
    for (page_size, said) in [(1 << 10, 1 << 10), (2 << 10, 2 << 10), (1 << 10, 4096), (8192, 4096)]
    {
        let geometry = Geometry { page_size: said, ..Geometry::TINY };
        let (_sim, space) = with_pages_of(page_size);
        let made = Scmkv::simulated_create(space, geometry, Placement::Dram, options());
        let is_told = |error: &Error| error.to_string().contains(&format!("page_size: {said}"));
        assert!(made.as_ref().is_err_and(is_told), "{made:?}");
        let (_sim, space) = with_pages_of(page_size);
        let create = create_options(space.len(), geometry, MediaChoice::Auto);
        let pool = Pool::simulated_create(space, &create).expect("a pool");
        let opened = Store::open(pool, &options(), &|_| {}).map(drop);
        assert!(opened.as_ref().is_err_and(is_told), "{opened:?}");
    }
}

/// The pool has pages that have no element yet.
#[test]
fn pages_that_are_being_added_are_no_damage() {
    let len = 64 << 12;
    let options = SimOptions { len, max_len: 2 * len, ..SimOptions::default() };
    let sim = Sim::new(&options).expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Pool, &options).expect("a store");
    let before = store.pages.len();
    store.pool.grow(2 * len).expect("grown");
    let reserve = store.reserve(Demand::Insert);
    assert!(store.verify(&mut |_| ()).expect("verified").is_sound());
    store.pages.format(before).expect("formatted");
    assert_eq!(store.pages.len(), 2 * before);
    assert!(store.reserve(Demand::Insert) >= reserve);
    assert!(store.verify(&mut |_| ()).expect("verified").is_sound());
}
