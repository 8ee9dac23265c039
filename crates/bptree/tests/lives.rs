//! Pools that live through dozens of power cuts and kills: see [`coreplane_conformance::lives`].

use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::lives::{Subject, World, check};
use coreplane_conformance::model::Clock;
use coreplane_engine::Result;
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::Model;
use std::ops::Range;
use std::sync::Arc;

struct Tree;

impl Subject for Tree {
    type Store = Bptree;

    const LARGE: Range<u64> = 1100..4100;

    fn create(&self, space: Arc<Space>, clock: Clock) -> Result<Bptree> {
        Bptree::simulated_create(space, &options(clock))
    }

    fn open(&self, space: Arc<Space>, clock: Clock) -> Result<Bptree> {
        Bptree::simulated_open(space, &options(clock))
    }
}

fn options(clock: Clock) -> Options {
    Options { time: Some(clock), background: false, ..Options::default() }
}

fn lives(world: World, seeds: Range<u64>) {
    check(&Tree, world, seeds);
}

const WORLD: World = World { pages: 40, ..World::USUAL };

#[test]
fn a_pool_lives_through_dozens_of_power_cuts() {
    lives(WORLD, 1..9);
}

#[test]
fn where_a_fence_is_a_sync() {
    lives(World { model: Model::File, ..WORLD }, 101..107);
}

#[test]
fn where_most_writes_are_relaxed() {
    lives(World { is_relaxed: true, ..WORLD }, 201..207);
}

/// Where many writes share a sync: batches come behind splits that are not durable yet.
#[test]
fn where_most_writes_are_relaxed_and_a_fence_is_a_sync() {
    lives(World { model: Model::File, is_relaxed: true, ..WORLD }, 579..587);
}

#[test]
fn where_keys_are_long() {
    lives(World { long_in: 3, pages: 96, ..WORLD }, 301..305);
}

/// The fate of every key that ever existed is known.
#[test]
fn where_tombstones_are_held() {
    for (model, seeds) in [(Model::X86, 321..324), (Model::File, 341..344)] {
        let is_given = model == Model::File;
        lives(World { model, holds: true, is_given, ..WORLD }, seeds);
    }
}

#[test]
fn where_sequences_are_given() {
    lives(World { is_given: true, ..WORLD }, 331..334);
}

/// Leaves are merged for lack of pages, several at a time.
#[test]
fn where_there_is_no_room() {
    let full = World { keys: 900, pages: 20, is_full: true, ..WORLD };
    lives(full, 601..607);
    lives(World { model: Model::File, is_relaxed: true, ..full }, 621..625);
}

/// A leaf is split and merged all the time, and its pages are soon reused.
#[test]
fn where_pages_are_few() {
    lives(World { keys: 12, pages: 24, ..WORLD }, 401..409);
}
