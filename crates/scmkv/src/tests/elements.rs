//! The page information table, read while it is written, and torn by a power cut.

use crate::engine::Scmkv;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Verdict;
use crate::table::page::Kind;
use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, spin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn an_element_is_read_while_its_page_is_sealed_and_used_again() {
    let sim = Sim::new(&SimOptions::default()).expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    let page = store.pages.pop_free(0).expect("a free page");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                store.pages.write_element(page, Kind::Log, 1, 7, 9).expect("open");
                store.pages.seal(page, 64, 0).expect("seal");
            }
        });
        let (mut opened, mut sealed, mut matches) = (false, false, true);
        // The writer may have to wait for a processor.
        for _ in 0..1000 {
            let elements: Vec<_> = (0..200_000).map(|_| store.pages.element(page)).collect();
            matches &= elements.iter().flatten().count() == elements.len();
            for element in elements.iter().flatten() {
                opened |= element.length.is_none();
                sealed |= element.length == Some(64);
            }
            if !matches || opened && sealed {
                break;
            }
        }
        stop.store(true, Ordering::Release);
        assert!(matches, "an element did not match its check");
        assert!(opened && sealed, "nothing changed");
    });
}

/// A page that a checkpoint names is freed, used again, and freed again: the slots of the checkpoint do not count,
/// whatever a power cut leaves of the last freeing.
#[test]
fn a_page_that_was_being_freed_is_none_that_an_old_checkpoint_names() {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    const KEYS: u8 = 10;
    let put_all = |len: usize| {
        for number in 0..KEYS {
            let value = vec![number; len];
            let outcome = store.put(&[b'k', number], &value, &WriteOptions::default());
            assert!(outcome.expect("put").is_written());
        }
    };
    let clean = || {
        let mut state = spin::lock(&store.cleaner_state);
        assert!(store.clean_one(&mut state, 1).expect("clean").is_some(), "nothing is dead");
    };
    put_all(200);
    let slot = store.index.find(store.place(&[b'k', 0]), |_| Verdict::Mine).expect("find");
    let page = store.space.page_of(slot.expect("a slot").offset());
    let cell = store.pages.cell(page);
    let generation = cell.generation();
    assert!(store.take_checkpoint().expect("a checkpoint"));
    while cell.generation() == generation || cell.length.load(Ordering::Acquire) == 0 {
        put_all(330);
        if cell.generation() == generation {
            clean();
        }
    }
    put_all(330);
    while cell.kind() == Some(Kind::Log) {
        clean();
    }
    // The last step was to free the page.
    let end = sim.events();
    for at in end - 8..=end {
        for seed in 0..8 {
            let cut = sim.crash_at(at, Eviction::Seeded(seed)).reopen().expect("memory");
            let store = Scmkv::simulated_open(Arc::clone(cut.space()), options.clone());
            let store = store.expect("opened");
            let what = format!("cut at {at}, seed {seed}");
            for number in 0..KEYS {
                let found = store.get(&[b'k', number]).expect(&what);
                assert_eq!(found, Some(vec![number; 330]), "{what}: {number}");
            }
            let report = store.verify(&mut |_| {}).expect("verify");
            assert!(report.is_sound(), "{what}: {:?}", report.damages);
        }
    }
}
