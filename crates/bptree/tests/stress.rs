//! Truly concurrent threads, mainly for the thread sanitizer: threads are joined by hand, since the end of a scope
//! looks like a race to it where the standard library is not instrumented.

mod persist;

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Engine, Ordered, Repairable, UnixMillis, WriteOptions};
use coreplane_pmem::MediaChoice;
use persist::persist;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const KEYS: u64 = 600;
const ROUNDS: u64 = 30_000;

/// Every value names its key, so that a reader sees at once a torn value, or one of another key. Some are large.
fn value(key: u64, round: u64) -> Vec<u8> {
    let mut value = [key.to_le_bytes(), round.to_le_bytes(), (key ^ round).to_le_bytes()].concat();
    // Of a batch, and of two puts.
    let is_large = (1..=3).contains(&(round % 50));
    value.resize(if is_large { 6000 } else { 24 }, round as u8);
    value
}

fn check(key: u64, value: &[u8]) {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| value[8 * at + byte]));
    assert_eq!((word(0), word(0) ^ word(1)), (key, word(2)), "a torn or foreign value");
    assert!(value[24..].iter().all(|byte| *byte == word(1) as u8), "a torn large value");
}

fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("a key of eight bytes"))
}

/// Phases of growth and phases of decay, so that leaves are split and merged.
fn write(store: &Bptree, thread: u64, round: u64) {
    let options = WriteOptions::default();
    let key = (round * 7 + thread * 131) % KEYS;
    let decays = (round / 2000) % 2 == 1;
    match round % 5 {
        0 => persist(|| store.delete(&key.to_be_bytes(), &options).map(drop)),
        1 | 2 if decays => persist(|| store.delete(&key.to_be_bytes(), &options).map(drop)),
        1 => {
            let mut batch = Batch::new();
            // In one leaf or in many, beside those that others split and merge. No batch has many large values.
            let is_large = value(key, round).len() > 24;
            let count = if is_large { 2 } else { 1 + round % 40 };
            for key in (0..count).map(|at| (key + 200 + 53 * at) % KEYS) {
                batch.put(&key.to_be_bytes(), &value(key, round));
            }
            persist(|| store.apply(&batch, &options).map(drop));
        }
        _ => {
            let value = value(key, round);
            persist(|| store.put(&key.to_be_bytes(), &value, &options).map(drop));
        }
    }
}

/// Calls `work` with numbers that count up, until `stop` is set.
fn until(stop: &Arc<AtomicBool>, work: impl Fn(u64) + Send + 'static) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        for number in 0.. {
            if stop.load(Ordering::Acquire) {
                return;
            }
            work(number);
        }
    })
}

fn scan(store: &Bptree, from: u64, reverse: bool) {
    let mut last: Option<u64> = None;
    let mut take = |entry: coreplane_engine::Entry<'_>| {
        let number = number_of(entry.key);
        let in_order = last.is_none_or(|last| if reverse { number < last } else { number > last });
        assert!(in_order, "{number} after {last:?}");
        last = Some(number);
        check(number, &entry.record.expect("a record").value.to_vec());
        true
    };
    let from = from.to_be_bytes();
    let (start, end) = if reverse { (&[][..], Some(&from[..])) } else { (&from[..], None) };
    store.scan(start, end, reverse, 100, &mut take).expect("scan");
}

#[test]
fn readers_scans_and_writers_of_leaves_that_come_and_go() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { check_reads: true, ..Options::default() };
    // Pages abound, so that leaves are split soon.
    let store = Bptree::create(&path, 8 << 20, 4096, MediaChoice::Auto, &options).expect("create");
    let store = Arc::new(store);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<()>> = (0..2)
        .map(|thread| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || (0..ROUNDS).for_each(|round| write(&store, thread, round)))
        })
        .collect();
    let mut readers = Vec::new();
    let shared = Arc::clone(&store);
    readers.push(until(&stop, move |number| {
        let key = number * 17 % KEYS;
        if let Some(value) = shared.get(&key.to_be_bytes()).expect("get") {
            check(key, &value);
        }
    }));
    let shared = Arc::clone(&store);
    readers.push(until(&stop, move |number| scan(&shared, number * 37 % KEYS, number % 2 == 1)));
    let shared = Arc::clone(&store);
    readers.push(until(&stop, move |_| {
        let report = shared.verify(&mut |_| ()).expect("verify");
        assert!(report.is_sound(), "{:?}", report.damages);
    }));
    let shared = Arc::clone(&store);
    readers.push(until(&stop, move |_| {
        assert_eq!(shared.lost_ranges().expect("which leaves are in doubt"), []);
    }));
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    stop.store(true, Ordering::Release);
    readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
    let figure = |name| store.stats().figure(name).unwrap_or(0);
    let (splits, merges) = (figure("leaves_split"), figure("leaves_merged"));
    // The numbers depend on the order of the threads: 43 to 120, and 30 and more.
    assert!(splits > 10 && merges > 10, "{splits} {merges}");
    store.close().expect("close");
    drop(store);
    // The first thread that comes to a leaf fills it, and all threads come at once.
    let options = Options::default();
    let store = Bptree::open(&path, MediaChoice::Auto, &options, &|_| {}).expect("open");
    let store = Arc::new(store);
    let comers: Vec<JoinHandle<()>> = (0..3)
        .map(|thread| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || match thread {
                0 => (0..KEYS).step_by(20).for_each(|key| scan(&store, key, false)),
                1 => (0..KEYS).for_each(|round| write(&store, thread, round)),
                _ => (0..KEYS).for_each(|key| drop(store.get(&key.to_be_bytes()).expect("get"))),
            })
        })
        .collect();
    comers.into_iter().for_each(|comer| comer.join().expect("whoever came"));
    assert!(store.verify(&mut |_| ()).expect("verify").is_sound());
}

/// With batches, rewritten leaves, and records that expire meanwhile.
#[test]
fn what_is_counted_is_what_is_there_after_clears_beside_writers() {
    const CLEARS: u64 = 1500;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options::default();
    let store = Bptree::create(&path, 2 << 20, 4096, MediaChoice::Auto, &options).expect("create");
    let store = Arc::new(store);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<()>> = (0..2)
        .map(|thread| {
            let shared = Arc::clone(&store);
            until(&stop, move |round| {
                write(&shared, thread, round);
                let brief = WriteOptions { expires_at: Some(UnixMillis(1)), ..Default::default() };
                let key = (KEYS + round % 50).to_be_bytes();
                persist(|| shared.put(&key, b"gone at once", &brief).map(drop));
            })
        })
        .collect();
    let is_counted = || {
        let mut found = 0;
        store
            .scan(b"", None, false, usize::MAX, &mut |_| {
                found += 1;
                true
            })
            .expect("scan");
        found
    };
    for clear in 1..=CLEARS {
        // Waits until there are some leaves again.
        while store.stats().puts < 500 * clear {
            std::thread::yield_now();
        }
        persist(|| store.clear());
    }
    stop.store(true, Ordering::Release);
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    store.sweep_expired().expect("sweep");
    assert_eq!(store.len().expect("len"), is_counted());
    store.clear().expect("clear");
    assert_eq!((store.len().expect("len"), store.stats().live_bytes), (0, 0));
}
