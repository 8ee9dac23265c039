//! Bits that flip in the index: the log is the truth, and the index is mended from it.
//!
//! | a bit flips in | possible answers until the next scrub | and afterwards |
//! |---|---|---|
//! | the slot of a key | its record, an error, or nothing | its record |
//! | the slot of a deleted key | nothing, or an error | nothing |
//! | an empty slot | each record, or an error | each record |
//!
//! Every bit of chosen slots is flipped: under an open store, which then cleans; and in a pool that
//! is opened afterwards. The cleaner must not free live records, whatever their slots have become.

use crate::home::{self, Home};
use crate::image::{Area, Expected, Image, images, options};
use coreplane_engine::{Engine, Error, Repairable, WriteOptions};
use coreplane_scmkv::Scmkv;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// The word at `at`.
fn word_of(image: &Image, at: usize) -> u64 {
    u64::from_le_bytes(*image.bytes[at..].first_chunk().expect("a word"))
}

/// The places of the index slots, in segments that are in use: an index page begins with a word for
/// each.
fn slots_of(image: &Image) -> Vec<usize> {
    const SEGMENT: usize = 256;
    const PAGE: usize = home::PAGE as usize;
    let areas = image.areas();
    let is_slot = |at: &usize| {
        let (page, segment) = (at - at % PAGE, at % PAGE / SEGMENT);
        areas[*at] == Area::Index && segment > 0 && word_of(image, page + 8 * segment) != 0
    };
    (0..image.bytes.len()).step_by(8).filter(is_slot).collect()
}

/// The slots whose bits are flipped, with their places in the pool.
fn chosen(image: &Image) -> Vec<(&'static str, usize)> {
    let word = |at: usize| word_of(image, at);
    let slots = slots_of(image);
    let record = |at: usize| ((word(at) & ((1 << 39) - 1)) << 3) as usize;
    let marks = |at: usize| (word(at) >> 40 & 1 == 1, word(at) >> 39 & 1 == 1);
    let is_large = |at: usize| word(record(at)) >> 32 >> 20 & 4 != 0;
    let of = |what: &'static str, wanted: &dyn Fn(usize) -> bool, count: usize| {
        let found: Vec<_> = slots.iter().copied().filter(|at| wanted(*at)).take(count).collect();
        assert_eq!(found.len(), count, "{what}");
        found.into_iter().map(move |at| (what, at)).collect::<Vec<_>>()
    };
    let is_used = |at: usize| word(at) > 1;
    let is_put = |at: usize| is_used(at) && marks(at) == (false, false);
    [
        of("a put", &|at| is_put(at) && !is_large(at), 3),
        of("one that expires", &|at| is_used(at) && marks(at) == (false, true), 1),
        of("one of overflow records", &|at| is_put(at) && is_large(at), 1),
        of("a tombstone", &|at| is_used(at) && marks(at).0, 2),
        of("an empty slot", &|at| word(at) == 0, 1),
    ]
    .concat()
}

fn flip(home: &Home, at: usize, bit: u32) {
    let file = std::fs::File::options().read(true).write(true).open(home.path()).expect("open");
    let mut byte = [0];
    let at = at as u64 + u64::from(bit / 8);
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], at).expect("write");
}

/// The differences from `expected`. `is_mended`: nothing may be missing.
fn differences(store: &Scmkv, expected: &Expected, is_mended: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, value) in expected {
        match store.get(key) {
            Ok(found) if found == *value => {}
            Ok(None) | Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. })
                if !is_mended => {}
            found => wrong.push(format!("{}: {found:?}", String::from_utf8_lossy(key))),
        }
    }
    if is_mended {
        let report = store.verify(&mut |_| {}).expect("verify");
        wrong.extend(report.damages.iter().map(|damage| damage.what.clone()));
        let live = expected.iter().filter(|(_, value)| value.is_some());
        let live: Vec<_> = live.map(|(key, value)| (key.clone(), value.clone().unwrap())).collect();
        match home::contents(store) {
            Ok(found) if found.iter().map(|(k, v)| (k.clone(), v.clone())).eq(live) => {}
            Ok(found) => wrong.push(format!("iterate shows {} records", found.len())),
            Err(error) => wrong.push(format!("iterate: {error}")),
        }
    }
    wrong
}

/// Writes some keys anew, so that every page has something dead, and cleans as long as that helps.
fn write_and_clean(store: &Scmkv, expected: &mut Expected) {
    let options = WriteOptions::default();
    for number in (0..110).step_by(4) {
        let key = format!("key-{number:03}").into_bytes();
        // A key behind a slot that leads nowhere is not written over.
        if store.put(&key, b"written anew", &options).is_ok() {
            expected.insert(key, Some(b"written anew".to_vec()));
        }
    }
    clean(store);
}

fn clean(store: &Scmkv) {
    for _ in 0..100 {
        match store.clean() {
            Ok(true) => {}
            Ok(false) => return,
            Err(Error::NoSpace { .. }) => std::thread::yield_now(),
            Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it cleans without an end");
}

fn image() -> Image {
    let closed = images().into_iter().next().expect("one that is closed, its index in the pool");
    assert!(closed.name.contains("closed") && closed.name.contains("pool"));
    closed
}

type Story = fn(&Home, (usize, u32), &mut Expected) -> Scmkv;

/// Runs a story for each bit of each chosen slot; returns what is wrong when the scrub has ended.
fn tell(story: Story) {
    let (home, image) = (Home::in_memory(), image());
    let mut wrong = Vec::new();
    for (what, at) in chosen(&image) {
        for bit in 0..64 {
            home.put_bytes(&image.bytes);
            let mut expected = image.expected.clone();
            let store = story(&home, (at, bit), &mut expected);
            let report = store.scrub(&mut |_| {}).expect("scrub");
            assert!(report.is_sound(), "{what}, bit {bit}: {:?}", report.damages);
            let mut found = differences(&store, &expected, true);
            drop(store);
            // As a kill leaves it.
            let store = home.open(options());
            found.extend(differences(&store, &expected, true));
            if !found.is_empty() {
                wrong.push(format!("{what}, bit {bit}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

#[test]
fn a_scrub_mends_a_slot_that_was_hit_under_an_open_store() {
    tell(|home, (at, bit), expected| {
        let store = home.open(options());
        flip(home, at, bit);
        assert_eq!(differences(&store, expected, false), Vec::<String>::new());
        store
    });
}

#[test]
fn a_scrub_mends_a_slot_that_was_hit_in_a_closed_pool() {
    tell(|home, (at, bit), expected| {
        flip(home, at, bit);
        let store = home.open(options());
        assert_eq!(differences(&store, expected, false), Vec::<String>::new());
        store
    });
}

#[test]
fn the_cleaner_frees_no_record_whose_slot_was_hit_under_it() {
    tell(|home, (at, bit), expected| {
        let store = home.open(options());
        store.len().expect("all records are counted");
        flip(home, at, bit);
        write_and_clean(&store, expected);
        store
    });
}

#[test]
fn the_cleaner_frees_no_record_whose_slot_was_hit_before_the_open() {
    tell(|home, (at, bit), expected| {
        flip(home, at, bit);
        let store = home.open(options());
        write_and_clean(&store, expected);
        store
    });
}

/// Written, killed and cleaned in the next life: with the index as the flip has left it by then.
#[test]
fn nor_in_the_life_after_the_next() {
    tell(|home, (at, bit), expected| {
        let store = home.open(options());
        store.len().expect("all records are counted");
        flip(home, at, bit);
        write_and_clean(&store, expected);
        drop(store);
        let store = home.open(options());
        write_and_clean(&store, expected);
        store
    });
}

/// A slot that was once in use may be passed by other keys' lookups; an empty slot ends them.
#[test]
fn a_slot_in_use_before_that_looks_like_one_never_used_hides_nothing() {
    let home = Home::in_memory();
    let store = home.create(home::New::tiny(64).with(options()));
    let write = WriteOptions::default();
    let mut expected = Expected::new();
    // Enough in one group's reach that buckets are passed, and some gone for good.
    for number in 0..900_u32 {
        let key = format!("key-{number:03}").into_bytes();
        let _outcome = store.put(&key, b"v", &write).expect("put");
        expected.insert(key, Some(b"v".to_vec()));
    }
    for number in (0..900_u32).step_by(3) {
        let key = format!("key-{number:03}").into_bytes();
        let _outcome = store.delete(&key, &write).expect("delete");
        expected.insert(key, None);
    }
    for _ in 0..3 {
        clean(&store);
        for number in (1..900_u32).step_by(3) {
            let key = format!("key-{number:03}").into_bytes();
            let _outcome = store.put(&key, b"w", &write).expect("put");
            expected.insert(key, Some(b"w".to_vec()));
        }
    }
    store.close().expect("close");
    drop(store);
    let image = Image { name: "", bytes: home.bytes(), expected, last: None };
    let deleted: Vec<usize> =
        slots_of(&image).into_iter().filter(|at| word_of(&image, *at) == 1).collect();
    assert!(!deleted.is_empty(), "no slot was passed");
    for at in deleted {
        home.put_bytes(&image.bytes);
        let store = home.open(options());
        flip(&home, at, 0);
        clean(&store);
        assert!(store.scrub(&mut |_| {}).expect("scrub").is_sound());
        let wrong = differences(&store, &image.expected, true);
        assert!(wrong.is_empty(), "{at:#x}: {wrong:?}");
    }
}

#[test]
fn the_scrub_in_the_background_mends_a_slot() {
    let (home, image) = (Home::in_memory(), image());
    for (what, at) in chosen(&image).into_iter().step_by(3) {
        home.put_bytes(&image.bytes);
        let store = home.open(coreplane_scmkv::Options { background: true, ..options() });
        store.len().expect("all records are counted");
        flip(&home, at, 45);
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.stats().figure("repaired_slots") == Some(0) {
            assert!(Instant::now() < deadline, "{what} was not mended");
            std::thread::sleep(Duration::from_millis(10));
        }
        store.close().expect("close");
        drop(store);
        let store = home.open(options());
        assert_eq!(differences(&store, &image.expected, true), Vec::<String>::new(), "{what}");
    }
}
