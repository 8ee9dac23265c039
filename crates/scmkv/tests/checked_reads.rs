//! Damage at rest that nobody has looked for yet: whoever checks reads is told of it instead of
//! being shown it, and nobody makes a new value of it.

use coreplane_engine::{Engine, Error, Expected, Mutation, UnixMillis, Visibility, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Options, Placement, Scmkv};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const POOL_BYTES: u64 = 64 << 20;
const KEY: &[u8] = b"the key of the record";
const LARGE: &[u8] = b"the key of a large one";

fn large_value() -> Vec<u8> {
    (0..3_u32 << 18).flat_map(u32::to_le_bytes).collect()
}

/// A closed store with a small and a large value.
fn store(directory: &Path, placement: Placement) -> PathBuf {
    let path = directory.join("pool");
    let options = Options { background: false, ..Options::default() };
    let store = Scmkv::create(&path, POOL_BYTES, MediaChoice::Auto, placement, options);
    let store = store.expect("create");
    let expires_at = Some(UnixMillis(u64::MAX >> 8));
    let lasting = WriteOptions { expires_at, ..WriteOptions::default() };
    store.put(KEY, b"worth one million", &lasting).expect("put");
    store.put(LARGE, &large_value(), &WriteOptions::default()).expect("put");
    store.close().expect("close");
    path
}

fn open(path: &Path, check_reads: bool) -> Scmkv {
    let options = Options { background: false, check_reads, ..Options::default() };
    Scmkv::open(path, MediaChoice::Auto, options).expect("open")
}

/// Flips a bit of the only place in the file where `bytes` are, `at` bytes after their beginning.
fn flip(path: &Path, bytes: &[u8], at: usize) {
    let file = std::fs::read(path).expect("read");
    let found: Vec<usize> = file
        .windows(bytes.len())
        .enumerate()
        .filter(|(_, w)| *w == bytes)
        .map(|(n, _)| n)
        .collect();
    assert_eq!(found.len(), 1, "where it is must be clear");
    let at = found[0] + at;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).expect("read");
    file.write_all_at(&[byte[0] ^ 4], at as u64).expect("write");
}

fn damaged(result: Result<impl std::fmt::Debug, Error>, what: &str) {
    let is_told = matches!(result, Err(Error::ChecksumMismatch { .. } | Error::Corrupt { .. }));
    assert!(is_told, "{what}: {result:?}");
}

fn each(check: impl Fn(&Path, Placement)) {
    for placement in [Placement::Pool, Placement::Dram] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
        check(&store(directory.path(), placement), placement);
    }
}

#[test]
fn a_checked_read_shows_no_damaged_value() {
    each(|path, placement| {
        flip(path, b"worth one million", 6);
        let store = open(path, true);
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
        store.put(KEY, b"again", &WriteOptions::default()).expect("put");
        assert_eq!(store.get(KEY).expect("get").as_deref(), Some(&b"again"[..]));
    });
}

#[test]
fn an_unchecked_read_shows_what_is_there() {
    each(|path, placement| {
        flip(path, b"worth one million", 6);
        let store = open(path, false);
        let shown = store.get(KEY).expect("get");
        assert_eq!(shown.as_deref(), Some(&b"worth kne million"[..]), "{placement:?}");
    });
}

#[test]
fn a_damaged_key_is_no_absence() {
    each(|path, _| {
        flip(path, KEY, 3);
        damaged(open(path, true).get(KEY), "get");
    });
}

#[test]
fn a_damaged_expiry_is_no_absence() {
    each(|path, _| {
        // The record's header ends with the expiry, just before its key.
        let mut pattern = (u64::MAX >> 8).to_le_bytes().to_vec();
        pattern.extend_from_slice(KEY);
        flip(path, &pattern, 6);
        damaged(open(path, true).get(KEY), "get");
    });
}

#[test]
fn no_piece_of_a_large_value_is_shown_damaged() {
    each(|path, _| {
        let value = large_value();
        flip(path, &value[1 << 20..][..64], 40);
        let store = open(path, true);
        damaged(store.get(LARGE), "get");
        assert!(store.get(KEY).expect("get").is_some());
    });
}

#[test]
fn no_value_is_made_of_a_damaged_one() {
    each(|path, _| {
        flip(path, b"worth one million", 6);
        let store = open(path, false);
        let options = WriteOptions::default();
        let made = store.modify(KEY, &options, &mut |record| {
            assert!(record.is_none(), "shown");
            Mutation::Keep
        });
        damaged(made, "modify");
        let expected = Expected::Value(b"worth one million");
        damaged(store.compare_and_set(KEY, expected, b"two", &options), "compare_and_set");
    });
}
