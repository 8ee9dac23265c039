//! Replaced devices are released: their mappings, files, threads and memory.

mod scale;
mod shelf;

use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_mkvs::{Ack, Position};
use scale::scaled;
use shelf::sample::{FRESH, created};
use shelf::{Kind, Shelf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const AT: Position = Position { group: 0, device: 0 };
const KEYS: u64 = 100;
const LOOKS: u32 = 5000;
/// Resources of the process, which would grow with each device that stays.
#[derive(Debug)]
struct Held {
    /// Without processors.
    threads: usize,
    /// Processors of the place, which are started when there is something to do.
    processors: usize,
    descriptors: usize,
    /// Mappings of pools.
    mappings: usize,
    /// Mappings whose files have been removed.
    deleted: usize,
}

fn held(shelf: &Shelf) -> Held {
    let count = |of| std::fs::read_dir(of).expect("of this process").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("of this process");
    let directory = shelf.path(AT);
    let directory = directory.parent().and_then(|it| it.to_str()).expect("a directory");
    let of_pools: Vec<&str> = maps.lines().filter(|line| line.contains(directory)).collect();
    let deleted = of_pools.iter().filter(|line| line.ends_with("(deleted)")).count();
    let (names, descriptors) = (names_of_threads(), count("/proc/self/fd"));
    let of_devices = names.iter().filter(|name| name.starts_with("coreplane-d")).count();
    let processors = names.iter().filter(|name| *name == "coreplane-d0").count();
    let threads = names.len() - of_devices;
    Held { threads, processors, descriptors, mappings: of_pools.len(), deleted }
}

fn names_of_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("of this process");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.flatten().filter_map(name).map(|name| name.trim_end().to_owned()).collect()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Replaces the device at one place again and again, beside readers and writers.
fn replaced_often(kind: Kind, ack: Ack, times: u32) {
    let shelf = Shelf::new(kind, 16 << 20);
    let matrix = created(&shelf, (1, 2), ack);
    let put = |number: u64, serial: u64| {
        let _outcome =
            matrix.put(&key(number), &serial.to_le_bytes(), &WriteOptions::default()).expect("put");
    };
    (0..KEYS).for_each(|number| put(number, 0));
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let go = || !is_over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut serial = 0;
            while go() {
                serial += 1;
                put(serial % KEYS, serial);
                written.store(serial, Ordering::Release);
            }
        });
        scope.spawn(|| {
            let mut number = 0;
            while go() {
                number = (number + 1) % KEYS;
                let before = written.load(Ordering::Acquire);
                let value = matrix.get(&key(number)).expect("get").expect("it is there");
                let serial = u64::from_le_bytes(value.try_into().expect("eight bytes"));
                assert!(serial + KEYS > before, "{serial} after {before}");
            }
        });
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let replace = |_: u32| {
                let old = shelf.weak_engine(AT);
                shelf.pull(AT);
                while matrix.member_states()[0].1 == coreplane_mkvs::MemberState::Current {
                    std::thread::yield_now();
                }
                matrix.replace(&shelf, AT, &FRESH, &|_| {}).expect("replace");
                assert!(old.upgrade().is_none(), "its engine is there still");
            };
            (0..4).for_each(replace);
            // It starts with the first put that falls into a replacement, and stays.
            let is_watched = || names_of_threads().iter().any(|name| name == "coreplane-watch");
            let mut tries = (0..1000).map(replace);
            (0..).find(|_| is_watched() || tries.next().is_none());
            assert!(is_watched(), "no put fell into a replacement");
            let before = held(&shelf);
            (0..times).for_each(replace);
            let is_no_more = |after: &Held| {
                after.threads <= before.threads
                    && after.descriptors <= before.descriptors
                    && after.mappings <= before.mappings
                    && after.processors <= 1
                    && after.deleted == 0
            };
            // A joined thread is listed for a moment longer, and other threads may be starting.
            let mut after = held(&shelf);
            for _ in 0..LOOKS {
                if is_no_more(&after) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
                after = held(&shelf);
            }
            let names = names_of_threads();
            assert!(is_no_more(&after), "{before:?}, and then {after:?}: {names:?}");
        }));
        is_over.store(true, Ordering::SeqCst);
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let report = matrix.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
    matrix.close().expect("close");
}

/// In one test, since the resources are counted for the whole process.
#[test]
fn nothing_is_left_of_devices_that_were_replaced() {
    // If one in a hundred stays, it is counted.
    replaced_often(Kind::Scmkv, Ack::All, scaled(130, 300));
    replaced_often(Kind::Bptree, Ack::First, 30);
}
