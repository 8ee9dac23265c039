//! A power cut after a process was killed: the next one must not build on what the first has left in the caches.

use coreplane_pmem::Pool;
use coreplane_pmem::media::sim::{Eviction, Fault, Model, Sim, SimOptions};
use coreplane_tio::{Disk, Error, Options, Source, Tio};
use std::sync::Arc;

const SECTOR: u64 = 1024;

/// A disk with one partition, of three extents.
fn options() -> Options {
    Options { size: 300 * SECTOR, partitions: 1, sector_len: SECTOR as u32, ..Options::default() }
}

fn sim_options(model: Model) -> SimOptions {
    let len = Disk::partition_len(&options()).expect("a size");
    SimOptions { len, max_len: len, page_size: SECTOR as u32, model, ..SimOptions::default() }
}

fn written(disk: &Disk, sector: u64, byte: u8) {
    let mut tios = [Tio::write(sector * SECTOR, vec![byte; SECTOR as usize])];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
}

fn first_byte(disk: &Disk, sector: u64) -> u8 {
    let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "sector {sector}: {:?}", tios[0].outcome);
    tios[0].bytes[0]
}

/// What a killed process has left in the caches is durable before the next one builds on it: the word of a new extent,
/// or the name of a sector, whose flush the process did not come to.
#[test]
fn a_power_cut_after_a_kill_loses_nothing_that_was_acknowledged() {
    // The last write is one to a sector that was written before, or the first one to its extent.
    for (sector, before) in [(0, 1), (200, 0)] {
        let live = |sim: &Sim| {
            let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
            written(&disk, 0, 1);
            written(&disk, sector, 2);
        };
        let whole = sim_options(Model::X86);
        let sim = Sim::new(&whole).expect("memory");
        let ((), cost) = sim.cost_of(|| live(&sim));
        // The process ends before its last flush.
        let fault = Some(Fault::DropFlush(cost.flushes - 1));
        let sim = Sim::new(&SimOptions { fault, ..whole }).expect("memory");
        live(&sim);
        let sim = sim.killed().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
        assert_eq!(first_byte(&disk, sector), 2);
        (sector + 20..sector + 40).for_each(|other| written(&disk, other, 3));
        drop(disk);
        let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
        let found = first_byte(&disk, sector);
        assert!(found == 2 || found == before, "sector {sector}: {found}");
        (sector + 20..sector + 40).for_each(|other| assert_eq!(first_byte(&disk, other), 3));
    }
}

/// The same where a fence is a sync, for power cuts within the open after the kill.
#[test]
fn a_power_cut_in_the_open_after_a_kill_loses_nothing_that_was_flushed() {
    for is_flushed in [false, true] {
        let sim = Sim::new(&sim_options(Model::File)).expect("memory");
        let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
        written(&disk, 0, 1);
        disk.flush().expect("flush");
        disk.check_blocks().expect("a commit");
        written(&disk, 0, 2);
        if is_flushed {
            disk.flush().expect("flush");
        }
        drop(disk);
        let sim = sim.killed().expect("memory");
        let before = sim.events();
        let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
        assert_eq!(first_byte(&disk, 0), 2);
        drop(disk);
        for events in before..=sim.events() {
            for seed in 0..8 {
                let image = sim.crash_at(events, Eviction::Seeded(seed));
                let sim = image.reopen().expect("memory");
                let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
                let found = first_byte(&disk, 0);
                let is_right = found == 2 || found == 1 && !is_flushed;
                assert!(is_right, "{found} at {events}, {seed}: {is_flushed}");
            }
        }
    }
}

/// A cut in the open that replaces an extent whose word in the directory is damaged: its sectors stay errors.
#[test]
fn a_power_cut_in_the_replacement_of_a_lost_extent_makes_no_zeroes() {
    for model in [Model::X86, Model::File] {
        let sim = Sim::new(&sim_options(model)).expect("memory");
        let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
        written(&disk, 0, 1);
        drop(disk);
        let mut image = sim.crash(Eviction::Everything);
        let whole = image.reopen().expect("memory");
        let pool = Pool::simulated_open(Arc::clone(whole.space())).expect("a pool");
        let directory = pool.root()[1] * SECTOR;
        [0, 1, 4, 6].iter().for_each(|byte| image.flip_bit(directory + byte, 3));
        let sim = image.reopen().expect("memory");
        let before = sim.events();
        // One sector for each line of names.
        let is_lost = |disk: &Disk| {
            (0..SECTOR / 8).step_by(8).all(|sector| {
                let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
                disk.run(&Source::of_connection(0), &mut tios);
                matches!(tios[0].outcome, Err(Error::Damaged { .. }))
            })
        };
        assert!(is_lost(&Disk::simulated_open(sim.spaces(), &options()).expect("open")));
        // The images of all other moments are among those before a fence.
        for fence in 0..=sim.fences_since(before) {
            for seed in 0..32 {
                let image = sim.crash_at_fence(before, fence, Eviction::Seeded(seed));
                let sim = image.reopen().expect("memory");
                let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
                assert!(is_lost(&disk), "{model:?}: before fence {fence}, {seed}");
            }
        }
    }
}
