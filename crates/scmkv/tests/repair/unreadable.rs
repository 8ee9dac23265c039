//! Pages that the medium cannot read, at an open: the process does not load from them.

use crate::home::{PAGE, options, write};
use coreplane_engine::{Engine, Error, Repairable};
use coreplane_pmem::Durable;
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::ops::Range;
use std::sync::Arc;

const PAGES: u64 = 160;

fn sim_options(unreadable: Option<Range<u64>>) -> SimOptions {
    let len = PAGES * PAGE;
    SimOptions { len, max_len: len, page_size: PAGE as u32, unreadable, ..SimOptions::default() }
}

/// The offset of the element of a page, whose first byte has the kind in its low half, as `docs/media-format.md` has
/// it. Each stretch of 64 pages begins with their elements.
fn element_of(page: usize) -> usize {
    page / 64 * 64 * PAGE as usize + 2048 + 32 * (page % 64)
}

/// The memory of a store whose process was killed.
fn killed(placement: Placement) -> Sim {
    let sim = Sim::new(&sim_options(None)).expect("memory");
    let space = Arc::clone(sim.space());
    let store = Scmkv::simulated_create(space, Geometry::TINY, placement, options(false));
    let store = store.expect("create");
    for number in 0..200_u32 {
        let _outcome = store.put(&number.to_le_bytes(), &[7; 100], &write()).expect("put");
    }
    store.checkpoint().expect("checkpoint");
    drop(store);
    sim
}

/// A store whose process was killed, with an unreadable page: the last one of this kind. The number of the page.
fn after(placement: Placement, kind: u8) -> (Sim, usize) {
    let sim = killed(placement);
    let image = sim.crash(Eviction::Everything);
    let is_of = |page: &usize| image.bytes()[element_of(*page)] & 0xf == kind;
    let page = (0..PAGES as usize).rev().find(is_of).expect("a page of this kind");
    let unreadable = page as u64 * PAGE..(page as u64 + 1) * PAGE;
    (Sim::after(sim.space(), &sim_options(Some(unreadable))).expect("memory"), page)
}

#[test]
fn a_checkpoint_with_an_unreadable_page_costs_time_alone() {
    let (sim, page) = after(Placement::Dram, 5);
    let store = Scmkv::simulated_open(Arc::clone(sim.space()), options(false)).expect("open");
    assert_eq!(store.stats().figure("checkpoints_damaged"), Some(1));
    for number in 0..200_u32 {
        let found = store.get(&number.to_le_bytes()).expect("get");
        assert_eq!(found, Some(vec![7; 100]), "{number}");
    }
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    assert!(store.checkpoint().expect("another checkpoint"));
    let element = sim.space().word::<Durable>(element_of(page) as u64).expect("an element");
    assert_eq!(element.load() & 0xf, 5, "the page is not used again");
}

#[test]
fn an_open_names_an_unreadable_page_of_the_index_or_the_page_table() {
    for kind in [4, 2] {
        let (sim, page) = after(Placement::Pool, kind);
        let opened = Scmkv::simulated_open(Arc::clone(sim.space()), options(false)).map(drop);
        let Err(Error::Corrupt { offset, what }) = opened else { panic!("{kind}: {opened:?}") };
        assert_eq!(offset, page as u64 * PAGE, "{kind}");
        assert!(what.contains("unreadable"), "{kind}: {what}");
    }
}

#[test]
fn an_open_names_unreadable_bytes_behind_the_header() {
    let before = killed(Placement::Pool);
    let sim = Sim::after(before.space(), &sim_options(Some(2048..PAGE))).expect("memory");
    let opened = Scmkv::simulated_open(Arc::clone(sim.space()), options(false)).map(drop);
    let Err(Error::Corrupt { offset, what }) = opened else { panic!("{opened:?}") };
    assert!(offset < PAGE && what.contains("unreadable"), "{offset}: {what}");
}
