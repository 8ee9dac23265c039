//! One thread drives a log in a file, others read: every state they see was applied, and is never older than one
//! before.

use crate::ops::Draw;
use coreplane_engine::{Batch, Entry, Error, Visibility};
use coreplane_mvcc::{Geometry, LogMap, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: u64 = 50;

fn key(number: u64) -> Vec<u8> {
    format!("key {number:02}").into_bytes()
}

fn drive(log: &LogMap, applied: &AtomicU64) {
    let (mut draw, mut newest) = (Draw(7), 0);
    for round in 0..3000 {
        for _ in 0..draw.next(4) {
            newest += 1;
            let mut batch = Batch::new();
            for _ in 0..draw.next(5) {
                let value = vec![newest as u8; 8 + draw.next(300) as usize];
                batch.put(&key(draw.next(KEYS)), &value);
            }
            log.append(newest, b"header", &batch, false).expect("append");
        }
        let ticket = log.commit().expect("commit");
        if round % 7 == 0 {
            log.wait_durable(ticket).expect("durable");
        }
        let before = applied.load(Ordering::Relaxed);
        let to = before + draw.next(newest - before + 1);
        // Stored before, so that no reader sees a timestamp that was not announced yet.
        applied.store(to, Ordering::SeqCst);
        log.apply(to).expect("apply");
        if draw.next(5) == 0 {
            newest = to + draw.next(newest - to + 1);
            log.roll_back(newest).expect("roll back");
        }
    }
}

fn read(log: &LogMap, applied: &AtomicU64, is_done: &AtomicBool) -> u64 {
    let (mut draw, mut seen, mut count) = (Draw(9), BTreeMap::<Vec<u8>, u64>::new(), 0);
    let mut check = |key: &[u8], record: coreplane_engine::Record<'_>| {
        assert!(record.sequence <= applied.load(Ordering::SeqCst));
        assert!(record.value.to_vec().iter().all(|byte| *byte == record.sequence as u8));
        let last = seen.entry(key.to_vec()).or_default();
        assert!(record.sequence >= *last, "{} after {last}", record.sequence);
        *last = record.sequence;
        count += 1;
    };
    while !is_done.load(Ordering::SeqCst) {
        for _ in 0..20 {
            let key = key(draw.next(KEYS));
            let mut show = |record: coreplane_engine::Record<'_>| check(&key, record);
            log.get_with(&key, Visibility::Early, &mut show).expect("get");
        }
        let behind = log.control().applied + 1 + draw.next(4);
        let entry = log.entries(behind..=behind, &mut |entry| {
            assert_eq!((entry.timestamp, entry.header), (behind, b"header".as_slice()));
            true
        });
        let is_gone = matches!(entry, Err(Error::HistoryGone { .. } | Error::OutOfRange { .. }));
        assert!(entry.is_ok() || is_gone, "{entry:?}");
        log.header(behind).expect("header");
        let snapshot = log.snapshot().expect("snapshot");
        let (timestamp, mut shown) = (snapshot.timestamp(), [0, 0]);
        for shown in &mut shown {
            let mut take = |entry: Entry<'_>| {
                assert!(entry.sequence <= timestamp);
                *shown += entry.sequence;
                true
            };
            let records = snapshot.records();
            records.scan(b"", None, false, usize::MAX, &mut take).expect("scan");
        }
        assert_eq!(shown[0], shown[1], "a snapshot has changed");
    }
    count
}

#[test]
fn readers_go_beside_one_that_drives() {
    MapKind::ALL.into_iter().for_each(readers_go_beside);
}

fn readers_go_beside(kind: MapKind) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let (media, options) = (MediaChoice::Auto, Options { check_reads: true, ..Options::default() });
    let log = LogMap::create(kind, &path, 2 << 20, Geometry::default(), media, &options);
    let log = log.expect("create");
    let (applied, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Barrier::new(3);
    std::thread::scope(|threads| {
        let readers = [(); 2].map(|()| {
            threads.spawn(|| {
                begin.wait();
                read(&log, &applied, &is_done)
            })
        });
        begin.wait();
        drive(&log, &applied);
        is_done.store(true, Ordering::SeqCst);
        for reader in readers {
            assert!(reader.join().expect("a reader") > 100);
        }
    });
    let control = log.control();
    log.audit().unwrap_or_else(|drift| panic!("{drift}"));
    log.close().expect("close");
    drop(log);
    let media = MediaChoice::Auto;
    let log = LogMap::open(kind, &path, media, &options, &|_| {}).expect("open");
    assert_eq!(log.control(), control);
}
