//! The cleaner beside a writer, step by step.

use crate::clean::CleanerState;
use crate::clean::copies::Moving;
use crate::read::Reader;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Verdict;
use crate::write::Plan;
use coreplane_engine::WriteOptions;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, spin};
use coreplane_record::View;
use std::borrow::Cow;
use std::sync::Arc;

const KEY: &[u8] = b"key";

fn put(store: &Store, value: &[u8]) {
    let plan = |_: &Reader, _: &Guard, _: Option<&View<'_>>| {
        Ok(Plan::Put { value: Cow::Borrowed(value), expires_at: None })
    };
    let _outcome = store.write(KEY, &WriteOptions::default(), &mut { plan }).expect("put");
}

fn newest<'g>(store: &'g Store, guard: &'g Guard) -> View<'g> {
    let slot = store.index.find(store.place(KEY), &mut |_| Verdict::Mine).expect("find");
    store.record(guard, slot.expect("the key")).expect("a record")
}

/// Copies the record of the key, lets `beside` run, and publishes the copy.
fn moved(store: &Store, state: &mut CleanerState, beside: impl FnOnce()) {
    let guard = epoch::pin();
    let mut moving = Moving::new(0);
    let view = newest(store, &guard);
    store.clean_record(state, &guard, (&view, store.place(KEY)), &mut moving).expect("a copy");
    store.commit_copies(state, &mut moving).expect("a durable copy");
    beside();
    let copy = moving.copies.pop().expect("it lives");
    store.publish_copy(&guard, &copy, &mut moving.slots).expect("publish");
}

#[test]
fn a_write_between_copy_and_publication_wins() {
    for placement in [Placement::Pool, Placement::Dram] {
        let sim = Sim::new(&SimOptions::default()).expect("memory");
        let space = Arc::clone(sim.space());
        let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
        let pool = Pool::simulated_create(space, &create).expect("a pool");
        let options = Options { background: false, ..Options::default() };
        let store = Store::format(pool, placement, &options).expect("a store");
        let mut state = spin::lock(&store.cleaner_state);
        put(&store, b"first");
        let first = newest(&store, &epoch::pin()).offset;
        moved(&store, &mut state, || ());
        assert_ne!(newest(&store, &epoch::pin()).offset, first, "{placement:?}: it was not moved");
        assert_eq!(newest(&store, &epoch::pin()).value(), b"first");
        moved(&store, &mut state, || put(&store, b"second"));
        assert_eq!(newest(&store, &epoch::pin()).value(), b"second", "{placement:?}");
    }
}
