//! A superseded mark with a wrong bit: the records of the leaf are in its successors.

use super::{KEYS, Map, PAGE, Shelf, answers, differing, is_full, key, options, tail, word};
use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_engine::{Batch, Engine, Repairable, UnixMillis, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::ops::Range;

/// Fills leaves, and then does one thing for which leaves are rewritten.
fn shelf_after(last: impl FnOnce(&Bptree, &ManualClock, &mut Map)) -> Shelf {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let clock = ManualClock::starting_at(UnixMillis(1000));
    let options = Options { background: false, time: Some(clock.as_clock()), ..options() };
    let store = Bptree::create(&path, 256 << 10, PAGE as u32, MediaChoice::Auto, &options);
    let store = store.expect("create");
    let mut map: Map = (0..2 * KEYS).map(|number| (key(number), None)).collect();
    for number in (0..KEYS).map(|at| at * 37 % KEYS) {
        let brief = WriteOptions { expires_at: Some(UnixMillis(2000)), ..WriteOptions::default() };
        let options = if number == 50 { brief } else { WriteOptions::default() };
        let _outcome = store.put(&key(number), &[number as u8; 90], &options).expect("put");
        map.insert(key(number), (number != 50).then(|| vec![number as u8; 90]));
    }
    last(&store, &clock, &mut map);
    drop(store);
    let pool = std::fs::read(&path).expect("read");
    Shelf { directory, pool, map }
}

/// The superseded marks that were written last.
fn last_marks(pool: &[u8]) -> Vec<Range<usize>> {
    let records = (1..pool.len() / PAGE).filter_map(|page| tail(pool, page)?.pop());
    let is_superseded =
        |it: &Range<usize>| word(pool, it.start + 4) >> 17 & 7 == 4 && word(pool, it.end - 4) == 1;
    let marks: Vec<_> = records.filter(is_superseded).collect();
    let version = |it: &Range<usize>| word(pool, it.start + 12);
    let last = marks.iter().map(version).max();
    marks.into_iter().filter(|it| Some(version(it)) == last).collect()
}

#[test]
fn a_bit_that_flips_in_a_superseded_mark_costs_nothing() {
    let merges = |store: &Bptree| {
        let more = store.stats().more;
        more.iter().find(|(name, _)| *name == "leaves_merged").map_or(0, |(_, count)| *count)
    };
    let merge = |store: &Bptree, _: &ManualClock, map: &mut Map| {
        for number in (0..KEYS).take_while(|_| merges(store) == 0) {
            let _outcome = store.delete(&key(number), &WriteOptions::default()).expect("delete");
            map.insert(key(number), None);
        }
        assert_eq!(merges(store), 1);
    };
    let batch = |store: &Bptree, _: &ManualClock, map: &mut Map| {
        let mut batch = Batch::new();
        for number in (0..KEYS).step_by(2) {
            batch.put(&key(number), &[1; 140]);
            map.insert(key(number), Some(vec![1; 140]));
        }
        store.apply(&batch, &WriteOptions::default()).expect("apply");
    };
    let sweep = |store: &Bptree, clock: &ManualClock, _: &mut Map| {
        clock.set(UnixMillis(3000));
        assert_eq!(store.sweep_expired().expect("sweep"), 1);
    };
    let shelves = [shelf_after(merge), shelf_after(batch), shelf_after(sweep)];
    for (shelf, least) in shelves.into_iter().zip([2, 2, 1]) {
        let marks = last_marks(&shelf.pool);
        assert!(marks.len() >= least, "{marks:?}");
        let step = if is_full() { 1 } else { 3 };
        for bit in marks.into_iter().flat_map(|it| 8 * it.start..8 * it.end).step_by(step) {
            let store = shelf.open(&[(bit / 8, 1 << (bit % 8))]).expect("open");
            let answers = answers(&store, &shelf.map);
            let lost = answers.values().filter(|it| it.is_none()).count();
            assert_eq!((lost, differing(&answers, &shelf.map).len()), (0, 0), "bit {bit}");
            assert_eq!(store.lost_ranges().expect("doubts"), [], "bit {bit}");
        }
    }
}
