//! Pages that the medium cannot read, at an open: their sectors are errors, and the process does not load from them.

use coreplane_pmem::Pool;
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_tio::{Disk, Error, Options, Source, Tio};
use std::sync::Arc;

const SECTOR: u64 = 1024;
/// Sectors of an extent.
const EXTENT: u64 = SECTOR / 8;

fn options() -> Options {
    Options { size: 300 * SECTOR, partitions: 1, sector_len: SECTOR as u32, ..Options::default() }
}

fn sim_options(model: Model) -> SimOptions {
    let len = Disk::partition_len(&options()).expect("a size");
    SimOptions { len, max_len: len, page_size: SECTOR as u32, model, ..SimOptions::default() }
}

fn open(sim: &Sim) -> coreplane_tio::Result<Disk> {
    Disk::simulated_open(sim.spaces(), &options())
}

fn write(disk: &Disk, sector: u64, byte: u8) {
    let bytes = vec![byte; SECTOR as usize];
    let mut tios = [Tio { fua: true, ..Tio::write(sector * SECTOR, bytes) }];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
}

/// The byte of a sector; none if it is damaged.
fn read(disk: &Disk, sector: u64) -> Option<u8> {
    let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
    disk.run(&Source::of_connection(0), &mut tios);
    match &tios[0].outcome {
        Ok(()) => Some(tios[0].bytes[0]),
        Err(Error::Damaged { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The machine after a program that made a disk and was killed, with a page that cannot be read.
fn after(model: Model, is_committed: bool, page_of: impl Fn(&Sim) -> u64) -> Sim {
    let sim = Sim::new(&sim_options(model)).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
    [0, EXTENT].iter().for_each(|sector| write(&disk, *sector, *sector as u8 + 1));
    if is_committed {
        disk.close().expect("close");
    }
    let page = page_of(&sim);
    let unreadable = Some(page * SECTOR..(page + 1) * SECTOR);
    let options = SimOptions { unreadable, ..sim_options(model) };
    Sim::after(sim.space(), &options).expect("memory")
}

fn root_of(sim: &Sim) -> u64 {
    let whole = sim.crash(Eviction::Everything).reopen().expect("memory");
    let pool = Pool::simulated_open(Arc::clone(whole.space())).expect("a pool");
    pool.root()[1]
}

#[test]
fn an_extent_with_an_unreadable_map_page_is_lost_and_others_are_not() {
    for model in [Model::X86, Model::File] {
        let map_of = |sim: &Sim| {
            let image = sim.crash(Eviction::Everything);
            image.word(root_of(sim) * SECTOR) & u64::from(u32::MAX)
        };
        let sim = after(model, true, map_of);
        let disk = open(&sim).expect("open");
        assert_eq!([0, 1, EXTENT].map(|at| read(&disk, at)), [None, None, Some(EXTENT as u8 + 1)]);
        disk.check_blocks().expect("blocks");
        // As many extents as there are, and as many blocks as they can have.
        for byte in 7..10 {
            (0..300).for_each(|sector| write(&disk, sector, byte));
            assert!((0..300).all(|sector| read(&disk, sector) == Some(byte)));
        }
        disk.check_blocks().expect("blocks");
        assert!(disk.verify(&mut |_, _| {}).expect("verify").is_sound());
    }
}

#[test]
fn a_flushed_write_with_an_unreadable_block_is_an_error() {
    let block_of = |sim: &Sim| {
        let image = sim.crash(Eviction::Everything);
        let mut pages = image.bytes().chunks(SECTOR as usize);
        pages.position(|page| page.iter().all(|byte| *byte == 1)).expect("a block") as u64
    };
    let sim = after(Model::File, false, block_of);
    let disk = open(&sim).expect("open");
    assert_eq!([0, 1, EXTENT].map(|at| read(&disk, at)), [None, Some(0), Some(EXTENT as u8 + 1)]);
    disk.check_blocks().expect("blocks");
    for byte in 7..10 {
        (0..300).for_each(|sector| write(&disk, sector, byte));
        assert!((0..300).all(|sector| read(&disk, sector) == Some(byte)));
    }
    disk.check_blocks().expect("blocks");
}

#[test]
fn a_disk_with_an_unreadable_directory_or_journal_is_refused() {
    for behind in 0..2 {
        let sim = after(Model::X86, true, |sim| root_of(sim) + behind);
        let error = open(&sim).map(drop).expect_err("refused").to_string();
        assert!(error.contains("the directory or the journal"), "{error}");
    }
}
