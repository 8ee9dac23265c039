//! A damaged key among others of its leaf, of long keys those with the same prefix: a walk through them reports the
//! damage, or shows all the others.

use super::{PAGE, is_damage, key, options};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, Entry, Ordered, Replicated, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const ALIKE: usize = 4;

/// The common beginning of keys, longer than the part in a record.
fn alike(number: usize) -> Vec<u8> {
    [vec![b'k'; 460], format!("{number:05}").into_bytes(), vec![b'l'; 600]].concat()
}

fn created(path: &Path, check_reads: bool) -> Bptree {
    let options = Options { check_reads, background: false, ..options() };
    Bptree::create(path, 2 << 20, PAGE as u32, MediaChoice::Auto, &options).expect("create")
}

fn put(store: &Bptree, key: &[u8], value: &[u8]) {
    let _outcome = store.put(key, value, &WriteOptions::default()).expect("put");
}

/// Damages the rest of a key in a running store: its number, so that it sorts above or below all others; or,
/// without a bit, the head of its page.
fn damage(path: &Path, number: usize, bit: u8) {
    let needle = format!("{number:05}llll").into_bytes();
    let pool = std::fs::read(path).expect("read");
    let at = pool.windows(needle.len()).position(|it| it == needle).expect("the rest");
    let file = std::fs::File::options().write(true).open(path).expect("open");
    let at = if bit > 0 { at } else { at / PAGE * PAGE + 4 };
    file.write_all_at(&[pool[at] ^ bit.max(1)], at as u64).expect("write");
}

fn scanned(
    store: &Bptree,
    (start, end): (&[u8], Option<&[u8]>),
    reverse: bool,
) -> Option<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    let told = store.scan(start, end, reverse, usize::MAX, &mut |entry| {
        keys.push(entry.key.to_vec());
        true
    });
    if reverse {
        keys.reverse();
    }
    told.as_ref().err().into_iter().for_each(|error| assert!(is_damage(error), "{error}"));
    told.is_ok().then_some(keys)
}

/// Scans from each key to each other one; returns how many scans report damage.
fn scan_all(store: &Bptree, (hurt, is_deleted): (usize, bool), what: &str) -> usize {
    let sound: Vec<_> = (0..ALIKE).filter(|it| *it != hurt).map(alike).collect();
    let (mut ends, mut told) = (vec![None], 0);
    ends.extend((0..ALIKE).map(|number| Some(alike(number))));
    let starts: Vec<_> = (0..ALIKE).map(alike).chain([Vec::new()]).collect();
    for (start, end) in starts.iter().flat_map(|start| ends.iter().map(move |end| (start, end))) {
        let is_within = |key: &&Vec<u8>| *key >= start && end.as_ref().is_none_or(|end| *key < end);
        let expected: Vec<_> = sound.iter().filter(is_within).collect();
        for reverse in [false, true] {
            let Some(mut keys) = scanned(store, (start, end.as_deref()), reverse) else {
                assert!(!is_deleted, "{what}: a tombstone is nothing to a scan");
                told += 1;
                continue;
            };
            // A reader without checks is shown the damaged bytes.
            keys.retain(|key| (0..ALIKE).any(|number| alike(number) == *key));
            assert!(keys.iter().eq(expected.iter().copied()), "{what}, reverse: {reverse}");
        }
    }
    told
}

#[test]
fn a_scan_leaves_out_no_key_beside_one_that_is_damaged() {
    let mut told = 0;
    for case in 0..2 * 2 * 3 * ALIKE {
        let (check_reads, is_deleted) = (case & 1 > 0, case & 2 > 0);
        let (hurt, bit) = (case / 12, [0x40, 0x20, 0][case / 4 % 3]);
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let store = created(&path, check_reads);
        store.hold_tombstones(0).expect("hold");
        (0..ALIKE).for_each(|number| put(&store, &alike(number), b"value"));
        if is_deleted {
            let _outcome = store.delete(&alike(hurt), &WriteOptions::default()).expect("delete");
        }
        // A scan, so that an order is kept.
        assert!(scanned(&store, (b"", None), false).is_some());
        damage(&path, hurt, bit);
        let what =
            format!("{hurt} of {ALIKE}, checks: {check_reads}, deleted: {is_deleted}, {bit}");
        told += scan_all(&store, (hurt, is_deleted), &what);
        let other = alike((hurt + 1) % ALIKE);
        (0..40).for_each(|round| put(&store, &other, &[round; 20]));
        told += scan_all(&store, (hurt, is_deleted), &format!("{what}, written anew"));
    }
    assert!(told > 0);
}

/// The order of the places may be from before the damage: then the damaged key is not where its bytes belong.
#[test]
fn a_scan_leaves_out_no_key_beside_a_short_one_that_is_damaged() {
    const SHORT: u32 = 30;
    let (mut told, mut shown) = (0, 0);
    // Below all others, and above all others.
    for case in 0..2 * 2 * 2 * 3 {
        let (check_reads, is_ordered, bit) =
            (case & 1 > 0, case & 2 > 0, [0x40, 0x10][case / 4 % 2]);
        let hurt = [0, 15, 29][case / 8];
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let store = created(&path, check_reads);
        (0..SHORT).rev().for_each(|number| put(&store, &key(number), b"value"));
        if is_ordered {
            assert!(scanned(&store, (b"", None), false).is_some());
        }
        let pool = std::fs::read(&path).expect("read");
        let at = pool.windows(9).position(|it| it == key(hurt)).expect("the key");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(&[pool[at] ^ bit], at as u64).expect("write");
        let starts = || std::iter::once(Vec::new()).chain((0..SHORT).map(key));
        for (start, end) in starts().flat_map(|start| starts().map(move |end| (start.clone(), end)))
        {
            let end = Some(end).filter(|end| !end.is_empty());
            let is_within = |key: &Vec<u8>| *key >= start && end.as_ref().is_none_or(|it| key < it);
            let sound = (0..SHORT).filter(|number| *number != hurt).map(key);
            let expected: Vec<_> = sound.filter(is_within).collect();
            for reverse in [false, true] {
                let keys = scanned(&store, (&start, end.as_deref()), reverse);
                told += u32::from(keys.is_none());
                shown += u32::from(keys.is_some() && is_ordered && !expected.is_empty());
                let what = || format!("case {case}, from {start:?} to {end:?}, reverse: {reverse}");
                assert!(keys.is_none_or(|keys| keys == expected), "{}", what());
            }
        }
    }
    assert!(told > 0 && shown > 1_000, "{told} told, {shown} shown");
}

/// An iteration shows the rest, and reports the damage at its end.
#[test]
fn an_iteration_goes_past_a_key_that_is_damaged() {
    const KEYS: usize = 40;
    let key = |number: usize| [format!("{number:05}").into_bytes(), alike(number)].concat();
    for count in [1, 7, 1000] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let store = created(&path, true);
        (0..KEYS).for_each(|number| put(&store, &key(number), b"value"));
        let mut newest = 0;
        let mut note = |entry: Entry<'_>| {
            newest = if entry.key == key(20) { entry.sequence } else { newest };
        };
        store.changes_since(0, &mut note).expect("changes");
        [(3, 0x40), (20, 0)].iter().for_each(|(number, bit)| damage(&path, *number, *bit));
        let (mut keys, mut cursor) = (Vec::new(), 0);
        let told = loop {
            let before = keys.len();
            let visit = &mut |entry: Entry<'_>| keys.push(entry.key.to_vec());
            match store.iterate(cursor, count, visit) {
                Ok(0) => panic!("nothing is said of the damage"),
                Ok(next) => cursor = next,
                Err(error) => {
                    assert_eq!(keys.len(), before, "whoever is told is shown nothing beside it");
                    break error;
                }
            }
        };
        assert!(is_damage(&told), "{told}");
        // Another call reports it again.
        assert!(store.iterate(cursor, count, &mut |_| {}).is_err_and(|it| is_damage(&it)));
        // The changes newer than both keys lack nothing.
        let since = |sequence| store.changes_since(sequence, &mut |_| {});
        assert!(since(newest - 1).is_err_and(|it| is_damage(&it)));
        since(newest).expect("no key that is damaged");
        let sound = (0..KEYS).filter(|number| ![3, 20].contains(number)).map(key);
        assert!(keys.into_iter().eq(sound), "by {count}");
    }
}
