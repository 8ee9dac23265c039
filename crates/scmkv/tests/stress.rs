//! Truly concurrent threads, for the thread sanitizer above all: threads are joined by hand, since
//! the end of a scope looks like a race to it where the standard library is not instrumented.

mod home;

use coreplane_engine::{Batch, Engine, Error, Repairable};
use coreplane_scmkv::{Options, Placement, Scmkv};
use home::{Home, New, early};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const KEYS: u64 = 300;
const ROUNDS: u64 = 40_000;

/// Every value names its key, so that a reader sees at once a value of another key or a torn one.
fn value(key: u64, round: u64) -> Vec<u8> {
    [key.to_le_bytes(), round.to_le_bytes(), (key ^ round).to_le_bytes()].concat()
}

fn check(key: u64, value: &[u8]) {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| value[8 * at + byte]));
    assert_eq!((word(0), word(0) ^ word(1)), (key, word(2)), "a torn or foreign value");
}

/// Space may be short for a moment while a page waits for its readers.
fn persist(mut write: impl FnMut() -> Result<(), Error>) {
    for _ in 0..10_000 {
        match write() {
            Ok(()) => return,
            Err(Error::NoSpace { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no space for good");
}

/// The last write of a writer to each of its keys.
type Own = BTreeMap<u64, Option<Vec<u8>>>;

/// Keys from here on are one writer's alone, by turns.
const SHARED: u64 = 100;

fn is_own(key: u64, thread: u64) -> bool {
    key >= SHARED && key % 2 == thread
}

/// A key of one writer alone has the last value written, even if the cleaner has moved it since.
fn check_newest(store: &Scmkv, key: u64, own: &Own) {
    if let Some(newest) = own.get(&key) {
        let found = store.get(&key.to_le_bytes()).expect("get");
        assert_eq!(found, *newest, "key {key} is not as it was written last");
    }
}

fn write(store: &Scmkv, thread: u64, round: u64, own: &mut Own) {
    let options = home::write();
    let drawn = (round * 7 + thread * 131) % KEYS;
    let key = if drawn < SHARED { drawn } else { drawn / 2 * 2 + thread };
    check_newest(store, key, own);
    let mut note = |key: u64, value: Option<Vec<u8>>| {
        if is_own(key, thread) {
            own.insert(key, value);
        }
    };
    note(key, (!round.is_multiple_of(5)).then(|| value(key, round)));
    match round % 5 {
        0 => persist(|| store.delete(&key.to_le_bytes(), &options).map(drop)),
        1 => {
            let second = if key < SHARED { (key + 1) % SHARED } else { key ^ 2 };
            let second = if second < KEYS { second } else { key };
            let mut batch = Batch::new();
            for key in [key, second] {
                batch.put(&key.to_le_bytes(), &value(key, round));
                note(key, Some(value(key, round)));
            }
            persist(|| store.apply(&batch, &options).map(drop));
        }
        // Staged, for any thread to commit.
        2 => {
            let value = value(key, round);
            persist(|| store.put(&key.to_le_bytes(), &value, &early()).map(drop));
        }
        _ => {
            let value = value(key, round);
            persist(|| store.put(&key.to_le_bytes(), &value, &options).map(drop));
        }
    }
}

fn stress(placement: Placement) {
    let home = Home::in_memory();
    let options = Options { check_reads: true, ..home::options(true) };
    let new = New::tiny(100).placed(placement).with(options);
    let store = Arc::new(home.create(new));
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<()>> = (0..2)
        .map(|thread| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                let mut own = Own::new();
                (0..ROUNDS).for_each(|round| write(&store, thread, round, &mut own));
                own.keys().for_each(|key| check_newest(&store, *key, &own));
            })
        })
        .collect();
    let reader = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut key = 0;
            while !stop.load(Ordering::Acquire) {
                key = (key + 17) % KEYS;
                if let Some(value) = store.get(&key.to_le_bytes()).expect("get") {
                    check(key, &value);
                }
            }
        })
    };
    let verifier = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let report = store.verify(&mut |_| ()).expect("verify");
                assert!(report.is_sound(), "{:?}", report.damages);
            }
        })
    };
    let cleaner = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                match store.clean() {
                    Ok(_) | Err(Error::NoSpace { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        })
    };
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    stop.store(true, Ordering::Release);
    reader.join().expect("the reader");
    verifier.join().expect("the verifier");
    cleaner.join().expect("the cleaner");
    assert!(store.verify(&mut |_| ()).expect("verify").is_sound());
    store.close().expect("close");
}

#[test]
fn readers_writers_and_the_cleaner_beside_an_index_in_the_pool() {
    stress(Placement::Pool);
}

#[test]
fn readers_writers_and_the_cleaner_beside_an_index_in_dram() {
    stress(Placement::Dram);
}
