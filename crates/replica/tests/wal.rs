//! The baseline alone: committed changes survive, whatever the files end with.

use coreplane_engine::{Batch, Entry, Error};
use coreplane_mvcc::{Control, LogAppend, SnapshotRecord};
use coreplane_pmem::MediaChoice;
use coreplane_replica::{MapSnapshot, ReplicaMap, WalBaseline, WalOptions};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file system on which syncs take no time.
const MEMORY: &str = "/dev/shm";

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Checkpoints are frequent.
const OPTIONS: WalOptions = WalOptions { checkpoint_bytes: 2000, has_thread: true };

fn open(directory: &Path) -> coreplane_engine::Result<WalBaseline> {
    WalBaseline::open(directory, &OPTIONS)
}

fn append(map: &WalBaseline, timestamp: u64, header: &[u8], changes: &Batch) {
    map.append(&[LogAppend { timestamp, header, changes }]).unwrap();
}

fn records(map: &WalBaseline) -> Records {
    let mut records = Records::new();
    map.scan(b"", None, false, &mut |entry| {
        records.extend(entry.record.map(|it| (entry.key.to_vec(), it.value.to_vec())));
        true
    })
    .unwrap();
    assert_eq!(records.len() as u64, map.len());
    records
}

fn pending(map: &WalBaseline) -> Vec<(u64, Vec<u8>, usize)> {
    let Control { applied, newest, .. } = map.control();
    let mut pending = Vec::new();
    map.entries(applied + 1..=newest, &mut |entry| {
        pending.push((entry.timestamp, entry.header.to_vec(), entry.changes.len()));
        true
    })
    .unwrap();
    pending
}

/// The files of a directory with this prefix, in order.
fn files(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).unwrap().map(|it| it.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|it| it.file_name().unwrap().to_str().unwrap().starts_with(prefix)).collect();
    files.sort();
    files
}

/// Bytes of frames in a log file.
fn len_of(file: &Path) -> usize {
    let bytes = fs::read(file).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| (at + 1).next_multiple_of(8))
}

fn begin_install(map: &WalBaseline, timestamp: u64, key: &[u8]) {
    map.begin_install(timestamp).unwrap();
    let record = SnapshotRecord { key, value: b"x", timestamp, expires_at: None };
    map.install(&mut [record].into_iter()).unwrap();
}

fn records_of(snapshot: &dyn MapSnapshot) -> Records {
    let mut shown = Records::new();
    let mut take = |entry: Entry<'_>| {
        shown.extend(entry.record.map(|it| (entry.key.to_vec(), it.value.to_vec())));
        true
    };
    snapshot.walk((b"", None), &mut take).unwrap();
    shown
}

/// Opens the log in a directory.
type Opener = fn(&Path) -> coreplane_engine::Result<WalBaseline>;

/// The process ends, and another one opens the log: everything committed is there.
fn open_again(map: WalBaseline, directory: &Path, open: Opener) -> WalBaseline {
    map.wait_durable(map.commit().unwrap()).unwrap();
    let before = (map.control(), pending(&map), records(&map));
    drop(map);
    let map = open(directory).unwrap();
    assert!(map.control().applied <= before.0.applied);
    // The fact that entries were applied may be lost.
    map.apply(before.0.applied).unwrap();
    assert_eq!((map.control(), pending(&map), records(&map)), before);
    map
}

fn do_anything(open: Opener) {
    for seed in 1..40_u64 {
        let directory = tempfile::tempdir_in(MEMORY).unwrap();
        let mut map = open(directory.path()).unwrap();
        let mut drawn = seed;
        let mut draw = |most: u64| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (drawn >> 33) % most
        };
        let (mut snapshot, mut seen) = (None, Records::new());
        for step in 0..400_u64 {
            let Control { applied, newest, term, .. } = map.control();
            match draw(20) {
                0..10 => {
                    let mut batch = Batch::new();
                    for _ in 0..draw(3) {
                        let key = [draw(30) as u8];
                        match draw(4) {
                            0 => batch.delete(&key),
                            _ => batch.put(&key, &step.to_le_bytes()),
                        };
                    }
                    append(&map, newest + 1, &step.to_le_bytes(), &batch);
                }
                10..14 => map.apply(applied + draw(newest - applied + 1)).unwrap(),
                14 => map.roll_back(applied + draw(newest - applied + 1)).unwrap(),
                15 => map.set_vote(term + 1, draw(4)).unwrap(),
                16 => map.set_members(&step.to_le_bytes()).unwrap(),
                17 => {
                    snapshot = Some(map.snapshot().unwrap());
                    seen = records(&map);
                }
                18 => {
                    begin_install(&map, newest + 5, &step.to_le_bytes());
                    if draw(2) == 0 {
                        map.end_install(b"installed", b"members").unwrap();
                        assert_eq!(records(&map).len(), 1);
                    } else {
                        // The install is cut off, and the earlier state is there.
                        drop(map);
                        map = open(directory.path()).unwrap();
                    }
                }
                _ => {
                    if let Some(snapshot) = snapshot.take() {
                        assert_eq!(records_of(snapshot.as_ref()), seen, "seed {seed} step {step}");
                    }
                    map = open_again(map, directory.path(), open);
                    assert!(map.verify(&mut |_| {}).unwrap().damages.is_empty());
                }
            }
            if draw(3) == 0 {
                map.commit().unwrap();
            }
        }
        if files(directory.path(), "pool").is_empty() {
            assert!(!files(directory.path(), "checkpoint").is_empty());
            assert!(files(directory.path(), "log").len() <= 3, "what is void is removed");
        }
    }
}

#[test]
fn what_was_done_is_there_again() {
    do_anything(open);
}

/// As `open`, in a pool that is too small to keep void parts.
fn open_pool(directory: &Path) -> coreplane_engine::Result<WalBaseline> {
    let path = directory.join("pool");
    match path.exists() {
        true => WalBaseline::open_pool(&path, MediaChoice::Auto, &OPTIONS),
        false => {
            let size = (60 << 10, 1 << 10);
            WalBaseline::create_pool(&path, size, MediaChoice::Auto, &OPTIONS)
        }
    }
}

#[test]
fn what_was_done_in_a_pool_is_there_again() {
    do_anything(open_pool);
}

/// Damages a pool in any of its pages that count, and opens it as another process would.
#[test]
fn what_is_damaged_in_a_pool_is_no_log() {
    let directory = tempfile::tempdir_in(MEMORY).unwrap();
    let path = directory.path().join("pool");
    let map = open_pool(directory.path()).unwrap();
    let write = |number: u64| {
        let mut batch = Batch::new();
        batch.put(&[number as u8 % 10], &[3; 50]);
        append(&map, number, b"header", &batch);
        map.apply(number).unwrap();
        map.wait_durable(map.commit().unwrap()).unwrap();
    };
    let mut newest = 300;
    (1..=newest).for_each(write);
    // A log that was begun a moment ago has nothing to lose: at least 20 of the flips below must fall into it.
    let log_len = || map.stats().pool_bytes - map.stats().live_bytes;
    while log_len() < 900 && newest < 10_000 {
        newest += 1;
        write(newest);
    }
    assert!(matches!(open_pool(directory.path()), Err(Error::Locked(_))), "it is in use");
    map.close().unwrap();
    assert!(matches!(map.commit(), Err(Error::Closed)));
    assert!(map.verify(&mut |_| {}).unwrap().damages.is_empty());
    drop(map);
    let whole = fs::read(&path).unwrap();
    let (mut damaged, mut shorter) = (0, 0);
    for at in (2048..whole.len()).step_by(31) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        match open_pool(directory.path()) {
            Ok(map) if map.control().newest == newest => {
                map.apply(newest).unwrap();
                assert_eq!(map.len(), 10);
            }
            // In the log being written, frames behind the damage count as never written.
            Ok(_) => shorter += 1,
            Err(Error::Corrupt { .. }) => damaged += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(damaged > 20 && shorter > 20, "{damaged} {shorter}");
}

/// Puts are refused in time, deletes go on, and the room that they free is written again.
#[test]
fn a_pool_that_is_full_takes_deletes() {
    let directory = tempfile::tempdir_in(MEMORY).unwrap();
    let path = directory.path().join("pool");
    let size = (1 << 20, 4096);
    let map = WalBaseline::create_pool(&path, size, MediaChoice::Auto, &WalOptions::default());
    let map = map.unwrap();
    let make = |changes: &Batch| {
        map.check_room(changes, 0)?;
        let next = map.control().newest + 1;
        append(&map, next, b"header", changes);
        map.apply(next)?;
        map.wait_durable(map.commit()?)
    };
    let mut full_at = Vec::new();
    for _ in 0..3 {
        let mut number = 0_u64;
        while make(Batch::new().put(&number.to_le_bytes(), &[7; 400])).is_ok() {
            number += 1;
        }
        assert!(number > 300, "{number}");
        // Existing keys are overwritten again and again.
        for round in 0..2000 {
            let key = (round % number).to_le_bytes();
            let done = make(Batch::new().put(&key, &[round as u8; 390]));
            assert!(matches!(done, Ok(()) | Err(Error::NoSpace { .. })), "{done:?}");
        }
        assert_eq!(map.len(), number);
        for number in 0..number {
            make(Batch::new().delete(&number.to_le_bytes())).unwrap();
        }
        assert_eq!(map.len(), 0);
        full_at.push(number);
    }
    assert!(full_at.windows(2).all(|it| it[0] == it[1]), "{full_at:?}");
    assert!(map.verify(&mut |_| {}).unwrap().damages.is_empty());
}

#[test]
fn a_file_that_ends_anywhere_is_a_log() {
    let directory = tempfile::tempdir_in(MEMORY).unwrap();
    let map = open(directory.path()).unwrap();
    let mut ends = Vec::new();
    let log = files(directory.path(), "log").remove(0);
    for number in 1..=20_u64 {
        let mut batch = Batch::new();
        batch.put(&number.to_le_bytes(), b"value");
        append(&map, number, b"header", &batch);
        map.wait_durable(map.commit().unwrap()).unwrap();
        ends.push(len_of(&log));
    }
    drop(map);
    let whole = fs::read(&log).unwrap();
    for len in 0..ends[19] {
        for is_torn in [false, true] {
            let copy = tempfile::tempdir_in(MEMORY).unwrap();
            let mut bytes = whole[..len].to_vec();
            if is_torn {
                // Older bytes are behind the cut, and one byte was not written.
                bytes = whole.clone();
                bytes[len] ^= 0x40;
            }
            fs::write(copy.path().join(log.file_name().unwrap()), &bytes).unwrap();
            let map = open(copy.path()).unwrap();
            let has = ends.iter().filter(|end| **end <= len).count() as u64;
            assert_eq!(map.control().newest, has, "cut at {len}");
            append(&map, has + 1, b"next", &Batch::new());
            map.wait_durable(map.commit().unwrap()).unwrap();
            drop(map);
            assert_eq!(open(copy.path()).unwrap().control().newest, has + 1);
        }
    }
}

#[test]
fn what_is_damaged_is_no_log() {
    let directory = tempfile::tempdir_in(MEMORY).unwrap();
    let map = open(directory.path()).unwrap();
    for number in 1..=300_u64 {
        let mut batch = Batch::new();
        batch.put(&[number as u8 % 10], &[3; 50]);
        append(&map, number, b"header", &batch);
        map.apply(number).unwrap();
        map.wait_durable(map.commit().unwrap()).unwrap();
    }
    map.close().unwrap();
    assert!(matches!(map.commit(), Err(Error::Closed)));
    assert!(matches!(open(directory.path()), Err(Error::Unusable(_))), "it is in use");
    drop(map);
    let checkpoint = files(directory.path(), "checkpoint").pop().unwrap();
    let whole = fs::read(&checkpoint).unwrap();
    for at in (0..whole.len()).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&checkpoint, &bytes).unwrap();
        assert!(matches!(open(directory.path()), Err(Error::Corrupt { .. })), "byte {at}");
    }
    fs::write(&checkpoint, &whole).unwrap();
    drop(open(directory.path()).unwrap());
    for log in files(directory.path(), "log") {
        let bytes = fs::read(&log).unwrap();
        fs::remove_file(&log).unwrap();
        assert!(matches!(open(directory.path()), Err(Error::Corrupt { .. })), "a log is missing");
        fs::write(&log, &bytes).unwrap();
    }
    assert_eq!(open(directory.path()).unwrap().len(), 10);
}

/// The next log file begins with the pending entries; the power fails while they are written. All of them are in the
/// previous file.
#[test]
fn a_log_file_that_was_just_begun_takes_nothing_back() {
    let directory = tempfile::tempdir_in(MEMORY).unwrap();
    let map = open(directory.path()).unwrap();
    let log = files(directory.path(), "log").remove(0);
    let (mut before, mut newest) = (Vec::new(), 0);
    while files(directory.path(), "log").last() == Some(&log) {
        before = fs::read(&log).unwrap();
        newest = map.control().newest;
        let mut batch = Batch::new();
        batch.put(&newest.to_le_bytes(), &[3; 50]);
        append(&map, newest + 1, &newest.to_le_bytes(), &batch);
        map.wait_durable(map.commit().unwrap()).unwrap();
    }
    let next = files(directory.path(), "log").pop().unwrap();
    let begun = fs::read(&next).unwrap();
    assert!(newest > 5 && begun.len() > before.len() / 2);
    drop(map);
    for len in 0..=begun.len() {
        let copy = tempfile::tempdir_in(MEMORY).unwrap();
        fs::write(copy.path().join(log.file_name().unwrap()), &before).unwrap();
        fs::write(copy.path().join(next.file_name().unwrap()), &begun[..len]).unwrap();
        let map = open(copy.path()).unwrap();
        assert!(map.control().newest >= newest, "cut at {len}: {}", map.control().newest);
        assert!(pending(&map).iter().map(|it| it.0).eq(1..=map.control().newest));
    }
}

#[test]
fn no_log_begins_in_a_directory_of_others() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("log");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("g0d0"), "a device").unwrap();
    let refused = open(&directory).unwrap_err();
    assert!(matches!(&refused, Error::Unusable(what) if what.contains("g0d0")), "{refused}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing was made");
    // The lock file of somebody else keeps its bytes.
    fs::remove_file(directory.join("g0d0")).unwrap();
    fs::write(directory.join("lock"), "a number").unwrap();
    drop(open(&directory).unwrap());
    assert_eq!(fs::read(directory.join("lock")).unwrap(), b"a number");
    // A killed process may leave these.
    fs::write(directory.join("checkpoint.draft"), "half").unwrap();
    fs::create_dir(directory.join("lost+found")).unwrap();
    drop(open(&directory).unwrap());
}
