//! Requests over several extents, in one batch and in several connections: reads return all writes acknowledged
//! before them, in any partition.

use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_tio::{Disk, Mode, Options, Policy, Source, Tio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SECTOR: u64 = 4096;
const EXTENT: u64 = 512 * SECTOR;

fn source(connection: u64) -> Source {
    let interval = Some(Duration::from_millis(1));
    Source { connection, device: None, interval }
}

fn run(disk: &Disk, connection: u64, tio: Tio) -> Vec<u8> {
    let mut tios = [tio];
    disk.run(&source(connection), &mut tios);
    let [Tio { bytes, outcome, .. }] = tios;
    outcome.expect("done");
    bytes
}

fn options(size: u64, partitions: u32, mode: Mode) -> Options {
    Options { size, partitions, mode, policy: Policy::Pid, ..Options::default() }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place")
}

/// Sectors of this byte.
fn sectors(byte: u8, count: u64) -> Vec<u8> {
    vec![byte; (count * SECTOR) as usize]
}

const MODES: [Mode; 3] = [Mode::MultiQueue, Mode::SingleQueue, Mode::Sync];

#[test]
fn a_request_over_extents_of_two_partitions_is_done_in_both() {
    for mode in MODES {
        let place = place();
        let disk = Disk::create(&place.path().join("disk"), &options(16 << 20, 2, mode));
        let disk = disk.expect("create");
        run(&disk, 1, Tio::write(EXTENT, sectors(7, 1)));
        // The extent before it is assigned to the other partition in the same batch.
        let mut tios = [Tio::read(EXTENT - SECTOR, 2 * SECTOR), Tio::write(0, sectors(9, 1))];
        disk.run(&source(0), &mut tios);
        assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
        assert_eq!(tios[0].bytes, [sectors(0, 1), sectors(7, 1)].concat(), "{mode:?}");
        run(&disk, 1, Tio::write(3 * EXTENT, sectors(7, 1)));
        let mut tios =
            [Tio::zero(3 * EXTENT - SECTOR, 2 * SECTOR), Tio::write(2 * EXTENT, sectors(9, 1))];
        disk.run(&source(0), &mut tios);
        assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
        assert_eq!(run(&disk, 0, Tio::read(3 * EXTENT, SECTOR)), sectors(0, 1), "{mode:?}");
        // All of it, and in order.
        let all = sectors(3, 1024 + 512);
        let mut tios = [
            Tio::write(EXTENT / 2, all.clone()),
            Tio::read(EXTENT / 2, all.len() as u64),
            Tio::write(EXTENT - SECTOR, sectors(4, 2)),
        ];
        disk.run(&source(0), &mut tios);
        assert!(tios[1].bytes == all && tios[2].outcome.is_ok(), "{mode:?}");
        assert_eq!(run(&disk, 0, Tio::read(EXTENT, SECTOR)), sectors(4, 1), "{mode:?}");
    }
}

#[test]
fn zeroes_and_writes_of_one_batch_keep_their_order() {
    let mut options = options(4 << 20, 1, Mode::MultiQueue);
    for media in ["auto", "file"] {
        let place = place();
        options.media = media.parse().expect("a medium");
        let disk = Disk::create(&place.path().join("disk"), &options).expect("create");
        let mut tios = [
            Tio::write(0, sectors(1, 16)),
            Tio::zero(4 * SECTOR, 4 * SECTOR),
            Tio::write(6 * SECTOR, sectors(2, 1)),
            Tio::zero(SECTOR + 100, 100),
            Tio::zero(9 * SECTOR - 1, 2 * SECTOR),
            Tio::write(8 * SECTOR, vec![3; 10]),
        ];
        disk.run(&source(0), &mut tios);
        assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
        let mut expected = sectors(1, 16);
        let at = |sector: u64, within| (sector * SECTOR) as usize + within;
        expected[at(4, 0)..at(8, 0)].fill(0);
        expected[at(6, 0)..at(7, 0)].fill(2);
        expected[at(1, 100)..at(1, 200)].fill(0);
        expected[at(9, 0) - 1..at(11, 0) - 1].fill(0);
        expected[at(8, 0)..at(8, 10)].fill(3);
        assert!(run(&disk, 0, Tio::read(0, 16 * SECTOR)) == expected, "{media}");
    }
}

#[test]
fn an_extent_that_another_connection_brings_changes_nothing_for_a_read() {
    let extents = 200;
    for round in 0..4 {
        let place = place();
        let options = options(2 * extents * EXTENT, 2, MODES[round % 3]);
        let disk = Disk::create(&place.path().join("disk"), &options).expect("create");
        for at in 0..extents {
            run(&disk, 1, Tio::write((2 * at + 1) * EXTENT, sectors(7, 1)));
        }
        let now = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..extents {
                    now.store(at, Ordering::SeqCst);
                    (0..50).for_each(|_| std::hint::spin_loop());
                    run(&disk, 0, Tio::write(2 * at * EXTENT, sectors(9, 1)));
                }
            });
            scope.spawn(|| {
                loop {
                    let at = now.load(Ordering::SeqCst);
                    let stale = Tio { bytes: sectors(0xee, 2), ..Tio::read(0, 2 * SECTOR) };
                    let tio = Tio { place: (2 * at + 1) * EXTENT - SECTOR, ..stale };
                    let bytes = run(&disk, 1, tio);
                    assert_eq!(bytes[SECTOR as usize], 7, "extent {at}");
                    if at == extents - 1 {
                        return;
                    }
                }
            });
        });
    }
}

#[test]
fn every_extent_is_there_after_a_close_whoever_wrote_beside_it() {
    let extents = 300;
    for _ in 0..5 {
        let place = place();
        let path = place.path().join("disk");
        let options = options(extents * EXTENT, 1, Mode::MultiQueue);
        let disk = Disk::create(&path, &options).expect("create");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    run(&disk, 1, Tio::write(0, sectors(1, 1)));
                }
            });
            (1..extents).for_each(|at| drop(run(&disk, 2, Tio::write(at * EXTENT, sectors(5, 1)))));
            is_over.store(true, Ordering::Relaxed);
        });
        disk.close().expect("close");
        let disk = Disk::open(&path, &options).expect("open");
        let lost = (1..extents).find(|at| run(&disk, 1, Tio::read(at * EXTENT, 1)) != [5]);
        assert_eq!(lost, None);
    }
}

#[test]
fn requests_of_a_batch_that_overlap_keep_their_order_beside_others() {
    let place = place();
    let options = options(64 << 20, 1, Mode::MultiQueue);
    let disk = Disk::create(&place.path().join("disk"), &options).expect("create");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for connection in 1..3 {
            let (disk, is_over) = (&disk, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    run(disk, connection, Tio::write((connection + 2) * EXTENT, sectors(1, 64)));
                }
            });
        }
        for number in 0..1000_u64 {
            let byte = |at: u64| (number * 2 + at) as u8;
            let mut tios = [
                Tio::write(0, sectors(byte(0), 1)),
                Tio::read(0, SECTOR),
                Tio::write(0, sectors(byte(1), 1)),
            ];
            disk.run(&source(0), &mut tios);
            assert_eq!(tios[1].bytes[0], byte(0), "{number}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Readers delay the reuse of blocks.
#[test]
fn a_full_disk_has_room_for_every_write_beside_readers_and_a_look_at_all() {
    let size = 8 << 20;
    for mode in MODES {
        let place = place();
        let disk = Disk::create(&place.path().join("disk"), &options(size, 1, mode));
        let disk = disk.expect("create");
        for at in (0..size).step_by(EXTENT as usize) {
            run(&disk, 0, Tio::write(at, sectors(1, 512)));
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for connection in 0..3 {
                let (disk, is_over) = (&disk, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        run(disk, connection, Tio::read(connection * EXTENT, 64 * SECTOR));
                    }
                });
            }
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let findings = disk.verify(&mut |_, _| {}).expect("verify");
                    assert!(findings.is_sound(), "{findings:?}");
                }
            });
            let writers: Vec<_> = (0..4)
                .map(|writer: u64| {
                    let disk = &disk;
                    scope.spawn(move || {
                        for number in 0..120 {
                            let at = (number * 37 + writer * 500) % (size / SECTOR - 64) * SECTOR;
                            run(disk, writer, Tio::write(at, sectors(2, 64)));
                        }
                    })
                })
                .collect();
            let wrote = writers.into_iter().all(|writer| writer.join().is_ok());
            is_over.store(true, Ordering::Relaxed);
            assert!(wrote);
        });
    }
}

/// A batch is longer than the free part of the journal.
#[test]
fn a_killed_process_loses_nothing_to_a_long_write() {
    const SHORT: u64 = 1024;
    let options = Options { sector_len: SHORT as u32, ..options(512 * SHORT, 1, Mode::MultiQueue) };
    let len = Disk::partition_len(&options).expect("a size");
    let page_size = SHORT as u32;
    let simulated =
        SimOptions { len, max_len: len, page_size, model: Model::File, ..SimOptions::default() };
    for fence in 0.. {
        let sim = Sim::new(&simulated).expect("memory");
        let disk = Disk::simulated_create(sim.spaces(), &options).expect("create");
        run(&disk, 0, Tio::write(0, vec![3; SHORT as usize]));
        let before = sim.events();
        run(&disk, 0, Tio::write(SHORT * 10, vec![4; (SHORT * 200) as usize]));
        if fence > sim.fences_since(before) {
            assert!(fence > 1, "there were some");
            return;
        }
        let image = sim.crash_at_fence(before, fence, Eviction::Everything);
        let sim = image.reopen().expect("memory");
        let disk = Disk::simulated_open(sim.spaces(), &options).expect("open");
        assert_eq!(run(&disk, 0, Tio::read(0, 1)), [3], "killed at fence {fence}");
    }
}

/// A batch of up to 256 sectors takes two fences; on a file it takes none if there is room, and a flush one sync.
#[test]
fn a_batch_takes_two_fences_and_a_flush_of_a_file_one_sync() {
    for model in [Model::X86, Model::File] {
        let options = options(512 * SECTOR, 1, Mode::MultiQueue);
        let len = Disk::partition_len(&options).expect("a size");
        let simulated = SimOptions { len, max_len: len, model, ..SimOptions::default() };
        let sim = Sim::new(&simulated).expect("memory");
        let disk = Disk::simulated_create(sim.spaces(), &options).expect("create");
        run(&disk, 0, Tio::write(0, sectors(1, 512)));
        disk.flush().expect("flush");
        let is_file = model == Model::File;
        for count in [1, 16] {
            let mut tios: Vec<Tio> =
                (0..count).map(|at| Tio::write(at * 8 * SECTOR, sectors(2, 1))).collect();
            let (_, cost) = sim.cost_of(|| disk.run(&source(0), &mut tios));
            assert!(tios.iter().all(|tio| tio.outcome.is_ok()));
            assert_eq!(cost.fences, if is_file { 0 } else { 2 }, "{count} sectors, {model:?}");
            if !is_file {
                // The lines of the blocks, and a line of names for each sector.
                assert_eq!(cost.flushed_lines.len() as u64, count * 65, "{count} sectors");
            }
            let (_, cost) = sim.cost_of(|| disk.flush().expect("flush"));
            assert_eq!(cost.fences, u64::from(is_file), "{model:?}");
            let (_, cost) = sim.cost_of(|| run(&disk, 0, Tio::read(0, 8 * SECTOR)));
            assert_eq!((cost.fences, cost.flushes, cost.stores), (0, 0, 0));
        }
    }
}

/// The disk has its old or its new length, and all its data.
#[test]
fn a_disk_whose_growth_is_cut_while_it_goes_on_has_what_it_had() {
    const SHORT: u64 = 1024;
    let before = Options { sector_len: SHORT as u32, ..options(200 * SHORT, 1, Mode::MultiQueue) };
    let size = 700 * SHORT;
    let len = Disk::partition_len(&before).expect("a size");
    let (max_len, page_size) = (4 * len + (2 << 20), SHORT as u32);
    let (mut lengths, mut cuts) = (std::collections::BTreeSet::new(), 0);
    for model in [Model::X86, Model::File] {
        for (fence, seed) in (0..12).flat_map(|fence| (0..6).map(move |seed| (fence, seed))) {
            let simulated = SimOptions { len, max_len, page_size, model, ..SimOptions::default() };
            let sim = Sim::new(&simulated).expect("memory");
            let disk = Disk::simulated_create(sim.spaces(), &before).expect("create");
            (0..200)
                .for_each(|at| drop(run(&disk, 0, Tio::write(at * SHORT, vec![at as u8; 1024]))));
            disk.close().expect("close");
            // As in another process: pages have no roles yet.
            let sim = sim.crash(Eviction::Everything).reopen().expect("memory");
            let began = sim.events();
            Disk::simulated_grow(sim.spaces(), size).expect("grow");
            if fence > sim.fences_since(began) {
                continue;
            }
            let image = sim.crash_at_fence(began, fence, Eviction::Seeded(seed));
            let sim = image.reopen().expect("memory");
            let disk = Disk::simulated_open(sim.spaces(), &before).expect("open");
            lengths.insert(disk.len());
            cuts += 1;
            for at in 0..200 {
                assert_eq!(run(&disk, 0, Tio::read(at * SHORT, SHORT)), vec![at as u8; 1024]);
            }
            disk.check_blocks().expect("blocks");
        }
    }
    assert!(cuts > 30 && lengths.len() == 2, "{cuts} cuts, {lengths:?}");
}
