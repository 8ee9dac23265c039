//! Evidence that a repair must not believe, and evidence that it must use: stores that are wrecked
//! in a chosen way.

use crate::home::{Home, New, PAGE, options, write};
use coreplane_engine::{Batch, Engine, Repairable};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Fate, Finding, Geometry, Placement, Scmkv};

const RECORD_HEADER: usize = 20;

fn repair(home: &Home) -> (Scmkv, Vec<Finding>) {
    let repaired = Scmkv::repair(&home.path(), MediaChoice::Auto, options(false), &mut |_| {});
    let (store, repair) = repaired.expect("repair");
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?} after {:#?}", report.damages, repair.findings);
    (store, repair.findings)
}

fn fates(findings: &[Finding], key: &[u8]) -> Vec<Fate> {
    let keys = findings.iter().flat_map(|finding| &finding.keys);
    keys.filter(|(of, _)| of == key).map(|(_, fate)| *fate).collect()
}

fn places(bytes: &[u8], what: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(what.len()).enumerate();
    windows.filter(|(_, bytes)| *bytes == what).map(|(at, _)| at).collect()
}

/// The place of `what`; it must be there once.
fn place_of(bytes: &[u8], what: &[u8]) -> usize {
    let places = places(bytes, what);
    assert_eq!(places.len(), 1, "{:?} is there {} times", what.escape_ascii(), places.len());
    places[0]
}

fn element(page: usize) -> usize {
    2048 + 32 * page
}

fn index_pages(bytes: &[u8]) -> Vec<usize> {
    (1..bytes.len() / PAGE as usize).filter(|page| bytes[element(*page)] & 0xf == 4).collect()
}

fn put_many(store: &Scmkv, count: u32) {
    for number in 0..count {
        let _outcome = store.put(&number.to_le_bytes(), &[5; 40], &write()).expect("put");
    }
}

/// A slot is durable with the write after its own. One that a power cut has left behind may point at
/// a record that is damaged; the later one is sound, and stays.
#[test]
fn a_slot_that_was_left_behind_takes_no_later_record_with_it() {
    for damage in [1, 24] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(32));
        let _outcome = store.put(b"key", b"the first value", &write()).expect("put");
        put_many(&store, 100);
        let before = home.bytes();
        let _outcome = store.put(b"key", b"the second value", &write()).expect("put");
        let mut bytes = home.bytes();
        drop(store);
        // The last slot never left the cache.
        for page in index_pages(&bytes) {
            let range = page * PAGE as usize..(page + 1) * PAGE as usize;
            bytes[range.clone()].copy_from_slice(&before[range]);
        }
        let first = place_of(&bytes, b"the first value");
        bytes[first..].iter_mut().take(damage).for_each(|byte| *byte ^= 0x41);
        home.put_bytes(&bytes);
        let (store, findings) = repair(&home);
        let value = store.get(b"key").expect("get");
        assert_eq!(value.as_deref(), Some(&b"the second value"[..]), "{findings:#?}");
        assert!(!fates(&findings, b"key").contains(&Fate::Lost), "{findings:#?}");
    }
}

/// The member of a batch that a crash cut short replaces nothing.
#[test]
fn what_was_never_committed_replaces_nothing() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(32).placed(Placement::Dram));
    for value in [b"the first value", b"the right value"] {
        let _outcome = store.put(b"key", value, &write()).expect("put");
    }
    let mut batch = Batch::new();
    batch.put(b"key", b"never committed 1").put(b"another", b"never committed 2");
    store.apply(&batch, &write()).expect("apply");
    let mut bytes = home.bytes();
    drop(store);
    // The commit record, and all behind it, were not written yet.
    let members = [b"never committed 1", b"never committed 2"];
    let last = members.map(|value| place_of(&bytes, value)).into_iter().max().expect("two");
    let end = (last / PAGE as usize + 1) * PAGE as usize;
    bytes[(last + 17).next_multiple_of(8)..end].fill(0);
    let right = place_of(&bytes, b"the right value");
    bytes[right] ^= 1;
    home.put_bytes(&bytes);
    let (store, findings) = repair(&home);
    let value = store.get(b"key").expect("get");
    assert_eq!(value.as_deref(), Some(&b"the first value"[..]), "{findings:#?}");
    assert_eq!(fates(&findings, b"key"), [Fate::Uncertain]);
    assert_eq!(store.get(b"another").expect("get"), None);
}

/// A batch that goes on from one page into the next: its keys, and the places of their values, in
/// the order in which they lie in the log.
fn batch_in_two_pages(store: &Scmkv, home: &Home) -> (Vec<Vec<u8>>, Vec<usize>) {
    put_many(store, 30);
    let keys: Vec<Vec<u8>> = (0..12).map(|number| format!("member {number:02}").into()).collect();
    let mut batch = Batch::new();
    for key in &keys {
        batch.put(key, &[key.as_slice(), &[6; 300]].concat());
    }
    store.apply(&batch, &write()).expect("apply");
    let bytes = home.bytes();
    let at = |key: &Vec<u8>| place_of(&bytes, &[key.as_slice(), key, &[6; 300]].concat());
    let mut members: Vec<_> = keys.into_iter().map(|key| (at(&key), key)).collect();
    members.sort();
    let (places, keys): (Vec<usize>, Vec<_>) = members.into_iter().unzip();
    let pages = places[11] / PAGE as usize - places[0] / PAGE as usize;
    assert_eq!(pages, 1, "{places:x?}");
    (keys, places)
}

/// A batch that a crash has cut short in its second page does not become visible because one of
/// its members is damaged.
#[test]
fn damage_commits_no_batch() {
    for (damage, what) in [(1, 1), (1, 0xff), (40, 0x55)] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(32).placed(Placement::Dram));
        let (keys, places) = batch_in_two_pages(&store, &home);
        let mut bytes = home.bytes();
        drop(store);
        let second = places[11] / PAGE as usize * PAGE as usize;
        bytes[second..second + PAGE as usize].fill(0);
        let proof = element(second / PAGE as usize) + 24;
        bytes[proof..proof + 8].fill(0);
        // In the value of the third member.
        bytes[places[2] + 60..][..damage].iter_mut().for_each(|byte| *byte ^= what);
        home.put_bytes(&bytes);
        let (store, findings) = repair(&home);
        for key in &keys {
            assert_eq!(store.get(key).expect("get"), None, "{findings:#?}");
        }
        assert_eq!(store.len().expect("len"), 30);
    }
}

/// The commit record of a batch in two pages is lost: its content is unknown.
#[test]
fn a_batch_in_two_pages_outlives_its_commit_record() {
    for placement in [Placement::Pool, Placement::Dram] {
        for what in [0, 0xff] {
            for is_closed in [false, true] {
                let home = Home::in_memory();
                let store = home.create(New::tiny(32).placed(placement));
                let (keys, places) = batch_in_two_pages(&store, &home);
                let _outcome = store.put(b"what follows", b"the batch", &write()).expect("put");
                let _outcome = store.put(b"what follows", b"that", &write()).expect("put");
                if is_closed {
                    store.close().expect("close");
                }
                let mut bytes = home.bytes();
                drop(store);
                let commit = places[11] + (keys[11].len() * 2 + 300 + RECORD_HEADER);
                let commit = commit.next_multiple_of(8) - RECORD_HEADER;
                let next = place_of(&bytes, b"what followsthe batch") - RECORD_HEADER;
                assert!((24..80).contains(&(next - commit)), "{commit:x} {next:x}");
                bytes[next - 32..next].fill(what);
                home.put_bytes(&bytes);
                let (store, findings) = repair(&home);
                for key in &keys {
                    let value = store.get(key).expect("get");
                    assert!(value.is_some(), "{placement:?}, {what}, {is_closed}: {findings:#?}");
                }
            }
        }
    }
}

/// A line of the index in the pool that has become zeroes.
#[test]
fn slots_that_have_vanished_are_missed() {
    for len in [8, 64, 256] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(32));
        put_many(&store, 100);
        let _outcome = store.put(b"deleted", b"value", &write()).expect("put");
        let _outcome = store.delete(b"deleted", &write()).expect("delete");
        store.close().expect("close");
        drop(store);
        let mut bytes = home.bytes();
        let record =
            place_of(&bytes, &[&7_u32.to_le_bytes()[..], &[5; 40]].concat()) - RECORD_HEADER;
        let points_at_it = |bytes: &[u8], at: usize| {
            let word = u64::from_le_bytes(*bytes[at..].first_chunk().expect("a word"));
            word & ((1 << 39) - 1) == record as u64 / 8
        };
        for page in index_pages(&bytes) {
            let words = (page * PAGE as usize..(page + 1) * PAGE as usize).step_by(8);
            let slots: Vec<usize> = words.filter(|at| points_at_it(&bytes, *at)).collect();
            slots.iter().for_each(|slot| bytes[slot / len * len..][..len].fill(0));
        }
        home.put_bytes(&bytes);
        let (store, findings) = repair(&home);
        assert!(!findings.is_empty(), "{len}");
        assert_eq!(store.len().expect("len"), 100);
        for number in 0..100_u32 {
            let value = store.get(&number.to_le_bytes()).expect("get");
            assert_eq!(value, Some(vec![5; 40]), "{number}, {len}: {findings:#?}");
        }
    }
}

/// A long record whose kind is another by one changed bit: its bytes do not show that it was of a
/// key, and the range does.
#[test]
fn a_record_that_looks_like_none_of_a_key_is_told_as_a_range() {
    let home = Home::in_memory();
    let geometry = Geometry { page_size: 1 << 16, groups: 8, buckets: 16, depth: 0 };
    let new = New { size: 32 << 16, geometry, ..New::tiny(32).placed(Placement::Dram) };
    let store = home.create(new);
    let _outcome = store.put(b"a long record", b"the first value", &write()).expect("put");
    let _outcome = store.put(b"a long record", &[7; 5000], &write()).expect("put");
    put_many(&store, 3);
    let mut bytes = home.bytes();
    drop(store);
    let key = place_of(&bytes, &[b"a long record", &[7; 5000][..]].concat());
    bytes[key - RECORD_HEADER + 6] ^= 4;
    home.put_bytes(&bytes);
    let (store, findings) = repair(&home);
    let value = store.get(b"a long record").expect("get");
    assert_eq!(value.as_deref(), Some(&b"the first value"[..]), "{findings:#?}");
    let hit = (key - RECORD_HEADER) as u64;
    let has_it = |it: &Finding| (it.offset..it.offset + it.len).contains(&hit);
    let told = findings.iter().find(|it| has_it(it)).expect("it is told");
    assert!(told.what.contains("hold what they held before"), "{findings:#?}");
}

/// A word with its check, as `docs/media-format.md` has it.
fn sealed(content: u64, offset: usize) -> [u8; 8] {
    let crc = crc32c::crc32c(&[content.to_le_bytes(), (offset as u64).to_le_bytes()].concat());
    (content | u64::from((crc ^ crc >> 16) as u16) << 48).to_le_bytes()
}

/// A length that matches its check by chance.
#[test]
fn no_page_is_longer_than_a_page() {
    for length in [PAGE + 8, u64::from(u32::MAX), 4001] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(32));
        put_many(&store, 100);
        store.close().expect("close");
        drop(store);
        let mut bytes = home.bytes();
        let page = place_of(&bytes, &[&7_u32.to_le_bytes()[..], &[5; 40]].concat()) / PAGE as usize;
        let at = element(page) + 8;
        assert_ne!(bytes[at..at + 8], [0; 8], "it is full");
        bytes[at..at + 8].copy_from_slice(&sealed(length, at));
        home.put_bytes(&bytes);
        let (store, findings) = repair(&home);
        assert_eq!(store.len().expect("len"), 100, "{findings:#?}");
    }
}

/// One byte of a page's state is damaged. Another word that differs from it in one byte matches its
/// check, too, and is tried first: only the first record tells which one it was.
#[test]
fn a_page_with_a_damaged_byte_in_its_state_loses_nothing() {
    for (byte, damage) in [(2, 0x41), (4, 0x3e), (5, 0x37), (6, 0x13), (7, 0x84)] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(32));
        put_many(&store, 100);
        store.close().expect("close");
        drop(store);
        let mut bytes = home.bytes();
        let page = place_of(&bytes, &[&7_u32.to_le_bytes()[..], &[5; 40]].concat()) / PAGE as usize;
        assert_ne!(bytes[element(page) + 8..][..8], [0; 8], "it is full");
        bytes[element(page) + byte] ^= damage;
        home.put_bytes(&bytes);
        let (store, findings) = repair(&home);
        let told: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(told.len() == 1 && told[0].ends_with("its state; it is as it was"), "{told:#?}");
        assert_eq!(store.len().expect("len"), 100, "{told:#?}");
    }
}

/// The elements of the table's own pages are always the same.
#[test]
fn the_table_knows_itself() {
    for what in [0, 0xff, 0x3c] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(100));
        put_many(&store, 100);
        store.close().expect("close");
        drop(store);
        let mut bytes = home.bytes();
        bytes[2048..2048 + 24].fill(what);
        let second = 64 * PAGE as usize + 2048;
        bytes[second..second + 8].fill(what);
        home.put_bytes(&bytes);
        let (store, findings) = repair(&home);
        assert!(!findings.is_empty());
        assert_eq!(store.len().expect("len"), 100);
        put_many(&store, 100);
        store.close().expect("close");
    }
}
