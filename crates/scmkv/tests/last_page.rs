//! A full store goes on after a cut in the cleaning of a page with the last pages.
//!
//! The cut may leave the page that was cleaned and the page of the copies both partly in use. Together they hold no more
//! than one page of live records, but each of them must be cleaned before it is free.

mod home;
mod tiny;

use coreplane_engine::{Engine, Repairable};
use coreplane_pmem::media::sim::Eviction;
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use home::{PAGE, options, write};
use tiny::{ends, fill, fill_key, recovered, simulated};

/// Pages of the smallest pool that keeps two pages for the cleaner.
const PAGES: u64 = 256;

/// How many cleanings are cut, and at how many moments each.
const CLEANINGS: usize = 3;
const MOMENTS: usize = 40;

/// Keys that are deleted, one after the other: in each page some records live on.
fn deleted(all: u32) -> impl Iterator<Item = u32> {
    (0..3).flat_map(move |from| (from..all).step_by(7))
}

/// Deletes and overwrites are made.
fn check_goes_on(store: &Scmkv, (all, len, from): (u32, usize, u32), what: &str) {
    store.count().expect("counted");
    for number in deleted(all).skip_while(|number| *number != from).take(100) {
        let done = store.delete(&fill_key(number), &write()).map(drop);
        assert!(done.is_ok(), "{what}: delete {number}: {done:?}, {:?}", store.stats());
    }
    for number in (3..all).step_by(7).take(40) {
        let done = store.put(&fill_key(number), &vec![8; len], &write()).map(drop);
        assert!(done.is_ok(), "{what}: overwrite {number}: {done:?}, {:?}", store.stats());
    }
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound(), "{what}");
}

fn run(placement: Placement, len: usize) {
    let sim = simulated(PAGES);
    let (space, geometry) = (sim.space().clone(), Geometry::TINY);
    let store =
        Scmkv::simulated_create(space, geometry, placement, options(false)).expect("create");
    let all = fill(&store, 0, fill(&store, len, 0));
    // The deletes that clean: with how many free pages, and when.
    let mut cleanings = Vec::new();
    for number in deleted(all) {
        let (events, before) = (sim.events(), store.stats());
        let _outcome = store.delete(&fill_key(number), &write()).expect("delete");
        if store.stats().cleaner_pages_freed > before.cleaner_pages_freed {
            cleanings.push((before.free_bytes / PAGE, number, events..sim.events()));
        }
    }
    let least = cleanings.iter().map(|(free, ..)| *free).min().expect("a cleaning");
    cleanings.retain(|(free, ..)| *free == least);
    for (_, number, events) in cleanings.into_iter().take(CLEANINGS) {
        let step = events.len().div_ceil(MOMENTS);
        for at in events.step_by(step) {
            for eviction in [Eviction::Everything, Eviction::Seeded(at as u64)] {
                let what = format!("{placement:?}, {len}, {least} free, cut at {at}, {eviction:?}");
                let (_sim, store) = recovered(&sim.crash_at(at, eviction));
                check_goes_on(&store, (all, len, number), &what);
            }
        }
    }
}

#[test]
fn small_values_with_the_index_in_the_pool() {
    ends(|| run(Placement::Pool, 60));
}

#[test]
fn small_values_with_the_index_in_dram() {
    ends(|| run(Placement::Dram, 60));
}

#[test]
fn large_values() {
    ends(|| run(Placement::Pool, 1300));
}
