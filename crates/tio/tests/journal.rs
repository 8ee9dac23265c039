//! Flipped bits in writes that were flushed and wait for a commit, after a kill: no sector has the bytes from before.

use coreplane_pmem::Pool;
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use coreplane_tio::{Disk, Error, Findings, Options, Source, Tio};
use std::sync::Arc;

const SECTOR: u64 = 1024;
/// The sector that is written, first with the older bytes.
const WRITTEN: u64 = 7;
const OLDER: u8 = 1;
const NEWER: u8 = 2;
/// Bytes before the entries of the journal, and bytes of an entry.
const HEAD: u64 = 64;
const ENTRY: u64 = 32;

fn options() -> Options {
    Options { size: 300 * SECTOR, partitions: 1, sector_len: SECTOR as u32, ..Options::default() }
}

fn write(disk: &Disk, sector: u64, byte: u8, fua: bool) {
    let mut tios = [Tio { fua, ..Tio::write(sector * SECTOR, vec![byte; SECTOR as usize]) }];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
}

/// The byte of the sector; none if it is damaged.
fn read(disk: &Disk) -> Option<u8> {
    let mut tios = [Tio::read(WRITTEN * SECTOR, SECTOR)];
    disk.run(&Source::of_connection(0), &mut tios);
    match &tios[0].outcome {
        Ok(()) => Some(tios[0].bytes[0]),
        Err(Error::Damaged { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn verify(disk: &Disk) -> Findings {
    disk.verify(&mut |_, _| {}).expect("verify")
}

/// What a kill leaves after the older bytes were committed and the newer ones flushed, and the start of its journal.
fn killed(behind: impl Fn(&Disk)) -> (Sim, Image, u64) {
    let len = Disk::partition_len(&options()).expect("a size");
    let sim_options = SimOptions {
        len,
        max_len: len,
        page_size: SECTOR as u32,
        model: Model::File,
        ..SimOptions::default()
    };
    let sim = Sim::new(&sim_options).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
    write(&disk, WRITTEN, OLDER, true);
    disk.close().expect("close");
    let sim = sim.killed().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
    write(&disk, WRITTEN, NEWER, true);
    behind(&disk);
    let image = sim.crash(Eviction::Everything);
    drop(disk);
    let reopened = image.reopen().expect("memory");
    let pool = Pool::simulated_open(Arc::clone(reopened.space())).expect("a pool");
    let journal = (pool.root()[1] + 1) * SECTOR;
    drop(pool);
    (sim, image, journal)
}

/// The entry with the newer bytes.
fn entry_of(image: &Image, journal: u64) -> u64 {
    let places = (0..128).map(|number| journal + HEAD + number * ENTRY);
    let mut its = places.filter(|at| image.word(*at) == WRITTEN && image.word(at + 16) == 2);
    its.next().expect("an entry")
}

fn block_of(image: &Image, byte: u8) -> u64 {
    let mut pages = image.bytes().chunks(SECTOR as usize);
    let at = pages.position(|page| page.iter().all(|it| *it == byte));
    at.expect("a block") as u64 * SECTOR
}

/// The disk after a start with flipped bits; it is whole again when the sector is written.
fn opened(image: &Image, bits: &[u64]) -> (Option<u8>, Findings) {
    let mut damaged = image.reopen().expect("memory").crash(Eviction::Everything);
    bits.iter().for_each(|bit| damaged.flip_bit(bit / 8, (bit % 8) as u32));
    let sim = damaged.reopen().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
    let (found, findings) = (read(&disk), verify(&disk));
    disk.check_blocks().expect("blocks");
    drop(disk);
    let sim = sim.killed().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
    assert_eq!(read(&disk), found, "at the next start");
    write(&disk, WRITTEN, 9, true);
    assert_eq!(read(&disk), Some(9));
    drop(disk);
    let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
    assert_eq!(read(&disk), Some(9));
    assert!(verify(&disk).is_sound());
    (found, findings)
}

#[test]
fn a_flushed_sector_with_a_flipped_bit_does_not_have_its_older_bytes() {
    let (_sim, image, _) = killed(|_| {});
    let (found, findings) = opened(&image, &[]);
    assert_eq!((found, findings.is_sound()), (Some(NEWER), true));
    let block = block_of(&image, NEWER);
    for bit in (0..8 * SECTOR).step_by(1237) {
        let (found, findings) = opened(&image, &[block * 8 + bit]);
        assert_eq!((found, findings.damaged), (None, vec![WRITTEN]), "{bit}");
    }
}

#[test]
fn a_flipped_bit_of_a_flushed_entry_is_corrected_and_several_are_told() {
    let (_sim, image, journal) = killed(|_| {});
    let entry = entry_of(&image, journal) * 8;
    for bit in (0..8 * ENTRY).step_by(5) {
        let (found, findings) = opened(&image, &[entry + bit]);
        assert_eq!((found, findings.is_sound()), (Some(NEWER), true), "{bit}");
        let (_, findings) = opened(&image, &[entry + bit, entry + (bit + 77) % (8 * ENTRY)]);
        assert_eq!((findings.is_sound(), findings.unnamed), (false, 1), "{bit}");
    }
    // The words of the head count for nothing then, and the entries do.
    for bit in 0..128 {
        let (found, findings) = opened(&image, &[journal * 8 + bit]);
        assert_eq!((found, findings.is_sound()), (Some(NEWER), true), "{bit}");
    }
}

/// A write that was not flushed does not make the flushed one before it count less, nor more.
#[test]
fn what_was_not_flushed_may_be_lost_and_is_taken_if_it_is_there() {
    let (_sim, image, _) = killed(|disk| write(disk, WRITTEN, 3, false));
    let (newer, last) = (block_of(&image, NEWER) * 8, block_of(&image, 3) * 8);
    assert_eq!(opened(&image, &[]).0, Some(3));
    assert_eq!(opened(&image, &[newer]).0, Some(3));
    assert_eq!(opened(&image, &[last]).0, Some(NEWER));
    assert_eq!(opened(&image, &[newer, last]).0, None);
}

/// A block is free when a later write of its sector was flushed, and then has other bytes.
#[test]
fn a_block_that_was_replaced_is_no_damage() {
    let (_sim, image, _) = killed(|disk| {
        for byte in 3..40 {
            write(disk, WRITTEN, byte, byte % 3 == 0);
            write(disk, WRITTEN + 1, byte, byte % 5 == 0);
        }
        disk.flush().expect("flush");
    });
    let (found, findings) = opened(&image, &[]);
    assert_eq!((found, findings.is_sound()), (Some(39), true));
}
