//! A disk whose making was cut off by a kill, at any point: it is made anew, and no disk is taken for such remains.

use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool};
use coreplane_tio::{Disk, Options, Source, Tio};
use std::path::{Path, PathBuf};

const SECTOR: u32 = 1024;

fn options(partitions: u32) -> Options {
    let size = 300 * u64::from(SECTOR);
    Options { size, partitions, sector_len: SECTOR, ..Options::default() }
}

fn first_of(path: &Path, partitions: u32) -> PathBuf {
    if partitions > 1 { path.join("q0") } else { path.to_owned() }
}

fn write(disk: &Disk, byte: u8) {
    let sectors = disk.len() / u64::from(SECTOR);
    for sector in 0..sectors {
        let at = sector * u64::from(SECTOR);
        let mut tios = [Tio::write(at, vec![byte; SECTOR as usize])];
        disk.run(&Source::of_connection(sector), &mut tios);
        assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
    }
}

fn first_byte(disk: &Disk) -> u8 {
    let mut tios = [Tio::read(0, u64::from(SECTOR))];
    disk.run(&Source::of_connection(0), &mut tios);
    assert!(tios[0].outcome.is_ok(), "{:?}", tios[0].outcome);
    tios[0].bytes[0]
}

/// The pool at `path` as it is before its root is written.
fn without_root(path: &Path) {
    let pool = Pool::open(path, &OpenOptions::default()).expect("a pool");
    let (size, page_size) = (pool.space().len(), pool.space().page_size());
    let (kind, parameters) = ("tio".to_owned(), pool.parameters());
    drop(pool);
    std::fs::remove_file(path).expect("removed");
    let made = CreateOptions { size, media: MediaChoice::Auto, page_size, kind, parameters };
    drop(Pool::create(path, &made).expect("a pool"));
}

type Cut = fn(&Path);

#[test]
fn the_remains_of_a_making_are_removed() {
    let cuts: [Cut; 4] = [
        |first| std::fs::write(first, b"").expect("empty"),
        |first| {
            let len = first.metadata().expect("a length").len() as usize;
            std::fs::write(first, vec![0; len]).expect("allocated");
        },
        |first| {
            // The magic is written behind the rest of the header.
            let mut bytes = std::fs::read(first).expect("bytes");
            bytes[..8].fill(0);
            std::fs::write(first, bytes).expect("no magic");
        },
        without_root,
    ];
    for partitions in [1, 3] {
        // An empty file is somebody's, unless it is called as a partition.
        for (number, cut) in cuts.into_iter().enumerate().skip(usize::from(partitions == 1)) {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let path = directory.path().join("disk");
            let media = MediaChoice::Auto;
            drop(Disk::create(&path, &options(partitions)).expect("made"));
            assert!(Disk::is_there(&path, &media).expect("read"));
            cut(&first_of(&path, partitions));
            let is_there = Disk::is_there(&path, &media).expect("read");
            assert!(!is_there, "{partitions} {number}");
            // Fewer partitions than before, too.
            let again = if partitions > 1 { 2 } else { 1 };
            write(&Disk::create(&path, &options(again)).expect("made again"), 7);
            assert!(Disk::is_there(&path, &media).expect("read"));
            assert_eq!(first_byte(&Disk::open(&path, &options(again)).expect("open")), 7);
            assert!(!path.join("q2").exists(), "{number}");
        }
    }
}

/// A used disk whose first pool is damaged is no such remains.
#[test]
fn a_disk_with_data_is_not_made_anew() {
    for partitions in [1, 3] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("disk");
        write(&Disk::create(&path, &options(partitions)).expect("made"), 7);
        let first = first_of(&path, partitions);
        let bytes = std::fs::read(&first).expect("bytes");
        let mut damaged = bytes.clone();
        damaged[..512].fill(0);
        std::fs::write(&first, &damaged).expect("damaged");
        assert!(Disk::is_there(&path, &MediaChoice::Auto).expect("read"), "{partitions}");
        assert!(Disk::create(&path, &options(partitions)).is_err(), "{partitions}");
        assert!(std::fs::read(&first).expect("bytes") == damaged, "it was changed");
        if partitions > 1 {
            std::fs::write(&first, b"").expect("emptied");
            let error = Disk::create(&path, &options(partitions)).expect_err("refused");
            assert!(error.to_string().contains("q1 has data"), "{error}");
        }
        std::fs::write(&first, bytes).expect("restored");
        assert_eq!(first_byte(&Disk::open(&path, &options(partitions)).expect("open")), 7);
    }
}

/// Files that begin with zeroes, and a link to a file of zeroes, are somebody's.
#[test]
fn what_is_somebody_elses_is_left() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (path, media) = (directory.path().join("disk"), MediaChoice::Auto);
    // A disk image with a partition table and nothing else, and a short file.
    let mut image = vec![0; 1 << 20];
    image[446..512].fill(0x55);
    for bytes in [image, [&[0; 8][..], b"a note"].concat()] {
        std::fs::write(&path, &bytes).expect("written");
        assert!(Disk::is_there(&path, &media).expect("read"));
        assert!(Disk::create(&path, &options(1)).is_err());
        assert!(std::fs::read(&path).expect("bytes") == bytes, "it was changed");
    }
    std::fs::remove_file(&path).expect("removed");
    let far = directory.path().join("far");
    std::fs::write(&far, vec![0; 1 << 20]).expect("zeroes");
    std::os::unix::fs::symlink(&far, &path).expect("a link");
    assert!(Disk::create(&path, &options(1)).is_err());
    assert!(path.is_symlink() && far.exists());
}

/// Beside the empty pool of a first partition: a short file, a link, and a directory with the names of partitions.
#[test]
fn what_only_has_the_name_of_a_partition_is_left() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (path, far) = (directory.path().join("disk"), directory.path().join("far"));
    std::fs::create_dir(&path).expect("a directory");
    std::fs::write(&far, vec![0; 1 << 20]).expect("zeroes");
    std::fs::write(path.join("q0"), b"").expect("empty");
    let other = path.join("q3");
    let refused = || {
        let error = Disk::create(&path, &options(2)).map(drop).expect_err("refused").to_string();
        assert!(error.contains("q3 is no partition"), "{error}");
        assert!(path.join("q0").exists() && other.symlink_metadata().is_ok(), "it was removed");
    };
    std::fs::write(&other, b"a note").expect("written");
    refused();
    assert!(std::fs::read(&other).expect("bytes") == b"a note");
    std::fs::remove_file(&other).expect("removed");
    for target in [far.clone(), directory.path().join("nowhere")] {
        std::os::unix::fs::symlink(&target, &other).expect("a link");
        refused();
        std::fs::remove_file(&other).expect("removed");
    }
    std::fs::create_dir(&other).expect("a directory");
    refused();
    std::fs::remove_dir(&other).expect("removed");
    std::fs::write(&other, b"").expect("empty");
    Disk::create(&path, &options(2)).expect("made");
    assert!(far.exists() && !other.exists());
}
