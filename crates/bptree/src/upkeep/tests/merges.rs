//! Leaves that are merged.

use crate::upkeep::Store;
use crate::upkeep::tests::scrubs::round;
use crate::upkeep::tests::{GUARD, new_store};
use crate::volume::counters::Count;
use crate::volume::pages::Demand;
use coreplane_engine::{Batch, Outcome, Result, WriteOptions};
use std::os::unix::fs::FileExt as _;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:03}").into_bytes()
}

/// A store of two leaves or more, the second of which has few records, all of them damaged; and the keys of the
/// first.
fn beside_damage() -> (tempfile::TempDir, Store, Vec<Vec<u8>>) {
    let (directory, store) = new_store();
    let path = directory.path().join("pool");
    let write = WriteOptions::default();
    for number in 0..60 {
        let _outcome = store.put(&key(number), &[7; 100], &write).expect("put");
    }
    let leaves = store.inner.leaves();
    let (from, to) = (&leaves[1].0, &leaves[2].0);
    let is_in = |key: &[u8]| *key >= **from && *key < **to;
    for key in (0..60).map(key).filter(|key| is_in(key)).skip(10) {
        let _outcome = remove(&store, &key).expect("delete");
    }
    let page = store.inner.leaves()[1].1;
    assert_eq!(leaves.len(), store.inner.leaves().len(), "none is one with another yet");
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    let (start, end) = (store.space.start_of(page), store.space.start_of(page + 1));
    let wrong = vec![0xff; (end - start) as usize - 64];
    file.write_all_at(&wrong, start + 64).expect("write");
    let first = (0..60).map(key).take_while(|key| **key < **from).collect();
    (directory, store, first)
}

fn remove(store: &Store, key: &[u8]) -> Result<Outcome> {
    use crate::write::plan::{Plan, RestsOn};
    let options = WriteOptions::default();
    store.write(key, (&options, RestsOn::Old), &mut |live| {
        Ok(if live.is_some() { Plan::Delete } else { Plan::Refuse(Outcome::Missing) })
    })
}

/// The delete is durable, and does not depend on the neighbouring leaf.
#[test]
fn a_delete_beside_a_damaged_leaf_is_answered_as_made() {
    let (_directory, store, first) = beside_damage();
    assert!(first.len() > 8, "{} keys", first.len());
    for key in &first {
        let outcome = remove(&store, key).expect("delete");
        assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
    }
    assert_eq!(store.counters.get(Count::Merges), 0);
    assert!(!store.verify(&mut |_| {}).expect("verify").is_sound(), "it is told of");

    let (_directory, store, first) = beside_damage();
    let mut batch = Batch::new();
    for key in &first {
        batch.delete(key);
    }
    store.apply(&batch, &WriteOptions::default()).expect("a batch");
    assert!(first.iter().all(|key| remove(&store, key).is_ok_and(|it| it.written().is_none())));
}

/// To merge two leaves into one takes one page, to merge three into two takes two. There is one page, and the
/// cheapest run takes two.
#[test]
fn leaves_are_put_together_for_which_there_are_pages() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    // In the order of their keys, so that most leaves are half full.
    for number in 0..2500 {
        let key = format!("key {number:06}");
        let _outcome = store.put(key.as_bytes(), &[7; 100], &write).expect("put");
    }
    let leaves = store.inner.leaves();
    assert!(leaves.len() > 130, "{} leaves are below few nodes", leaves.len());
    // Two leaves that have slightly fewer records than that.
    for (least, _) in &leaves[100..102] {
        for _ in 0..3 {
            let mut first = None;
            let scanned = store.scan(least, None, 1, &mut |it| {
                first = Some(it.key.to_vec());
                true
            });
            scanned.expect("scan");
            let _outcome = remove(&store, &first.expect("a record")).expect("delete");
        }
    }
    assert_eq!(store.inner.leaves().len(), leaves.len(), "none is one with another yet");
    let taken = store.pages.take(store.pages.free_len() as usize - 1, 0).expect("free pages");
    assert!(store.gain_page(Demand::Overwrite, u32::MAX).expect("a page"));
    assert_eq!(store.inner.leaves().len(), leaves.len() - 1);
    taken.into_iter().for_each(|page| store.pages.leave(page));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// What a search has found in vain is no longer so after deletes of less than a page.
#[test]
fn a_few_deletes_make_a_page_gainable() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    let count = (0..).take_while(|at| store.put(&key(*at), &[7; 212], &write).is_ok()).count();
    let is_gained = || store.gain_page(Demand::Overwrite, u32::MAX).expect("a search");
    let state = || {
        let live = store.counters.get(Count::LiveBytes);
        (store.counters.get(Count::Splits), live / i64::from(store.space.page_size()))
    };
    let is_gained_after_few = |from: u32| {
        while is_gained() {}
        let before = state();
        let mut gained = (from..from + 16).map(|number| {
            let _outcome = remove(&store, &key(number)).expect("delete");
            is_gained()
        });
        gained.any(|is| is) && state() == before
    };
    let keys = 0..count as u32 - 16;
    assert!(keys.step_by(40).any(is_gained_after_few), "{count} records");
}

/// Such a leaf is tried as often as it has shrunk by a sixteenth, not at each delete: for each try all records of two
/// leaves are read.
#[test]
fn a_merge_that_held_tombstones_prevent_is_seldom_tried() {
    let (_directory, store) = new_store();
    store.hold_tombstones(0).expect("a hold");
    let write = WriteOptions::default();
    for number in 0..800 {
        let _outcome = store.put(&key(number), &[7; 20], &write).expect("put");
    }
    let leaves = store.inner.leaves().len();
    for number in 0..800 {
        let _outcome = remove(&store, &key(number)).expect("delete");
    }
    let tries = store.merge_tries.load(Ordering::Relaxed) as usize;
    assert!(leaves > 10 && tries <= 5 * leaves, "{tries} tries, {leaves} leaves");
}

/// Leaves that are emptied key by key beside neighbours that stay as they are go, too.
#[test]
fn a_leaf_that_is_emptied_beside_full_ones_goes() {
    for holds in [false, true] {
        let (_directory, store) = new_store();
        let write = WriteOptions::default();
        for number in 0..800 {
            let _outcome = store.put(&key(number), &[7; 20], &write).expect("put");
        }
        if holds {
            // Only tombstones that are to come.
            store.hold_tombstones(u64::MAX - 1).expect("a hold");
        }
        let leaves = store.inner.leaves();
        for (at, pair) in leaves.windows(2).enumerate() {
            let is_in = |key: &Vec<u8>| **key >= *pair[0].0 && **key < *pair[1].0;
            // Every second one keeps less than half of the places of a leaf.
            let count = if at % 2 == 1 { usize::MAX } else { 2 };
            for key in (0..800).map(key).filter(is_in).take(count) {
                let _outcome = remove(&store, &key).expect("delete");
            }
        }
        let leaves = leaves.len();
        let left = store.inner.leaves().len();
        assert!(leaves > 10 && left <= leaves / 2 + 1, "{left} of {leaves} leaves, {holds}");
    }
}

/// Nothing is deleted in them any more when the hold ends.
#[test]
fn leaves_that_held_tombstones_kept_apart_are_merged_by_the_scrub() {
    for is_raised in [false, true] {
        let (_directory, store) = new_store();
        store.hold_tombstones(0).expect("a hold");
        let write = WriteOptions::default();
        for number in 0..800 {
            let _outcome = store.put(&key(number), &[7; 20], &write).expect("put");
        }
        let mut newest = 0;
        for number in 0..800 {
            let outcome = remove(&store, &key(number)).expect("delete");
            newest = newest.max(outcome.written().expect("a tombstone").sequence);
        }
        let state = || (store.inner.leaves().len(), store.merge_tries.load(Ordering::Relaxed));
        let before = state();
        round(&store);
        assert_eq!(state(), before, "all tombstones are held");
        store.hold_tombstones(if is_raised { newest } else { u64::MAX }).expect("a hold");
        (0..8).for_each(|_| round(&store));
        let (leaves, _) = state();
        assert!(before.0 > 10 && leaves < 3, "{leaves} of {} leaves", before.0);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}
