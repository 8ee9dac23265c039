//! If there was room to append an entry, there is room to apply it, to take it back, and to commit, however full the
//! pool is and however many keys an entry has.

use crate::ops::{Draw, World, options, sim_options};
use crate::worlds::{FILE, WORLD};
use coreplane_engine::{Batch, Error};
use coreplane_mvcc::{Geometry, LogMap, MapKind, Options};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Eviction, Model, Sim};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

type Contents = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Keys of many lengths, so that nodes of a tree have few of them, and long ones fill a page.
fn key(draw: &mut Draw, longest: u64) -> Vec<u8> {
    let number = draw.next(400);
    let mut key = format!("{number:03}").into_bytes();
    let len = if number.is_multiple_of(3) { longest } else { 3 + number * 7 % 40 };
    key.resize(len as usize, b'.');
    key
}

fn entry(draw: &mut Draw, longest: u64) -> Contents {
    let count = if draw.next(10) == 0 { 10 + draw.next(60) } else { 1 + draw.next(6) };
    let mut entry = Contents::new();
    for _ in 0..count {
        let value = (draw.next(4) > 0).then(|| vec![count as u8; draw.next(90) as usize]);
        entry.insert(key(draw, longest), value);
    }
    entry
}

fn committed(log: &LogMap) {
    let ticket = log.commit().expect("commit");
    log.wait_durable(ticket).expect("wait");
}

/// Appends until there is no room; returns the appended entries.
fn fill(log: &LogMap, draw: &mut Draw, longest: u64) -> Vec<Contents> {
    let (mut entries, mut newest) = (Vec::new(), log.control().newest);
    let most = 1 + draw.next(60);
    for _ in 0..most {
        let entry = entry(draw, longest);
        let mut batch = Batch::new();
        for (key, value) in &entry {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            };
        }
        match log.append(newest + 1, b"header", &batch, draw.next(3) > 0) {
            Ok(()) => newest += 1,
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        entries.push(entry);
        if draw.next(4) == 0 {
            committed(log);
        }
    }
    entries
}

/// Kills or closes the log, and opens it again: everything is there.
fn again(kind: MapKind, (sim, log): (Sim, LogMap), draw: &mut Draw) -> (Sim, LogMap) {
    committed(&log);
    let control = log.control();
    if draw.next(2) == 0 {
        log.close().expect("close");
    }
    drop(log);
    let sim = sim.killed().expect("memory");
    let log = LogMap::simulated_open(kind, Arc::clone(sim.space()), &options()).expect("open");
    assert_eq!(log.control(), control);
    (sim, log)
}

/// So many votes, each durable: they take no page from pending entries.
fn vote(log: &LogMap, count: u64) {
    for _ in 0..count {
        log.set_vote(log.control().term + 1, 1).expect("vote");
        committed(log);
    }
}

fn lives(world: World, seed: u64) -> usize {
    let mut sim = Sim::new(&sim_options(&world, seed)).expect("memory");
    let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
    let mut log = log.expect("create");
    let (mut draw, mut map, mut count) = (Draw(seed << 8), Contents::new(), 0);
    let longest = (u64::from(world.page_size) - 100) / 4 - 20;
    for _ in 0..25 {
        let entries = fill(&log, &mut draw, longest);
        count += entries.len();
        match draw.next(6) {
            0 => (sim, log) = again(world.kind, (sim, log), &mut draw),
            1 => vote(&log, 40),
            _ => {}
        }
        let applied = log.control().applied;
        let kept = draw.next(entries.len() as u64 + 1);
        if draw.next(2) == 0 {
            committed(&log);
        }
        match draw.next(3) {
            0 => log.apply(applied + kept).expect("apply all at once"),
            1 => (1..=kept).for_each(|more| {
                log.apply(applied + more).expect("apply one");
                committed(&log);
            }),
            _ => (1..=kept).for_each(|more| log.apply(applied + more).expect("apply one")),
        }
        log.roll_back(applied + kept).expect("roll back");
        vote(&log, 1);
        entries.into_iter().take(kept as usize).for_each(|entry| map.extend(entry));
        log.audit().unwrap_or_else(|drift| panic!("{drift}"));
    }
    let image = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let log = LogMap::simulated_open(world.kind, Arc::clone(image.space()), &options());
    let log = log.expect("open");
    for (key, value) in &map {
        assert_eq!(log.get(key).expect("get"), *value);
    }
    count
}

#[test]
fn what_was_appended_can_be_applied_and_taken_back() {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    for kind in MapKind::ALL {
        for (page_size, pages) in [(1024, 160), (1024, 400), (4096, 64), (4096, 120)] {
            for world in [WORLD, FILE] {
                let world = World { kind, page_size, pages, ..world };
                let seeds = 1..if is_full { 25 } else { 3 };
                let count: usize = seeds.map(|seed| lives(world, seed)).sum();
                assert!(count > 20, "{count} entries: {world:?}");
            }
        }
    }
}

/// Entries are appended until there is no room: that is an error, which states how much was asked for. When they are
/// applied, the records that they have replaced make room for others.
#[test]
fn a_full_log_says_so_and_goes_on() {
    for kind in MapKind::ALL {
        for world in [WORLD, FILE] {
            let world = World { kind, pages: 80, ..world };
            let sim = Sim::new(&sim_options(&world, 7)).expect("memory");
            let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
            let (log, mut newest) = (log.expect("create"), 0_u64);
            for round in 1..10_u8 {
                let applied = newest;
                let refused = loop {
                    let batch = Batch::new().put(&[newest as u8 % 8], &[round; 900]).clone();
                    match log.append(newest + 1, b"header", &batch, false) {
                        Ok(()) => newest += 1,
                        Err(refused) => break refused,
                    }
                    committed(&log);
                };
                assert!(
                    newest > applied + 30,
                    "{world:?}: {newest}, of which {applied} are applied"
                );
                let is_told = matches!(refused, Error::NoSpace { needed, .. } if needed > 0);
                assert!(is_told, "{world:?}: {refused}");
                assert_eq!((log.control().newest, log.control().applied), (newest, applied));
                log.apply(newest).expect("apply");
                committed(&log);
                for key in 0..8 {
                    let value = log.get(&[key]).expect("get");
                    assert_eq!(value.as_deref(), Some([round; 900].as_slice()));
                }
            }
        }
    }
}

/// A full log whose records are all deleted takes others, though nothing was committed since: its pages are free only
/// after several commits.
#[test]
fn what_was_applied_makes_room_before_it_is_committed() {
    for kind in MapKind::ALL {
        for world in [WORLD, FILE] {
            let world = World { kind, pages: 256, ..world };
            let sim = Sim::new(&sim_options(&world, 9)).expect("memory");
            let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
            let log = log.expect("create");
            let (mut count, mut newest) = (0_u32, 0);
            let full = loop {
                let mut batch = Batch::new();
                batch.put(&count.to_le_bytes(), &[7; 8]);
                match log.append(newest + 1, b"header", &batch, false) {
                    Ok(()) => (count, newest) = (count + 1, newest + 1),
                    Err(error) => break error,
                }
                log.apply(newest).expect("apply");
            };
            assert!(matches!(full, Error::NoSpace { .. }), "{full}");
            committed(&log);
            for from in (0..count).step_by(100) {
                let mut batch = Batch::new();
                for number in from..(from + 100).min(count) {
                    batch.delete(&number.to_le_bytes());
                }
                log.append(newest + 1, b"header", &batch, true).expect("room for deletes");
                newest += 1;
                log.apply(newest).expect("apply");
            }
            let mut batch = Batch::new();
            batch.put(b"k", b"v");
            let mut calls = 0;
            while let Err(error) = log.check_room(&batch, 0) {
                calls += 1;
                assert!(matches!(error, Error::Busy) && calls < 100, "{world:?}: {error}");
                // A sync has to end.
                if matches!(world.model, Model::File) {
                    committed(&log);
                }
            }
            log.append(newest + 1, b"header", &batch, false).expect("room");
        }
    }
}

/// A sync that is to come frees some pages, and not as many as a leader asks for.
#[test]
fn a_leader_finds_room_for_what_it_can_append() {
    for kind in MapKind::ALL {
        let world = World { kind, pages: 128, ..FILE };
        let sim = Sim::new(&sim_options(&world, 9)).expect("memory");
        let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
        let (log, mut newest, mut found) = (log.expect("create"), 0, 0);
        let mut append = |log: &LogMap, batch: &Batch| {
            newest += 1;
            log.append(newest, b"header", batch, true).map(|()| newest)
        };
        for round in 0..40_u8 {
            // Two in a page, so that a third of it is of no use to others.
            let batch = Batch::new().put(&[round % 30], &[round; 1400]).clone();
            let newest = append(&log, &batch).expect("room");
            committed(&log);
            log.apply(newest).expect("apply");
            let mut batch = Batch::new();
            batch.put(b"large", &vec![7; usize::from(round) * 128 * 4096 / 39]);
            match log.check_room(&batch, 0) {
                Ok(()) => {
                    let newest = append(&log, &batch).unwrap_or_else(|error| {
                        panic!("{kind:?}, {round}: there was room, and {error}");
                    });
                    found += 1;
                    committed(&log);
                    log.apply(newest).expect("apply");
                }
                Err(Error::NoSpace { .. } | Error::Busy) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!((5..35).contains(&found), "{kind:?}: {found}");
    }
}

/// How often a follower is asked until there is room for a message, where each page has a few dead bytes.
fn calls_until_room() -> usize {
    let world = World { pages: 512, ..WORLD };
    let sim = Sim::new(&sim_options(&world, 9)).expect("memory");
    let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
    let (log, mut newest) = (log.expect("create"), 0);
    let mut write = |numbers: Vec<u32>| {
        let mut batch = Batch::new();
        numbers.iter().for_each(|it| _ = batch.put(&it.to_be_bytes(), &[7; 100]));
        newest += 1;
        log.append(newest, b"header", &batch, false).expect("room");
        committed(&log);
        log.apply(newest).expect("apply");
    };
    (0..10_500).step_by(50).for_each(|first| write((first..first + 50).collect()));
    (0..10_500).step_by(500).for_each(|first| write((first..first + 500).step_by(10).collect()));
    committed(&log);
    let entries: Vec<Batch> =
        (0..64_u8).map(|it| Batch::new().put(&[it], &[7; 3000]).clone()).collect();
    let before = log.stats().cleaner_pages_freed;
    let has_room = |_: &usize| log.room_for_entries(&entries).expect("room") == entries.len();
    let calls = (1..1000).find(has_room).expect("room for all");
    let cleaned = log.stats().cleaner_pages_freed - before;
    assert!(cleaned > 200, "{cleaned} pages");
    calls
}

/// Entries that it leaves out are sent again only some ticks later.
#[test]
fn a_follower_cleans_all_that_entries_need() {
    // A reader of another test may hold pages for a moment.
    assert!((0..20).any(|_| calls_until_room() < 4));
}

/// A full log is closed; whether there is room is asked after that, as a leader does which does not know it yet.
#[test]
fn a_closed_log_is_left_as_it_is() {
    for kind in MapKind::ALL {
        for world in [WORLD, FILE] {
            let world = World { kind, pages: 64, ..world };
            let sim = Sim::new(&sim_options(&world, 9)).expect("memory");
            let log = LogMap::simulated_create(world.kind, Arc::clone(sim.space()), &options());
            let log = log.expect("create");
            let mut batch = Batch::new();
            for newest in 1.. {
                batch = Batch::new();
                batch.put(&(newest as u32).to_le_bytes(), &[7; 100]);
                if log.append(newest, b"header", &batch, false).is_err() {
                    break;
                }
                log.apply(newest).expect("apply");
            }
            committed(&log);
            log.close().expect("closed");
            let room = log.check_room(&batch, 0);
            assert!(matches!(room, Err(Error::Closed)), "{world:?}: {room:?}");
            drop(log);
            let sim = sim.killed().expect("memory");
            let again = LogMap::simulated_open(world.kind, Arc::clone(sim.space()), &options());
            again.unwrap_or_else(|error| panic!("{world:?}: {error}"));
        }
    }
}

/// A node on the way to a key of a pending entry cannot be read for a while.
#[test]
fn damage_elsewhere_lets_go_of_no_tombstones() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("pool");
    let options = Options { check_reads: true, ..options() };
    let (shape, media) = (Geometry { page_size: 4096, ..Geometry::default() }, MediaChoice::Auto);
    let log = LogMap::create(MapKind::CowTree, &path, 1 << 20, shape, media.clone(), &options);
    let log = log.expect("create");
    let key = |number: u32| format!("key-{number:06}").into_bytes();
    let (mut puts, mut deletes, mut pending) = (Batch::new(), Batch::new(), Batch::new());
    (0..2_000).for_each(|it| _ = puts.put(&key(it), b"value"));
    (0..50).for_each(|it| _ = deletes.delete(&key(it)));
    // So many that their paths have to be looked up.
    (1_000..2_000).for_each(|it| _ = pending.put(&[&key(it)[..], b"x"].concat(), b"value"));
    log.append(1, b"", &puts, true).expect("room");
    log.apply(1).expect("apply");
    committed(&log);
    log.append(2, b"", &deletes, true).expect("room");
    log.append(3, b"", &pending, true).expect("room");
    committed(&log);
    log.apply(2).expect("apply");
    let bytes = std::fs::read(&path).expect("bytes");
    let file = std::fs::File::options().write(true).open(&path).expect("the file");
    let is_there = |at: &usize| bytes[*at..].starts_with(&key(1_900)) && bytes[at + 10] != b'x';
    let places: Vec<usize> = (0..bytes.len() - 10).filter(is_there).collect();
    let write = |last: &[u8]| {
        places.iter().for_each(|at| file.write_all_at(last, *at as u64 + 9).expect("written"));
    };
    write(b"?");
    (0..3).for_each(|_| committed(&log));
    let damaged = log.append(4, b"", &deletes, true);
    assert!(matches!(damaged, Err(Error::ChecksumMismatch { .. })), "{damaged:?}");
    write(b"0");
    log.roll_back(2).expect("roll back");
    // What was taken back is dead with the first commit, and what the tombstones took later.
    committed(&log);
    let before = log.stats().live_bytes;
    (0..3).for_each(|_| committed(&log));
    let left = log.stats().live_bytes;
    assert!(before - left > 50 * 40, "{before} and {left} bytes are live");
}
