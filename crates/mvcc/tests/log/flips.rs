//! A flipped bit anywhere is an error or makes no difference: no other entry, no other vote, no panic.
//!
//! `COREPLANE_TEST_SCALE=full` flips every bit, otherwise one bit of each byte is flipped.

use crate::model::State;
use crate::ops::{Driver, Op, World, options, sim_options};
use crate::worlds::WORLD;
use coreplane_engine::Error;
use coreplane_mvcc::{LogMap, MapKind};
use coreplane_pmem::media::sim::{Eviction, Image, Sim};
use std::sync::Arc;

/// A pool that was written to, and the states that it was in, the last one last.
fn made(world: World, seed: u64, closes: bool) -> (Image, Vec<State>) {
    let sim = Sim::new(&sim_options(&world, seed)).expect("memory");
    let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
    let (log, mut driver) = (log.expect("create"), Driver::new(world, seed));
    let mut states = Vec::new();
    for _ in 0..90 {
        let op = driver.op();
        driver.run(&log, &op);
        states.push(driver.state.clone());
    }
    driver.run(&log, &Op::Commit);
    if closes {
        log.close().expect("close");
    }
    drop(log);
    (sim.crash(Eviction::Everything), states)
}

fn flip_all(world: World, seed: u64, closes: bool) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let (image, states) = made(world, seed, closes);
    let is_told = |error: &Error| {
        use Error::{ChecksumMismatch, Corrupt, Unusable};
        matches!(error, Corrupt { .. } | ChecksumMismatch { .. } | Unusable(_))
    };
    let (last, size) = (states.last().expect("some"), world.page_size as usize);
    let (mut flips, mut told) = (0, 0);
    let pages = image.bytes().chunks(size).enumerate().skip(1);
    let used = pages.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
    for offset in used.flat_map(|(page, _)| page * size..(page + 1) * size) {
        // Records begin at multiples of 8: a different bit of each of their bytes is flipped.
        let one = ((offset + offset / 8) % 8) as u32;
        for bit in if is_full { 0..8 } else { one..one + 1 } {
            let mut image = image.clone();
            image.flip_bit(offset as u64, bit);
            let what = format!("seed {seed}, closed: {closes}, bit {bit} of {offset:#x}");
            let sim = image.reopen().expect("memory");
            flips += 1;
            match LogMap::simulated_open(world.kind, Arc::clone(sim.space()), &options()) {
                Err(error) if is_told(&error) => told += 1,
                Err(error) => panic!("{what}: {error}"),
                Ok(log) => match State::read(&log) {
                    // Opening a tree does not read all of it.
                    Err(error) if is_told(&error) && world.kind == MapKind::CowTree => {
                        told += 1;
                        // Nor does a snapshot that comes in its place.
                        log.begin_install(last.newest() + 1).expect(&what);
                    }
                    Err(error) => panic!("{what}: {error}"),
                    Ok(found) => {
                        // Nothing vouches for the last entries of a pool that was not closed.
                        let may_be = !closes && states.iter().rev().take(12).any(|it| *it == found);
                        assert!(found == *last || may_be, "{what}: {found:?} is not {last:?}");
                    }
                },
            }
        }
    }
    assert!(told * 10 > flips, "{told} of {flips} told");
}

#[test]
fn a_bit_of_a_log_is_told_or_makes_no_difference() {
    for kind in MapKind::ALL {
        let pages = if kind == MapKind::List { 26 } else { 60 };
        let world = World { kind, pages, keys: 12, large_in: 0, page_size: 1024, ..WORLD };
        for seed in [1, 2] {
            flip_all(world, seed, true);
            flip_all(World { commit_in: 2, ..world }, seed, false);
        }
        flip_all(World { install_in: 25, ..world }, 3, true);
    }
}
