//! A full pool that was opened after a kill: the first writes clean pages without reading the whole
//! index, lose nothing by it, and the later counts are right.

mod home;
mod tiny;

use coreplane_engine::{Engine, Error, Repairable};
use coreplane_scmkv::Scmkv;
use home::{Home, New, contents, options, write};
use std::collections::BTreeMap;
use tiny::{fill, fill_key};

const PAGES: u64 = 120;

/// A full pool as a kill left it, a part of whose records was replaced; returns its contents.
fn full(home: &Home) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let store = home.create(New::tiny(PAGES));
    let len = 100;
    let count = fill(&store, len, 0);
    // Replaced again and again, so that the pages have dead records of all kinds in them.
    for round in 0..3 {
        for number in (0..count).step_by(5 + round) {
            match number % 2 {
                0 => drop(store.delete(&fill_key(number), &write())),
                _ => drop(store.put(&fill_key(number), &vec![round as u8; len], &write())),
            }
        }
    }
    fill(&store, len, 0);
    for number in (0..count).step_by(3) {
        let _outcome = store.delete(&fill_key(number), &write()).expect("delete");
    }
    let known = contents(&store).expect("contents");
    // Not closed.
    drop(store);
    known
}

/// Puts new values until pages had to be cleaned, and adds them to `known`.
fn put_until_cleaned(store: &Scmkv, known: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    let before = store.stats().cleaner_pages_freed;
    let mut serial = 0_u32;
    while store.stats().cleaner_pages_freed < before + 3 {
        serial += 1;
        let key = fill_key(serial % 40 + 7);
        let value = serial.to_le_bytes().repeat(25);
        let _outcome = store.put(&key, &value, &write()).expect("put");
        known.insert(key, value);
        assert!(serial < 100_000, "nothing was cleaned");
    }
}

#[test]
fn the_first_writes_to_a_full_pool_need_no_census() {
    let home = Home::in_memory();
    let mut known = full(&home);
    // Nothing runs in the background.
    let store = home.open(options(false));
    put_until_cleaned(&store, &mut known);
    assert_eq!(store.stats().figure("bytes_are_counted"), Some(0), "it took the census");
    assert!(contents(&store).expect("contents") == known, "something is lost, or older");

    // The census counts the records that were moved meanwhile as the next open does.
    assert_eq!(store.len().expect("len"), known.len() as u64);
    store.clean().expect("clean");
    let live_bytes = store.stats().live_bytes;
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
    drop(store);
    let store = home.open(options(false));
    let clean = store.scrub(&mut |_| {}).expect("scrub");
    assert!(clean.damages.is_empty(), "{:?}", clean.damages);
    assert_eq!(store.stats().live_bytes, live_bytes);
    assert!(contents(&store).expect("contents") == known, "something is lost, or older");
}

#[test]
fn a_pool_without_anything_to_clean_is_full_after_a_kill_too() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(PAGES));
    fill(&store, 100, 0);
    drop(store);
    let store = home.open(options(false));
    let refused = store.put(b"one more", &[1; 400], &write());
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(store.stats().figure("bytes_are_counted"), Some(1), "it must be known");
}

/// Takes one slot of every second page out of the index, as a flipped bit would, among the keys for
/// which `is_hit` is true.
fn lose_slots(
    home: &Home,
    known: &BTreeMap<Vec<u8>, Vec<u8>>,
    is_hit: impl Fn(&[u8]) -> bool,
) -> usize {
    const HEADER: u64 = 20;
    let mut bytes = home.bytes();
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let mut hit = std::collections::BTreeSet::new();
    for (at, word) in words.iter().enumerate() {
        let record = (word & ((1 << 39) - 1)) << 3;
        let page = record / home::PAGE;
        let key = (record + HEADER) as usize..(record + HEADER) as usize + 7;
        let is_in_table = (8 * at as u64 / home::PAGE).is_multiple_of(64);
        // A slot, not a tombstone's, that leads to a record of a known key.
        let is_slot = !is_in_table && word >> 41 != 0 && word >> 40 & 1 == 0;
        if is_slot
            && page.is_multiple_of(2)
            && bytes.get(key.clone()).is_some_and(|key| known.contains_key(key) && is_hit(key))
            && hit.insert(page)
        {
            // Used once, so that no probe ends here.
            bytes[8 * at..8 * at + 8].copy_from_slice(&1_u64.to_le_bytes());
        }
    }
    home.put_bytes(&bytes);
    hit.len()
}

/// Has pages cleaned before the census, and the slots that are lost made anew by a scrub, more than `least`: all that is
/// `known` is there.
fn cleaned_and_scrubbed(home: &Home, mut known: BTreeMap<Vec<u8>, Vec<u8>>, least: u64) {
    let store = home.open(options(false));
    put_until_cleaned(&store, &mut known);
    assert_eq!(store.stats().figure("bytes_are_counted"), Some(0), "it took the census");
    let report = store.scrub(&mut |_| {}).expect("scrub");
    assert!(report.damages.is_empty() && report.rewritten > least, "{report:?}");
    assert!(contents(&store).expect("contents") == known, "something is lost, or older");
}

/// A pool's seeds decide which pages are cleaned: in one of ten none of them has lost anything.
#[test]
fn no_page_is_freed_with_a_record_that_has_lost_its_slot() {
    for _ in 0..8 {
        let home = Home::in_memory();
        let known = full(&home);
        assert!(lose_slots(&home, &known, |_| true) > 10);
        cleaned_and_scrubbed(&home, known, 10);
    }
}

/// A large value is in overflow records, which no slot leads to: only the record that has lost its
/// slot names them.
#[test]
fn no_page_is_freed_with_the_value_of_a_record_that_has_lost_its_slot() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(PAGES));
    let large = |number: u32| format!("big-{number:03}").into_bytes();
    for number in 0..40_u32 {
        let value = number.to_le_bytes().repeat(600);
        let _outcome = store.put(&large(number), &value, &write()).expect("put");
    }
    let count = fill(&store, 100, 0);
    for number in (0..count).step_by(3) {
        let _outcome = store.delete(&fill_key(number), &write()).expect("delete");
    }
    let known = contents(&store).expect("contents");
    drop(store);
    assert!(lose_slots(&home, &known, |key| key.starts_with(b"big")) > 3);
    cleaned_and_scrubbed(&home, known, 3);
}
