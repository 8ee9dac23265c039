//! Filters that a close keeps: a clean open reads no key, and no existing key is ever denied.

use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Repairable, UnixMillis, WriteOptions};
use coreplane_mkvs::{CopyOptions, Matrix, Options, Position, Rack, Shape, TimeSource};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const KEYS: u64 = 5000;
const DELETED: u64 = 500;

fn options() -> Options {
    Options { keeps_filters_from: 0, ..Options::default() }
}

fn opened(shelf: &Shelf) -> Matrix {
    Matrix::open(shelf, &options(), &|_| {}).expect("open")
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn put(matrix: &Matrix, keys: Range<u64>) {
    for number in keys {
        let _outcome = matrix.put(&key(number), b"value", &WriteOptions::default()).expect("put");
    }
}

fn are_found(matrix: &Matrix, keys: Range<u64>) {
    for number in keys.clone() {
        assert!(matrix.get(&key(number)).expect("get").is_some(), "{number} is denied");
    }
    assert_eq!(matrix.len().expect("len"), keys.end - keys.start);
}

/// The number of calls for many keys that devices have received.
fn looks(shelf: &Shelf) -> u64 {
    let places = (0..2).flat_map(|group| (0..2).map(move |device| Position { group, device }));
    places.map(|place| shelf.gate(place).looks.load(Ordering::SeqCst)).sum()
}

/// A matrix that was closed, with keys up to [`KEYS`].
fn closed(kind: Kind) -> Shelf {
    let shelf = Shelf::new(kind, 32 << 20);
    let matrix = Matrix::create(&shelf, Shape::default(), &options()).expect("create");
    put(&matrix, 0..KEYS);
    for number in 0..DELETED {
        let _outcome = matrix.delete(&key(number), &WriteOptions::default()).expect("delete");
    }
    matrix.close().expect("close");
    shelf
}

#[test]
fn a_clean_open_reads_no_key() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = closed(kind);
        let matrix = opened(&shelf);
        assert_eq!(looks(&shelf), 0, "{kind:?}");
        are_found(&matrix, DELETED..KEYS);
        for number in (0..DELETED).chain(KEYS..2 * KEYS) {
            assert!(matrix.get(&key(number)).expect("get").is_none());
        }
        let denied = matrix.stats().figure("filter_denied").expect("a figure");
        assert!(denied > (DELETED + KEYS) * 9 / 10, "{denied}");
        // The kept filters are used up: after a kill they must not be used again.
        put(&matrix, KEYS..2 * KEYS);
        drop(matrix);
        let matrix = opened(&shelf);
        assert!(looks(&shelf) > 0, "{kind:?}");
        are_found(&matrix, DELETED..2 * KEYS);
        matrix.close().expect("close");
        drop(matrix);
        let matrix = opened(&shelf);
        assert_eq!(looks(&shelf), 0, "{kind:?}");
        are_found(&matrix, DELETED..2 * KEYS);
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// An open that only looks leaves the filter where it is, and counts it as no record.
#[test]
fn what_was_kept_is_not_counted() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = closed(kind);
        let looks = Options { looks_only: true, ..options() };
        let matrix = Matrix::open(&shelf, &looks, &|_| {}).expect("open");
        matrix.count().expect("count");
        assert_eq!(matrix.len().expect("len"), KEYS - DELETED, "{kind:?}");
        assert_eq!(matrix.stats().records, KEYS - DELETED, "{kind:?}");
        assert_eq!(matrix.verify(&mut |_| {}).expect("verify").records, KEYS - DELETED);
        drop(matrix);
        let matrix = opened(&shelf);
        assert_eq!(matrix.stats().records, KEYS - DELETED, "{kind:?}");
    }
}

/// The device with the kept filter was missing while others were written to.
#[test]
fn what_was_kept_of_other_times_is_not_taken() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = closed(kind);
        let place = Position { group: 0, device: 1 };
        let (there, out) = (shelf.path(place), shelf.path(place).with_extension("out"));
        std::fs::rename(&there, &out).expect("rename");
        let matrix = opened(&shelf);
        put(&matrix, KEYS..2 * KEYS);
        matrix.close().expect("close");
        drop(matrix);
        std::fs::rename(&out, &there).expect("rename");
        let matrix = opened(&shelf);
        are_found(&matrix, DELETED..2 * KEYS);
        matrix.replace(&shelf, place, &CopyOptions::default(), &|_| {}).expect("replace");
        are_found(&matrix, DELETED..2 * KEYS);
        matrix.close().expect("close");
        drop(matrix);
        are_found(&opened(&shelf), DELETED..2 * KEYS);
    }
}

/// The kept filter has a checksum of its own: devices need not check their reads.
#[test]
fn what_was_kept_and_is_damaged_is_not_taken() {
    let shelf = closed(Kind::Bptree);
    let (options, media) =
        (coreplane_bptree::Options::default(), coreplane_pmem::MediaChoice::Auto);
    let mut damaged = 0;
    for group in 0..2 {
        for device in 0..2 {
            let path = shelf.path(Position { group, device });
            let device = coreplane_bptree::Bptree::open(&path, media.clone(), &options, &|_| {});
            let device = device.expect("open");
            let name = b"\0coreplane matrix\0filter/000000";
            if let Some(mut bytes) = device.get(name).expect("get") {
                bytes.fill(0);
                let _outcome = device.put(name, &bytes, &WriteOptions::default()).expect("put");
                damaged += 1;
            }
            device.close().expect("close");
        }
    }
    assert_eq!(damaged, 2, "one member of each group has it");
    let matrix = opened(&shelf);
    assert!(looks(&shelf) > 0);
    are_found(&matrix, DELETED..KEYS);
}

/// A wrong bit in the head itself, which the engine finds, does not keep the matrix from opening.
#[test]
fn what_was_kept_is_dropped_if_its_head_cannot_be_read() {
    let shelf = closed(Kind::Scmkv);
    shelf.checks_reads.store(true, Ordering::SeqCst);
    let places = || (0..2).flat_map(|group| (0..2).map(move |device| Position { group, device }));
    let mut damaged = 0;
    for place in places() {
        let needle = b"\"is_sealed\":true";
        let bytes = std::fs::read(shelf.path(place)).expect("read");
        let file = std::fs::File::options().write(true).open(shelf.path(place)).expect("open");
        for (offset, _) in bytes.windows(needle.len()).enumerate().filter(|(_, it)| it == needle) {
            file.write_at(b"#", offset as u64).expect("write");
            damaged += 1;
        }
    }
    assert_eq!(damaged, 2, "one member of each group has it");
    for _ in 0..2 {
        let matrix = opened(&shelf);
        are_found(&matrix, DELETED..KEYS);
        let engines = places().map(|place| shelf.engine(place));
        for engine in engines {
            for name in ["", "/000000"] {
                let name = [b"\0coreplane matrix\0filter", name.as_bytes()].concat();
                assert_eq!(engine.get(&name).expect("get"), None);
            }
        }
    }
}

/// The head of a kept filter, as JSON, with another version and the checksum for that.
fn with_version(head: &[u8], version: u64) -> Vec<u8> {
    let mut head: serde_json::Value = serde_json::from_slice(head).expect("JSON");
    head["version"] = version.into();
    let number = |name: &str| head[name].as_u64().expect("a number");
    let is_sealed = u64::from(head["is_sealed"] == true);
    let first = [version, number("epoch"), is_sealed, number("chunks"), number("chunk_len")];
    let words = first.into_iter().chain(["capacity", "keys", "checksum"].map(number));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    head["head_checksum"] = xxhash_rust::xxh3::xxh3_64(&bytes).into();
    serde_json::to_vec(&head).expect("JSON")
}

/// In a filter of another version keys may have other counters.
#[test]
fn what_another_version_has_kept_is_not_taken() {
    for (version, is_taken) in [(3, true), (2, false)] {
        let shelf = closed(Kind::Bptree);
        let clock: TimeSource = Arc::new(UnixMillis::now);
        let name = b"\0coreplane matrix\0filter";
        for place in (0..2).flat_map(|group| (0..2).map(move |device| Position { group, device })) {
            let device = shelf.open(place, &clock).expect("open");
            if let Some(head) = device.get(name).expect("get") {
                let head = with_version(&head, version);
                let _outcome = device.put(name, &head, &WriteOptions::default()).expect("put");
            }
            device.close().expect("close");
        }
        let before = looks(&shelf);
        let matrix = opened(&shelf);
        assert_eq!(looks(&shelf) == before, is_taken, "version {version}");
        are_found(&matrix, DELETED..KEYS);
    }
}

/// So has its head, and a wrong bit in any of its numbers is found.
#[test]
fn what_was_kept_is_not_taken_if_a_number_of_its_head_is_wrong() {
    let shelf = closed(Kind::Bptree);
    let clock: TimeSource = Arc::new(UnixMillis::now);
    let copies = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let places = || (0..2).flat_map(|group| (0..2).map(move |device| Position { group, device }));
    let copy = |place: Position| copies.path().join(place.to_string());
    let copied = |from: PathBuf, to: PathBuf| assert!(std::fs::copy(from, to).expect("copy") > 0);
    places().for_each(|place| copied(shelf.path(place), copy(place)));
    let name = b"\0coreplane matrix\0filter";
    let (mut number, mut numbers) = (0, usize::MAX);
    while number < numbers {
        places().for_each(|place| copied(copy(place), shelf.path(place)));
        let mut damaged = 0;
        for place in places() {
            let device = shelf.open(place, &clock).expect("open");
            if let Some(mut head) = device.get(name).expect("get") {
                // The last digit of each number.
                let digits = 1..head.len();
                let is_last =
                    |at: &usize| head[at - 1].is_ascii_digit() && !head[*at].is_ascii_digit();
                let ends: Vec<usize> = digits.filter(is_last).collect();
                numbers = ends.len();
                head[ends[number] - 1] ^= 1;
                let _outcome = device.put(name, &head, &WriteOptions::default()).expect("put");
                damaged += 1;
            }
            device.close().expect("close");
        }
        assert_eq!(damaged, 2, "one member of each group has it");
        let matrix = opened(&shelf);
        // A thread that misses often asks the filter.
        (KEYS..2 * KEYS).for_each(|it| assert!(matrix.get(&key(it)).expect("get").is_none()));
        are_found(&matrix, DELETED..KEYS);
        number += 1;
    }
    assert!(numbers > 6, "{numbers}");
}

/// After a kill no thread waits until all keys are listed: devices are asked for every key while others
/// write, and the finished filter has the keys that were written meanwhile.
#[test]
fn after_a_kill_keys_are_listed_beside_readers_and_writers() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = closed(kind);
        let matrix = opened(&shelf);
        put(&matrix, KEYS..KEYS + 1);
        drop(matrix);
        let options = Options { lists_at_open: 100, ..options() };
        let matrix = Matrix::open(&shelf, &options, &|_| {}).expect("open");
        let denied = || matrix.stats().figure("filter_denied").expect("a figure");
        // Each key has one write: existing keys, and new ones.
        for number in KEYS / 2..KEYS {
            let _outcome = matrix.delete(&key(number), &WriteOptions::default()).expect("delete");
        }
        put(&matrix, KEYS + 1..2 * KEYS);
        for number in (DELETED..KEYS / 2).chain(KEYS..2 * KEYS) {
            assert!(matrix.get(&key(number)).expect("get").is_some(), "{number} is denied");
        }
        let is_absent = |number| matrix.get(&key(number)).expect("get").is_none();
        let mut number = 2 * KEYS;
        while denied() == 0 {
            assert!(is_absent(number));
            number += 1;
        }
        assert!((KEYS / 2..KEYS).all(is_absent));
        for number in (DELETED..KEYS / 2).chain(KEYS..2 * KEYS) {
            assert!(matrix.get(&key(number)).expect("get").is_some(), "{number} is denied");
        }
        matrix.close().expect("close");
    }
}

/// An open lists no more keys than that, and returns while another thread lists the rest.
#[test]
fn an_open_after_a_kill_lists_few_keys() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = closed(kind);
        drop(opened(&shelf));
        let options = Options { lists_at_open: 100, ..options() };
        shelf.holds_filters.store(true, Ordering::SeqCst);
        let matrix = Matrix::open(&shelf, &options, &|_| {}).expect("open");
        // The newer writes of each of four devices, and the first keys of each of two groups.
        let made = looks(&shelf);
        assert!(matrix.get(&key(DELETED)).expect("get").is_some());
        assert!(matrix.get(&key(KEYS)).expect("get").is_none());
        let denied = matrix.stats().figure("filter_denied");
        shelf.holds_filters.store(false, Ordering::SeqCst);
        assert!(made <= 6 && denied == Some(0), "{kind:?}: {made} looks, {denied:?} denied");
        matrix.close().expect("close");
    }
}
