//! Versions that a snapshot sees stay as long as it does, and no longer.

use coreplane_engine::{Engine, Mutation, Snapshot, Snapshots, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it is dropped, however its scope ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A store in memory, with the fences of that medium or of a file.
struct Store {
    engine: MapEngine,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Store {
    fn new(kind: MapKind, media: MediaChoice, size: u64, page_size: u32) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..Options::default() };
        let geometry = Geometry { page_size, ..Geometry::default() };
        let engine = MapEngine::create(kind, &path, size, geometry, media, &options);
        Self { engine: engine.expect("create"), path, _directory: directory }
    }

    fn put(&self, key: &str, value: &[u8]) {
        let put = self.engine.put(key.as_bytes(), value, &WriteOptions::default());
        let _written = put.expect("there is room");
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.engine.snapshot().expect("a snapshot")
    }
}

#[test]
fn a_large_value_is_there_as_long_as_a_snapshot_sees_it() {
    for media in [MediaChoice::File, MediaChoice::Auto] {
        let store = Store::new(MapKind::CowTree, media.clone(), 3 << 19, 1024);
        let mut at = 0;
        let mut junk = |byte: u8| {
            at += 7;
            store.put(&format!("junk{:04}", at % 900), &[byte; 60]);
        };
        for number in 0..40_u8 {
            store.put(&format!("large{number}"), &[number; 5000]);
            (0..20).for_each(|_| junk(7));
        }
        let snapshot = store.snapshot();
        let check = || {
            for number in 0..40_u8 {
                let mut found = Vec::new();
                let key = format!("large{number}");
                let hit = snapshot
                    .get_with(key.as_bytes(), &mut |record| found = record.value.to_vec())
                    .unwrap_or_else(|error| panic!("{key} on {media:?}: {error}"));
                assert!(hit && found == [number; 5000], "{key} on {media:?}");
            }
        };
        (0..20_000).for_each(|_| junk(8));
        check();
        (0..40).for_each(|number| store.put(&format!("large{number}"), b"small"));
        (0..2_000).for_each(|_| junk(9));
        check();
        drop(snapshot);
        store.engine.audit().expect("counts that are kept");
    }
}

#[test]
fn a_snapshot_that_stays_keeps_what_it_sees_and_no_more() {
    const KEYS: u64 = 12_000;
    for kind in MapKind::ALL {
        for media in [MediaChoice::File, MediaChoice::Auto] {
            let store = Store::new(kind, media.clone(), 16 << 20, 4096);
            for key in 0..KEYS {
                store.put(&key.to_string(), &[7; 100]);
            }
            let snapshot = store.snapshot();
            let (before, mut random) = (store.engine.stats().live_bytes, 7_u64);
            for _ in 0..60_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                store.put(&(random % KEYS).to_string(), &[8; 100]);
            }
            let live = store.engine.stats().live_bytes;
            // The current records, the pinned ones, and as much for a tree's nodes.
            assert!(live < 3 * before, "{live} bytes live, {before} before, {kind:?} on {media:?}");
            drop(snapshot);
            store.engine.audit().expect("counts that are kept");
        }
    }
}

#[test]
fn a_damaged_version_frees_no_page_of_others() {
    let store = Store::new(MapKind::List, MediaChoice::Auto, 1 << 20, 1024);
    store.put("k", &[0xa1; 400]);
    store.put("other", &[0xee; 300]);
    let mut pins = vec![store.snapshot()];
    for (pad, value) in [("pad1", 0xb2), ("pad2", 0xc3), ("pad3", 0xd4)] {
        store.put(pad, &[1; 400]);
        store.put("k", &[value; 400]);
        pins.push(store.snapshot());
    }
    // The length of the third version's value, before its bytes and its key.
    let file = std::fs::File::options().read(true).write(true).open(&store.path).expect("open");
    let bytes = std::fs::read(&store.path).expect("read");
    let value = bytes.windows(8).position(|it| it == [0xc3; 8]).expect("it is there");
    let length = (value.saturating_sub(64)..value)
        .rev()
        .find(|at| bytes[*at..*at + 4] == 400_u32.to_le_bytes())
        .expect("its length is before it");
    file.write_at(&[0x40], length as u64 + 2).expect("write");
    pins.into_iter().for_each(drop);
    for number in 0..3000 {
        store.put(&format!("junk{}", number % 50), &[9; 200]);
    }
    assert_eq!(store.engine.get(b"other").expect("a sound key"), Some(vec![0xee; 300]));
}

/// A flipped bit of a version is no reason to leave a key out, or to show an older value.
#[test]
fn a_snapshot_passes_over_no_damaged_version() {
    for kind in MapKind::ALL {
        let store = Store::new(kind, MediaChoice::Auto, 1 << 20, 4096);
        for key in ["before", "first", "later", "other"] {
            store.put(key, b"one");
        }
        let older = store.snapshot();
        store.put("later", b"two");
        let snapshot = store.snapshot();
        ["first", "later"].into_iter().for_each(|key| store.put(key, b"three"));
        let newer = store.snapshot();
        // A high bit of the version, before the key.
        let file = std::fs::File::options().read(true).write(true).open(&store.path).expect("open");
        let bytes = std::fs::read(&store.path).expect("read");
        for record in ["beforeone", "latertwo"] {
            let at = bytes.windows(record.len()).position(|it| it == record.as_bytes());
            let at = at.expect("the record") - 20 + 12 + 5;
            file.write_at(&[bytes[at] ^ 1], at as u64).expect("write");
        }
        let get = |snapshot: &dyn Snapshot, key: &str| {
            let mut found = None;
            let hit = snapshot.get_with(key.as_bytes(), &mut |it| found = Some(it.value.to_vec()));
            hit.map(|_| found)
        };
        let scan = |snapshot: &dyn Snapshot, from: &str, to: &str, reverse| {
            let (from, to, mut keys) = (from.as_bytes(), to.as_bytes(), Vec::new());
            let scanned = snapshot.scan(from, Some(to), reverse, usize::MAX, &mut |it| {
                keys.push(it.key.to_vec());
                true
            });
            scanned.map(|()| keys.len())
        };
        for (snapshot, hurt) in [(&older, "before"), (&snapshot, "before"), (&snapshot, "later")] {
            let right = if hurt == "later" { b"two" } else { b"one" };
            match get(&**snapshot, hurt) {
                // A tree leads to the record that a snapshot sees.
                Ok(found) if kind == MapKind::CowTree => {
                    assert_eq!(found.as_deref(), Some(&right[..]))
                }
                found => assert!(found.is_err(), "{kind:?}, {hurt}: {found:?}"),
            }
            for reverse in [false, true] {
                let scanned = scan(&**snapshot, "a", "z", reverse);
                assert!(scanned.is_err(), "{kind:?}, {hurt}: {scanned:?}");
                // Sound keys beside it are shown.
                for (from, to) in [("c", "g"), ("m", "z")] {
                    let scanned = scan(&**snapshot, from, to, reverse);
                    assert_eq!(scanned.expect("sound keys"), 1, "{kind:?}, from {from}");
                }
            }
        }
        assert_eq!(get(&*newer, "later").expect("get").as_deref(), Some(&b"three"[..]));
        assert_eq!(get(&*older, "other").expect("get").as_deref(), Some(&b"one"[..]));
    }
}

#[test]
fn a_large_value_that_was_decided_against_is_dropped() {
    for kind in MapKind::ALL {
        let store = Store::new(kind, MediaChoice::Auto, 4 << 20, 1024);
        let (options, is_over) = (WriteOptions::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    store.put("k", b"x");
                    store.put("k", b"y");
                }
            });
            let _over = Over(&is_over);
            for _ in 0..20_000 {
                let modified = store.engine.modify(b"k", &options, &mut |record| {
                    let is_x = record.is_some_and(|record| record.value.equals(b"x"));
                    let value = if is_x { vec![1; 6000] } else { vec![2; 10] };
                    Mutation::Put { value, expires_at: None }
                });
                let _written = modified.expect("there is room");
            }
        });
        store.engine.audit().expect("counts that are kept");
    }
}
