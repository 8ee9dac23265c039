//! Devices that are pulled out, are missing, come back, or belong to another matrix.

use crate::shelf::sample::{
    at, created, key, opened, put, put_back, refused, standing, take_out, two_by_two, two_by_two_of,
};
use crate::shelf::{Fault, Kind, Shelf, wait_until};
use coreplane_engine::{Engine, Entry, Error, Repairable, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, MemberState, Options, Position, Shape};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 500;

/// Only a guard against waiting for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// All records, by a scan if the matrix is ordered.
fn all_of(matrix: &Matrix) -> HashMap<Vec<u8>, u64> {
    let mut all = HashMap::new();
    let mut add = |entry: Entry<'_>| {
        let value = entry.record.expect("a record").value.to_vec();
        all.insert(entry.key.to_vec(), u64::from_le_bytes(value.try_into().expect("a serial")));
    };
    if let Some(ordered) = matrix.ordered() {
        let visit = &mut |entry: Entry<'_>| {
            add(entry);
            true
        };
        ordered.scan(b"", None, false, usize::MAX, visit).expect("no scan fails");
        return all;
    }
    let mut cursor = 0;
    loop {
        cursor = matrix.iterate(cursor, 100, &mut add).expect("no iteration fails");
        if cursor == 0 {
            return all;
        }
    }
}

/// An iteration over all records finds the acknowledged ones, or newer ones.
fn nothing_is_missing(matrix: &Matrix, written: &[Vec<AtomicU64>]) {
    let load = |mine: &Vec<AtomicU64>| mine.iter().map(|it| it.load(Ordering::SeqCst)).collect();
    let least: Vec<Vec<u64>> = written.iter().map(load).collect();
    let found = all_of(matrix);
    for (thread, mine) in (0..).zip(&least) {
        for (number, least) in (0..).zip(mine) {
            let found = found.get(&key(thread, number)).copied().unwrap_or_default();
            assert!(found >= *least, "{found} was listed, {least} acknowledged");
        }
    }
}

/// Each key has the serial that was written last, or is absent; and everything is sound.
fn is_as_written(matrix: &Matrix, written: &[Vec<AtomicU64>]) {
    for (thread, mine) in (0..).zip(written) {
        for (number, serial) in (0..).zip(mine) {
            let serial = serial.load(Ordering::SeqCst);
            let value = matrix.get(&key(thread, number)).expect("get");
            let expected = (serial > 0).then(|| serial.to_le_bytes().to_vec());
            assert_eq!(value, expected, "{thread} {number}");
        }
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Four writers, four readers and a thread that iterates; a device is pulled out in the middle. All
/// acknowledged records are there, and no read has failed or returned an older value.
fn pulled_under_load(kind: Kind, ack: Ack) {
    let shelf = Shelf::new(kind, 128 << 20);
    let matrix = created(&shelf, (2, 2), ack);
    let written: Vec<Vec<AtomicU64>> =
        (0..4).map(|_| (0..KEYS).map(|_| AtomicU64::new(0)).collect()).collect();
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (thread, mine) in (0..).zip(&written) {
            let (matrix, stop, total) = (&matrix, &stop, &total);
            scope.spawn(move || {
                for serial in 1.. {
                    let number = serial * 7919 % KEYS;
                    put(matrix, &key(thread, number), &u64::to_le_bytes(serial));
                    mine[number as usize].store(serial, Ordering::SeqCst);
                    total.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for reader in 0..4_u64 {
            let (matrix, stop, written) = (&matrix, &stop, &written);
            scope.spawn(move || {
                for serial in reader.. {
                    let (thread, number) = (serial % 4, serial * 31 % KEYS);
                    let least = written[thread as usize][number as usize].load(Ordering::SeqCst);
                    let value = matrix.get(&key(thread, number)).expect("no read fails");
                    let found = value.map_or(0, |it| u64::from_le_bytes(it.try_into().unwrap()));
                    assert!(found >= least, "{found} was read after {least} was acknowledged");
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                nothing_is_missing(&matrix, &written);
            }
        });
        let wait_for = |count| {
            while total.load(Ordering::Relaxed) < count {
                std::thread::yield_now();
            }
        };
        wait_for(4_000);
        shelf.pull(at(0, 1));
        wait_for(12_000);
        stop.store(true, Ordering::Relaxed);
    });
    // Where no write waits for it, it leaves when its own processor comes to a write.
    let begun = Instant::now();
    while standing(&matrix, at(0, 1)) == MemberState::Current && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent);
    assert_eq!(standing(&matrix, at(0, 0)), MemberState::Current);
    let [departure] = &matrix.departures()[..] else { panic!("{:?}", matrix.departures()) };
    assert_eq!(departure.device, at(0, 1));
    assert!(departure.why.contains("pulled out"), "{departure:?}");
    is_as_written(&matrix, &written);
    // After a kill, the pulled device is back, and must not count.
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent);
    is_as_written(&matrix, &written);
}

#[test]
fn a_device_of_bptree_is_pulled_out_under_load() {
    pulled_under_load(Kind::Bptree, Ack::All);
}

#[test]
fn a_device_of_scmkv_is_pulled_out_under_load() {
    pulled_under_load(Kind::Scmkv, Ack::All);
}

#[test]
fn a_device_is_pulled_out_where_writes_wait_for_the_first() {
    pulled_under_load(Kind::Bptree, Ack::First);
}

#[test]
fn one_that_is_missing_is_gone_without() {
    let shelf = two_by_two(Ack::All);
    take_out(&shelf, at(0, 1));
    let matrix = opened(&shelf).expect("one group is whole");
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent);
    (0..100).for_each(|number| assert!(matrix.get(&key(0, number)).expect("get").is_some()));
    put(&matrix, &key(0, 0), b"written without it");
    drop(matrix);
    // It comes back, out of date, and is not asked.
    put_back(&shelf, at(0, 1));
    let matrix = opened(&shelf).expect("open");
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent);
    let value = matrix.get(&key(0, 0)).expect("get");
    assert_eq!(value.as_deref(), Some(&b"written without it"[..]));
    drop(matrix);
    // Alone it cannot stand for its group.
    take_out(&shelf, at(0, 0));
    refused(&shelf, "group 0 has no current device");
}

#[test]
fn foreign_devices_are_refused() {
    let (shelf, other) = (two_by_two(Ack::All), two_by_two(Ack::All));
    std::fs::copy(other.path(at(1, 1)), shelf.path(at(1, 1))).expect("copy");
    refused(&shelf, "belongs to another matrix");
    std::fs::remove_file(shelf.path(at(1, 1))).expect("remove");
    std::fs::copy(shelf.path(at(1, 0)), shelf.path(at(1, 1))).expect("copy");
    refused(&shelf, "two devices");
}

/// A device that cannot be read at all counts as absent, and is named.
fn left_out(kind: Kind, breaks: &dyn Fn(&mut Vec<u8>)) {
    let shelf = two_by_two_of(kind, Ack::All);
    // After a kill the last record could also be an interrupted one.
    opened(&shelf).expect("open").close().expect("close");
    let path = shelf.path(at(0, 1));
    let mut bytes = std::fs::read(&path).expect("read");
    breaks(&mut bytes);
    std::fs::write(&path, bytes).expect("write");
    let matrix = opened(&shelf).expect("its peer has all");
    left_out_of(&matrix);
}

fn left_out_of(matrix: &Matrix) {
    assert_eq!(matrix.damaged().iter().map(|(place, _)| *place).collect::<Vec<_>>(), [at(0, 1)]);
    assert_eq!(standing(matrix, at(0, 1)), MemberState::Absent, "{:?}", matrix.damaged());
    (0..100).for_each(|number| assert!(matrix.get(&key(0, number)).expect("get").is_some()));
    put(matrix, b"after", b"1");
}

#[test]
fn a_device_whose_header_is_broken_is_left_out() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        for at in [3, 9, 17, 40] {
            left_out(kind, &|bytes| bytes[at] ^= 1);
        }
    }
}

#[test]
fn a_device_that_is_cut_off_is_left_out() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        left_out(kind, &|bytes| bytes.truncate(bytes.len() / 2));
    }
}

#[test]
fn a_device_whose_label_is_damaged_is_left_out() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        // In the middle of every membership record that the device ever had.
        left_out(kind, &|bytes| {
            let word = b"\"identity\":\"";
            let places: Vec<usize> =
                (0..bytes.len() - word.len()).filter(|at| bytes[*at..].starts_with(word)).collect();
            assert!(!places.is_empty(), "there is a label");
            places.into_iter().for_each(|at| bytes[at + word.len()] ^= 1);
        });
    }
}

#[test]
fn a_device_that_cannot_be_read_is_left_out() {
    let shelf = two_by_two(Ack::All);
    shelf.set_fault(at(0, 1), Some(Fault::Unreadable));
    let matrix = opened(&shelf).expect("its peer has all");
    left_out_of(&matrix);
}

/// Devices may be at any place: each knows where it belongs.
#[test]
fn the_order_of_devices_does_not_matter() {
    let shelf = two_by_two(Ack::All);
    let swap = |one, other| {
        take_out(&shelf, one);
        std::fs::rename(shelf.path(other), shelf.path(one)).expect("rename");
        std::fs::rename(shelf.path(one).with_extension("out"), shelf.path(other)).expect("rename");
    };
    swap(at(0, 0), at(1, 1));
    swap(at(0, 1), at(1, 0));
    let matrix = opened(&shelf).expect("open");
    (0..100).for_each(|number| assert!(matrix.get(&key(0, number)).expect("get").is_some()));
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Members that differ are reported, though each is sound by itself.
#[test]
fn members_that_differ_are_told() {
    let shelf = two_by_two(Ack::All);
    opened(&shelf).expect("open").close().expect("close");
    let path = shelf.path(at(1, 0));
    let options = coreplane_bptree::Options::default();
    let media = coreplane_pmem::MediaChoice::Auto;
    let device = coreplane_bptree::Bptree::open(&path, media, &options, &|_| {}).expect("open");
    let mut keys = Vec::new();
    device.iterate(0, 1000, &mut |entry| keys.push(entry.key.to_vec())).expect("iterate");
    let victim = keys.iter().find(|key| key.starts_with(b"thread")).expect("a key of group 1");
    let _outcome = device.put(victim, b"tampered", &WriteOptions::default()).expect("put");
    device.close().expect("close");
    drop(device);
    let matrix = opened(&shelf).expect("open");
    let report = matrix.verify(&mut |_| {}).expect("verify");
    assert!(report.damages.iter().any(|it| it.what.contains("group 1 differ")), "{report:?}");
    assert_eq!(report.damages.len(), 1);
}

/// A write with a given sequence may be older than the stable watermark. The members are made equal all the same.
#[test]
fn a_write_with_an_old_sequence_is_brought_level() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    (0..100).for_each(|number| put(&matrix, &key(0, number), b"value"));
    matrix.close().expect("close");
    matrix.close().expect("it is closed");
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    let given = |sequence| WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
    let _outcome = matrix.put(b"old", b"first", &given(7)).expect("put");
    for sequence in [1 << 61, u64::MAX] {
        let refused = matrix.put(b"old", b"value", &given(sequence));
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
    drop(matrix);
    // The power failed when one device had the next write.
    let clock: coreplane_mkvs::TimeSource = std::sync::Arc::new(coreplane_engine::UnixMillis::now);
    let device = coreplane_mkvs::Rack::open(&shelf, at(0, 1), &clock).expect("open");
    let _outcome = device.put(b"old", b"second", &given(8)).expect("put");
    let _outcome = device.put(b"older", b"alone", &given(9)).expect("put");
    drop(device);
    let matrix = opened(&shelf).expect("open");
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    assert_eq!(matrix.get(b"old").expect("get").as_deref(), Some(&b"second"[..]));
    shelf.pull(at(0, 1));
    assert_eq!(matrix.get(b"older").expect("get").as_deref(), Some(&b"alone"[..]));
}

/// The first call to meet a missing device continues with the other one.
#[test]
fn whoever_goes_through_all_keys_goes_on_without_a_device() {
    type Look = fn(&Matrix) -> Result<u64, Error>;
    let iterate: Look = |matrix| {
        let (mut keys, mut cursor) = (std::collections::BTreeSet::new(), 0);
        loop {
            let visit = &mut |it: Entry<'_>| keys.extend([it.key.to_vec()]);
            cursor = matrix.iterate(cursor, 7, visit)?;
            if cursor == 0 {
                return Ok(keys.len() as u64);
            }
        }
    };
    let scan: Look = |matrix| {
        let mut count = 0;
        let visit = &mut |_: Entry<'_>| {
            count += 1;
            true
        };
        matrix.ordered().expect("order").scan(b"", None, true, usize::MAX, visit)?;
        Ok(count)
    };
    let since: Look = |matrix| {
        let mut keys = std::collections::BTreeSet::new();
        matrix.changes_since(0, &mut |it| keys.extend([it.key.to_vec()]))?;
        Ok(keys.len() as u64)
    };
    let looks: [Look; 6] = [
        iterate,
        scan,
        since,
        |matrix| matrix.len(),
        |matrix| matrix.sweep_expired().map(|_| 100),
        |matrix| matrix.scrub(&|_| {}).map(|scrubbed| scrubbed.records),
    ];
    for (number, look) in looks.into_iter().enumerate() {
        let shelf = two_by_two(Ack::All);
        let matrix = opened(&shelf).expect("open");
        matrix.hold_tombstones(0).expect("hold");
        assert_eq!(look(&matrix).expect("both are there"), 100, "{number}");
        // The device that is asked, and its peer in the other group.
        (0..2).for_each(|group| shelf.pull(at(group, 1 - group as u8)));
        assert_eq!(look(&matrix).expect("one of each is there"), 100, "{number}");
        assert_eq!(standing(&matrix, at(0, 1)), MemberState::Absent, "{number}");
    }
}

/// The membership record is also written to full devices: no device is left out because it is full.
#[test]
fn a_full_device_is_not_left_out() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let shape = Shape::default();
        let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
        let (value, mut written, mut full) = (vec![7; 1500], 0, 0);
        // Until both groups are completely full.
        while full < 200 {
            match matrix.put(&key(0, written + full), &value, &WriteOptions::default()) {
                Ok(_) => written += 1,
                Err(Error::NoSpace { .. }) => full += 1,
                Err(error) => panic!("{error}"),
            }
        }
        shelf.pull(at(0, 1));
        let _outcome = matrix.delete(&key(0, 0), &WriteOptions::default()).expect("delete");
        for _ in 0..3 {
            (0..50).for_each(|number| drop(matrix.get(&key(0, number)).expect("get")));
        }
        let standings = matrix.member_states();
        let absent: Vec<Position> =
            standings.iter().filter(|it| it.1 != MemberState::Current).map(|it| it.0).collect();
        assert_eq!(absent, [at(0, 1)], "{kind:?}");
        matrix.close().expect("close");
        drop(matrix);
        let matrix = opened(&shelf).expect("open");
        assert_eq!(standing(&matrix, at(1, 1)), MemberState::Current, "{kind:?}");
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// A loss was accepted, and the new primary lacked a put and a delete of a key, which its peer had. It gets the
/// delete, although it does not have the key: an open after the next kill does not find that it lacks a write.
#[test]
fn a_primary_that_was_named_by_an_accepted_loss_lacks_no_delete() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 3), Ack::First);
    put(&matrix, &key(0, 0), b"value");
    matrix.sync().expect("all have it");
    let gate = shelf.gate(at(0, 1));
    gate.is_lagging.store(true, Ordering::SeqCst);
    put(&matrix, &key(0, 1), b"value");
    let _outcome = matrix.delete(&key(0, 1), &WriteOptions::default()).expect("delete");
    put(&matrix, &key(0, 2), b"value");
    let follower = shelf.engine(at(0, 0));
    wait_until(|| follower.get(&key(0, 2)).expect("get").is_some());
    drop(follower);
    shelf.cut_power();
    gate.is_lagging.store(false, Ordering::SeqCst);
    drop(matrix);
    shelf.restore_power();
    take_out(&shelf, at(0, 2));
    let accept = Options { accept_loss: true, ..Options::default() };
    drop(Matrix::open(&shelf, &accept, &|_| {}).expect("it was accepted"));
    let matrix = opened(&shelf).expect("nothing is lost");
    for (number, is_there) in [(0, true), (1, false), (2, true)] {
        assert_eq!(matrix.get(&key(0, number)).expect("get").is_some(), is_there, "{number}");
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}
