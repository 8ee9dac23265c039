//! A sync that fails under several partitions, and a process that is killed in a commit.

use super::{Disk, Options};
use crate::balance::Policy;
use crate::tio::{Source, Tio};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::time::Duration;

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
