//! Situations that random tests seldom meet, each made on purpose.

use crate::model::{Contents, contents};
use crate::ops::{Draw, options, sim_options};
use crate::worlds::WORLD;
use coreplane_engine::{Batch, Error};
use coreplane_mvcc::{LogMap, MapKind, SnapshotRecord};
use coreplane_pmem::LINE;
use coreplane_pmem::media::sim::{Eviction, Model, Sim};
use std::collections::VecDeque;
use std::sync::Arc;

/// Tombstones from before a snapshot are void. The cleaner, which works during the installation, must not move them
/// to where they would count again, and hide older records of the snapshot.
#[test]
fn a_tombstone_does_not_outlive_what_it_was_a_part_of() {
    for kind in MapKind::ALL {
        let world = crate::ops::World { pages: 40, kind, ..WORLD };
        let sim = Sim::new(&sim_options(&world, 1)).expect("memory");
        let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
        let log = log.expect("create");
        let (filler, mut timestamp) = (vec![7; 900], 0);
        let key = |number: u64| format!("key {number:03}").into_bytes();
        let append = |timestamp: u64, batch: &Batch| {
            log.append(timestamp, b"", batch, true).expect("append");
            log.apply(timestamp).expect("apply");
            log.commit().expect("commit");
        };
        for number in 0..60 {
            timestamp += 1;
            append(timestamp, Batch::new().put(&key(number), b"old"));
        }
        for number in 0..60 {
            timestamp += 1;
            // One or two in each page, and nothing else that is live.
            append(timestamp, Batch::new().delete(&key(number)).put(b"filler", &filler));
            timestamp += 1;
            append(timestamp, Batch::new().put(b"filler", &filler));
        }
        log.begin_install(timestamp + 1).expect("begin");
        let record = |key: Vec<u8>, timestamp| (key, timestamp);
        let others = (0..100).map(|number| record(format!("a {number:03}").into_bytes(), 1));
        for (key, timestamp) in others.chain((0..60).map(|number| record(key(number), 1 + number)))
        {
            let value = if key.starts_with(b"a") { filler.as_slice() } else { b"new" };
            let record = SnapshotRecord { key: &key, value, timestamp, expires_at: None };
            log.install([record]).expect("install");
            log.commit().expect("commit");
        }
        log.end_install(b"", b"").expect("end");
        log.commit().expect("commit");
        assert!(log.stats().cleaner_pages_freed > 0, "the cleaner has not worked");
        drop(log);
        let sim = sim.killed().expect("memory");
        let log = LogMap::simulated_open(world.kind, Arc::clone(sim.space()), &options());
        let log = log.expect("open");
        for number in 0..60 {
            let found = log.get(&key(number)).expect("get");
            assert_eq!(found.as_deref(), Some(b"new".as_slice()), "{number}");
        }
    }
}

/// Many pages are written that no commit has made durable, more than have had durable lives before. If the medium has
/// all but one line of them, a prefix of them is found; in a tree, where nothing counts before the commit that names
/// it, all of them or none.
#[test]
fn what_a_cut_leaves_of_many_pages_is_their_beginning() {
    for kind in MapKind::ALL {
        let world = crate::ops::World { page_size: 1024, pages: 240, kind, ..WORLD };
        let sim = Sim::new(&sim_options(&world, 2)).expect("memory");
        let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
        let (log, mut newest) = (log.expect("create"), 0);
        let append = |newest: &mut u64, batch: &Batch| {
            *newest += 1;
            log.append(*newest, b"", batch, false).expect("append");
        };
        // So that free pages are in no order.
        for _ in 0..400 {
            let (key, value) = ([b'k', (newest % 5) as u8], vec![newest as u8; 400]);
            append(&mut newest, Batch::new().put(&key, &value));
            log.apply(newest).expect("apply");
            log.commit().expect("commit");
        }
        let durable = newest;
        for _ in 0..800 {
            append(&mut newest, &Batch::new());
        }
        let old = sim.crash(Eviction::Nothing);
        if kind == MapKind::CowTree {
            log.commit().expect("commit");
        }
        let new = sim.crash(Eviction::Everything);
        let lines = old.bytes().chunks(LINE).zip(new.bytes().chunks(LINE)).enumerate();
        let (mut count, mut parts) = (0, 0);
        for (at, (old, new_line)) in lines.filter(|(_, (old, new))| old != new) {
            let mut image = new.clone();
            for (byte, (old, new)) in (at * LINE..).zip(old.iter().zip(new_line)) {
                let differs = |bit: &u32| (old ^ new) >> bit & 1 == 1;
                (0..8).filter(differs).for_each(|bit| image.flip_bit(byte as u64, bit));
            }
            let sim = image.reopen().expect("memory");
            let found = LogMap::simulated_open(world.kind, Arc::clone(sim.space()), &options());
            let found = found.unwrap_or_else(|error| panic!("without line {at}: {error}"));
            let last = found.control().newest;
            assert!((durable..=newest).contains(&last), "without line {at}: {last}");
            let is_part = match kind {
                MapKind::List => last > durable && last < newest,
                MapKind::CowTree if last == durable => true,
                MapKind::CowTree => {
                    assert_eq!(last, newest, "without line {at}");
                    false
                }
            };
            (count, parts) = (count + 1, parts + u64::from(is_part));
        }
        assert!(count > 40 && parts > 40, "{count} lines, of which {parts} leave a part");
    }
}

fn opened(kind: MapKind, sim: &Sim) -> LogMap {
    LogMap::simulated_open(kind, Arc::clone(sim.space()), &options()).expect("open")
}

/// Fills most of a small pool with pages that are not cleaned, since nothing in them is dead; returns the newest
/// timestamp.
fn fill(log: &LogMap, records: u8) -> u64 {
    for number in 0..records {
        let batch = Batch::new().put(&[number], &[7; 1300]).clone();
        log.append(u64::from(number) + 1, b"", &batch, true).expect("append");
    }
    log.apply(u64::from(records)).expect("apply");
    u64::from(records)
}

/// So many votes, each of which is dead when the next one comes, so that pages are used again.
fn vote(log: &LogMap, count: u64) {
    let first = log.control().term + 1;
    for term in first..first + count {
        log.set_vote(term, 1).expect("vote");
        log.commit().expect("commit");
    }
}

/// The record of a roll-back is moved behind entries that have the timestamps of those that it took back: it still
/// makes void only records that stood before it.
#[test]
fn a_roll_back_that_is_moved_spares_what_came_behind_it() {
    for kind in MapKind::ALL {
        let pages = if kind == MapKind::List { 24 } else { 28 };
        let world = crate::ops::World { pages, kind, ..WORLD };
        for seed in 0..4_u8 {
            let sim = Sim::new(&sim_options(&world, 3)).expect("memory");
            let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
            let log = log.expect("create");
            let newest = fill(&log, 34 + seed);
            let entry = |value: u8| Batch::new().put(b"key", &[value]).clone();
            log.append(newest + 1, b"first", &entry(1), true).expect("append");
            log.commit().expect("commit");
            log.roll_back(newest).expect("roll back");
            vote(&log, 40);
            // A page without dead bytes, so that it stays where it is.
            let mut second = entry(2);
            (0..3_u8).for_each(|number| _ = second.put(&[b's', number], &[7; 1300]));
            log.append(newest + 1, b"second", &second, true).expect("append");
            log.commit().expect("commit");
            for _ in 0..20 {
                vote(&log, 60);
                let sim = sim.crash(Eviction::Everything).reopen().expect("memory");
                let header = opened(kind, &sim).header(newest + 1).expect("header");
                assert_eq!(header.as_deref(), Some(b"second".as_slice()), "{seed}");
            }
            // In a tree only the newest commit states this, and pages are used again without moves.
            let has_moved = log.stats().cleaner_bytes_copied > 0 || kind == MapKind::CowTree;
            assert!(has_moved, "the cleaner has not worked");
        }
    }
}

/// Records are moved while the entry that deletes them is pending: the tombstones outlive every copy of them.
#[test]
fn a_tombstone_outlives_what_was_moved_while_it_was_pending() {
    for kind in MapKind::ALL {
        let world = crate::ops::World { pages: 28, kind, ..WORLD };
        let sim = Sim::new(&sim_options(&world, 4)).expect("memory");
        let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
        let (log, mut newest) = (log.expect("create"), 0);
        let mut append = |batch: &Batch| {
            newest += 1;
            log.append(newest, b"", batch, true).expect("append");
            newest
        };
        // Most of the pool is a value apart from the stream: none of its pages is old.
        append(Batch::new().put(b"large", &vec![7; 12 * 4000]));
        for number in 0..12_u8 {
            let mut batch = Batch::new();
            batch.put(&[b'a', number], &[7; 900]).put(&[b'b', number], b"deleted");
            // The next entry replaces it, so that these pages are to be cleaned.
            let newest = append(batch.put(b"filler", &[7; 700]));
            log.apply(newest).expect("apply");
        }
        // In a page without dead bytes, which stays where it is while those before it are moved behind it.
        let mut batch = Batch::new();
        (0..4_u8).for_each(|number| _ = batch.put(&[b't', number], &[7; 850]));
        (0..12_u8).for_each(|number| _ = batch.delete(&[b'b', number]));
        let deleted = append(&batch);
        vote(&log, 200);
        assert!(log.stats().cleaner_bytes_copied > 10_000, "the cleaner has not worked");
        log.apply(deleted).expect("apply");
        (0..4_u8).for_each(|number| _ = append(Batch::new().put(&[b't', number], b"")));
        log.apply(log.control().newest).expect("apply");
        for _ in 0..30 {
            vote(&log, 25);
            let sim = sim.crash(Eviction::Everything).reopen().expect("memory");
            let log = opened(kind, &sim);
            for number in 0..12 {
                assert_eq!(log.get(&[b'b', number]).expect("get"), None, "{number}");
            }
        }
    }
}

/// A pool with hardly any dead bytes becomes full. Term and vote can be noted then, pending entries applied or taken
/// back, and the remains of a power cut opened: with the pages that were ahead, too.
#[test]
fn a_full_log_can_vote_apply_and_roll_back() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            let world = crate::ops::World { pages: 60, model, kind, ..WORLD };
            let sim = Sim::new(&sim_options(&world, 3)).expect("memory");
            let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
            let (log, mut newest) = (log.expect("create"), 0);
            let committed = || {
                let ticket = log.commit().expect("commit");
                log.wait_durable(ticket).expect("wait");
            };
            for uses_reserve in [false, true] {
                loop {
                    let mut batch = Batch::new();
                    batch.put(&(newest as u32).to_be_bytes(), &[newest as u8; 1300]);
                    match log.append(newest + 1, b"header", &batch, uses_reserve) {
                        Ok(()) => newest += 1,
                        Err(Error::NoSpace { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                    committed();
                    log.apply(newest - u64::from(uses_reserve)).expect("apply");
                    committed();
                }
            }
            assert!(newest > 60, "{newest} entries");
            log.set_vote(7, 3).expect("vote");
            log.roll_back(newest - 1).expect("roll back");
            log.set_members(b"members").expect("members");
            committed();
            let control = log.control();
            for eviction in [Eviction::Nothing, Eviction::Everything] {
                let image = sim.crash(eviction).reopen().expect("memory");
                let left =
                    LogMap::simulated_open(world.kind, Arc::clone(image.space()), &options());
                let left = left.unwrap_or_else(|error| panic!("{model:?}: {error}"));
                assert_eq!(left.control(), control);
                left.set_vote(8, 1).expect("vote");
                assert!(left.get(&0_u32.to_be_bytes()).expect("get").is_some());
            }
        }
    }
}

/// A reader that is admitted after a snapshot was installed sees nothing that a power cut could take back.
#[test]
fn an_installed_snapshot_is_durable_before_it_is_read() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            let world = crate::ops::World { pages: 60, model, kind, ..WORLD };
            let sim = Sim::new(&sim_options(&world, 4)).expect("memory");
            let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
            let log = log.expect("create");
            log.begin_install(5).expect("begin");
            let record =
                SnapshotRecord { key: b"key", value: b"value", timestamp: 4, expires_at: None };
            log.install([record]).expect("install");
            log.end_install(b"header", b"members").expect("end");
            assert!(log.get(b"key").expect("get").is_some());
            let image = sim.crash(Eviction::Nothing).reopen().expect("memory");
            let left = LogMap::simulated_open(world.kind, Arc::clone(image.space()), &options());
            let left = left.expect("open");
            assert_eq!(
                left.get(b"key").expect("get").as_deref(),
                Some(b"value".as_slice()),
                "{model:?}"
            );
            assert_eq!((left.control().applied, left.control().members), (5, b"members".to_vec()));
        }
    }
}

/// Entries that are pending for long, in pages in which everything else is dead: they stay where they are, also over
/// a restart, and the rest of their pages is cleaned when they are applied.
#[test]
fn pages_with_pending_entries_are_kept_and_come_back() {
    for kind in MapKind::ALL {
        let world = crate::ops::World { pages: 80, kind, ..WORLD };
        let mut sim = Sim::new(&sim_options(&world, 5)).expect("memory");
        let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
        let mut log = log.expect("create");
        let mut newest = fill(&log, 60);
        for round in 0..8 {
            let applied = newest;
            for _ in 0..36 {
                newest += 1;
                let batch = Batch::new().put(&newest.to_be_bytes(), &[round; 20]).clone();
                log.append(newest, b"pending", &batch, true).expect("append");
                vote(&log, 30);
            }
            if round % 4 == 1 {
                drop(log);
                sim = sim.killed().expect("memory");
                log = opened(kind, &sim);
                vote(&log, 300);
            }
            let mut count = 0;
            let mut show = |entry: coreplane_mvcc::LogEntry<'_>| {
                count += 1;
                entry.header == b"pending" && entry.changes.len() == 1
            };
            log.entries(applied + 1..=newest, &mut show).expect("entries");
            assert_eq!(count, newest - applied);
            log.apply(newest).expect("apply");
            vote(&log, 60);
        }
        assert!(log.stats().cleaner_pages_freed > 0, "the cleaner has not worked");
        log.audit().unwrap_or_else(|drift| panic!("{drift}"));
    }
}

/// Snapshots stay while a small pool is written many times over. The records that they see are moved to pages apart,
/// which were born after pages in which the stream continues, and are replaced there then.
#[test]
fn snapshots_stand_still_while_what_they_see_is_moved() {
    for kind in MapKind::ALL {
        for model in [Model::X86, Model::File] {
            let world = crate::ops::World { pages: 60, model, kind, ..WORLD };
            let sim = Sim::new(&sim_options(&world, 7)).expect("memory");
            let log = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options());
            let (log, mut draw) = (log.expect("create"), Draw(7));
            let (mut map, mut pins, mut newest) = (Contents::new(), VecDeque::new(), 0);
            while newest < 700 {
                let key = format!("key-{:03}", draw.next(100)).into_bytes();
                let value = Arc::new(vec![newest as u8; draw.next(400) as usize]);
                let mut batch = Batch::new();
                batch.put(&key, &value);
                let most = match log.append(newest + 1, b"", &batch, false) {
                    Ok(()) => {
                        newest += 1;
                        log.apply(newest).expect("apply");
                        map.insert(key, (value, newest));
                        let ticket = log.commit().expect("commit");
                        log.wait_durable(ticket).expect("durable");
                        pins.push_back((log.snapshot().expect("snapshot"), map.clone()));
                        10
                    }
                    // The records that they see are all that is there.
                    Err(Error::NoSpace { .. }) if !pins.is_empty() => pins.len() / 2,
                    Err(error) => panic!("{error}"),
                };
                log.audit().unwrap_or_else(|drift| panic!("{kind:?}, {newest}: {drift}"));
                while pins.len() > most {
                    let (snapshot, map) = pins.pop_front().expect("a snapshot");
                    let records = snapshot.records();
                    let shown = contents(|take| {
                        records.scan(b"", None, false, usize::MAX, take).expect("scan");
                    });
                    assert!(shown == map, "a snapshot has changed");
                }
            }
        }
    }
}
