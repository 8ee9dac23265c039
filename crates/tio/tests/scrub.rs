//! The scrub and names: those that are damaged in the pool while readers have them are stored anew, durably; those
//! that wait for a commit are not.

use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_pmem::{Durable, Space};
use coreplane_tio::{Disk, Findings, Options, Source, Tio};
use std::sync::Arc;

const SECTOR: u64 = 1024;
/// Sectors of an extent.
const EXTENT: u64 = SECTOR / 8;
const BOTH: [Model; 2] = [Model::X86, Model::File];

fn options() -> Options {
    Options { size: 300 * SECTOR, partitions: 1, sector_len: SECTOR as u32, ..Options::default() }
}

fn made(model: Model) -> (Sim, Disk) {
    let len = Disk::partition_len(&options()).expect("a size");
    let options_of_sim =
        SimOptions { len, max_len: len, page_size: SECTOR as u32, model, ..SimOptions::default() };
    let sim = Sim::new(&options_of_sim).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
    (sim, disk)
}

fn write(disk: &Disk, sector: u64, byte: u8, fua: bool) {
    let mut tios = [Tio { fua, ..Tio::write(sector * SECTOR, vec![byte; SECTOR as usize]) }];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
}

fn read(disk: &Disk, sector: u64) -> u8 {
    let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "sector {sector}: {:?}", tios[0].outcome);
    tios[0].bytes[0]
}

/// Once round all extents.
fn scrubbed(disk: &Disk) -> Vec<u64> {
    let mut next = 0;
    let all = (0..300_u64.div_ceil(EXTENT)).map(|_| disk.scrub_next(&mut next).expect("a scrub"));
    all.flat_map(|Findings { damaged, names, .. }| {
        assert!(damaged.is_empty(), "{damaged:?}");
        names
    })
    .collect()
}

/// The offset of a sector's name.
fn name_of(space: &Arc<Space>, directory: u64, sector: u64) -> u64 {
    let word = space.word::<Durable>(directory + sector / EXTENT * 8).expect("a word");
    u64::from(word.load() as u32) * SECTOR + sector % EXTENT * 8
}

fn directory_of(sim: &Sim) -> u64 {
    let whole = sim.crash(Eviction::Everything).reopen().expect("memory");
    let pool = coreplane_pmem::Pool::simulated_open(Arc::clone(whole.space())).expect("a pool");
    pool.root()[1] * SECTOR
}

#[test]
fn a_name_that_is_damaged_in_the_pool_is_stored_anew() {
    for model in BOTH {
        let (sim, disk) = made(model);
        let sectors = [3, 4, EXTENT + 1];
        sectors.iter().for_each(|sector| write(&disk, *sector, *sector as u8 + 1, false));
        disk.check_blocks().expect("a commit");
        assert_eq!(scrubbed(&disk), [], "{model:?}");
        let (space, directory) = (sim.space(), directory_of(&sim));
        for sector in [3, EXTENT + 1] {
            let word = space.word::<Durable>(name_of(space, directory, sector)).expect("a word");
            word.store(word.load() ^ 1 << 40);
            word.flush();
        }
        space.fence().expect("a fence");
        assert_eq!(scrubbed(&disk), [3, EXTENT + 1], "{model:?}");
        let image = sim.crash(Eviction::Nothing);
        assert_eq!(scrubbed(&disk), [], "{model:?}: they are mended");
        disk.check_blocks().expect("blocks");
        let sim = image.reopen().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
        for sector in sectors {
            assert_eq!(read(&disk, sector), sector as u8 + 1, "{model:?}");
        }
        assert!(disk.verify(&mut |_, _| {}).expect("verify").is_sound());
    }
}

/// The name of a write that is not durable is not stored: after a cut the pool would have it, and not the bytes.
#[test]
fn a_name_that_waits_for_a_commit_is_left_alone() {
    let (_sim, disk) = made(Model::File);
    write(&disk, 3, 1, false);
    disk.check_blocks().expect("a commit");
    write(&disk, 3, 2, false);
    assert_eq!(scrubbed(&disk), []);
    disk.flush().expect("flush");
    assert_eq!(scrubbed(&disk), []);
}

/// After a sync has failed nobody knows which bytes are durable.
#[test]
fn no_name_is_stored_after_a_failed_sync() {
    let (sim, disk) = made(Model::File);
    write(&disk, 3, 1, false);
    disk.check_blocks().expect("a commit");
    write(&disk, 3, 2, false);
    sim.fail_syncs();
    disk.check_blocks().expect_err("a commit that fails");
    let mut next = 0;
    assert_eq!(disk.scrub_next(&mut next).expect("findings").names, []);
}
