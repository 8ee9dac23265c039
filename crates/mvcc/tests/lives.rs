//! Pools that live through dozens of power cuts and kills: see [`coreplane_conformance::lives`].

use coreplane_conformance::lives::{Subject, World, check};
use coreplane_conformance::model::Clock;
use coreplane_engine::Result;
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::Model;
use std::ops::Range;
use std::sync::Arc;

struct Map(MapKind);

impl Subject for Map {
    type Store = MapEngine;

    const LARGE: Range<u64> = 2100..9100;

    fn create(&self, space: Arc<Space>, clock: Clock) -> Result<MapEngine> {
        MapEngine::simulated_create(self.0, space, &options(clock))
    }

    fn open(&self, space: Arc<Space>, clock: Clock) -> Result<MapEngine> {
        MapEngine::simulated_open(self.0, space, &options(clock))
    }

    fn audit(&self, store: &MapEngine) -> std::result::Result<(), String> {
        store.audit().map(drop)
    }
}

fn options(clock: Clock) -> Options {
    Options { time: Some(clock), background: false, check_reads: true, ..Options::default() }
}

fn lives(world: World, seeds: Range<u64>) {
    MapKind::ALL.into_iter().for_each(|kind| check(&Map(kind), world, seeds.clone()));
}

const WORLD: World = World::USUAL;

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

/// Many writes share a sync: batches come behind pages whose lives are not durable yet.
#[test]
fn where_most_writes_are_relaxed_and_a_fence_is_a_sync() {
    lives(World { model: Model::File, is_relaxed: true, ..WORLD }, 560..568);
}

#[test]
fn where_keys_are_long() {
    lives(World { long_in: 3, pages: 96, ..WORLD }, 321..323);
}

/// The fate of every key that ever existed is known.
#[test]
fn where_tombstones_are_held() {
    for (model, seeds) in [(Model::X86, 301..304), (Model::File, 311..314)] {
        let is_given = model == Model::File;
        lives(World { model, holds: true, is_given, pages: 48, ..WORLD }, seeds);
    }
}

#[test]
fn where_sequences_are_given() {
    lives(World { is_given: true, ..WORLD }, 331..334);
}

#[test]
fn where_there_is_no_room() {
    let full = World { keys: 300, pages: 22, is_full: true, ..WORLD };
    lives(full, 601..607);
    lives(World { model: Model::File, is_relaxed: true, ..full }, 621..625);
}

/// The cleaner works all the time.
#[test]
fn where_pages_are_few() {
    for (model, seeds) in [(Model::X86, 401..405), (Model::File, 411..415)] {
        lives(World { model, keys: 8, pages: 36, ..WORLD }, seeds);
    }
}
