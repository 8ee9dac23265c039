//! A pool that an earlier build wrote without flushing anything.

use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::root::Root;
use coreplane_engine::Error;
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool};
use std::sync::Arc;

#[test]
fn a_pool_that_was_never_flushed_is_refused_unless_it_was_closed() {
    let options = Options { background: false, ..Options::default() };
    for is_closed in [false, true] {
        let sim = Sim::new(&SimOptions::default()).expect("memory");
        let space = Arc::clone(sim.space());
        let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
        let pool = Pool::simulated_create(space, &create).expect("a pool");
        let store = Store::format(pool, Placement::Auto, &options).expect("a store");
        let root = store.root();
        store.set_root(Root { flags: root.flags | Root::UNFLUSHED, ..root }).expect("the root");
        if is_closed {
            store.close().expect("close");
        }
        let left = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let pool = Pool::simulated_open(Arc::clone(left.space())).expect("the pool");
        let opened = Store::open(pool, &options, &|_| {}).map(drop);
        assert!(matches!((is_closed, opened), (true, Ok(())) | (false, Err(Error::Unusable(_)))));
    }
}
