//! Flipped bits in writes that were flushed and wait for a commit, after a kill: no sector has the bytes from before.

use coreplane_pmem::Pool;
use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use coreplane_tio::{Disk, Error, Findings, Options, Policy, Source, Tio};
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
    write_from(disk, 0, sector, byte, fua);
}

fn write_from(disk: &Disk, connection: u64, sector: u64, byte: u8, fua: bool) {
    let mut tios = [Tio { fua, ..Tio::write(sector * SECTOR, vec![byte; SECTOR as usize]) }];
    disk.run(&Source::of_connection(connection), &mut tios);
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
    let sim = Sim::new(&sim_options(Model::File)).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
    write(&disk, WRITTEN, OLDER, true);
    disk.close().expect("close");
    let sim = sim.killed().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
    write(&disk, WRITTEN, NEWER, true);
    behind(&disk);
    let image = sim.crash(Eviction::Everything);
    drop(disk);
    let journal = journal_of(&image);
    (sim, image, journal)
}

/// The start of the journal.
fn journal_of(image: &Image) -> u64 {
    let sim = image.reopen().expect("memory");
    let pool = Pool::simulated_open(Arc::clone(sim.space())).expect("a pool");
    (pool.root()[1] + 1) * SECTOR
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
}

/// A flipped bit in either word of the head is corrected: what was flushed is known as before.
#[test]
fn a_flipped_bit_of_the_head_takes_nothing_away() {
    let (_sim, image, journal) = killed(|_| {});
    let block = block_of(&image, NEWER) * 8;
    for bit in (0..128).map(|bit| journal * 8 + bit) {
        let (found, findings) = opened(&image, &[bit]);
        assert_eq!((found, findings.is_sound()), (Some(NEWER), true), "{bit}");
        let (found, findings) = opened(&image, &[bit, block + 5]);
        assert_eq!((found, findings.damaged), (None, vec![WRITTEN]), "{bit}");
    }
}

fn zero(disk: &Disk, sector: u64) {
    let mut tios = [Tio { fua: true, ..Tio::zero(sector * SECTOR, SECTOR) }];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
}

fn sim_options(model: Model) -> SimOptions {
    let len = Disk::partition_len(&options()).expect("a size");
    SimOptions { len, max_len: len, page_size: SECTOR as u32, model, ..SimOptions::default() }
}

/// Flipped bits of the first word of a journal: one, two and four.
fn flips(journal: u64) -> impl Iterator<Item = Vec<u64>> {
    let one = (0..64).map(|bit| vec![bit]);
    let more = (0..50).flat_map(|bit| [vec![bit, bit + 11], vec![bit, bit + 1, bit + 9, bit + 13]]);
    one.chain(more).map(move |bits| bits.into_iter().map(|bit| journal * 8 + bit).collect())
}

/// The entry of a later round was not written before a power cut, and its place has the one before.
#[test]
fn an_entry_of_an_earlier_round_is_not_repeated() {
    let sim = Sim::new(&sim_options(Model::File)).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
    write(&disk, WRITTEN, OLDER, false);
    zero(&disk, WRITTEN);
    (3..60).for_each(|number| write(&disk, 100, number, false));
    write(&disk, WRITTEN, NEWER, false);
    (61..130).for_each(|number| write(&disk, 100, number, false));
    disk.close().expect("close");
    let before = sim.crash(Eviction::Nothing);
    let sim = before.reopen().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), &options()).expect("open");
    (130..189).for_each(|number| write(&disk, 100, number, false));
    let mut image = sim.crash(Eviction::Everything);
    let journal = journal_of(&before);
    let place = |number: u64| journal + HEAD + number % 128 * ENTRY;
    let number_at = |image: &Image, number| image.word(place(number) + 16);
    assert_eq!([2, 129, 130, 188].map(|at| number_at(&image, at)), [130, 129, 130, 188]);
    for at in (place(130)..place(131)).step_by(8) {
        let changed = image.word(at) ^ before.word(at);
        let bits = (0..64).filter(|bit| changed >> bit & 1 == 1);
        bits.for_each(|bit| image.flip_bit(at + bit / 8, (bit % 8) as u32));
    }
    assert_eq!([2, 129, 130, 188].map(|at| number_at(&image, at)), [2, 129, 2, 188]);
    assert_eq!([0, 8].map(|within| image.word(place(2) + within)), [WRITTEN, 0]);
    for bits in flips(journal) {
        let (found, findings) = opened(&image, &bits);
        assert_eq!((found, findings.is_sound()), (Some(NEWER), true), "{bits:?}");
    }
}

/// Where a fence is an instruction nothing is recorded: the entries of before are older than the names.
#[test]
fn a_disk_that_was_in_memory_meanwhile_does_not_repeat_what_was_before() {
    let sim = Sim::new(&sim_options(Model::File)).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options()).expect("create");
    write(&disk, WRITTEN, OLDER, true);
    zero(&disk, WRITTEN);
    disk.close().expect("close");
    let in_memory = Sim::after(sim.space(), &sim_options(Model::X86)).expect("memory");
    let disk = Disk::simulated_open(in_memory.spaces(), &options()).expect("open");
    write(&disk, WRITTEN, NEWER, true);
    disk.close().expect("close");
    for model in [Model::X86, Model::File] {
        let sim = Sim::after(in_memory.space(), &sim_options(model)).expect("memory");
        let image = sim.crash(Eviction::Nothing);
        for bits in flips(journal_of(&image)) {
            let (found, findings) = opened(&image, &bits);
            assert_eq!((found, findings.is_sound()), (Some(NEWER), true), "{model:?}, {bits:?}");
        }
    }
}

/// A disk of two partitions, and the memory of another one with the same number, as of a copy: the extent with the
/// written sector is in its second partition. Bits of the entry with the newer bytes are flipped.
fn hurt_and_copy(options: &Options) -> (Sim, Sim) {
    let len = Disk::partition_len(options).expect("a size");
    let sim = || {
        let sim = SimOptions { spaces: 2, len, max_len: len, ..sim_options(Model::File) };
        Sim::new(&sim).expect("memory")
    };
    let (sim, copy) = (sim(), sim());
    let disk = Disk::simulated_create(sim.spaces(), options).expect("create");
    write(&disk, WRITTEN, OLDER, true);
    disk.close().expect("close");
    let sim = sim.killed().expect("memory");
    let disk = Disk::simulated_open(sim.spaces(), options).expect("open");
    write(&disk, WRITTEN, NEWER, true);
    let mut image = sim.crash(Eviction::Everything);
    let bytes = image.bytes();
    let mut words = (0..bytes.len() as u64).step_by(8);
    let is_entry = |at: &u64| image.word(*at) == WRITTEN && image.word(at + 16) == 2;
    let entry = words.find(|at| at + 32 <= bytes.len() as u64 && is_entry(at)).expect("an entry");
    [3, 4].into_iter().for_each(|bit| image.flip_bit(entry, bit));
    let disk = Disk::simulated_create(copy.spaces(), options).expect("create");
    write_from(&disk, 1, WRITTEN, OLDER, true);
    disk.close().expect("close");
    (image.reopen().expect("memory"), copy.killed().expect("memory"))
}

/// What an open cannot replay is found once, so that an open that is refused does not look for it.
#[test]
fn a_disk_that_is_refused_keeps_its_losses_for_the_next_open() {
    let options = Options { partitions: 2, policy: Policy::Pid, ..options() };
    for is_copy in [false, true] {
        let (sim, copy) = hurt_and_copy(&options);
        let mut spaces = vec![Arc::clone(&sim.spaces()[0])];
        spaces.extend(is_copy.then(|| Arc::clone(&copy.spaces()[1])));
        let refused = Disk::simulated_open(&spaces, &options).map(drop);
        assert!(matches!(refused, Err(Error::Partitions(_))), "{refused:?}");
        let sim = sim.killed().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &options).expect("open");
        assert_eq!((disk.unnamed(), verify(&disk).unnamed), (1, 1), "a copy: {is_copy}");
    }
}
