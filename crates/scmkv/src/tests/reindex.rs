//! The index, mended in a store that has no pages to spare.

use crate::clean::reindex::Reindexed;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Slot;
use coreplane_engine::{Visibility, WriteOptions};
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, epoch, spin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A slot is lost, its place is taken, and the group is full.
#[test]
fn the_last_pages_are_left_to_the_cleaner() {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let create = create_options(sim.space().len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(Arc::clone(sim.space()), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Pool, &options).expect("a store");
    let put = |key: &[u8]| {
        let outcome = store.put(key, b"v", &WriteOptions::default()).expect("put");
        assert!(outcome.is_written());
    };
    // Whether the group of a key that is absent is full, and the place of a slot in it.
    let slot_in_full = |key: &[u8]| {
        let (guard, place) = (epoch::pin(), store.place(key));
        let held = store.index.lock(place);
        let is_full = store.look(&guard, &held, key, place).expect("a look").is_none();
        let slots = store.index.slots(held.leaf(), store.index.group_of(place)).expect("slots");
        slots.first().filter(|_| is_full).map(|found| (found.at, found.slot))
    };
    let (mut lacking, mut cleaned, mut state) = (0, 0, spin::lock(&store.cleaner_state));
    for number in 0..700_u32 {
        let key = number.to_be_bytes();
        if let Some((at, slot)) = slot_in_full(&key) {
            let lost = {
                let guard = epoch::pin();
                store.record(&guard, slot).expect("a record").key().to_vec()
            };
            store.index.lock(store.place(&lost)).publish(at, Slot::EMPTY).expect("lost");
            put(&key);
            let (free, least) = (store.pages.refresh_free(), store.cleaners());
            let mut taken = store.pages.take(free - least, least).expect("free pages");
            let reindexed = store.reindex(&state).expect("no failure");
            assert_eq!(store.pages.refresh_free(), least, "{number}: {reindexed:?}");
            lacking += u32::from(reindexed == Reindexed::NoRoom);
            let page = store.space.page_of(slot.offset());
            let is_full = store.pages.cell(page).length.load(Ordering::Acquire) > 0;
            if reindexed == Reindexed::NoRoom && is_full {
                // Chosen before it was kept, and counted by its slots, as after an open.
                let len = store.view(&epoch::pin(), slot.offset()).expect("a record").len();
                store.add_live(slot.offset(), -i64::from(len));
                store.release(page);
                store.doubt_index();
                assert_eq!(store.clean_page(&mut state, page).expect("no failure"), 0);
                cleaned += 1;
            }
            store.pages.put_back(&mut taken);
            assert_eq!(store.reindex(&state).expect("reindexed"), Reindexed::Whole, "{number}");
            let found = store.get_with(&lost, Visibility::Durable, &mut |_| ()).expect("get");
            assert!(found.hit, "{number}");
        } else {
            put(&key);
        }
    }
    assert!(cleaned > 0, "no page of such a record was full");
    assert!(lacking > 0, "no group was full when there was no room for another segment");
}
