//! The page information table, read while it is written.

use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::page::Kind;
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool};
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
