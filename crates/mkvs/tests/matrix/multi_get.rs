//! Several keys in one call: each has the result of a single get, whatever happens to the devices.

use crate::shelf;
use crate::shelf::gate::Gate;
use crate::shelf::sample::{at, created, put, standing};
use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Engine, Entry, Visibility, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, MemberState};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The values of keys, in one call.
fn values(matrix: &Matrix, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut values = vec![None; keys.len()];
    let horizon = matrix.multi_get(&keys, Visibility::Durable, &mut |number, record| {
        values[number] = record.map(|record| record.value.to_vec());
    });
    assert!(horizon.expect("multi_get").is_empty());
    values
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}

fn set(flag: &AtomicBool, value: bool) {
    flag.store(value, Ordering::SeqCst);
}

/// Runs in several threads, each of which prefers another device.
fn in_threads(count: usize, work: impl Fn() + Sync) {
    for _ in 0..count {
        std::thread::scope(|scope| drop(scope.spawn(&work)));
    }
}

#[test]
fn each_key_is_what_a_get_says() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (3, 2), Ack::All);
        let key = |number: u64| format!("key {number}").into_bytes();
        for number in (0..300).filter(|number| number % 3 != 1) {
            let len = if number % 50 == 0 { 100_000 } else { number as usize };
            put(&matrix, &key(number), &vec![number as u8; len]);
        }
        for number in (0..300).filter(|number| number % 7 == 0) {
            let _outcome = matrix.delete(&key(number), &WriteOptions::default()).expect("delete");
        }
        // More than a lane, some twice, and some that do not exist.
        let mut keys: Vec<Vec<u8>> = (0..300).chain(20..40).map(key).collect();
        keys.push(Vec::new());
        let expected = || keys.iter().map(|key| matrix.get(key).expect("get")).collect::<Vec<_>>();
        in_threads(4, || assert_eq!(values(&matrix, &keys), expected()));
        assert_eq!(values(&matrix, &[]), Vec::<Option<Vec<u8>>>::new());
        // Enough misses that filters are asked, and then enough hits that they are not.
        for keys in [(1000..1200).map(key).collect::<Vec<_>>(), vec![key(2); 200]] {
            let expected: Vec<_> = keys.iter().map(|key| matrix.get(key).expect("get")).collect();
            (0..3).for_each(|_| assert_eq!(values(&matrix, &keys), expected));
        }
    }
}

/// A reader decides which device to ask; before it asks, writes are made on that device, and not yet on the
/// other. If the read showed the new values, the next reader, which asks the other, would go back.
#[test]
fn several_slow_reads_are_not_too_new() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = &created(&shelf, (1, 2), Ack::All);
    let gates: [Arc<Gate>; 2] = [0, 1].map(|device| shelf.gate(at(0, device)));
    let hold = |holds| gates.iter().for_each(|gate| set(&gate.holds_looks, holds));
    let mut first_asked = [0; 2];
    for round in 0_u64.. {
        let keys = [format!("key {round}").into_bytes(), b"another".to_vec()];
        keys.iter().for_each(|key| put(matrix, key, b"old"));
        // No other thread reads many keys.
        wait_until(|| gates.iter().all(|gate| count(&gate.held_looks) == 0));
        hold(true);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| values(matrix, &keys));
            let looks = |gate: &Arc<Gate>| count(&gate.held_looks) > 0;
            wait_until(|| gates.iter().any(looks));
            let asked = gates.iter().position(looks).expect("a device");
            first_asked[asked] += 1;
            let other = &gates[1 - asked];
            set(&other.holds_puts, true);
            // A put would be seen on neither device before it is on both.
            let key = &keys[0];
            let update = || matrix.update(key, b"new", &WriteOptions::default());
            let writer = scope.spawn(update);
            wait_until(|| count(&other.held_puts) > 0 || writer.is_finished());
            hold(false);
            let first = reader.join().expect("a reader");
            let second = matrix.get(key).expect("get");
            set(&other.holds_puts, false);
            assert!(writer.join().expect("a writer").expect("update").written().is_some());
            let is_back = first[0].as_deref() == Some(b"new") && second.as_deref() == Some(b"old");
            assert!(!is_back, "a reader goes back");
            assert_eq!(first[1].as_deref(), Some(&b"old"[..]));
        });
        if first_asked.iter().all(|rounds| *rounds >= 2) {
            return;
        }
        // The next reader's thread has another number.
        in_threads(1, || drop(matrix.get(b"another")));
    }
}

/// A device that lags behind is not asked for keys whose newest write it lacks.
#[test]
fn several_reads_are_never_stale() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    let keys: Vec<Vec<u8>> = (0..20).map(|number| format!("key {number}").into_bytes()).collect();
    keys.iter().for_each(|key| put(&matrix, key, b"old"));
    matrix.sync().expect("both have them");
    let gates = [0, 1].map(|device| shelf.gate(at(0, device)));
    gates.iter().for_each(|gate| set(&gate.is_lagging, true));
    let (changed, others) = keys.split_at(7);
    changed.iter().for_each(|key| put(&matrix, key, b"new"));
    let seen = Mutex::new(Vec::new());
    in_threads(4, || seen.lock().push(values(&matrix, &keys)));
    // Before an assertion can fail, since the matrix would wait for the devices.
    gates.iter().for_each(|gate| set(&gate.is_lagging, false));
    for values in seen.into_inner() {
        let (new, old) = values.split_at(changed.len());
        assert!(new.iter().all(|value| value.as_deref() == Some(b"new")), "{new:?}");
        assert!(old.iter().all(|value| value.as_deref() == Some(b"old")), "{old:?}");
    }
    matrix.sync().expect("both have them");
    assert_eq!(values(&matrix, others), vec![Some(b"old".to_vec()); others.len()]);
}

/// The device that is asked is gone: the others have the same records.
#[test]
fn several_reads_go_on_without_a_device() {
    for lost in [0, 1] {
        let shelf = Shelf::new(Kind::Scmkv, 16 << 20);
        let matrix = created(&shelf, (2, 2), Ack::All);
        let keys: Vec<Vec<u8>> = (0..100_u64).map(|number| number.to_le_bytes().into()).collect();
        keys.iter().for_each(|key| put(&matrix, key, key));
        shelf.pull(at(0, lost));
        let expected: Vec<_> = keys.iter().cloned().map(Some).collect();
        in_threads(4, || assert_eq!(values(&matrix, &keys), expected));
        // Which device is asked depends on the number of the thread.
        shelf::wait_until(|| {
            in_threads(1, || assert_eq!(values(&matrix, &keys), expected));
            standing(&matrix, at(0, lost)) != MemberState::Current
        });
        assert_eq!(standing(&matrix, at(0, lost)), MemberState::Absent);
    }
}

/// Records that a device shows while its medium is lost are not used.
#[test]
fn several_reads_show_nothing_of_a_device_that_goes() {
    for (number, kind) in [(0, Kind::Bptree), (1, Kind::Scmkv)] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        let keys: Vec<Vec<u8>> = (0..40_u64).map(|number| number.to_le_bytes().into()).collect();
        keys.iter().for_each(|key| put(&matrix, key, key));
        let (going, engine) = (shelf.gate(at(0, number)), shelf.engine(at(0, number)));
        for key in &keys {
            let _outcome = engine.put(key, b"spoilt", &WriteOptions::default()).expect("put");
        }
        set(&going.goes_in_a_look, true);
        let expected: Vec<_> = keys.iter().cloned().map(Some).collect();
        // By the first thread that prefers the device.
        while standing(&matrix, at(0, number)) == MemberState::Current {
            in_threads(1, || assert_eq!(values(&matrix, &keys), expected));
        }
        assert_eq!(values(&matrix, &keys), expected);
    }
}

/// An iteration copies only so many bytes at a time, and reads the other values one by one.
#[test]
fn an_iteration_shows_many_long_values() {
    let shelf = Shelf::new(Kind::Bptree, 64 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    (0..12).for_each(|key| put(&matrix, &[key], &vec![key; 1 << 20]));
    let (mut cursor, mut shown, mut is_over) = (0, vec![false; 12], false);
    while !is_over {
        let mut show = |entry: Entry<'_>| {
            let value = entry.record.expect("a record").value.to_vec();
            assert!(value == vec![entry.key[0]; 1 << 20]);
            shown[usize::from(entry.key[0])] = true;
        };
        cursor = matrix.iterate(cursor, 100, &mut show).expect("iterate");
        is_over = cursor == 0;
    }
    assert_eq!(shown, [true; 12]);
}
