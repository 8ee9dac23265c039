//! Flipped bits: a read of a sector returns the written bytes or an error.

use coreplane_tio::{Disk, Error, Options, Policy, Source, Tio};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: u64 = 4096;

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }
}

fn options() -> Options {
    Options { size: 4 << 20, partitions: 1, ..Options::default() }
}

fn bytes_of(sector: u64) -> Vec<u8> {
    (0..SECTOR).map(|at| (at * 7 + sector * 13 + 1) as u8).collect()
}

/// A disk of which every third sector is written, some of them twice.
fn made(path: &Path) -> Vec<u64> {
    let disk = Disk::create(path, &options()).expect("create");
    let source = Source::of_connection(0);
    let written: Vec<u64> = (0..disk.len() / SECTOR).step_by(3).collect();
    for sector in &written {
        let mut tios = [
            Tio::write(sector * SECTOR, vec![1; SECTOR as usize]),
            Tio::write(sector * SECTOR, bytes_of(*sector)),
        ];
        disk.run(&source, &mut tios);
        assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
    }
    disk.close().expect("close");
    written
}

/// Reads all sectors; returns those that cannot be read.
fn read_all(disk: &Disk, written: &[u64]) -> Vec<u64> {
    let mut damaged = Vec::new();
    for sector in 0..disk.len() / SECTOR {
        let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
        disk.run(&Source::of_connection(0), &mut tios);
        let [Tio { bytes, outcome, .. }] = tios;
        match outcome {
            Ok(()) if written.contains(&sector) => assert!(bytes == bytes_of(sector), "{sector}"),
            Ok(()) => assert!(bytes.iter().all(|byte| *byte == 0), "{sector} is not zeroes"),
            Err(Error::Damaged { .. }) => damaged.push(sector),
            Err(error) => panic!("{error}"),
        }
    }
    damaged
}

/// Flips bits of a copy of the pool, and counts the damaged sectors.
fn flip(pool: &Path, written: &[u64], bits: &[u64]) -> Option<usize> {
    let copy = pool.with_extension("copy");
    std::fs::copy(pool, &copy).expect("copy");
    let file = std::fs::File::options().read(true).write(true).open(&copy).expect("open");
    for bit in bits {
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).expect("read");
        file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).expect("write");
    }
    let opened = Disk::open(&copy, &options());
    let disk = match opened {
        Ok(disk) => disk,
        // The error describes damage of the header.
        Err(error) => {
            assert!(matches!(error, Error::Pool(_) | Error::Partitions(_)), "{error}");
            assert!(bits.iter().any(|bit| bit / 8 < 2 * SECTOR), "{bits:?}: {error}");
            return None;
        }
    };
    let damaged = read_all(&disk, written);
    let findings = disk.verify(&mut |_, _| {}).expect("verify");
    assert_eq!(findings.damaged, damaged);
    for sector in &damaged {
        let bytes = if written.contains(sector) { bytes_of(*sector) } else { vec![0; 4096] };
        let mut tios = [Tio::write(sector * SECTOR, bytes)];
        disk.run(&Source::of_connection(0), &mut tios);
        assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
    }
    assert!(read_all(&disk, written).is_empty(), "what is written anew is whole");
    disk.close().expect("close");
    let disk = Disk::open(&copy, &options()).expect("open");
    assert!(read_all(&disk, written).is_empty());
    let findings = disk.verify(&mut |_, _| {}).expect("verify");
    assert!(findings.is_sound(), "{findings:?}");
    Some(damaged.len())
}

#[test]
fn flipped_bits_are_errors_and_what_is_written_anew_is_whole() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place");
    let pool = place.path().join("disk");
    let written = made(&pool);
    let len = std::fs::metadata(&pool).expect("a file").len();
    let (mut draw, mut damaged, mut opened) = (Draw(7), 0, 0);
    // The directory is page 1; then come the journal, and map pages and blocks.
    let regions = [(0, 2), (1, 2), (2, 3), (2, 40), (2, len / SECTOR)];
    for round in 0..60 {
        let (from, to) = regions[round % regions.len()];
        let bit = from * SECTOR * 8 + draw.next((to - from) * SECTOR * 8);
        if let Some(count) = flip(&pool, &written, &[bit]) {
            assert!(count <= 1, "one bit, and {count} sectors");
            (damaged, opened) = (damaged + count, opened + 1);
        }
    }
    assert!(damaged >= 10 && opened >= 40, "{damaged} sectors of {opened} disks");
    // Several flipped bits in each of the first words of the directory.
    for bits in [vec![0, 9, 33], vec![64, 70, 127, 100]] {
        let bits: Vec<u64> = bits.iter().map(|bit| SECTOR * 8 + bit).collect();
        let count = flip(&pool, &written, &bits).expect("a disk");
        assert!(count >= 100, "an extent is lost: {count}");
    }
}

/// Each partition has a word for each extent of the disk: 0 for those that others have.
#[test]
fn damaged_words_of_extents_of_other_partitions_are_set_right() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place");
    let path = place.path().join("disk");
    let options = Options { size: 16 << 20, partitions: 2, policy: Policy::Pid, ..options() };
    let disk = Disk::create(&path, &options).expect("create");
    let sectors = [0, 512];
    for (connection, sector) in (0..).zip(sectors) {
        let mut tios = [Tio::write(sector * SECTOR, bytes_of(sector))];
        disk.run(&Source::of_connection(connection), &mut tios);
        assert!(tios[0].outcome.is_ok());
    }
    disk.close().expect("close");
    let pool = path.join("q0");
    let whole = std::fs::read(&pool).expect("a pool");
    let word_of = |extent: usize| SECTOR as usize + 8 * extent;
    assert!(whole[word_of(0)..][..8] != [0; 8] && whole[word_of(1)..][..8] == [0; 8]);
    // Of the other partition's extent, and of one that nobody has.
    for (extent, bits) in (0..64).map(|bit| (1, vec![bit])).chain([
        (1, vec![3, 40]),
        (1, vec![0, 9, 33, 50]),
        (2, vec![7]),
    ]) {
        let mut bytes = whole.clone();
        for bit in &bits {
            bytes[word_of(extent) + bit / 8] ^= 1 << (bit % 8);
        }
        std::fs::write(&pool, &bytes).expect("a pool");
        for repaired in [1, 0] {
            let disk = Disk::open(&path, &options).expect("open");
            for sector in sectors {
                let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
                disk.run(&Source::of_connection(0), &mut tios);
                assert!(tios[0].outcome.is_ok() && tios[0].bytes == bytes_of(sector), "{bits:?}");
            }
            let findings = disk.verify(&mut |_, _| {}).expect("verify");
            assert!(findings.is_sound() && findings.repaired == repaired, "{bits:?}: {findings:?}");
            disk.close().expect("close");
        }
    }
}

/// Words of extents that nobody has are as lost as those of the extents that are there, and come before them.
#[test]
fn an_extent_whose_word_is_damaged_is_never_zeroes() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place");
    let path = place.path().join("disk");
    let options = Options { size: 8 << 20, partitions: 2, policy: Policy::Pid, ..options() };
    let disk = Disk::create(&path, &options).expect("create");
    let source = Source::of_connection(0);
    // Of four extents the last two are in the first partition, which has no room for a third.
    let sectors = [2 * 512, 3 * 512];
    let write = |disk: &Disk, sector: u64| {
        let mut tios = [Tio::write(sector * SECTOR, bytes_of(sector))];
        disk.run(&source, &mut tios);
        assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
    };
    sectors.iter().for_each(|sector| write(&disk, *sector));
    disk.close().expect("close");
    let whole = std::fs::read(path.join("q0")).expect("a pool");
    let other = std::fs::read(path.join("q1")).expect("a pool");
    for (extents, lost) in [(0..4, &sectors[..]), (1..3, &sectors[..1]), (0..2, &[])] {
        let mut bytes = whole.clone();
        for extent in extents.clone() {
            let word = SECTOR as usize + 8 * extent;
            [0, 4, 6].iter().for_each(|byte| bytes[word + byte] ^= 0x11);
        }
        std::fs::write(path.join("q0"), &bytes).expect("a pool");
        std::fs::write(path.join("q1"), &other).expect("a pool");
        for _ in 0..2 {
            let disk = Disk::open(&path, &options).expect("open");
            let damaged = read_all(&disk, &sectors);
            assert!(lost.iter().all(|sector| damaged.contains(sector)), "{extents:?}");
            assert!(!lost.is_empty() || damaged.is_empty(), "{extents:?}: no room for others");
            disk.close().expect("close");
        }
        let disk = Disk::open(&path, &options).expect("open");
        sectors.iter().for_each(|sector| write(&disk, *sector));
        disk.check_blocks().expect("blocks");
        disk.close().expect("close");
        let disk = Disk::open(&path, &options).expect("open");
        let damaged = read_all(&disk, &sectors);
        assert!(!sectors.iter().any(|sector| damaged.contains(sector)), "{extents:?}");
    }
}

/// A block that the medium has lost is a damaged sector, and does not end the process: the file was cut short.
#[test]
fn a_block_that_is_gone_is_told_by_its_sector() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let disk = Disk::create(&path, &options()).expect("create");
    let sectors = [5, 9];
    for sector in sectors {
        let mut tios = [Tio::write(sector * SECTOR, bytes_of(sector))];
        disk.run(&Source::of_connection(0), &mut tios);
        assert!(tios[0].outcome.is_ok());
    }
    disk.flush().expect("flush");
    let bytes = std::fs::read(&path).expect("a pool");
    let at = |sector| bytes.chunks(SECTOR as usize).position(|block| block == bytes_of(sector));
    let (first, second) = (at(5).expect("a block"), at(9).expect("a block"));
    assert!(first < second);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a pool");
    file.set_len(second as u64 * SECTOR).expect("truncate");
    let findings = disk.verify(&mut |_, _| {}).expect("verify");
    assert_eq!((findings.sectors, findings.damaged), (2, vec![9]));
    // A load from it would end the process.
    assert_eq!(read_all(&disk, &sectors), [9]);
    let mut tios = [Tio::write(9 * SECTOR + 1, vec![1; 5])];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(matches!(tios[0].outcome, Err(Error::Damaged { .. })));
    file.set_len(bytes.len() as u64).expect("extend");
    let mut tios = [Tio::write(9 * SECTOR, bytes_of(9))];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok() && read_all(&disk, &sectors).is_empty());
    disk.check_blocks().expect("blocks");
}

/// A map page that the medium has lost is told, and does not end the process; reads do not need it.
#[test]
fn a_map_page_that_is_gone_is_told_by_its_extent() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let disk = Disk::create(&path, &options()).expect("create");
    let write = |sector: u64| {
        let mut tios = [Tio::write(sector * SECTOR, bytes_of(sector))];
        disk.run(&Source::of_connection(0), &mut tios);
        assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
    };
    let sectors = [5, 600];
    sectors.iter().for_each(|sector| write(*sector));
    disk.check_blocks().expect("a commit");
    let bytes = std::fs::read(&path).expect("a pool");
    let word = bytes[SECTOR as usize + 8..][..4].try_into().expect("a word of the directory");
    let map_page = u64::from(u32::from_le_bytes(word));
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a pool");
    file.set_len(map_page * SECTOR).expect("truncate");
    for _ in 0..2 {
        let findings = disk.verify(&mut |_, _| {}).expect("verify");
        assert_eq!((findings.sectors, &findings.damaged[..]), (2, &[600][..]));
        assert!(!findings.is_sound());
        let maps = findings.unreadable_maps;
        assert_eq!((maps.len(), maps[0].clone()), (1, 512..1024));
    }
    assert_eq!(read_all(&disk, &sectors), [600]);
    file.set_len(bytes.len() as u64).expect("extend");
    write(600);
    disk.check_blocks().expect("blocks");
    assert!(disk.verify(&mut |_, _| {}).expect("verify").is_sound());
}

/// The scrub finds a flipped bit in a sector that is not read.
#[test]
fn the_scrub_finds_what_nobody_reads_and_goes_round() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let written = made(&path);
    // The bytes of a sector of the second extent.
    let sector = *written.iter().find(|sector| **sector > 600).expect("a sector");
    let bytes = std::fs::read(&path).expect("a pool");
    let expected = bytes_of(sector);
    let at = bytes.chunks(SECTOR as usize).position(|block| block == expected).expect("a block");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a pool");
    file.write_all_at(&[expected[7] ^ 4], at as u64 * SECTOR + 7).expect("a flip");
    drop(file);
    let disk = Disk::open(&path, &options()).expect("open");
    let (mut next, mut found) = (0, Vec::new());
    for _ in 0..4 {
        found.extend(disk.scrub_next(&mut next).expect("findings").damaged);
    }
    assert_eq!(found, [sector, sector], "twice round both extents");
}

/// Two names for one block, as after a page of names was written to the wrong place.
#[test]
fn damage_of_one_sector_is_not_that_of_another() {
    for place in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")].into_iter().flatten() {
        let path = place.path().join("disk");
        let disk = Disk::create(&path, &options()).expect("create");
        let source = Source::of_connection(0);
        for sector in 0..2 {
            let mut tios = [Tio::write(sector * SECTOR, bytes_of(sector))];
            disk.run(&source, &mut tios);
        }
        disk.close().expect("close");
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("open");
        let mut word = [0; 8];
        file.read_exact_at(&mut word, SECTOR).expect("the directory");
        let map = u64::from_le_bytes(word) % (1 << 32) * SECTOR;
        file.read_exact_at(&mut word, map).expect("a name");
        file.write_all_at(&word, map + 8).expect("the name beside it");
        for _ in 0..2 {
            let disk = Disk::open(&path, &options()).expect("open");
            let damaged = disk.verify(&mut |_, _| {}).expect("verify").damaged;
            assert!(damaged.is_empty() || damaged == [1], "{damaged:?}");
            let mut tios = [Tio::write(SECTOR, bytes_of(1))];
            disk.run(&source, &mut tios);
            disk.flush().expect("flush");
            disk.check_blocks().expect("blocks");
            assert!(read_all(&disk, &[0, 1]).is_empty());
            disk.close().expect("close");
        }
    }
}

#[test]
fn a_disk_that_is_made_larger_has_what_it_had() {
    // Small sectors make small extents: the directory comes to three pages, and no file is large.
    for (partitions, sector_len) in [(1, 1024), (3, 1024), (1, 4096)] {
        let place = tempfile::tempdir().expect("a place");
        let path = place.path().join("disk");
        let options = Options { partitions, sector_len, ..options() };
        let disk = Disk::create(&path, &options).expect("create");
        let source = Source::of_connection(0);
        let write = |disk: &Disk, sector: u64| {
            let mut tios = [Tio::write(sector * SECTOR, bytes_of(sector))];
            disk.run(&source, &mut tios);
            tios.into_iter().all(|tio| tio.outcome.is_ok())
        };
        let written: Vec<u64> = (0..1024).step_by(2).collect();
        assert!(written.iter().all(|sector| write(&disk, *sector)) && !write(&disk, 1024));
        disk.close().expect("close");
        for size in [4 << 20, (4 << 20) + 1, 48 << 20] {
            let disk = Disk::open(&path, &options).expect("open");
            disk.grow(&options.media, size).expect("grow");
            let disk = Disk::open(&path, &options).expect("open");
            assert_eq!(disk.len(), size.next_multiple_of(u64::from(sector_len)));
            let mut tios = [Tio::read(0, 4 << 20)];
            disk.run(&source, &mut tios);
            for (sector, bytes) in (0..).zip(tios[0].bytes.chunks(SECTOR as usize)) {
                let expected = if sector % 2 == 0 { bytes_of(sector) } else { vec![0; 4096] };
                assert!(bytes == expected, "{sector}");
            }
            let last = disk.len() / SECTOR - 1;
            assert!(last < 1024 || write(&disk, last));
            disk.check_blocks().expect("blocks");
            assert!(disk.verify(&mut |_, _| {}).expect("verify").is_sound());
        }
    }
}

#[test]
fn pools_that_make_no_disk_are_refused() {
    let place = tempfile::tempdir().expect("a place");
    let options = Options { partitions: 3, ..options() };
    let (one, other) = (place.path().join("one"), place.path().join("other"));
    for path in [&one, &other] {
        Disk::create(path, &options).expect("create").close().expect("close");
    }
    assert!(Disk::create(&one, &options).is_err(), "it is there");
    let open = || Disk::open(&one, &options).map(|_| ());
    open().expect("a disk");
    std::fs::copy(other.join("q1"), one.join("q1")).expect("copy");
    assert!(matches!(open(), Err(Error::Partitions(_))), "of another disk");
    std::fs::remove_file(one.join("q1")).expect("remove");
    assert!(open().is_err(), "one is missing");
    for (size, partitions, sector_len) in [(0, 1, 4096), (1, 0, 4096), (1, 65, 4096), (1, 1, 100)] {
        let options = Options { size, partitions, sector_len, ..options.clone() };
        assert!(Disk::create(&place.path().join("none"), &options).is_err());
    }
    assert!(!place.path().join("none").exists());
}
