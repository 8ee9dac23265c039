//! Damage at rest that has not been found yet: a checked read reports it instead of showing it, and
//! no write makes a new value of it.

use crate::home::{self, Home, New, write};
use coreplane_engine::{
    Engine, Error, Expected, Mutation, Outcome, UnixMillis, Visibility, WriteOptions,
};
use coreplane_scmkv::{Options, Placement, Scmkv};
use std::os::unix::fs::FileExt as _;

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
    let _outcome = store.put(KEY, b"worth one million", &lasting).expect("put");
    let _outcome = store.put(LARGE, &large_value(), &write()).expect("put");
    store.close().expect("close");
    home
}

fn open(home: &Home, check_reads: bool) -> Scmkv {
    home.open(Options { check_reads, ..home::options(false) })
}

/// Flips a bit of the only place in the pool that holds `part`, `at` bytes after its beginning.
fn flip(home: &Home, part: &[u8], at: usize) {
    let mut bytes = home.bytes();
    let mut places = bytes.windows(part.len()).enumerate().filter(|(_, here)| *here == part);
    let place = places.next().expect("it is in the pool").0;
    assert!(places.next().is_none(), "where it is must be clear");
    bytes[place + at] ^= 4;
    home.put_bytes(&bytes);
}

/// As [`flip`], beside a store that is open.
fn flip_live(home: &Home, part: &[u8], at: usize) {
    let bytes = home.bytes();
    let place = bytes.windows(part.len()).position(|here| here == part).expect("it is in the pool");
    let file = std::fs::File::options().write(true).open(home.path()).expect("open");
    file.write_all_at(&[bytes[place + at] ^ 4], (place + at) as u64).expect("write");
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
        damaged(store.iterate(0, usize::MAX, &mut |_| {}), "iterate");
        // A put need not know the record that it replaces, and is the remedy.
        let _outcome = store.put(KEY, b"again", &write()).expect("put");
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

/// The put replaces the damaged record, so that no other reader meets the damage any more.
#[test]
fn a_put_of_a_damaged_key_ends_the_damage() {
    type Write = fn(&Scmkv) -> Result<Outcome, Error>;
    let writes: [(Write, Option<&[u8]>); 3] = [
        (|store| store.put(KEY, b"again", &write()), Some(b"again")),
        (|store| store.put(KEY, b"later", &home::early()), Some(b"later")),
        (|store| store.delete(KEY, &write()), None),
    ];
    for (do_write, value) in writes {
        each(|home, placement| {
            let store = open(home, false);
            let _outcome = store.put(b"another", b"value", &write()).expect("put");
            // While it is open: the index is what it was.
            flip_live(home, KEY, 3);
            assert!(store.get(KEY).is_err() && store.iterate(0, usize::MAX, &mut |_| {}).is_err());
            let outcome = do_write(&store).expect("a write");
            assert!(outcome.written().is_some_and(|it| it.replaced), "{placement:?}: {outcome:?}");
            assert_eq!(store.get(KEY).expect("get").as_deref(), value);
            let left = home::contents(&store).expect("no damage is met");
            assert_eq!(left.get(KEY).map(Vec::as_slice), value);
            assert_eq!(store.len().expect("len"), left.len() as u64);
        });
    }
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

/// Keys are put until every segment of the index was split several times, which asks each record for its key.
#[test]
fn a_damaged_key_is_no_absence_after_splits() {
    for placement in [Placement::Pool, Placement::Dram] {
        let home = Home::in_memory();
        let mut new = New::tiny(8_192).placed(placement);
        new.options.check_reads = true;
        let store = home.create(new);
        let _outcome = store.put(KEY, b"worth one million", &write()).expect("put");
        flip_live(&home, KEY, 3);
        damaged(store.get(KEY), "get");
        for number in 0..6_000_u32 {
            let key = format!("another key {number}");
            let _outcome = store.put(key.as_bytes(), b"v", &write()).expect("a put of another key");
        }
        damaged(store.get(KEY), "get after splits");
        let inserted = store.insert(KEY, b"again", &write()).expect("insert");
        assert!(matches!(inserted, Outcome::Exists(_)), "{inserted:?}");
        damaged(store.clear(), "clear");
        let _outcome = store.put(KEY, b"again", &write()).expect("put");
        assert_eq!(store.get(KEY).expect("get").as_deref(), Some(&b"again"[..]));
        store.clear().expect("cleared");
        assert_eq!(store.len().expect("a count"), 0);
    }
}
