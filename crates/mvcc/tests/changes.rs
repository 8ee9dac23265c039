//! Changes since a sequence, after a restart: tombstones that were dropped before any were held.

use coreplane_engine::{Engine, Error, Replicated, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::path::Path;

const GONE: u32 = 20;

fn gone(number: u32) -> Vec<u8> {
    format!("gone {number:04}").into_bytes()
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// A pool in which pages are short, so that the cleaner drops tombstones; returns the sequence before the deletes.
fn made(kind: MapKind, path: &Path, closes: bool) -> u64 {
    let geometry = Geometry { page_size: 4096, ..Geometry::default() };
    let made = MapEngine::create(kind, path, 1 << 19, geometry, MediaChoice::Auto, &options());
    let (store, default) = (made.expect("create"), WriteOptions::default());
    let put = |key: &[u8]| {
        let _outcome = store.put(key, &[7; 100], &default).expect("put");
    };
    (0..GONE).for_each(|number| put(&gone(number)));
    let line = store.advance_sequence().expect("a sequence");
    for number in 0..GONE {
        let _outcome = store.delete(&gone(number), &default).expect("delete");
    }
    // A tree needs room for its nodes, and has no tombstones that nobody holds.
    let keys = if kind == MapKind::List { 2400 } else { 900 };
    let mut random = 7_u64;
    for _ in 0..20_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        put(format!("key {:04}", random % keys).as_bytes());
    }
    store.hold_tombstones(0).expect("hold");
    assert!(store.tombstone_horizon() > line, "{kind:?}: some were dropped");
    if closes {
        store.close().expect("close");
    }
    line
}

#[test]
fn tombstones_that_were_dropped_before_a_hold_are_missed_after_a_restart() {
    for (kind, closes) in MapKind::ALL.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let line = made(kind, &path, closes);
        let store = MapEngine::open(kind, &path, MediaChoice::Auto, &options(), &|_| {});
        let store = store.expect("open");
        let mut deletes = 0;
        let shown = store.changes_since(line, &mut |entry| {
            deletes += u32::from(entry.record.is_none());
        });
        match shown {
            Err(Error::HistoryGone { horizon, .. }) => assert!(horizon > line, "{kind:?}"),
            shown => assert!(deletes == GONE, "{kind:?}, {closes}: {deletes} deletes, {shown:?}"),
        }
    }
}
