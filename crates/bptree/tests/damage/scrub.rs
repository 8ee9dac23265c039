//! A scrub reads what a recovery reads: whatever bits flip in a store in use, once it is healed and a scrub reports
//! nothing more, a crash finds nothing in doubt.

use crate::{KEYS, Map, PAGE, key, options, wrong};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Deferred, Engine, Horizon, Repairable, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A pseudorandom sequence.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// A store in use: all of its leaves are loaded, and half of their records are dead.
struct Running {
    directory: tempfile::TempDir,
    store: Bptree,
    map: Map,
}

impl Running {
    fn new(dice: &mut Dice, has_long: bool) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let options = Options { background: false, ..options() };
        let path = directory.path().join("pool");
        let store = Bptree::create(&path, 2 << 20, PAGE as u32, MediaChoice::Auto, &options);
        let mut it = Self { directory, store: store.expect("create"), map: Map::new() };
        let name = |number: usize| match (has_long, number % 9) {
            (true, 0) => [key(number as u32), vec![b'l'; 600], key(number as u32)].concat(),
            _ => key(number as u32),
        };
        for _ in 0..600 {
            let (number, len) = (dice.roll(KEYS as usize), 20 + dice.roll(150));
            let value = match dice.roll(40) {
                0 => Some(vec![number as u8; 3000]),
                1..4 => None,
                _ => Some(vec![number as u8; len]),
            };
            it.write(&[(name(number), value)]);
        }
        let batch = [3, 30, 60, 85].map(|number| (name(number), Some(b"of a batch".to_vec())));
        it.write(&batch);
        it
    }

    fn write(&mut self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) {
        let mut batch = Batch::new();
        for (key, value) in changes {
            match value {
                Some(value) => drop(batch.put(key, value)),
                None => drop(batch.delete(key)),
            }
            self.map.insert(key.clone(), value.clone());
        }
        let options = WriteOptions::default();
        match changes {
            [(key, Some(value))] => drop(self.store.put(key, value, &options).expect("put")),
            [(key, None)] => drop(self.store.delete(key, &options).expect("delete")),
            _ => drop(self.store.apply(&batch, &options).expect("apply")),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    /// Flips some bits of a byte in any page that was ever written.
    fn flip(&self, dice: &mut Dice) -> usize {
        let pool = std::fs::read(self.path()).expect("read");
        let pages: Vec<usize> =
            (1..pool.len() / PAGE).filter(|page| pool[page * PAGE..][..8] != [0; 8]).collect();
        let at = pages[dice.roll(pages.len())] * PAGE + dice.roll(PAGE);
        let file = std::fs::File::options().write(true).open(self.path()).expect("open");
        let flipped = pool[at] ^ (1 + dice.roll(255) as u8);
        file.write_all_at(&[flipped], at as u64).expect("write");
        at
    }

    /// Heals as a matrix does with a peer that has all records; returns how many leaves were rewritten.
    fn heal(&self) -> u64 {
        let first = self.store.scrub(&mut |_| {}).expect("scrub");
        let doubts = self.store.lost_ranges().expect("doubts");
        for (key, value) in &self.map {
            if !self.store.check(key).is_ok_and(|is_there| is_there == value.is_some()) {
                match value {
                    Some(value) => drop(self.store.put(key, value, &WriteOptions::default())),
                    None => drop(self.store.delete(key, &given())),
                }
            }
        }
        doubts.iter().for_each(|doubt| self.store.settle(doubt).expect("settle"));
        first.rewritten + self.store.scrub(&mut |_| {}).expect("scrub").rewritten
    }
}

/// Options for a delete that does not depend on the old record.
fn given() -> WriteOptions {
    WriteOptions { sequence: Some(1 << 40), ..WriteOptions::default() }
}

/// A copy of the pool, as after a kill.
fn after_a_kill(path: &Path) -> (PathBuf, Bptree) {
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).expect("copy");
    let store = Bptree::open(&copy, MediaChoice::Auto, &options(), &|_| {}).expect("open");
    (copy, store)
}

#[test]
fn what_a_scrub_says_is_clean_a_recovery_finds_clean() {
    let rounds = if crate::is_full() { 2000 } else { 120 };
    let mut rewritten = 0;
    for seed in 0..rounds {
        let dice = &mut Dice(seed);
        let running = Running::new(dice, seed % 3 == 2);
        let flips = [1, 1, 3, 12][seed as usize % 4];
        let flipped: Vec<_> = (0..flips).map(|_| running.flip(dice)).collect();
        let what = format!("seed {seed}, flipped {flipped:?}");
        rewritten += running.heal();
        let report = running.store.scrub(&mut |_| {}).expect("scrub");
        assert!(report.damages.is_empty(), "{what}: {:?}", report.damages);
        assert_eq!(report.rewritten, 0, "{what}");
        let report = running.store.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{what}: {report:?}");
        assert_eq!(wrong(&running.store, &running.map), Vec::<Vec<u8>>::new(), "{what}");
        let (_, store) = after_a_kill(&running.path());
        let doubts = store.lost_ranges().expect("doubts");
        assert!(doubts.is_empty(), "{what}: {doubts:?}");
        for (key, value) in &running.map {
            let found = store.get(key);
            assert!(found.as_ref().is_ok_and(|it| it == value), "{what}: {key:?}: {found:?}");
        }
        let records = running.map.values().flatten().count() as u64;
        assert_eq!(store.len().expect("len"), records, "{what}");
        // If several records are lost in one leaf, it is unknown which were tombstones.
        if flips == 1 {
            assert_eq!(running.store.len().expect("len"), records, "{what}");
        }
        let report = store.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{what}: {report:?}");
    }
    assert!(rewritten > rounds / 4, "{rewritten} leaves were written anew");
}

/// No read reaches the dead records of a leaf.
#[test]
fn verify_tells_of_damage_that_only_a_recovery_comes_to() {
    let dice = &mut Dice(7);
    let mut running = Running::new(dice, false);
    running.write(&[(key(200), Some(b"an old value, which is dead".to_vec()))]);
    running.write(&[(key(200), Some(b"a newer one".to_vec()))]);
    assert!(running.store.verify(&mut |_| {}).expect("verify").is_sound());
    let pool = std::fs::read(running.path()).expect("read");
    let at = pool.windows(12).position(|it| it == b"an old value").expect("it is there");
    let file = std::fs::File::options().write(true).open(running.path()).expect("open");
    file.write_all_at(b"x", at as u64).expect("write");
    assert!(!running.store.verify(&mut |_| {}).expect("verify").is_sound());
    assert!(!after_a_kill(&running.path()).1.lost_ranges().expect("doubts").is_empty());
    let report = running.store.scrub(&mut |_| {}).expect("scrub");
    assert_eq!((report.rewritten, report.damages.len()), (1, 0));
    assert!(running.store.verify(&mut |_| {}).expect("verify").is_sound());
    assert!(after_a_kill(&running.path()).1.lost_ranges().expect("doubts").is_empty());
}

/// The damage is in the head of the page with the rest of a long key: the key itself still compares as equal.
#[test]
fn a_put_of_a_long_key_does_not_share_a_damaged_rest() {
    let dice = &mut Dice(11);
    for is_batch in [false, true] {
        let mut running = Running::new(dice, false);
        let long = [key(400), vec![b'l'; 600]].concat();
        running.write(&[(long.clone(), Some(b"old".to_vec()))]);
        let pool = std::fs::read(running.path()).expect("read");
        let rest = pool.windows(64).position(|it| it == [b'l'; 64]).expect("it is there");
        let rest = (rest / PAGE..pool.len() / PAGE).rev().find(|page| {
            let page = &pool[page * PAGE..][..PAGE];
            page[4] != 0x4c && page.windows(64).any(|it| it == [b'l'; 64])
        });
        let at = rest.expect("a page of it") * PAGE + 29;
        let file = std::fs::File::options().write(true).open(running.path()).expect("open");
        file.write_all_at(&[pool[at] ^ 4], at as u64).expect("write");
        assert!(running.store.check(&long).is_err());
        let mut changes = vec![(long.clone(), Some(b"new".to_vec()))];
        changes.extend(is_batch.then(|| (key(1), Some(b"beside it".to_vec()))));
        running.write(&changes);
        assert!(running.store.check(&long).expect("it was written anew"));
        assert!(running.store.scrub(&mut |_| {}).expect("scrub").damages.is_empty());
        assert!(running.store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// In a file, where each write waits for its sync.
#[test]
fn a_scrub_is_durable_when_it_returns() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { background: false, ..options() };
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::File, &options);
    let store = store.expect("create");
    for value in [b"a dead record", b"the live one "] {
        let _outcome = store.put(&key(1), value, &WriteOptions::default()).expect("put");
    }
    let pool = std::fs::read(&path).expect("read");
    let at = pool.windows(13).position(|it| it == b"a dead record").expect("the record");
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_all_at(b"A", at as u64).expect("write");
    let report = store.scrub(&mut |_| {}).expect("scrub");
    assert!(report.rewritten == 1 && report.damages.is_empty(), "{report:?}");
    let horizon = Horizon::from(store.visible_ticket());
    assert!(store.is_durable(&horizon).expect("durable"));
}
