//! Devices that compete: which one is asked, whose answer counts, and that no answer is ever stale or too new.

use crate::shelf::gate::Gate;
use crate::shelf::sample::put;
use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Engine, Record, Visibility, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, MemberState, Options, Position, Prototype, ReadPath, Shape};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A group of two devices, and their gates.
struct Pair {
    matrix: Matrix,
    gates: [Arc<Gate>; 2],
    shelf: Shelf,
}

fn pair(ack: Ack, prototype: Prototype, read_path: ReadPath) -> Pair {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = Shape { groups: 1, devices: 2, ack, prototype };
    let options = Options { read_path, ..Options::default() };
    let matrix = Matrix::create(&shelf, shape, &options).expect("create");
    let gates = [0, 1].map(|device| shelf.gate(Position { group: 0, device }));
    Pair { matrix, gates, shelf }
}

fn get(matrix: &Matrix, key: &[u8]) -> Vec<u8> {
    matrix.get(key).expect("get").expect("it is there")
}

fn set(flag: &AtomicBool, value: bool) {
    flag.store(value, Ordering::SeqCst);
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}

impl Pair {
    fn held_reads(&self) -> u64 {
        self.gates.iter().map(|gate| count(&gate.held_gets)).sum()
    }

    fn hold_reads(&self, holds: bool) {
        self.gates.iter().for_each(|gate| set(&gate.holds_gets, holds));
    }
}

/// A reader decides which device to ask; before it asks, a write is made on that device, and not yet on the
/// other. If the read showed the new value, the next reader, which asks the other, would go back.
fn a_slow_read_is_not_too_new(read_path: ReadPath) {
    let pair = pair(Ack::All, Prototype::Mkvs, read_path);
    let matrix = &pair.matrix;
    // The write comes to the first device before the other. The device that a reader prefers depends on its thread.
    let mut first_asked = [0; 2];
    for round in 0_u64.. {
        let key = format!("key {round}");
        let key = key.as_bytes();
        put(matrix, key, b"old");
        pair.hold_reads(true);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || get(matrix, key));
            wait_until(|| pair.held_reads() > 0);
            // The write comes to one device and waits at the other.
            let reads = |gate: &Arc<Gate>| count(&gate.held_gets) > 0;
            let asked = pair.gates.iter().position(reads).expect("a device");
            first_asked[asked] += 1;
            let other = &pair.gates[1 - asked];
            set(&other.holds_puts, true);
            // A put would be seen on neither device before it is on both.
            let update = move || matrix.update(key, b"new", &WriteOptions::default());
            let writer = scope.spawn(update);
            wait_until(|| count(&other.held_puts) > 0 || writer.is_finished());
            pair.hold_reads(false);
            let first = reader.join().expect("reader");
            let second = get(matrix, key);
            set(&other.holds_puts, false);
            assert!(writer.join().expect("writer").expect("update").written().is_some());
            assert!(second == b"new" || first == b"old", "a reader goes back");
            assert_eq!(get(matrix, key), b"new");
        });
        if first_asked.iter().all(|rounds| *rounds >= 2) {
            return;
        }
        // The next reader's thread has another number.
        std::thread::scope(|scope| drop(scope.spawn(|| get(matrix, key))));
    }
}

#[test]
fn a_slow_read_in_the_caller_is_not_too_new() {
    a_slow_read_is_not_too_new(ReadPath::Inline);
}

#[test]
fn a_slow_read_in_a_ring_is_not_too_new() {
    a_slow_read_is_not_too_new(ReadPath::Rings);
}

/// The device that is asked first stalls, and the read completes meanwhile.
#[test]
fn a_stalled_device_holds_up_nobody() {
    let pair = pair(Ack::All, Prototype::Mkvs, ReadPath::Rings);
    let keys: Vec<String> = (0..100).map(|number| format!("key {number}")).collect();
    keys.iter().for_each(|key| put(&pair.matrix, key.as_bytes(), key.as_bytes()));
    for stalled in [0, 1, 0] {
        let gate = &pair.gates[stalled];
        set(&gate.holds_gets, true);
        let matrix = &pair.matrix;
        std::thread::scope(|scope| {
            // In several threads, each of which prefers a device.
            for _ in 0..4 {
                let keys = &keys;
                scope.spawn(move || {
                    keys.iter()
                        .for_each(|key| assert_eq!(get(matrix, key.as_bytes()), key.as_bytes()));
                });
            }
        });
        set(&gate.holds_gets, false);
    }
    let stats = pair.matrix.stats();
    assert!(stats.figure("matrix_hedges") > Some(0), "{stats:?}");
    assert_eq!(stats.hits, 1200, "{stats:?}");
    // All were raced, and each was won once. The last winners may not have counted it yet.
    let wins = || pair.matrix.stats().figure("matrix_hedge_wins").expect("a figure");
    wait_until(|| wins() >= 1200);
    assert_eq!(wins(), 1200);
    assert_eq!(stats.devices.len(), 2);
}

/// A device that lags behind is not asked, no matter how late the other is.
#[test]
fn a_hedge_is_never_stale() {
    let pair = pair(Ack::First, Prototype::Mkvs, ReadPath::Rings);
    for round in 0..6_u64 {
        let key = format!("key {round}");
        let key = key.as_bytes();
        put(&pair.matrix, key, b"old");
        pair.matrix.sync().expect("both have it");
        let [one, other] = &pair.gates;
        // Whichever device decides the write, the other does not get it.
        let lagging = if round % 2 == 0 { one } else { other };
        let current = if round % 2 == 0 { other } else { one };
        set(&lagging.holds_puts, true);
        let matrix = &pair.matrix;
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || put(matrix, key, b"new"));
            wait_until(|| count(&lagging.held_puts) > 0 || writer.is_finished());
            if writer.is_finished() {
                wait_until(|| count(&lagging.held_puts) > 0);
                set(&current.holds_gets, true);
                let reader = scope.spawn(move || get(matrix, key));
                wait_until(|| count(&current.held_gets) > 0 || reader.is_finished());
                // Time enough to ask the other device, if that were allowed.
                let late = Instant::now() + Duration::from_millis(20);
                wait_until(|| Instant::now() > late || reader.is_finished());
                set(&current.holds_gets, false);
                assert_eq!(reader.join().expect("reader"), b"new");
            }
            set(&lagging.holds_puts, false);
            writer.join().expect("writer");
        });
        pair.matrix.sync().expect("both have it");
        assert_eq!(get(&pair.matrix, key), b"new");
    }
}

/// Calls for several keys go through the rings if reads do.
#[test]
fn reads_of_several_keys_go_through_the_rings() {
    let pair = pair(Ack::All, Prototype::Mkvs, ReadPath::Rings);
    let matrix = &pair.matrix;
    put(matrix, b"four", b"4");
    let figure = |name| matrix.stats().figure(name).expect("a figure");
    let before = figure("matrix_ring_reads");
    let keys: [&[u8]; 2] = [b"four", b"two"];
    let mut found = Vec::new();
    let visit = &mut |_, record: Option<Record<'_>>| found.push(record.is_some());
    matrix.multi_get(&keys, Visibility::Durable, visit).expect("multi_get");
    assert_eq!(found, [true, false]);
    // The device that has answered counts it afterwards.
    wait_until(|| figure("matrix_ring_reads") > before);
}

/// One device is late, the other fails: the read continues with the device that is left.
#[test]
fn a_device_that_fails_in_a_race_loses_it() {
    for failing in [0, 1] {
        let pair = pair(Ack::All, Prototype::Mkvs, ReadPath::Rings);
        put(&pair.matrix, b"key", b"value");
        let [fails, stays] = [failing, 1 - failing].map(|device| Arc::clone(&pair.gates[device]));
        pair.hold_reads(true);
        pair.shelf.pull(Position { group: 0, device: failing as u8 });
        let matrix = &pair.matrix;
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || get(matrix, b"key"));
            // Both are asked, since the first one is late.
            wait_until(|| pair.held_reads() == 2);
            set(&fails.holds_gets, false);
            let position = Position { group: 0, device: failing as u8 };
            let is_absent = || matrix.member_states().contains(&(position, MemberState::Absent));
            wait_until(is_absent);
            set(&stays.holds_gets, false);
            assert_eq!(reader.join().expect("reader"), b"value");
        });
        assert_eq!(get(matrix, b"key"), b"value");
    }
}

/// Without competition one member serves all reads of a group, on either path.
#[test]
fn one_device_serves_reads_where_none_competes() {
    for read_path in [ReadPath::Auto, ReadPath::Rings] {
        let pair = pair(Ack::All, Prototype::Gekv, read_path);
        put(&pair.matrix, b"key", b"value");
        let before = pair.gates.each_ref().map(|gate| count(&gate.gets));
        let matrix = &pair.matrix;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope
                    .spawn(move || (0..50).for_each(|_| assert_eq!(get(matrix, b"key"), b"value")));
            }
        });
        let after = pair.gates.each_ref().map(|gate| count(&gate.gets));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [0, 200]);
        // When it is gone the other serves them.
        pair.shelf.pull(Position { group: 0, device: 1 });
        assert_eq!(get(matrix, b"key"), b"value");
    }
}

#[test]
fn a_matrix_stays_the_prototype_that_it_was_made_as() {
    for (prototype, devices) in [(Prototype::Mkvs, 4), (Prototype::Gekv, 4), (Prototype::Ekv, 1)] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let shape = Shape { prototype, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
        put(&matrix, b"key", b"value");
        assert_eq!(matrix.prototype(), prototype);
        assert_eq!(matrix.member_states().len(), devices);
        matrix.close().expect("close");
        drop(matrix);
        let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
        assert_eq!(matrix.prototype(), prototype);
        assert_eq!(get(&matrix, b"key"), b"value");
        assert_eq!(matrix.get(b"another").expect("get"), None);
    }
}

/// Reads that meet stalls go through the rings, and are made by the caller again when there are no more stalls.
#[test]
fn stalls_make_reads_go_through_the_rings() {
    let pair = pair(Ack::All, Prototype::Mkvs, ReadPath::Auto);
    put(&pair.matrix, b"key", b"value");
    let by_ring = || pair.matrix.stats().figure("matrix_hedge_wins").expect("a figure");
    let stop = AtomicBool::new(false);
    let (matrix, stopped) = (&pair.matrix, &stop);
    std::thread::scope(|scope| {
        let gates = &pair.gates;
        scope.spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                for gate in gates {
                    set(&gate.holds_gets, true);
                    std::thread::sleep(Duration::from_millis(1));
                    set(&gate.holds_gets, false);
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        wait_until(|| {
            assert_eq!(get(matrix, b"key"), b"value");
            by_ring() > 100
        });
        stop.store(true, Ordering::SeqCst);
    });
    wait_until(|| {
        let before = by_ring();
        (0..100).for_each(|_| assert_eq!(get(matrix, b"key"), b"value"));
        by_ring() == before
    });
}
