//! A sync that fails under several partitions, a process that is killed in a commit, writers that wait for a commit,
//! and long zeroes.

use super::{Disk, Options};
use crate::balance::Policy;
use crate::tio::{Source, Tio};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SECTOR: u64 = 4096;

/// Waits until the condition holds.
fn until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(30), "it never happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes sectors.
fn write(disk: &Disk, connection: u64, sector: u64, count: u64) {
    let mut tios = [Tio::write(sector * SECTOR, vec![7; (count * SECTOR) as usize])];
    disk.run(&Source::of_connection(connection), &mut tios);
    assert!(tios[0].outcome.is_ok());
}

/// A disk of one partition on a file, with 256 spare blocks and 512 entries in its journal.
fn disk_on_file(place: &tempfile::TempDir) -> Disk {
    let (media, size) = (MediaChoice::File, 64 << 20);
    let options = Options { size, partitions: 1, media, ..Options::default() };
    Disk::create(&place.path().join("disk"), &options).expect("a disk")
}

/// Nothing would show the loss any more. A block is healed when it is reclaimed.
#[test]
fn a_file_that_was_cut_short_does_not_get_its_length_back() {
    let place = tempfile::tempdir().expect("a place");
    let path = place.path().join("disk");
    let options = Options { size: 4 << 20, partitions: 1, ..Options::default() };
    let disk = Disk::create(&path, &options).expect("a disk");
    let len = options.sector_len as usize;
    let source = Source::of_connection(0);
    for byte in [1, 2] {
        let mut tios = [Tio { fua: true, ..Tio::write(0, vec![byte; len]) }];
        disk.run(&source, &mut tios);
        assert!(tios[0].outcome.is_ok());
    }
    disk.flush().expect("the first block is retired");
    let bytes = std::fs::read(&path).expect("a pool");
    let block = bytes.chunks(len).position(|block| *block == vec![1; len]).expect("a block");
    let file = std::fs::File::options().write(true).open(&path).expect("a pool");
    let left = (block * len) as u64;
    file.set_len(left).expect("truncated");
    disk.shared.volumes[0].note_bad(block as u32);
    disk.check_blocks().expect("all are reclaimed");
    assert_eq!(file.metadata().expect("its state").len(), left);
    file.set_len(bytes.len() as u64).expect("extended");
}

/// The partitions are synced concurrently, and each reports its own result.
#[test]
fn a_sync_that_fails_is_told_to_those_who_wrote_there_and_to_all_who_flush() {
    for failing in [0, 1] {
        let place = tempfile::tempdir().expect("a place");
        let (media, policy) = (MediaChoice::File, Policy::Pid);
        let options =
            Options { size: 16 << 20, partitions: 2, media, policy, ..Options::default() };
        let disk = Disk::create(&place.path().join("disk"), &options).expect("a disk");
        let source = |connection| {
            let interval = Some(Duration::from_millis(1));
            Source { connection, device: None, interval }
        };
        let write = |extent: u64, byte| {
            let bytes = vec![byte; options.sector_len as usize];
            Tio { fua: true, ..Tio::write(extent * disk.shared.extent_len(), bytes) }
        };
        for connection in [0, 1] {
            let mut tios = [write(connection, 1)];
            disk.run(&source(connection), &mut tios);
            assert!(tios[0].outcome.is_ok());
            assert_eq!(disk.shared.owner(connection), Some(connection as usize));
        }
        disk.shared.volumes[failing].pool().space().fail_syncs();
        let mut tios = [write(0, 2), write(1, 2)];
        disk.run(&source(0), &mut tios);
        let failed = tios.each_ref().map(|tio| tio.outcome.is_err());
        assert_eq!(failed, [failing == 0, failing == 1]);
        assert!(disk.flush().is_err() && disk.flush().is_err());
    }
}

/// A flush does not help where the file is in DRAM.
#[test]
fn a_disk_says_what_a_power_cut_loses() {
    for place in [tempfile::tempdir_in("/dev/shm"), tempfile::tempdir()].into_iter().flatten() {
        let options = Options { size: 1 << 20, media: MediaChoice::File, ..Options::default() };
        let disk = Disk::create(&place.path().join("disk"), &options).expect("a disk");
        let is_safe = disk.medium().expect("a medium").power_safe;
        let loses = disk.power_cut_loses();
        let expected = if is_safe { "what was written since the last flush" } else { "everything" };
        assert!(loses.starts_with(expected), "{loses}");
    }
}

/// Names whose sync a killed process had not come to are durable before the journal forgets them.
#[test]
fn a_process_that_is_killed_in_a_commit_leaves_what_was_flushed() {
    const SECTOR: u64 = 1024;
    let options = Options {
        size: 300 * SECTOR,
        sector_len: SECTOR as u32,
        partitions: 1,
        ..Options::default()
    };
    let len = Disk::partition_len(&options).expect("a size");
    let (page_size, model) = (options.sector_len, Model::File);
    let sim = SimOptions { len, max_len: len, page_size, model, ..SimOptions::default() };
    let sim = Sim::new(&sim).expect("memory");
    let disk = Disk::simulated_create(sim.spaces(), &options).expect("create");
    let source = Source::of_connection(0);
    for byte in [1, 2] {
        let mut tios = [Tio::write(0, vec![byte; SECTOR as usize])];
        disk.run(&source, &mut tios);
        assert!(tios[0].outcome.is_ok());
        disk.flush().expect("flush");
        match byte {
            1 => disk.shared.volumes[0].commit().expect("commit"),
            _ => disk.shared.volumes[0].begin_commit(),
        }
    }
    let sim = sim.killed().expect("memory");
    let before = sim.events();
    drop(Disk::simulated_open(sim.spaces(), &options).expect("open"));
    for events in before..=sim.events() {
        for seed in 0..8 {
            let sim = sim.crash_at(events, Eviction::Seeded(seed)).reopen().expect("memory");
            let disk = Disk::simulated_open(sim.spaces(), &options).expect("open");
            let mut tios = [Tio::read(0, SECTOR)];
            disk.run(&source, &mut tios);
            assert!(tios[0].outcome.is_ok(), "{events}, {seed}");
            assert_eq!(tios[0].bytes[0], 2, "{events}, {seed}");
        }
    }
}

/// Each has found that the waiting writes take too much room, before it waited for the first of them.
#[test]
fn writers_that_waited_for_a_commit_do_not_commit_again() {
    let place = tempfile::tempdir().expect("a place");
    let disk = disk_on_file(&place);
    let volume = &disk.shared.volumes[0];
    let before = volume.pool().space().syncs();
    let commits = volume.hold_commits();
    std::thread::scope(|scope| {
        scope.spawn(|| write(&disk, 0, 0, 129));
        until(|| volume.is_crowded());
        for writer in 1..9 {
            let disk = &disk;
            scope.spawn(move || {
                write(disk, writer, 1000 + writer, 1);
                write(disk, writer, 2000 + writer, 1);
            });
        }
        until(|| (1001..1009).all(|sector| volume.has_block(sector)));
        // Time for them to come to the commit that is held.
        std::thread::sleep(Duration::from_millis(100));
        drop(commits);
    });
    assert_eq!(volume.pool().space().syncs() - before, 3, "one commit");
}

/// The client of the writes waits, and nobody else.
#[test]
fn many_writes_of_one_client_do_not_stop_their_set_for_a_commit() {
    let place = tempfile::tempdir().expect("a place");
    let disk = disk_on_file(&place);
    let volume = &disk.shared.volumes[0];
    let commits = volume.hold_commits();
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let write = |it: u64| Tio::write(it * 64 * SECTOR, vec![7; 64 * SECTOR as usize]);
            let mut tios: Vec<Tio> = (0..16).map(write).collect();
            disk.run(&Source::of_connection(0), &mut tios);
            assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
        });
        until(|| volume.has_block(127));
        // Time for the writes to come to the commit that is held.
        std::thread::sleep(Duration::from_millis(100));
        scope.spawn(|| {
            let mut tios = [Tio::read(0, SECTOR)];
            disk.run(&Source::of_connection(1), &mut tios);
            is_read.store(tios[0].bytes[0] == 7, Ordering::SeqCst);
        });
        until(|| is_read.load(Ordering::SeqCst));
        drop(commits);
    });
}

/// Requests of others come in between.
#[test]
fn a_long_zero_comes_to_its_set_in_pieces() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let place = place.expect("a place");
    let options = Options { size: 256 << 20, partitions: 1, ..Options::default() };
    let disk = Disk::create(&place.path().join("disk"), &options).expect("a disk");
    let extents = disk.len() / disk.shared.extent_len();
    let per = disk.shared.extent_len() / SECTOR;
    (0..extents).for_each(|extent| write(&disk, 0, extent * per + 5, 2));
    let running = disk.shared.sets[0].begin().expect("an idle set");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let zeroes = |_| Tio::zero(0, 100 * disk.shared.extent_len());
            let write = Tio::write(0, vec![9; 255 * SECTOR as usize]);
            let mut tios: Vec<Tio> = (0..3).map(zeroes).chain([write]).collect();
            disk.run(&Source::of_connection(0), &mut tios);
            assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
        });
        until(|| disk.shared.sets[0].longest() > 0);
        drop(running);
    });
    let longest = disk.shared.sets[0].longest();
    assert!(longest <= 4 << 20, "{longest} bytes");
    let read = |sector| {
        let mut tios = [Tio::read(sector * SECTOR, SECTOR)];
        disk.run(&Source::of_connection(0), &mut tios);
        tios[0].bytes[0]
    };
    assert_eq!((read(5), read(255)), (9, 0));
    assert!((1..100).all(|extent| read(extent * per + 5) == 0 && read(extent * per + 6) == 0));
    assert!((100..extents).all(|extent| read(extent * per + 6) == 7));
}
