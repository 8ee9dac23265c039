//! Damage at rest that nobody has looked for yet: whoever checks reads is told of it instead of
//! being shown it, and nobody makes a new value of it.

mod home;

use coreplane_engine::{Engine, Error, Expected, Mutation, UnixMillis, Visibility, WriteOptions};
use coreplane_scmkv::{Options, Placement, Scmkv};
use home::{Home, New, write};

const KEY: &[u8] = b"the key of the record";
const LARGE: &[u8] = b"the key of a large one";

fn large_value() -> Vec<u8> {
    (0..3_u32 << 18).flat_map(u32::to_le_bytes).collect()
}

/// A closed store with a small and a large value.
fn store(placement: Placement) -> Home {
    let home = Home::in_memory();
    let store = home.create(New::of_size(64 << 20).placed(placement));
    let expires_at = Some(UnixMillis(u64::MAX >> 8));
    let lasting = WriteOptions { expires_at, ..write() };
    store.put(KEY, b"worth one million", &lasting).expect("put");
    store.put(LARGE, &large_value(), &write()).expect("put");
    store.close().expect("close");
    home
}

fn open(home: &Home, check_reads: bool) -> Scmkv {
    home.open(Options { check_reads, ..home::options(false) })
}

/// Flips a bit of the only place in the pool where `part` is, `at` bytes after its beginning.
fn flip(home: &Home, part: &[u8], at: usize) {
    let mut bytes = home.bytes();
    let mut places = bytes.windows(part.len()).enumerate().filter(|(_, here)| *here == part);
    let place = places.next().expect("it is in the pool").0;
    assert!(places.next().is_none(), "where it is must be clear");
    bytes[place + at] ^= 4;
    home.put_bytes(&bytes);
}

fn damaged(result: Result<impl std::fmt::Debug, Error>, what: &str) {
    let is_told = matches!(result, Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }));
    assert!(is_told, "{what}: {result:?}");
}

fn each(check: impl Fn(&Home, Placement)) {
    for placement in [Placement::Pool, Placement::Dram] {
        check(&store(placement), placement);
    }
}

#[test]
fn a_checked_read_shows_no_damaged_value() {
    each(|home, placement| {
        flip(home, b"worth one million", 6);
        let store = open(home, true);
        let read = store.get_with(KEY, Visibility::Durable, &mut |record| {
            panic!("{placement:?}: shown {:?}", record.value);
        });
        damaged(read, "get");
        let read = store.multi_get(&[b"absent", KEY], Visibility::Durable, &mut |at, record| {
            assert!(record.is_none(), "{placement:?}: {at} shown");
        });
        damaged(read, "multi_get");
        damaged(store.iterate(0, 100, &mut |_| {}), "iterate");
        // A put needs not know what it replaces, and is the remedy.
        store.put(KEY, b"again", &write()).expect("put");
        assert_eq!(store.get(KEY).expect("get").as_deref(), Some(&b"again"[..]));
    });
}

#[test]
fn an_unchecked_read_shows_what_is_there() {
    each(|home, placement| {
        flip(home, b"worth one million", 6);
        let store = open(home, false);
        let shown = store.get(KEY).expect("get");
        assert_eq!(shown.as_deref(), Some(&b"worth kne million"[..]), "{placement:?}");
    });
}

#[test]
fn a_damaged_key_is_no_absence() {
    each(|home, _| {
        flip(home, KEY, 3);
        damaged(open(home, true).get(KEY), "get");
    });
}

#[test]
fn a_damaged_expiry_is_no_absence() {
    each(|home, _| {
        // The record's header ends with the expiry, just before its key.
        let mut pattern = (u64::MAX >> 8).to_le_bytes().to_vec();
        pattern.extend_from_slice(KEY);
        flip(home, &pattern, 6);
        damaged(open(home, true).get(KEY), "get");
    });
}

#[test]
fn no_piece_of_a_large_value_is_shown_damaged() {
    each(|home, _| {
        let value = large_value();
        flip(home, &value[1 << 20..][..64], 40);
        let store = open(home, true);
        damaged(store.get(LARGE), "get");
        assert!(store.get(KEY).expect("get").is_some());
    });
}

#[test]
fn no_value_is_made_of_a_damaged_one() {
    each(|home, _| {
        flip(home, b"worth one million", 6);
        let store = open(home, false);
        let options = write();
        let made = store.modify(KEY, &options, &mut |record| {
            assert!(record.is_none(), "shown");
            Mutation::Keep
        });
        damaged(made, "modify");
        let expected = Expected::Value(b"worth one million");
        damaged(store.compare_and_set(KEY, expected, b"two", &options), "compare_and_set");
    });
}
