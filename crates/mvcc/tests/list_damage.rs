//! Damage in a list costs only the keys that it concerns, and is reported: other keys are unchanged, and no older
//! value is shown for the newest, whatever is written, moved, closed, cut and opened since.

use coreplane_engine::{
    Batch, Completion, Engine, Error, Ordered, Outcome, Repairable, Snapshots, Visibility,
    WriteOptions,
};
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Image, Sim, SimOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PAGE: usize = 1024;
const KEYS: u32 = 30;

/// The values of keys, none for deleted ones.
type Map = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:02}").into_bytes()
}

/// A value that can be found in an image: no other write has it.
fn value(number: u32, round: u32) -> Vec<u8> {
    format!("value {number:02} of round {round:02}").into_bytes()
}

fn open(sim: &Sim) -> Result<MapEngine, Error> {
    MapEngine::simulated_open(MapKind::List, Arc::clone(sim.space()), &options())
}

/// A new store of so many pages.
fn fresh(pages: usize) -> (Sim, MapEngine) {
    let len = (PAGE * pages) as u64;
    let page_size = PAGE as u32;
    let options_of_sim = SimOptions { len, max_len: len, page_size, ..SimOptions::default() };
    let sim = Sim::new(&options_of_sim).expect("memory");
    let store = MapEngine::simulated_create(MapKind::List, Arc::clone(sim.space()), &options());
    (sim, store.expect("create"))
}

fn put(store: &MapEngine, map: &mut Map, number: u32, round: u32) {
    let value = value(number, round);
    store.put(&key(number), &value, &WriteOptions::default()).map(drop).expect("put");
    map.insert(key(number), Some(value));
}

/// Three rounds of writes: the second deletes each fifth key, the third writes ten keys, two of them in a batch.
fn made(closes: bool, clears: bool) -> (Image, Map) {
    let ((sim, store), mut map) = (fresh(15), Map::new());
    for number in 0..KEYS {
        put(&store, &mut map, number, 0);
    }
    if clears {
        store.clear().expect("clear");
        map.values_mut().for_each(|it| *it = None);
    }
    for number in (0..KEYS).filter(|it| !clears || it % 2 == 0) {
        if number % 5 == 0 && !clears {
            store.delete(&key(number), &WriteOptions::default()).map(drop).expect("delete");
            map.insert(key(number), None);
        } else {
            put(&store, &mut map, number, 1);
        }
    }
    let mut batch = Batch::new();
    for number in [1, 2] {
        batch.put(&key(number), &value(number, 2));
        map.insert(key(number), Some(value(number, 2)));
    }
    store.apply(&batch, &WriteOptions::default()).expect("a batch");
    for number in 3..11 {
        put(&store, &mut map, number, 2);
    }
    if closes {
        store.close().expect("close");
    }
    drop(store);
    (sim.crash(Eviction::Everything), map)
}

/// The offset of these bytes, which occur once.
fn find(image: &Image, bytes: &[u8]) -> usize {
    let found = image.bytes().windows(bytes.len()).position(|it| it == bytes);
    found.expect("it is there")
}

/// The bytes of the record with this value.
fn record(image: &Image, number: u32, round: u32) -> Range<usize> {
    let value = value(number, round);
    let at = find(image, &value);
    at - key(number).len() - 20..at + value.len()
}

fn flip(image: &mut Image, bits: impl Iterator<Item = usize>) {
    bits.for_each(|bit| image.flip_bit((bit / 8) as u64, (bit % 8) as u32));
}

fn get(store: &MapEngine, number: u32) -> Result<Option<Vec<u8>>, Error> {
    let snapshot = store.snapshot().expect("a snapshot");
    let found = store.get(&key(number));
    let mut keys = Vec::new();
    let mut visit = |it: coreplane_engine::Record<'_>| keys.push(it.value.to_vec());
    let seen = snapshot.get_with(&key(number), &mut visit);
    assert_eq!(seen.is_err(), found.is_err(), "a snapshot sees the same of {number}");
    assert!(found.is_err() || found.as_ref().ok() == Some(&keys.pop()), "of {number}");
    found
}

/// Checks that every key is unchanged or an error; returns the keys with errors.
fn errors(store: &MapEngine, map: &Map, what: &str) -> Vec<u32> {
    let mut failed = Vec::new();
    for number in 0..KEYS {
        match get(store, number) {
            Ok(found) => assert_eq!(Some(&found), map.get(&key(number)), "{what}: {number}"),
            Err(Error::Corrupt { .. }) => failed.push(number),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let mut shown = 0;
    let scan = store.scan(b"", None, false, usize::MAX, &mut |_| true);
    let iterated = store.iterate(0, 1000, &mut |it| {
        assert_eq!(map.get(it.key), Some(&it.record.map(|it| it.value.to_vec())), "{what}");
        shown += 1;
    });
    let known = (0..KEYS).filter(|it| !failed.contains(it) && map[&key(*it)].is_some()).count();
    assert_eq!(shown, known, "{what}: an iteration shows what is known");
    assert_eq!((scan.is_err(), iterated.is_err()), (!failed.is_empty(), !failed.is_empty()));
    failed
}

fn damages(store: &MapEngine) -> usize {
    store.verify(&mut |_| {}).expect("verify").damages.len()
}

/// Closes the store, or leaves it as a kill does, and opens it again.
fn again(sim: Sim, store: MapEngine, closes: bool) -> (Sim, MapEngine) {
    if closes {
        store.close().expect("close");
    }
    drop(store);
    let sim = sim.killed().expect("memory");
    let store = open(&sim).expect("open again");
    (sim, store)
}

/// Overwrites `numbers` until all pages were used again.
fn churn(store: &MapEngine, map: &mut Map, numbers: Range<u32>) {
    for round in 0..40 {
        numbers.clone().for_each(|number| put(store, map, number, 40 + round));
    }
    assert!(store.stats().cleaner_pages_freed > 2, "pages are cleaned");
    store.audit().expect("counts are right");
}

#[test]
fn a_flipped_bit_costs_its_key_wherever_it_is() {
    for closes in [true, false] {
        let (image, map) = made(closes, false);
        for number in [4, 12] {
            let its = record(&image, number, if number == 4 { 2 } else { 1 });
            // Checksum, lengths, version, key and value.
            for byte in [0, 4, 5, 6, 8, 9, 12, 13, 20, 25, 27, 40] {
                for bit in [0, 3, 7] {
                    let what = format!("closed {closes}, {number}, bit {bit} of byte {byte}");
                    let (mut image, mut map) = (image.clone(), map.clone());
                    flip(&mut image, std::iter::once((its.start + byte) * 8 + bit));
                    let mut sim = image.reopen().expect("memory");
                    let mut store = open(&sim).expect(&what);
                    for closes in [true, false] {
                        assert_eq!(errors(&store, &map, &what), [number]);
                        assert_eq!(damages(&store), 1, "{what}");
                        store.audit().expect("counts are right");
                        (sim, store) = again(sim, store, closes);
                    }
                    churn(&store, &mut map, 18..26);
                    assert_eq!(errors(&store, &map, &what), [number]);
                    let options = WriteOptions::default();
                    assert!(store.insert(&key(number), b"x", &options).is_err(), "{what}");
                    if bit == 0 {
                        put(&store, &mut map, number, 9);
                    } else {
                        let outcome = store.delete(&key(number), &options).expect("delete");
                        assert!(matches!(outcome, Outcome::Written(_)));
                        map.insert(key(number), None);
                    }
                    (_, store) = again(sim, store, closes);
                    assert_eq!(errors(&store, &map, &what), []);
                    assert_eq!(damages(&store), 0, "{what}");
                }
            }
        }
    }
}

/// A record that is written early is newer than the lost ones, and is shown.
#[test]
fn what_is_written_early_beside_damage_is_read() {
    let (mut image, _) = made(true, false);
    let its = record(&image, 4, 2);
    flip(&mut image, std::iter::once((its.start + 25) * 8));
    let sim = image.reopen().expect("memory");
    let store = open(&sim).expect("open");
    let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    for number in [4, 20, 99] {
        let outcome = store.put(&key(number), b"early", &early).expect("put");
        assert!(!outcome.ticket().is_durable());
        assert_eq!(store.get(&key(number)).expect("get").as_deref(), Some(b"early".as_slice()));
        let outcome = store.put(&key(number), b"again", &early).expect("put");
        assert!(!outcome.ticket().is_durable());
        let mut shown = Vec::new();
        let mut show = |_: usize, record: Option<coreplane_engine::Record<'_>>| {
            shown.extend(record.map(|it| it.value.to_vec()));
        };
        let keys = [key(number), key(12)];
        let keys = keys.each_ref().map(|it| it.as_slice());
        let _horizon = store.multi_get(&keys, Visibility::Durable, &mut show).expect("multi_get");
        assert_eq!(shown.first().map(Vec::as_slice), Some(b"again".as_slice()));
    }
}

#[test]
fn a_flipped_bit_of_an_end_mark_or_of_what_was_replaced_costs_nothing() {
    let (image, map) = made(true, false);
    let mut places = vec![record(&image, 7, 0).start + 30];
    // The last bytes of a page are its end mark.
    let pages = image.bytes().chunks(PAGE).enumerate();
    for (page, bytes) in pages.filter(|(_, bytes)| bytes.windows(4).any(|it| it == b"key ")) {
        let last = bytes.iter().rposition(|byte| *byte != 0).expect("it has a key");
        places.push(page * PAGE + last / 8 * 8 + 1);
    }
    assert!(places.len() > 3);
    for place in places {
        let mut image = image.clone();
        flip(&mut image, std::iter::once(place * 8 + 2));
        let sim = image.reopen().expect("memory");
        let store = open(&sim).expect("open");
        assert_eq!(errors(&store, &map, "an end mark"), []);
        assert_eq!(errors(&again(sim, store, false).1, &map, "an end mark"), []);
    }
}

/// The key of the damaged record is unknown: records behind it are sure.
#[test]
fn damage_of_many_bits_makes_all_doubtful_that_is_older() {
    for (closes, many) in [(true, 0..48), (false, 0..48), (true, 16..26), (false, 22..60)] {
        let what = format!("closed {closes}, {many:?}");
        let (mut image, mut map) = made(closes, false);
        let its = record(&image, 5, 2).start;
        flip(&mut image, many.flat_map(|byte| [0, 1, 5].map(|bit| (its + byte) * 8 + bit)));
        let mut sim = image.reopen().expect("memory");
        let mut store = open(&sim).expect("open");
        // All keys behind it are known, except one more that may have been damaged with it.
        let known = |failed: &[u32]| (7..11).all(|it| !failed.contains(&it));
        for closes in [true, false, true] {
            let failed = errors(&store, &map, &what);
            assert!(known(&failed) && failed.len() >= 25, "{what}: {failed:?}");
            assert_eq!(damages(&store), 1, "{what}");
            (sim, store) = again(sim, store, closes);
        }
        // A key that never existed is unknown, too.
        assert!(store.get(b"another").is_err());
        churn(&store, &mut map, 7..10);
        churn(&store, &mut map, 7..10);
        let outcome = store.delete(&key(20), &WriteOptions::default()).expect("delete");
        assert!(matches!(outcome, Outcome::Written(_)));
        map.insert(key(20), None);
        put(&store, &mut map, 5, 7);
        for closes in [false, true] {
            let failed = errors(&store, &map, &what);
            assert!(known(&failed) && failed.len() >= 23, "{what}: {failed:?}");
            assert!(!failed.contains(&5) && !failed.contains(&20), "{what}: {failed:?}");
            (sim, store) = again(sim, store, closes);
        }
        store.clear().expect("clear");
        map.values_mut().for_each(|it| *it = None);
        for _ in 0..2 {
            assert_eq!(errors(&store, &map, &what), []);
            assert_eq!(damages(&store), 0, "{what}");
            store.audit().expect("counts are right");
            (sim, store) = again(sim, store, false);
        }
    }
}

/// The record of a clear.
#[test]
fn what_was_cleared_does_not_come_back_when_the_clear_is_damaged() {
    let (mut image, map) = made(true, true);
    // It stands before the first record of the second round, and has a header, a word and no key.
    let at = record(&image, 0, 1).start - 32;
    flip(&mut image, std::iter::once((at + 14) * 8));
    let sim = image.reopen().expect("memory");
    let store = open(&sim).expect("open");
    let failed = errors(&store, &map, "a clear");
    assert!((1..KEYS).filter(|it| it % 2 == 1 && *it > 10).all(|it| failed.contains(&it)));
    assert!((0..KEYS).filter(|it| it % 2 == 0).all(|it| !failed.contains(&it)));
}

/// It is not known then which records a page has.
#[test]
fn a_pool_whose_table_of_pages_is_damaged_is_refused() {
    let (image, _) = made(true, false);
    // The first page of the engine is one of the table.
    let words = image.bytes()[PAGE..2 * PAGE].iter().enumerate().filter(|(_, byte)| **byte != 0);
    let words: Vec<usize> = words.map(|(at, _)| PAGE + at).collect();
    assert!(words.len() > 10);
    for byte in words {
        let mut image = image.clone();
        flip(&mut image, std::iter::once(byte * 8 + byte % 8));
        let sim = image.reopen().expect("memory");
        assert!(matches!(open(&sim), Err(Error::Corrupt { .. })), "{byte:#x}");
    }
}

/// After a cut behind every store of an open that finds damage, the next open comes to the same result.
#[test]
fn an_opening_that_finds_damage_may_be_cut() {
    for (closes, width) in [(true, 1), (false, 1), (true, 60), (false, 60)] {
        let (mut image, map) = made(closes, false);
        // The last record, in a pool that was closed: no record behind it shows that it was durable.
        let (other, its_round) = if closes { (10, 2) } else { (16, 1) };
        for (number, round) in [(3, 2), (other, its_round)] {
            let its = record(&image, number, round).start;
            flip(&mut image, (0..width).map(|byte| (its + 22 + byte) * 8 + 1));
        }
        let sim = image.reopen().expect("memory");
        let store = open(&sim).expect("open");
        let expected = errors(&store, &map, "whole");
        assert!(expected.contains(&3) && expected.contains(&other));
        assert_eq!(expected.len() == 2, width == 1);
        drop(store);
        for at in 0..sim.events() {
            for eviction in [Eviction::Nothing, Eviction::Everything, Eviction::Seeded(at as u64)] {
                let sim = sim.crash_at(at, eviction).reopen().expect("memory");
                let what = format!("closed {closes}, {width} bytes, cut at {at}");
                let store = open(&sim).expect(&what);
                let failed = errors(&store, &map, &what);
                assert_eq!(failed, expected, "{what}");
            }
        }
    }
}

/// The pages of a value are not those that its record names.
#[test]
fn a_large_value_whose_pages_are_damaged_costs_its_key() {
    let (image, mut map) = made(true, false);
    let sim = image.reopen().expect("memory");
    let store = open(&sim).expect("open");
    let large: Vec<u8> = (0..3000_u32).flat_map(|at| at.to_le_bytes()).take(3 * PAGE).collect();
    store.put(&key(12), &large, &WriteOptions::default()).map(drop).expect("put");
    map.insert(key(12), Some(large.clone()));
    store.close().expect("close");
    let mut image = sim.crash(Eviction::Everything);
    let page = find(&image, &large[1024..1054]) / PAGE * PAGE;
    flip(&mut image, (4..12).map(|byte| (page + byte) * 8));
    let mut sim = image.reopen().expect("memory");
    let mut store = open(&sim).expect("open");
    for closes in [false, true] {
        assert_eq!(errors(&store, &map, "a large value"), [12]);
        assert_eq!(damages(&store), 1);
        store.audit().expect("counts are right");
        (sim, store) = again(sim, store, closes);
    }
    put(&store, &mut map, 12, 5);
    assert_eq!(errors(&again(sim, store, false).1, &map, "put again"), []);
}

/// The pages that are left to deletes and clears are enough for the lost records.
#[test]
fn a_full_pool_with_damage_opens() {
    let ((sim, store), mut map) = (fresh(40), Map::new());
    (0..KEYS).for_each(|number| put(&store, &mut map, number, 0));
    let write = |at: usize, len: usize| {
        let written =
            store.put(format!("later {at:03}").as_bytes(), &vec![7; len], &WriteOptions::default());
        assert!(matches!(written, Ok(_) | Err(Error::NoSpace { .. })), "{written:?}");
        written.is_ok()
    };
    let count = (0..1000).take_while(|at| write(*at, 90)).count();
    assert!(count > 50 && (0..count).take_while(|at| write(*at, 300)).count() < count);
    drop(store);
    let image = sim.crash(Eviction::Everything);
    for many in [1, 60] {
        let (mut image, mut map) = (image.clone(), map.clone());
        let its = record(&image, 12, 0).start;
        flip(&mut image, (0..many).map(|byte| (its + byte) * 8 + 2));
        let mut sim = image.reopen().expect("memory");
        let mut store = open(&sim).expect("open");
        for closes in [false, true] {
            let last = format!("later {:03}", count - 1);
            assert!(matches!(store.get(&key(12)), Err(Error::Corrupt { .. })), "{many}");
            assert!(store.get(last.as_bytes()).expect("it is behind").is_some());
            store.audit().expect("counts are right");
            (sim, store) = again(sim, store, closes);
        }
        put(&store, &mut map, 12, 5);
        let (_, store) = again(sim, store, false);
        assert_eq!(store.get(&key(12)).expect("it was put"), map[&key(12)]);
    }
}

/// A batch over pages of which some are on the medium after a power cut, and others are not.
#[test]
fn a_torn_batch_is_void_and_no_damage_wherever_its_opening_is_cut() {
    let mut voids = 0;
    for seed in 0..3 {
        let ((sim, store), mut map) = (fresh(40), Map::new());
        (0..KEYS).for_each(|number| put(&store, &mut map, number, 0));
        let before = sim.events();
        let mut batch = Batch::new();
        let values: Vec<Vec<u8>> = (0..6).map(|number| vec![number; 400]).collect();
        for (number, value) in (10..16).zip(&values) {
            batch.put(&key(number), value);
        }
        store.apply(&batch, &WriteOptions::default()).expect("a batch");
        let whole = sim.events();
        drop(store);
        for at in (before..whole).step_by(5) {
            let sim = sim.crash_at(at, Eviction::Seeded(seed)).reopen().expect("memory");
            let store = open(&sim).expect("open");
            let is_there = get(&store, 15).expect("no damage").as_ref() == Some(&values[5]);
            let mut expected = map.clone();
            let part = (10..16).zip(&values).filter(|_| is_there);
            expected.extend(part.map(|(number, value)| (key(number), Some(value.clone()))));
            assert_eq!(errors(&store, &expected, "a torn batch"), []);
            drop(store);
            voids += u32::from(!is_there);
            for cut in (0..sim.events()).step_by(2) {
                let sim = sim.crash_at(cut, Eviction::Everything).reopen().expect("memory");
                let what = format!("seed {seed}, cut at {at} and at {cut}");
                assert_eq!(errors(&open(&sim).expect(&what), &expected, &what), []);
            }
        }
    }
    assert!(voids > 5, "{voids} are torn");
}
