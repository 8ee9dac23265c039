//! One power cut, or kill, at a chosen moment: cases that seeded stories seldom reach.

use crate::home::{self, Home, New, options, write};
use crate::tiny::{created, recovered, simulated};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Batch, Durability, Engine, UnixMillis, WriteOptions};
use coreplane_pmem::media::sim::Eviction;
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::collections::BTreeSet;

/// A batch in two pages, of which the cleaner empties one: the commit record makes the members in
/// the other count, wherever that record is by then.
#[test]
fn a_batch_in_two_pages_outlives_the_cleaning_of_either_and_a_kill() {
    // One and a half pages, in an order that the engine chooses.
    const RECORDS: u8 = 28;
    for overwritten_page in 0..2 {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64).placed(Placement::Dram));
        let mut batch = Batch::new();
        for number in 1..=RECORDS {
            batch.put(&[b'k', number], &[number; 200]);
        }
        store.apply(&batch, &write()).expect("apply");
        let bytes = home.bytes();
        let page_of = |number: u8| {
            let at = bytes.windows(200).position(|it| it == [number; 200]);
            at.expect("a record") as u64 / home::PAGE
        };
        let pages: BTreeSet<u64> = (1..=RECORDS).map(page_of).collect();
        assert_eq!(pages.len(), 2, "{pages:?}");
        let is_there = |number: &u8| pages.iter().nth(overwritten_page) == Some(&page_of(*number));
        for number in (1..=RECORDS).filter(is_there) {
            let _outcome = store.put(&[b'k', number], &[number; 200], &write()).expect("put");
        }
        // The state of the medium after each page that is cleaned: the store is not closed.
        let killed = [(); 3].map(|()| {
            store.clean().expect("clean");
            home.bytes()
        });
        store.close().expect("close");
        drop(store);
        let left = killed.into_iter().chain([home.bytes()]);
        for (cleaned, left) in (1..).zip(left) {
            home.put_bytes(&left);
            let store = home.open(options(false));
            let is_lost = |number: &u8| store.get(&[b'k', *number]).expect("get").is_none();
            let lost: Vec<u8> = (1..=RECORDS).filter(is_lost).collect();
            assert!(lost.is_empty(), "after {cleaned} pages, or 3 and a close: {lost:?}");
        }
    }
}

/// A cleaned page is free only after the slots that point at the copies are durable: also after
/// those which fill the cleaner's page so far that nothing is written behind them.
#[test]
fn no_page_is_free_before_the_slots_that_have_left_it() {
    const KEYS: u8 = 20;
    let value = |number: u8, len: usize| vec![number; len];
    // Two pages of ten records; of each the cleaner copies five, and both fives are in one page.
    for more in (0..=128).step_by(8) {
        let len = |number: u8| if number == KEYS - 2 { 378 + more } else { 378 };
        let sim = simulated(64);
        let store = created(&sim, options(false));
        let put = |number: u8| {
            let _outcome =
                store.put(&[b'k', number], &value(number, len(number)), &write()).expect("put");
        };
        (0..KEYS).for_each(put);
        (0..KEYS).filter(|number| number % 2 == 1).for_each(put);
        let mut images = Vec::new();
        for _ in 0..2 {
            assert!(store.clean().expect("clean"));
            // The last step is to free the page.
            let end = sim.events();
            let cuts = (1..8).flat_map(|back| (0..16).map(move |seed| (end - back, seed)));
            images.extend(cuts.map(|(at, seed)| sim.crash_at(at, Eviction::Seeded(seed))));
        }
        drop(store);
        for image in images {
            let (_sim, store) = recovered(&image);
            for number in 0..KEYS {
                let found = store.get(&[b'k', number]).expect("get");
                assert_eq!(found, Some(value(number, len(number))), "{number}, {more} more");
            }
        }
    }
}

/// A record that was reported as expired is not found after a power cut, though the clock stands
/// where it stood before.
#[test]
fn what_was_told_to_have_expired_does_not_come_back_by_a_power_cut() {
    const START: u64 = 1_800_000_000_000;
    for placement in [Placement::Pool, Placement::Dram] {
        let clock = ManualClock::starting_at(UnixMillis(START));
        let timed = || Options { time: Some(clock.as_clock()), ..options(false) };
        let sim = simulated(64);
        let space = sim.space().clone();
        let store = Scmkv::simulated_create(space, Geometry::TINY, placement, timed());
        let store = store.expect("create");
        let expires_at = Some(UnixMillis(START + 1000));
        let expiring = WriteOptions { expires_at, ..write() };
        let _outcome = store.put(b"key", b"value", &expiring).expect("put");
        clock.set(UnixMillis(START + 2000));
        assert!(store.get(b"key").expect("get").is_none());
        let image = sim.crash(Eviction::Nothing);
        drop(store);
        clock.set(UnixMillis(START));
        let sim = image.reopen().expect("reopen");
        let store = Scmkv::simulated_open(sim.space().clone(), timed()).expect("open");
        assert!(store.get(b"key").expect("get").is_none(), "{placement:?}: it is back");
    }
}

/// The writes of a life are newer than all writes of the lives before it.
#[test]
fn what_was_written_in_the_last_life_is_what_is_there() {
    const RECORDS: u8 = 60;
    for placement in [Placement::Pool, Placement::Dram] {
        let mut sim = simulated(64);
        let space = sim.space().clone();
        let store = Scmkv::simulated_create(space, Geometry::TINY, placement, options(false));
        let mut store = store.expect("create");
        for life in 0..4_u8 {
            for number in 0..RECORDS {
                let _outcome = store.put(&[b'k', number], &[life; 200], &write()).expect("put");
            }
            // The open page has records of one key alone: a recovery learns nothing of the versions
            // of others.
            for _ in 0..RECORDS {
                let _outcome = store.put(b"last", &[life; 200], &write()).expect("put");
            }
            // After this write it reads all pages, and rebuilds the index: the greatest version
            // counts.
            if life % 2 == 1 {
                let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..write() };
                let _outcome = store.put(b"last", &[life; 200], &relaxed).expect("put");
            }
            let image = sim.crash(Eviction::Nothing);
            drop(store);
            sim = image.reopen().expect("reopen");
            let space = sim.space().clone();
            store = Scmkv::simulated_open(space, options(false)).expect("open");
            for number in 0..RECORDS {
                let value = store.get(&[b'k', number]).expect("get");
                assert_eq!(value, Some(vec![life; 200]), "{placement:?}: {number}");
            }
        }
    }
}
