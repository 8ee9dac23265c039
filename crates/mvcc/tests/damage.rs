//! A flipped bit anywhere in a pool is an error or makes no difference: no wrong value, no silent loss, no panic.
//!
//! `COREPLANE_TEST_SCALE=full` flips every bit, otherwise one bit of each byte is flipped.

use coreplane_engine::{
    Batch, Engine, Error, Ordered, Outcome, Repairable, Replicated, TimeSource, UnixMillis,
    WriteOptions,
};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Eviction, Image, Sim, SimOptions};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: [MapKind; 2] = MapKind::ALL;
const PAGE: u64 = 4096;
const PAGES: u64 = 24;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options { background: false, check_reads: true, ..Options::default() }
}

/// A pool, its contents, and the keys that were written last, which only a close vouches for.
struct Made {
    image: Image,
    map: Map,
    last: Vec<Vec<u8>>,
}

fn made(kind: MapKind, closes: bool, count: u32) -> Made {
    let len = PAGE * PAGES;
    let options_of_sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
    let sim = Sim::new(&options_of_sim).expect("memory");
    let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
    let store = store.expect("create");
    let (mut map, mut groups) = (Map::new(), Vec::new());
    for number in 0..count {
        let key = format!("key {:02}", number * 7 % 19).into_bytes();
        let len = if number == 11 { 9000 } else { 40 + number as usize * 37 % 300 };
        let value: Vec<u8> = (0..len).map(|at| (number as usize + at) as u8).collect();
        let options = WriteOptions::default();
        groups.push(vec![key.clone()]);
        match number % 8 {
            3 => {
                let _outcome = store.delete(&key, &options).expect("delete");
                map.remove(&key);
            }
            5 => {
                let other = format!("key {:02}", number * 5 % 19).into_bytes();
                let mut batch = Batch::new();
                batch.put(&other, &value).put(&key, &value);
                store.apply(&batch, &options).expect("a batch");
                groups.last_mut().expect("a group").push(other.clone());
                map.extend([(other, value.clone()), (key, value)]);
            }
            _ => {
                store.put(&key, &value, &options).map(drop).expect("put");
                map.insert(key, value);
            }
        }
    }
    if closes {
        store.close().expect("close");
    }
    drop(store);
    let sim = match closes && count % 2 == 1 {
        false => sim,
        // It is opened once more, and killed before anything is written.
        true => {
            let next = sim.killed().expect("memory");
            let space = Arc::clone(next.space());
            drop(MapEngine::simulated_open(kind, space, &options()).expect("open"));
            next
        }
    };
    // The last group, and with it the last group of the page before if it is the first of its own page.
    let last = groups.into_iter().rev().take(2).flatten().collect();
    Made { image: sim.crash(Eviction::Everything), map, last }
}

/// Checks what an open finds. False if the open is refused, or a read is (of a list: `list_damage.rs`).
fn look(kind: MapKind, sim: &Sim, made: &Made, may_lose: bool, what: &str) -> bool {
    let store = match MapEngine::simulated_open(kind, Arc::clone(sim.space()), &options()) {
        Ok(store) => store,
        Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. } | Error::Unusable(_)) => {
            // It is refused for ever, and not taken for a torn end the next time.
            let sim = sim.crash(Eviction::Everything).reopen().expect("memory");
            let again = MapEngine::simulated_open(kind, Arc::clone(sim.space()), &options());
            assert!(again.is_err(), "{what}: it was refused once, and opens");
            return false;
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let mut is_sound = true;
    for number in 0..19 {
        let key = format!("key {number:02}").into_bytes();
        if may_lose && made.last.contains(&key) {
            continue;
        }
        match store.get(&key) {
            Ok(found) => assert!(
                found.as_ref() == made.map.get(&key),
                "{what}: {number} has changed in silence"
            ),
            Err(_) => is_sound = false,
        }
    }
    is_sound
}

fn flip_all(closes: bool, counts: impl Iterator<Item = u32> + Clone) {
    KINDS.into_iter().for_each(|kind| flip_all_of(kind, closes, counts.clone()));
}

fn flip_all_of(kind: MapKind, closes: bool, counts: impl Iterator<Item = u32>) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let (mut refused, mut flips) = (0, 0);
    for count in counts {
        let made = made(kind, closes, count);
        let used = |page: &u64| {
            let bytes = &made.image.bytes()[(page * PAGE) as usize..][..PAGE as usize];
            bytes.iter().any(|byte| *byte != 0)
        };
        for offset in (1..PAGES).filter(used).flat_map(|page| page * PAGE..(page + 1) * PAGE) {
            // Records begin at multiples of 8: a different bit of each of their bytes is flipped.
            let one = ((offset + offset / 8) % 8) as u32;
            for bit in if is_full { 0..8 } else { one..one + 1 } {
                let mut image = made.image.clone();
                image.flip_bit(offset, bit);
                let sim = image.reopen().expect("memory");
                let what = format!("{count} writes, closed: {closes}, bit {bit} of {offset:#x}");
                flips += 1;
                if !look(kind, &sim, &made, !closes, &what) {
                    refused += 1;
                    // A second open is refused in the same way.
                    let sim = sim.killed().expect("memory");
                    look(kind, &sim, &made, !closes, &format!("{what}, again"));
                }
            }
        }
    }
    // Replaced records cost a list nothing; a tree reads everything that its root leads to.
    let least = if kind == MapKind::List { 5 } else { 10 };
    assert!(refused * least > flips, "{kind:?}: {refused} of {flips} refused");
}

#[test]
fn a_bit_of_a_closed_pool() {
    flip_all(true, [40, 47].into_iter());
}

/// With the page of the last write hardly begun, half full, and full.
#[test]
fn a_bit_of_a_killed_pool() {
    flip_all(false, [32, 41, 47].into_iter());
}

/// The length in a record that is damaged while the store is open is not trusted when the record is replaced: no page
/// becomes free while it has other records.
#[test]
fn a_write_over_a_damaged_record_costs_no_other() {
    let value =
        |number: u32, round: u32| format!("value {number:02} of round {round:03}").into_bytes();
    let key = |number: u32| format!("key {number:02}").into_bytes();
    let round_of = |number: u32| match number {
        7 => 1,
        number if number.is_multiple_of(2) => 59,
        _ => 0,
    };
    for kind in KINDS {
        // Bits of the length of its value.
        for bit in [4, 9, 10, 11] {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
            let path = directory.path().join("pool");
            let (media, geometry) = (MediaChoice::Auto, Geometry::default());
            let store = MapEngine::create(kind, &path, PAGE * 64, geometry, media, &options());
            let store = store.expect("create");
            let put = |number: u32, round: u32| {
                let (key, value) = (key(number), value(number, round));
                store.put(&key, &value, &WriteOptions::default()).map(drop).expect("put");
            };
            (0..60).for_each(|number| put(number, 0));
            let image = std::fs::read(&path).expect("read");
            let wanted = value(7, 0);
            let found = image.windows(wanted.len()).position(|it| it == wanted);
            // Behind its header and its key; the length of the value is in bytes 8 to 11.
            let at = found.expect("it is there") - key(7).len() - 20 + 8 + bit / 8;
            let pool = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
            pool.write_all_at(&[image[at] ^ 1 << (bit % 8)], at as u64).expect("flip");
            put(7, 1);
            // Other keys are written until pages are used again; half of them keep their values.
            for round in 1..60 {
                (0..60).filter(|it| it % 2 == 0).for_each(|number| put(number, round));
            }
            for number in 0..60 {
                let (found, wanted) = (store.get(&key(number)), value(number, round_of(number)));
                assert_eq!(found.expect("get"), Some(wanted), "{kind:?} bit {bit}: {number}");
            }
        }
    }
}

/// A store of sixty keys, as a close or a kill has left it, and the place of the record of one.
fn with_sixty(kind: MapKind, closes: bool, number: u32) -> (Image, usize) {
    let len = PAGE * PAGES;
    let options_of_sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
    let sim = Sim::new(&options_of_sim).expect("memory");
    let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
    let store = store.expect("create");
    store.hold_tombstones(0).expect("hold");
    for number in 0..60 {
        let (key, value) = of_sixty(number);
        store.put(&key, &value, &WriteOptions::default()).map(drop).expect("put");
    }
    if closes {
        store.close().expect("close");
    }
    drop(store);
    let image = sim.crash(Eviction::Everything);
    let record = of_sixty(number);
    let wanted = [record.0, record.1].concat();
    let found = image.bytes().windows(wanted.len()).position(|it| it == wanted);
    (image, found.expect("it is there") - 20)
}

fn of_sixty(number: u32) -> (Vec<u8>, Vec<u8>) {
    (format!("key {number:02}").into_bytes(), format!("the value of {number:02}").into_bytes())
}

/// Its key can be named and written again, wherever it lies: in an old page, in the newest, in the last group that a
/// close has ended.
#[test]
fn a_damaged_record_costs_its_key_alone() {
    let unchecked = Options { background: false, ..Options::default() };
    for (kind, closes) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        // Whether a cut or damage is at the end of a store that was killed is unknown.
        for number in [2, 40, 57, 58, 59].into_iter().filter(|it| closes || *it < 59) {
            let (image, at) = with_sixty(kind, closes, number);
            // Bits of the checksum, the kind, the lengths, the version, the key and the value.
            for (byte, bit) in [(0, 1), (6, 1), (4, 3), (9, 2), (12, 0), (19, 6), (22, 0), (32, 4)]
            {
                let what = format!("{kind:?}, closed {closes}, {number}, bit {bit} of byte {byte}");
                let mut image = image.clone();
                image.flip_bit((at + byte) as u64, bit);
                let sim = image.reopen().expect("memory");
                let store = MapEngine::simulated_open(kind, Arc::clone(sim.space()), &unchecked);
                let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
                for (key, value) in (0..60).filter(|it| *it != number).map(of_sixty) {
                    assert!(store.check(&key).expect(&what), "{what}");
                    assert_eq!(store.get(&key).expect(&what), Some(value), "{what}");
                }
                let (key, value) = of_sixty(number);
                assert!(store.check(&key).is_err(), "{what}");
                let mut shown = 0;
                let changes = store.changes_since(0, &mut |_| shown += 1);
                assert!(matches!(changes, Err(error) if error_is_damage(&error)), "{what}");
                assert_eq!(shown, 59, "{what}");
                let damaged = store.damaged_keys_since(0).expect(&what);
                let [it] = damaged.as_slice() else { panic!("{what}: {damaged:?}") };
                assert_eq!(it.within.start, key, "{what}");
                // The first write has the first version, and each the next.
                assert_eq!(it.sequence, u64::from(number) + 1, "{what}");
                assert!(store.damaged_keys_since(it.sequence).expect(&what).is_empty(), "{what}");
                let options = WriteOptions::default();
                // Its kind or its lengths, which may make no sense, but not its version.
                if matches!(byte, 4 | 6) {
                    let older = WriteOptions { sequence: Some(it.sequence - 1), ..options };
                    let outcome = store.put(&key, b"an older value", &older).expect(&what);
                    assert!(matches!(outcome, Outcome::NotNewer(..)), "{what}: {outcome:?}");
                }
                assert!(store.insert(&key, &value, &options).is_err(), "{what}");
                store.put(&key, &value, &options).map(drop).expect(&what);
                assert!(store.check(&key).expect(&what), "{what}");
                assert!(store.damaged_keys_since(0).expect(&what).is_empty(), "{what}");
                drop(store);
                let sim = sim.killed().expect("memory");
                let store = MapEngine::simulated_open(kind, Arc::clone(sim.space()), &unchecked);
                let store = store.unwrap_or_else(|error| panic!("{what}, again: {error}"));
                for (key, value) in (0..60).map(of_sixty) {
                    assert_eq!(store.get(&key).expect(&what), Some(value), "{what}");
                }
            }
        }
    }
}

/// The other keys are iterated all the same, and the end reports it.
#[test]
fn a_large_value_that_is_not_in_its_pages_costs_its_key_alone() {
    let unchecked = Options { background: false, check_reads: false, ..Options::default() };
    let value: Vec<u8> = (0..2500_u32).flat_map(|it| (it * 7).to_le_bytes()).collect();
    for kind in KINDS {
        let len = PAGE * PAGES;
        let options_of_sim =
            SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
        let sim = Sim::new(&options_of_sim).expect("memory");
        let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
        let store = store.expect("create");
        for number in 0..60 {
            let (key, short) = of_sixty(number);
            let value = if number == 30 { &value } else { &short };
            store.put(&key, value, &WriteOptions::default()).map(drop).expect("put");
        }
        store.close().expect("close");
        drop(store);
        let image = sim.crash(Eviction::Everything);
        let found = image.bytes().windows(64).position(|it| it == &value[..64]);
        // Before the value the header, and the place of the next part.
        let at = found.expect("it is there") - 28;
        // Bits of the kind, the lengths and the version.
        for (byte, bit) in [(6, 1), (4, 3), (12, 0)] {
            let what = format!("{kind:?}, bit {bit} of byte {byte}");
            let mut image = image.clone();
            image.flip_bit((at + byte) as u64, bit);
            let sim = image.reopen().expect("memory");
            let store = MapEngine::simulated_open(kind, Arc::clone(sim.space()), &unchecked);
            let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
            let (mut keys, mut cursor) = (Vec::new(), 0);
            let end = loop {
                match store.iterate(cursor, 7, &mut |entry| keys.push(entry.key.to_vec())) {
                    Ok(0) => break Ok(()),
                    Ok(next) => cursor = next,
                    Err(error) => break Err(error),
                }
            };
            assert!(matches!(end, Err(error) if error_is_damage(&error)), "{what}");
            keys.sort();
            let others = (0..60).filter(|it| *it != 30).map(|it| of_sixty(it).0);
            assert_eq!(keys, others.collect::<Vec<_>>(), "{what}");
        }
    }
}

/// Of a node that cannot be read it is not known what it leads to.
#[test]
fn a_tree_with_a_damaged_node_can_be_emptied() {
    let mut emptied = 0;
    for (closes, check_reads) in [(false, false), (true, false), (true, true)] {
        let made = made(MapKind::CowTree, closes, 24);
        let options = Options { background: false, check_reads, ..Options::default() };
        let open = |sim: &Sim| {
            MapEngine::simulated_open(MapKind::CowTree, Arc::clone(sim.space()), &options)
        };
        let step = if std::env::var("COREPLANE_TEST_SCALE").is_ok() { 7 } else { 61 };
        for offset in (PAGE..PAGE * PAGES).step_by(step) {
            let what = format!("closed {closes}, checked {check_reads}, byte {offset:#x}");
            let mut image = made.image.clone();
            image.flip_bit(offset, (offset % 8) as u32);
            let sim = image.reopen().expect("memory");
            let Ok(store) = open(&sim) else { continue };
            let is_sound = made.map.keys().all(|key| store.get(key).is_ok());
            store.clear().unwrap_or_else(|error| panic!("{what}: {error}"));
            let _outcome = store.put(b"new", b"value", &WriteOptions::default()).expect(&what);
            let is_right = |store: &MapEngine| {
                let is_gone = made.map.keys().all(|key| store.get(key).expect(&what).is_none());
                is_gone
                    && store.len().expect(&what) == 1
                    && store.get(b"new").expect(&what).is_some()
            };
            assert!(is_right(&store), "{what}");
            drop(store);
            let sim = sim.crash(Eviction::Everything).reopen().expect("memory");
            assert!(is_right(&open(&sim).expect(&what)), "{what}, opened again");
            emptied += u32::from(!is_sound);
        }
    }
    assert!(emptied > 10, "{emptied} with damage that was met");
}

/// Shows all keys from a cursor on; the result is that of the last call.
fn iterated(store: &MapEngine, mut cursor: u64, count: usize) -> (Vec<Vec<u8>>, Result<(), Error>) {
    let mut keys = Vec::new();
    loop {
        match store.iterate(cursor, count, &mut |entry| keys.push(entry.key.to_vec())) {
            Ok(0) => return (keys, Ok(())),
            Ok(next) => cursor = next,
            Err(error) => return (keys, Err(error)),
        }
        assert!(keys.len() < 1000, "it goes round in circles");
    }
}

/// A key was passed over, and is sound when the iteration ends: it was not shown all the same.
#[test]
fn an_iteration_reports_what_it_has_passed_over() {
    for kind in KINDS {
        let (mut image, at) = with_sixty(kind, true, 20);
        // A bit of the value.
        image.flip_bit(at as u64 + 32, 4);
        let sim = image.reopen().expect("memory");
        let store = MapEngine::simulated_open(kind, Arc::clone(sim.space()), &options());
        let store = store.expect("open");
        let (mut shown, mut cursor) = (0, 0);
        while shown < 30 {
            cursor = store.iterate(cursor, 7, &mut |_| shown += 1).expect("more");
        }
        let (key, value) = of_sixty(20);
        store.put(&key, &value, &WriteOptions::default()).map(drop).expect("put");
        let (rest, end) = iterated(&store, cursor, 7);
        assert!(matches!(&end, Err(error) if error_is_damage(error)), "{kind:?}: {end:?}");
        assert_eq!(shown + rest.len(), 59, "{kind:?}");
        let (keys, end) = iterated(&store, 0, 7);
        assert!(keys.len() == 60 && end.is_ok(), "{kind:?}: {} keys, {end:?}", keys.len());
    }
}

/// Looks at every key alone, between its neighbours, and with all others; returns the keys that can be read.
fn readable(store: &MapEngine, keys: &[Vec<u8>], what: &str) -> Vec<Vec<u8>> {
    let is_sound = |key: &Vec<u8>| store.get(key).is_ok_and(|value| value.is_some());
    let sound: Vec<Vec<u8>> = keys.iter().filter(|key| is_sound(key)).cloned().collect();
    if sound.is_empty() || sound.len() == keys.len() {
        return sound;
    }
    for (at, key) in keys.iter().enumerate() {
        for reverse in [false, true] {
            let (end, mut shown) = (keys.get(at + 1).map(Vec::as_slice), Vec::new());
            let scanned = store.scan(key, end, reverse, usize::MAX, &mut |entry| {
                shown.push(entry.key.to_vec());
                true
            });
            let what = format!("{what}, key {at}, reverse: {reverse}, {scanned:?}");
            match is_sound(key) {
                true => assert!(scanned.is_ok() && shown == [key.clone()], "{what}"),
                false => assert!(matches!(scanned, Err(it) if error_is_damage(&it)), "{what}"),
            }
        }
    }
    for count in [1, 7, 1000] {
        let (shown, end) = iterated(store, 0, count);
        assert!(shown == sound, "{what}: {} of {} by {count}", shown.len(), sound.len());
        assert!(matches!(end, Err(error) if error_is_damage(&error)), "{what}");
    }
    let mut shown = 0;
    let changes = store.changes_since(0, &mut |it| shown += usize::from(it.record.is_some()));
    assert!(matches!(changes, Err(error) if error_is_damage(&error)), "{what}");
    assert_eq!(shown, sound.len(), "{what}");
    sound
}

/// All other keys are iterated, scanned, and swept when they have expired.
#[test]
fn a_damaged_node_costs_the_keys_below_it_alone() {
    let clock = Arc::new(AtomicU64::new(1_000));
    let source = Arc::clone(&clock);
    let time: TimeSource = Arc::new(move || UnixMillis(source.load(Ordering::Relaxed)));
    let options = Options { time: Some(time), ..options() };
    let len = PAGE * 64;
    let options_of_sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
    let sim = Sim::new(&options_of_sim).expect("memory");
    let store = MapEngine::simulated_create(MapKind::CowTree, Arc::clone(sim.space()), &options);
    let store = store.expect("create");
    store.hold_tombstones(0).expect("hold");
    let keys: Vec<Vec<u8>> = (0..200).map(|it| format!("key {it:03}").into_bytes()).collect();
    let mut batch = Batch::new();
    for (number, key) in keys.iter().enumerate() {
        match number {
            190 => batch.put_until(key, b"the value", Some(UnixMillis(2_000))),
            _ => batch.put(key, b"the value"),
        };
    }
    store.apply(&batch, &WriteOptions::default()).expect("a batch");
    store.close().expect("close");
    drop(store);
    let image = sim.crash(Eviction::Everything);
    let (mut leaves, mut inner) = (0, 0);
    for offset in (PAGE..len).step_by(61) {
        let mut image = image.clone();
        image.flip_bit(offset, (offset % 8) as u32);
        clock.store(1_000, Ordering::Relaxed);
        let sim = image.reopen().expect("memory");
        let open = |sim: &Sim| {
            MapEngine::simulated_open(MapKind::CowTree, Arc::clone(sim.space()), &options)
        };
        let Ok(store) = open(&sim) else { continue };
        let what = format!("byte {offset:#x}");
        let sound = readable(&store, &keys, &what);
        leaves += u32::from((2..8).contains(&(200 - sound.len())));
        inner += u32::from((8..200).contains(&(200 - sound.len())));
        clock.store(3_000, Ordering::Relaxed);
        let swept = u64::from(sound.contains(&keys[190]));
        if !sound.is_empty() {
            assert_eq!(store.sweep_expired().expect(&what), swept, "{what}");
        }
        drop(store);
        let others: Vec<_> = keys.iter().filter(|it| **it != keys[190]).cloned().collect();
        let store = open(&sim.killed().expect("memory")).expect(&what);
        let again = readable(&store, &others, &what);
        let left: Vec<_> = sound.into_iter().filter(|it| *it != keys[190]).collect();
        assert!(again == left, "{what}: {} and {}", again.len(), left.len());
    }
    assert!(leaves > 20 && inner > 2, "{leaves} leaves, {inner} inner nodes were damaged");
}

fn error_is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::ChecksumMismatch { .. })
}
