//! The number of records after an open: it is counted in slices, beside writers, and right in the
//! end whatever the writers did.

use crate::home::{Home, New, options, write};
use crate::scale::scaled;
use crate::story::Draw;
use crate::tiny;
use coreplane_engine::{Batch, Engine, Repairable, WriteOptions};
use coreplane_pmem::media::sim::Eviction;
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::collections::BTreeSet;

const PAGES: u64 = 4000;
/// More groups than are counted at once.
const KEYS: u64 = 8000;

fn key(number: u64) -> Vec<u8> {
    format!("k{number:07}").into_bytes()
}

/// Writes, and the keys that exist.
struct Writer<'a> {
    store: &'a Scmkv,
    known: &'a mut BTreeSet<u64>,
    draw: Draw,
}

impl Writer<'_> {
    fn put(&mut self, number: u64) {
        let _outcome = self.store.put(&key(number), b"value", &write()).expect("put");
        self.known.insert(number);
    }

    fn delete(&mut self, number: u64) {
        let _outcome = self.store.delete(&key(number), &write()).expect("delete");
        self.known.remove(&number);
    }

    fn batch(&mut self, from: u64) {
        let mut batch = Batch::new();
        for number in from..from + 6 {
            if number % 3 == 0 {
                batch.delete(&key(number));
                self.known.remove(&number);
            } else {
                batch.put(&key(number), b"batched");
                self.known.insert(number);
            }
        }
        self.store.apply(&batch, &WriteOptions::default()).expect("apply");
    }

    /// A random operation on a random key; new keys among them, for which groups split.
    fn act(&mut self) {
        let number = self.draw.next(3 * KEYS);
        match self.draw.next(8) {
            0..=3 => self.put(number),
            4..=5 => self.delete(number),
            _ => self.batch(number),
        }
    }
}

/// Counts to the end, with `between` after each slice; returns the number of slices, and of
/// records.
fn count(store: &Scmkv, mut between: impl FnMut()) -> (usize, u64) {
    let mut slices = 1;
    loop {
        if let Some(len) = store.try_len().expect("try_len") {
            return (slices, len);
        }
        slices += 1;
        between();
    }
}

#[test]
fn records_are_counted_in_slices_beside_writers_that_split_what_was_counted() {
    for seed in 0..scaled(3, 30) {
        let home = Home::in_memory();
        // Segments of several groups: one that is counted in part may split.
        let geometry = Geometry { page_size: 16 << 10, groups: 8, buckets: 4, depth: 0 };
        let store = home.create(New { geometry, size: 32 << 20, ..New::tiny(PAGES) });
        let mut known = BTreeSet::new();
        let mut writer = Writer { store: &store, known: &mut known, draw: Draw(seed + 1) };
        (0..KEYS).for_each(|number| writer.put(number));
        drop(store);

        // Nothing runs in the background: the caller that asks counts.
        let store = home.open(options(false));
        assert_eq!(store.stats().figure("records_are_counted"), Some(0));
        let mut writer = Writer { store: &store, known: &mut known, draw: Draw(seed + 50) };
        let (slices, len) = count(&store, || (0..2000).for_each(|_| writer.act()));
        assert!(slices > 2, "{slices} slices, beside which nobody has written");
        assert_eq!(len, known.len() as u64, "seed {seed}");
        assert_eq!(store.stats().figure("records_are_counted"), Some(1));
        assert_eq!(store.stats().figure("bytes_are_counted"), Some(0), "for that none were read");

        // And later changes are counted by their writers, in the second pass and behind it.
        let mut writer = Writer { store: &store, known: &mut known, draw: Draw(seed + 100) };
        (0..200).for_each(|_| writer.act());
        assert_eq!(store.len().expect("len"), known.len() as u64, "seed {seed}");
        store.clean().expect("clean");
        assert_eq!(store.stats().figure("bytes_are_counted"), Some(1));
        let mut writer = Writer { store: &store, known: &mut known, draw: Draw(seed + 200) };
        (0..200).for_each(|_| writer.act());
        assert_eq!(store.len().expect("len"), known.len() as u64, "seed {seed}");
        let report = store.verify(&mut |_| {}).expect("verify");
        assert_eq!((report.records, report.damages.len()), (known.len() as u64, 0));
    }
}

#[test]
fn a_close_before_all_is_counted_leaves_the_number_as_it_is() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(PAGES));
    for number in 0..KEYS {
        let _outcome = store.put(&key(number), b"value", &write()).expect("put");
    }
    drop(store);
    for _ in 0..2 {
        let store = home.open(options(false));
        assert_eq!(store.try_len().expect("try_len"), None);
        store.close().expect("close");
        assert_eq!(store.stats().records, KEYS);
    }
}

#[test]
fn a_power_cut_leaves_as_many_records_as_were_acknowledged() {
    for placement in [Placement::Pool, Placement::Dram] {
        let sim = tiny::simulated(64);
        let space = sim.space().clone();
        let store = Scmkv::simulated_create(space, Geometry::TINY, placement, options(false));
        let store = store.expect("create");
        let mut known = BTreeSet::new();
        let mut writer = Writer { store: &store, known: &mut known, draw: Draw(7) };
        (0..100).for_each(|number| writer.put(number));
        (0..100).step_by(3).for_each(|number| writer.delete(number));
        (0..60).step_by(6).for_each(|number| writer.batch(number));
        (0..50).step_by(7).for_each(|number| writer.put(number));
        for eviction in [Eviction::Nothing, Eviction::Everything] {
            let image = sim.crash(eviction);
            let sim = image.reopen().expect("reopen");
            let store = Scmkv::simulated_open(sim.space().clone(), options(false)).expect("open");
            assert_eq!(store.len().expect("len"), known.len() as u64, "{placement:?}");
        }
    }
}
