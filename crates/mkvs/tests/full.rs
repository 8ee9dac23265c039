//! Devices without space: a write is refused with an error that says so, no acknowledged write is lost, and
//! devices of a group have the same records, after a restart too.

mod scale;
mod shelf;

use coreplane_engine::{Batch, Engine, Error, Repairable, Replicated, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options, Position, Shape};
use scale::scaled;
use shelf::gate::Gate;
use shelf::sample::{device, put_back, standing, take_out};
use shelf::{Kind, Shelf};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

type Known = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

fn value(serial: u64) -> Vec<u8> {
    vec![serial as u8; 1500 + (serial * 37 % 2000) as usize]
}

/// Writes new values to keys, some in batches, until so many in a row were refused.
fn write_until_refused(matrix: &Matrix, known: &mut Known, in_a_row: u64) {
    let (options, mut refused) = (WriteOptions::default(), 0);
    for serial in 0.. {
        let numbers = if serial % 9 == 8 { serial..serial + 4 } else { serial..serial + 1 };
        let changes = numbers.map(|number| (key(number * 7 % 40_000), value(number + serial)));
        let changes: Vec<(Vec<u8>, Vec<u8>)> = changes.collect();
        let written = if let [(key, value)] = &changes[..] {
            matrix.put(key, value, &options).map(|_| ())
        } else {
            let mut batch = Batch::new();
            for (key, value) in &changes {
                batch.put(key, value);
            }
            matrix.apply(&batch, &options).map(|_| ())
        };
        match written {
            Ok(()) => {
                known.extend(changes);
                refused = 0;
            }
            Err(Error::NoSpace { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if refused == in_a_row {
            return;
        }
    }
}

fn check(matrix: &Matrix, known: &Known) {
    for (key, value) in known {
        assert_eq!(matrix.get(key).expect("get").as_ref(), Some(value));
    }
    assert_eq!(matrix.len().expect("len"), known.len() as u64);
    let report = matrix.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
}

/// All devices are current except one with less space than its peer: if it has not even the space to take
/// back a write for which only its peer had space, it is left out.
fn is_kept(matrix: &Matrix, smaller: Option<Position>) -> bool {
    let standings = matrix.member_states();
    standings.iter().all(|(at, it)| *it == MemberState::Current || Some(*at) == smaller)
}

fn created(kind: Kind, ack: Ack, smaller: Option<Position>) -> (Shelf, Matrix) {
    let size = if kind == Kind::Bptree { 2 << 20 } else { 24 << 20 };
    let shelf = Shelf::new(kind, size);
    if let Some(position) = smaller {
        shelf.size(position, size * 2 / 3);
    }
    let shape = Shape { ack, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    (shelf, matrix)
}

/// One device of a group, the first or the second, has less space than the others; or all have the same.
#[test]
fn what_does_not_fit_is_refused_and_nothing_is_lost() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        for device in [Some(0), Some(1), None] {
            let smaller = device.map(|device| Position { group: 1, device });
            let (shelf, mut matrix) = created(kind, Ack::All, smaller);
            let mut known = Known::new();
            for round in 0..3 {
                write_until_refused(&matrix, &mut known, 12);
                check(&matrix, &known);
                assert!(
                    is_kept(&matrix, smaller),
                    "{kind:?}, {smaller:?}: {:?}",
                    matrix.member_states()
                );
                if round == 1 {
                    matrix.close().expect("close");
                }
                drop(matrix);
                matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
                check(&matrix, &known);
                assert!(
                    is_kept(&matrix, smaller),
                    "{kind:?}, {smaller:?}: {:?}",
                    matrix.member_states()
                );
                // Deletes make room for other keys.
                let gone: Vec<Vec<u8>> = known.keys().step_by(3).cloned().collect();
                for key in gone {
                    let _outcome = matrix.delete(&key, &WriteOptions::default()).expect("delete");
                    known.remove(&key);
                }
                let len = known.len();
                write_until_refused(&matrix, &mut known, 1);
                assert!(known.len() > len, "{kind:?}, {smaller:?}: there is room again");
            }
        }
    }
}

/// At `first`, a follower with less space is left out, and the others have everything.
#[test]
fn who_cannot_follow_for_lack_of_space_is_left_out() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        // Writes wait for the second device of a group.
        let smaller = Position { group: 0, device: 0 };
        let (shelf, matrix) = created(kind, Ack::First, Some(smaller));
        let mut known = Known::new();
        write_until_refused(&matrix, &mut known, 12);
        matrix.sync().expect("sync");
        check(&matrix, &known);
        let left_out: Vec<Position> = matrix
            .member_states()
            .into_iter()
            .filter(|(_, standing)| *standing != MemberState::Current)
            .map(|(position, _)| position)
            .collect();
        // That device is not left out; another follower may be full a little sooner by chance.
        let is_right = left_out.contains(&smaller) && left_out.iter().all(|it| it.device == 0);
        assert!(is_right, "{kind:?}: {left_out:?}");
        matrix.close().expect("close");
        drop(matrix);
        check(&Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open"), &known);
    }
}

/// At `first`, a follower has nothing that the primary lacks: if it is left out for lack of space, or pulled
/// out, and the power fails at once, nothing can be lost.
#[test]
fn a_power_cut_after_one_that_follows_was_left_out_loses_nothing() {
    type Fails = fn(&Gate);
    let full: Fails = |gate| gate.is_full.store(true, Ordering::SeqCst);
    let out: Fails = |gate| gate.is_out.store(true, Ordering::SeqCst);
    for fails in [full, out] {
        let left_out = Position { group: 0, device: 0 };
        let shelf = Shelf::new(Kind::Bptree, 2 << 20);
        let shape = Shape { groups: 1, ack: Ack::First, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
        let put = |number| matrix.put(&key(number), &value(1), &WriteOptions::default());
        let _outcome = put(0).expect("put");
        fails(&shelf.gate(left_out));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(put(1)));
            let begun = Instant::now();
            while matrix.member_states().contains(&(left_out, MemberState::Current)) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{left_out} is never left out");
                std::thread::yield_now();
            }
            shelf.cut_power();
        });
        drop(matrix);
        shelf.restore_power();
        let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
        assert_eq!(matrix.get(&key(0)).expect("get"), Some(value(1)));
    }
}

/// When dropped, stops the device of this gate from lagging, even after a failure.
struct Lags<'g>(&'g Gate);

impl<'g> Lags<'g> {
    fn begin(gate: &'g Gate) -> Self {
        gate.is_lagging.store(true, Ordering::SeqCst);
        Self(gate)
    }
}

impl Drop for Lags<'_> {
    fn drop(&mut self) {
        self.0.is_lagging.store(false, Ordering::SeqCst);
    }
}

/// The primary fails, and the power fails before its successor has executed the writes in its ring: the
/// record still names the old primary. Without it the matrix is refused, and also with an earlier copy of it.
/// When it is put back everything is there.
#[test]
fn a_power_cut_before_a_successor_has_everything_finds_the_old_primary_named() {
    let primary = Position { group: 0, device: 1 };
    let follower = Position { device: 0, ..primary };
    let shelf = Shelf::new(Kind::Bptree, 2 << 20);
    let shape = Shape { groups: 1, ack: Ack::First, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    matrix.close().expect("close");
    drop(matrix);
    let (place, copy) = (shelf.path(primary), shelf.path(primary).with_extension("copy"));
    std::fs::copy(&place, &copy).expect("copy");
    let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
    let gate = shelf.gate(follower);
    let lags = Lags::begin(&gate);
    let put = |number| matrix.put(&key(number), &value(1), &WriteOptions::default());
    let _outcome = put(0).expect("put");
    shelf.pull(primary);
    std::thread::scope(|scope| {
        // Dropped in this scope, also after a panic: the scope waits for the writer, which waits for the device.
        let lags = lags;
        let waits = scope.spawn(|| put(1));
        // The put is not answered: the successor lacks an acknowledged write.
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(!waits.is_finished());
        }
        assert_eq!(standing(&matrix, primary), MemberState::Current);
        shelf.cut_power();
        drop(lags);
        assert!(waits.join().expect("no panic").is_err());
    });
    drop(matrix);
    shelf.restore_power();
    let refused = |why: &str| match Matrix::open(&shelf, &Options::default(), &|_| {}) {
        Err(Error::Unusable(what)) => assert!(what.contains(why), "{what}"),
        other => panic!("{other:?}"),
    };
    take_out(&shelf, primary);
    refused("no group is whole");
    std::fs::rename(&copy, &place).expect("put the copy there");
    refused("g0d1 is the primary");
    std::fs::remove_file(&place).expect("remove");
    put_back(&shelf, primary);
    let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("it is here");
    assert_eq!(matrix.get(&key(0)).expect("get"), Some(value(1)));
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    // The other device has it now, too.
    shelf.pull(primary);
    assert_eq!(matrix.get(&key(0)).expect("get"), Some(value(1)));
}

/// New keys are refused again and again, and one device had space for each of them and takes it back: no
/// device is left out, and deleted keys stay deleted.
#[test]
fn who_is_full_stays_a_member_however_often_it_refuses() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        for device in [0, 1] {
            let size = if kind == Kind::Bptree { 1 << 20 } else { 32 << 20 };
            let (shelf, smaller) = (Shelf::new(kind, size), Position { group: 0, device });
            shelf.size(smaller, size * 2 / 3);
            let shape = Shape { groups: 1, ..Shape::default() };
            let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
            let (options, mut known, mut refused) = (WriteOptions::default(), Known::new(), 0);
            let len = if kind == Kind::Bptree { 40 } else { 4000 };
            let refuses = scaled(12_000, 100_000);
            for number in 0.. {
                let key = format!("{number:012}").into_bytes();
                let value = vec![number as u8; len];
                match matrix.insert(&key, &value, &options) {
                    Ok(_) => drop(known.insert(key, value)),
                    Err(Error::NoSpace { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                if refused == refuses {
                    break;
                }
            }
            let standings = matrix.member_states();
            assert!(is_kept(&matrix, None), "{kind:?}, {smaller}: {standings:?}");
            check(&matrix, &known);
            for (serial, key) in known.keys().enumerate() {
                let _outcome = matrix
                    .delete(key, &options)
                    .unwrap_or_else(|error| panic!("{serial}: {error}"));
            }
            assert!(is_kept(&matrix, None), "{kind:?}, {smaller}: {standings:?}");
            drop(matrix);
            let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
            assert!(is_kept(&matrix, None) && matrix.is_empty().expect("len"));
            let _outcome =
                matrix.put(b"again", &vec![1; len], &options).expect("there is space again");
        }
    }
}

/// A write with a given sequence cannot be made again after it was taken back: the call is no success, even
/// if there is space by then.
#[test]
fn a_write_that_was_taken_back_is_not_taken_for_an_older_one() {
    for (full, is_batch) in [(0, false), (1, false), (0, true), (1, true)] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let shape = Shape { groups: 1, ..Shape::default() };
        let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
        // Enough tombstones that dropping them makes space.
        for number in 0..1100 {
            let _outcome =
                matrix.put(&key(number), b"value", &WriteOptions::default()).expect("put");
            let _outcome = matrix.delete(&key(number), &WriteOptions::default()).expect("delete");
        }
        let _outcome = matrix.put(b"key", b"old", &WriteOptions::default()).expect("put");
        let sequence = Some(matrix.advance_sequence().expect("sequence"));
        let options = WriteOptions { sequence, ..WriteOptions::default() };
        let place = Position { group: 0, device: full };
        shelf.gate(place).is_full.store(true, std::sync::atomic::Ordering::SeqCst);
        let written = if is_batch {
            let mut batch = Batch::new();
            batch.put(b"key", b"new").put(b"other", b"new");
            matrix.apply(&batch, &options).map(|_| ())
        } else {
            matrix.put(b"key", b"new", &options).map(|_| ())
        };
        assert!(written.is_err(), "device {full}, {is_batch}: {written:?}");
        assert_eq!(matrix.get(b"key").expect("get").as_deref(), Some(&b"old"[..]));
    }
}

/// A full group has given half of its keys to a group that was added: the tombstones of those keys do not keep the
/// room that the keys had.
#[test]
fn what_moves_to_a_group_that_is_added_leaves_its_room() {
    let shelf = Shelf::new(Kind::Bptree, 2 << 20);
    let shape = Shape { groups: 1, devices: 1, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    let fill = |from: u64| {
        let put = |number: &u64| matrix.put(&key(*number), b"value", &WriteOptions::default());
        (from..).find(|number| put(number).is_err()).expect("it is full at last")
    };
    let count = fill(0);
    matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
    let old = shelf.engine(Position { group: 0, device: 0 });
    assert_eq!(old.tombstone_horizon(), 0);
    fill(count);
    assert!(old.tombstone_horizon() > 0, "the tombstones are still there");
}

/// A device comes back with many keys that its peer does not have, and the peer is full: the tombstones of these keys
/// go when it has no more space for them.
#[test]
fn who_comes_back_with_many_deleted_keys_is_filled_though_its_peer_is_full() {
    let shelf = Shelf::new(Kind::Bptree, 1 << 20);
    let [back, peer] = [0, 1].map(|device| Position { group: 0, device });
    shelf.size(back, 16 << 20);
    let shape = Shape { groups: 1, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    let put = |number| matrix.put(&key(number), b"value", &WriteOptions::default());
    shelf.pull(back);
    let count = (0..).find(|number| put(*number).is_err()).expect("it is full at last");
    assert_eq!(standing(&matrix, back), MemberState::Absent);
    for number in count..count + 20_000 {
        let engine = shelf.engine(back);
        let _outcome = engine.put(&key(number), b"", &WriteOptions::default()).expect("put");
    }
    shelf.put_back(back);
    matrix.replace(&shelf, back, &CopyOptions::default(), &|_| {}).expect("it is filled");
    assert_eq!(standing(&matrix, peer), MemberState::Current);
    assert_eq!(
        (matrix.len().expect("len"), standing(&matrix, back)),
        (count, MemberState::Current)
    );
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A device fails, and the others have no space for the record without it. What takes the change back is not written
/// either, so that an open may find the change, and the primary without which a write was made: no write is answered
/// that began before.
#[test]
fn a_write_is_not_answered_when_a_change_can_neither_be_made_nor_taken_back() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let shape = Shape { groups: 1, devices: 3, ack: Ack::First, ..Shape::default() };
    let options = Options { answers_within: None, ..Options::default() };
    let matrix = &Matrix::create(&shelf, shape, &options).expect("create");
    let put = |key: &[u8]| matrix.put(key, b"value", &WriteOptions::default());
    let [holder, failing, primary] = [0, 1, 2].map(|it| shelf.gate(device(it)));
    // The change comes to the holder alone, and waits there.
    for (gate, records) in [(&holder, 1), (&primary, 0)] {
        gate.records_left.store(records, Ordering::SeqCst);
        gate.refuses_records.store(true, Ordering::SeqCst);
    }
    holder.records_to_hold.store(1, Ordering::SeqCst);
    holder.holds_records.store(true, Ordering::SeqCst);
    failing.is_out.store(true, Ordering::SeqCst);
    let _outcome = put(b"before").expect("the primary has it");
    shelf::wait_until(|| holder.held_records.load(Ordering::SeqCst) > 0);
    primary.holds_answers.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| put(b"beside"));
        shelf::wait_until(|| primary.holds_an_answer.load(Ordering::SeqCst));
        holder.holds_records.store(false, Ordering::SeqCst);
        primary.holds_answers.store(false, Ordering::SeqCst);
        let beside = beside.join().expect("it does not panic");
        assert!(beside.is_err(), "{beside:?}");
    });
    assert!(put(b"after").is_err());
    [&holder, &primary].iter().for_each(|it| it.refuses_records.store(false, Ordering::SeqCst));
    for key in [&b"beside"[..], b"after"] {
        let _outcome = put(key).expect("the record is there");
    }
    assert_eq!(standing(matrix, device(1)), MemberState::Absent);
}
