//! A bit that flips in the kind or the expiry of a record, while the store is open: no read takes it for an absence,
//! and no rewriting of its leaf erases it.

use crate::{PAGE, is_damage, key};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{
    Batch, Engine, Entry, Ordered, Repairable, Replicated, UnixMillis, WriteOptions,
};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;

const OTHERS: u32 = 10;
const HURT: u32 = 5;
/// A bit of the milliseconds alone: without it the expiry has passed.
const FAR: UnixMillis = UnixMillis(1 << 42);

/// Byte and bit of a header.
type Flip = (usize, u8);
/// A record with a kind that no record of a leaf has.
const KINDS: [Flip; 2] = [(6, 4), (6, 8)];
const EXPIRY: Flip = (25, 4);

fn others() -> impl Iterator<Item = u32> + Clone {
    (0..=OTHERS).filter(|number| *number != HURT)
}

fn put_others(store: &Bptree, count: usize) {
    for number in others().cycle().take(count) {
        let _outcome = store.put(&key(number), &[1; 50], &WriteOptions::default()).expect("put");
    }
}

/// A store whose tombstones are kept, with a record, or a tombstone, of which one bit has flipped since.
fn hurt(
    name: &[u8],
    flip: Flip,
    is_deleted: bool,
    check_reads: bool,
) -> (tempfile::TempDir, Bptree) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { check_reads, background: false, ..Options::default() };
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, &options);
    let store = store.expect("create");
    store.hold_tombstones(0).expect("hold");
    let header = if flip == EXPIRY { 28 } else { 20 };
    let expires_at = (flip == EXPIRY).then_some(FAR);
    let with = WriteOptions { expires_at, ..WriteOptions::default() };
    let _outcome = store.put(name, b"value", &with).expect("put");
    if is_deleted {
        let _outcome = store.delete(name, &WriteOptions::default()).expect("delete");
    }
    put_others(&store, OTHERS as usize);
    let bytes = std::fs::read(&path).expect("read");
    let beginning = &name[..name.len().min(100)];
    let records = bytes.windows(beginning.len()).enumerate();
    let mut places = records.filter(|(_, it)| *it == beginning).map(|(at, _)| at);
    let at = places.nth(usize::from(is_deleted)).expect("the record") - header + flip.0;
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_all_at(&[bytes[at] ^ flip.1], at as u64).expect("write");
    (directory, store)
}

/// Every read and every write that depends on the record reports damage.
fn is_told(store: &Bptree, name: &[u8], what: &str) {
    let default = WriteOptions::default();
    let scan = |reverse| store.scan(b"", None, reverse, usize::MAX, &mut |_| true);
    let answers = [
        store.get(name).map(drop),
        store.check(name).map(drop),
        store.multi_get(&[key(0).as_slice(), name], Default::default(), &mut |_, _| {}).map(drop),
        store.insert(name, b"new", &default).map(drop),
        store.update(name, b"new", &default).map(drop),
        store.delete(name, &default).map(drop),
        scan(false),
        scan(true),
        store.changes_since(0, &mut |entry| assert_ne!(entry.key, name, "{what}: a change")),
    ];
    for (number, answer) in answers.iter().enumerate() {
        assert!(answer.as_ref().is_err_and(is_damage), "{what}, {number}: {answer:?}");
    }
    let damaged = store.damaged_keys_since(0).expect("damaged keys");
    let is_named = damaged.iter().any(|it| *it.within.start <= *name);
    assert!(damaged.len() == 1 && is_named, "{what}: {damaged:?}");
    assert!(!store.verify(&mut |_| {}).expect("verify").is_sound(), "{what}");
    others().for_each(|it| assert!(store.get(&key(it)).expect(what).is_some(), "{what}: {it}"));
    assert_eq!(store.get(b"another").expect(what), None);
}

/// The number of keys that an iteration shows, and whether it reports damage.
fn listed(store: &Bptree) -> (usize, bool) {
    let (mut shown, mut cursor) = (0, 0);
    loop {
        match store.iterate(cursor, 3, &mut |_: Entry<'_>| shown += 1) {
            Ok(0) => return (shown, false),
            Ok(next) => cursor = next,
            Err(error) => {
                assert!(is_damage(&error), "{error}");
                return (shown, true);
            }
        }
    }
}

#[test]
fn a_damaged_record_is_never_an_absence() {
    let long: Vec<u8> = (0..900_u32).map(|at| (at * 37) as u8).collect();
    let flips = KINDS.into_iter().chain([EXPIRY]);
    let cases = flips.flat_map(|flip| [(flip, key(HURT)), (flip, long.clone())]);
    for ((flip, name), check_reads) in cases.flat_map(|it| [(it.clone(), false), (it, true)]) {
        let what = format!("{flip:?}, {} bytes, checked {check_reads}", name.len());
        let (_directory, store) = hurt(&name, flip, false, check_reads);
        is_told(&store, &name, &what);
        assert_eq!(listed(&store), (OTHERS as usize, true), "{what}");
        // Its leaf is written anew, by single writes and by batches.
        put_others(&store, 200);
        for _ in 0..30 {
            let mut batch = Batch::new();
            for number in others() {
                batch.put(&key(number), &[1; 100]);
            }
            store.apply(&batch, &WriteOptions::default()).map(drop).expect("a batch");
        }
        let swept = store.sweep_expired().expect("a sweep");
        assert!(store.stats().figure("leaves_rewritten") > Some(1) && swept == 0, "{what}");
        is_told(&store, &name, &format!("{what}, written anew"));
        assert_eq!(listed(&store), (OTHERS as usize, true), "{what}");
        // A write that does not depend on it takes its place.
        if check_reads {
            let _outcome = store.put(&name, b"new", &WriteOptions::default()).expect("put");
            assert_eq!(store.get(&name).expect("get").as_deref(), Some(&b"new"[..]), "{what}");
        } else {
            let mut batch = Batch::new();
            batch.delete(&name);
            store.apply(&batch, &WriteOptions::default()).map(drop).expect("a batch");
            assert_eq!(store.get(&name).expect("get"), None, "{what}");
        }
        assert_eq!(listed(&store), (OTHERS as usize + usize::from(check_reads), false), "{what}");
        store.changes_since(0, &mut |_| {}).expect("the changes");
    }
}

/// It may have been a record.
#[test]
fn a_damaged_tombstone_is_no_absence_either() {
    // Its kind, its version, its checksum.
    for flip in [(6, 2), (13, 1), (2, 1)] {
        let (_directory, store) = hurt(&key(HURT), flip, true, false);
        is_told(&store, &key(HURT), &format!("{flip:?}"));
        put_others(&store, 200);
        is_told(&store, &key(HURT), &format!("{flip:?}, written anew"));
        let _outcome = store.put(&key(HURT), b"new", &WriteOptions::default()).expect("put");
        assert_eq!(store.get(&key(HURT)).expect("get").as_deref(), Some(&b"new"[..]));
    }
}

/// An expired record that is damaged stays one when a scrub has saved it.
#[test]
fn a_scrub_revives_nothing_that_has_expired() {
    for check_reads in [false, true] {
        let (_directory, store) = hurt(&key(HURT), EXPIRY, false, check_reads);
        for _ in 0..3 {
            let _report = store.scrub(&mut |_| {}).expect("scrub");
            let found = store.get(&key(HURT));
            assert!(found.as_ref().is_err_and(is_damage), "{found:?}");
        }
        let _outcome = store.put(&key(HURT), b"new", &WriteOptions::default()).expect("put");
        assert!(store.scrub(&mut |_| {}).expect("scrub").damages.is_empty());
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}
