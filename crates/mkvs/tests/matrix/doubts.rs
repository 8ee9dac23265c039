//! Keys whose last write is unknown, and devices that have lost records of unknown keys: no other key is
//! affected, and the scrub settles the doubts.

use crate::shelf::sample::{at, created, numbered as key, opened, put};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{
    Batch, Engine, Entry, Error, Expected, Outcome, Progress, Repairable, Replicated, WriteOptions,
};
use coreplane_mkvs::filter::hash_of;
use coreplane_mkvs::slots::{deal, slot_of};
use coreplane_mkvs::{Ack, Matrix, MemberState, Options, Position};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

fn get(matrix: &Matrix, key: &[u8]) -> Option<Vec<u8>> {
    matrix.get(key).expect("get")
}

/// The first key of a group from a number on.
fn key_of(group: u16, groups: u16, from: u64) -> Vec<u8> {
    let owners = deal(groups);
    let is_of = |key: &Vec<u8>| owners[slot_of(hash_of(key))] == group;
    (from..).map(key).find(is_of).expect("a key of the group")
}

type Keys = BTreeSet<Vec<u8>>;

fn scan(matrix: &Matrix, from: &[u8], to: Option<&[u8]>, reverse: bool) -> Result<Keys, Error> {
    let mut keys = Keys::new();
    let visit = &mut |entry: Entry<'_>| keys.insert(entry.key.to_vec());
    let ordered = matrix.ordered().expect("trees have an order");
    ordered.scan(from, to, reverse, usize::MAX, visit).map(|()| keys)
}

fn iterate(matrix: &Matrix) -> Result<Keys, Error> {
    let (mut keys, mut cursor) = (Keys::new(), 0);
    loop {
        let visit = &mut |entry: Entry<'_>| keys.extend([entry.key.to_vec()]);
        cursor = matrix.iterate(cursor, 7, visit)?;
        if cursor == 0 {
            return Ok(keys);
        }
    }
}

fn changes(matrix: &Matrix) -> Result<Keys, Error> {
    let mut keys = Keys::new();
    matrix.changes_since(0, &mut |entry| {
        if entry.record.is_some() {
            keys.insert(entry.key.to_vec());
        }
    })?;
    Ok(keys)
}

/// Makes a batch over two groups that is neither made nor taken back: the second group refuses it, and the
/// only device of the first is out just then. Returns its keys.
fn tear(shelf: &Shelf, matrix: &Matrix) -> [Vec<u8>; 2] {
    let torn = [key_of(0, 3, 100), key_of(1, 3, 100)];
    let mut batch = Batch::new();
    batch.put(&torn[0], b"new").delete(&torn[1]);
    let gates = [shelf.gate(at(0, 0)), shelf.gate(at(1, 0))];
    gates[1].holds_deletes.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let applies = scope.spawn(|| matrix.apply(&batch, &WriteOptions::default()).map(|_| ()));
        while gates[1].held_deletes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        gates.iter().for_each(|gate| gate.is_out.store(true, Ordering::SeqCst));
        gates[1].holds_deletes.store(false, Ordering::SeqCst);
        applies.join().expect("no panic").expect_err("it cannot be made");
    });
    gates.iter().for_each(|gate| gate.is_out.store(false, Ordering::SeqCst));
    torn
}

#[test]
fn a_batch_that_was_torn_is_of_no_matter_to_others_and_taken_back_by_a_scrub() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (3, 1), Ack::All);
    matrix.hold_tombstones(0).expect("hold");
    (0..300).for_each(|number| put(&matrix, &key(number), b"old"));
    let all: Keys = (0..300).map(key).collect();
    let torn = tear(&shelf, &matrix);
    let (first, last) = (torn.iter().min().expect("one"), torn.iter().max().expect("one"));
    let behind = [last.as_slice(), b"\0"].concat();
    for reverse in [false, true] {
        let scan = |from: &[u8], to: Option<&[u8]>| scan(&matrix, from, to, reverse);
        assert!(scan(b"", None).is_err(), "keys in doubt are on its way");
        assert_eq!(scan(b"", Some(first)).expect("no doubt there").len(), 100);
        assert_eq!(
            scan(&behind, None).expect("no doubt there").first(),
            all.range(behind.clone()..).next()
        );
    }
    assert!(iterate(&matrix).is_err() && changes(&matrix).is_err());
    torn.iter().for_each(|key| assert!(matrix.get(key).is_err()));
    put(&matrix, &key_of(2, 3, 0), b"another");
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    assert_eq!((scrubbed.indeterminate.len(), scrubbed.lost.len()), (0, 0));
    let check = |matrix: &Matrix| {
        torn.iter().for_each(|key| assert_eq!(get(matrix, key).as_deref(), Some(&b"old"[..])));
        assert_eq!(scan(matrix, b"", None, false).expect("scan"), all);
        assert_eq!(iterate(matrix).expect("iterate"), all);
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    };
    check(&matrix);
    assert_eq!(changes(&matrix).expect("changes"), all);
    put(&matrix, &torn[0], b"old");
    // The intent is gone, too: no later open makes the batch.
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    check(&matrix);
    matrix.close().expect("it can be closed in good order");
}

/// A device fails to follow a write while no device can record that: it lacks the write, which its peer has.
fn lacking(shelf: &Shelf, matrix: &Matrix, write: impl FnOnce()) {
    let gates = [0, 1].map(|device| shelf.gate(at(0, device)));
    gates[0].is_lagging.store(true, Ordering::SeqCst);
    write();
    let is_out = |is_out| gates.iter().for_each(|gate| gate.is_out.store(is_out, Ordering::SeqCst));
    is_out(true);
    gates[0].is_lagging.store(false, Ordering::SeqCst);
    // Waits until the device has failed.
    matrix.sync().expect_err("they are out");
    let _failed = matrix.sync().is_err();
    is_out(false);
}

#[test]
fn what_a_device_lacks_is_read_on_its_peer_and_given_to_it_by_a_scrub() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    (0..300).for_each(|number| put(&matrix, &key(number), b"old"));
    matrix.sync().expect("sync");
    let all: Keys = (0..300).map(key).collect();
    let lacked = key(150);
    lacking(&shelf, &matrix, || put(&matrix, &lacked, b"new"));
    assert!(matrix.member_states().iter().all(|(_, standing)| *standing == MemberState::Current));
    let check = |matrix: &Matrix| {
        assert_eq!(get(matrix, &lacked).as_deref(), Some(&b"new"[..]));
        assert_eq!(scan(matrix, b"", None, false).expect("scan"), all);
        assert_eq!(iterate(matrix).expect("iterate"), all);
    };
    check(&matrix);
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    assert_eq!(scrubbed.indeterminate.len(), 0);
    check(&matrix);
    shelf.pull(at(0, 1));
    check(&matrix);
}

/// A device fails to follow a delete while its group is scrubbed, and no device can record that: the scrub does not
/// take its record for the newest, and the next one settles the doubt.
#[test]
fn a_scrub_brings_no_deleted_key_back() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    (0..900).for_each(|number| put(&matrix, &key(number), b"old"));
    matrix.sync().expect("sync");
    // The last one that is looked at.
    let (gone, is_deleted) = (key(899), Cell::new(false));
    let delete = |progress: Progress| {
        if progress.stage == "reading records" && !is_deleted.replace(true) {
            assert!(progress.done < 900);
            lacking(&shelf, &matrix, || {
                let deleted = matrix.delete(&gone, &WriteOptions::default()).expect("delete");
                assert!(deleted.written().is_some());
            });
        }
    };
    let scrubbed = matrix.scrub(&delete).expect("scrub");
    assert!(is_deleted.get() && get(&matrix, &gone).is_none());
    assert_eq!((scrubbed.indeterminate, scrubbed.repaired), (vec![gone.clone()], vec![]));
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    assert!(scrubbed.indeterminate.is_empty() && get(&matrix, &gone).is_none());
    assert_eq!(scan(&matrix, b"", None, false).expect("scan").len(), 899);
    assert_eq!(shelf.engine(at(0, 0)).get(&gone).expect("get"), None);
}

/// The only device that has the newest write of a key is gone: that key fails, and no other.
#[test]
fn without_its_last_holder_a_key_fails_and_others_do_not() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    (0..300).for_each(|number| put(&matrix, &key(number), b"old"));
    matrix.sync().expect("sync");
    let lacked = key(150);
    lacking(&shelf, &matrix, || put(&matrix, &lacked, b"new"));
    shelf.pull(at(0, 1));
    assert_eq!(get(&matrix, &key(0)).as_deref(), Some(&b"old"[..]));
    assert_eq!(scan(&matrix, b"", Some(&lacked), false).expect("no doubt there").len(), 150);
    assert!(matrix.get(&lacked).is_err() && scan(&matrix, b"", None, false).is_err());
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    assert_eq!(scrubbed.indeterminate, [lacked]);
}

/// Breaks the head of the youngest leaf that has this key.
fn break_leaf(shelf: &Shelf, place: Position, has: &[u8]) {
    const PAGE: usize = 8192;
    let mut pool = std::fs::read(shelf.path(place)).expect("read");
    let birth = |page: &[u8]| u64::from_le_bytes(page[16..24].try_into().expect("eight"));
    let is_leaf = |page: &[u8]| page[4] == 0x4c && page[..4] != [0; 4];
    let holds = |page: &[u8]| page.windows(has.len()).any(|window| window == has);
    let leaves = pool.chunks(PAGE).enumerate().skip(1);
    let leaves = leaves.filter(|(_, page)| is_leaf(page) && holds(page));
    let (page, _) = leaves.max_by_key(|(_, page)| birth(page)).expect("a leaf");
    pool[page * PAGE + 16] ^= 1;
    std::fs::write(shelf.path(place), &pool).expect("write");
}

/// Both devices have lost records, of different keys: everything continues.
#[test]
fn devices_that_have_lost_different_keys_go_on_together() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    matrix.hold_tombstones(0).expect("hold");
    let value =
        |number: u64| format!("the value of number {number:04}, and some more").into_bytes();
    (0..1000).for_each(|it| put(&matrix, &key(it), &value(it)));
    matrix.close().expect("close");
    drop(matrix);
    break_leaf(&shelf, at(0, 0), &key(300));
    break_leaf(&shelf, at(0, 1), &key(700));
    let matrix = opened(&shelf).expect("open");
    let all: Keys = (0..1000).map(key).collect();
    let check = |matrix: &Matrix| {
        assert!(
            matrix.member_states().iter().all(|(_, standing)| *standing == MemberState::Current)
        );
        for reverse in [false, true] {
            assert_eq!(scan(matrix, b"", None, reverse).expect("scan"), all);
        }
        for number in 0..1000 {
            assert_eq!(get(matrix, &key(number)), Some(value(number)), "{number}");
        }
    };
    check(&matrix);
    // Writes that depend on the current record are decided where it is known.
    let options = WriteOptions::default();
    for number in [300, 301, 700, 701] {
        let (key, value) = (key(number), value(number));
        let exists = matrix.insert(&key, b"", &options).expect("insert");
        assert!(matches!(exists, Outcome::Exists(_)), "{exists:?}");
        let swap = matrix.compare_and_set(&key, Expected::Value(&value), &value, &options);
        assert!(swap.expect("swap").written().is_some());
        assert!(matrix.delete(&key, &options).expect("delete").written().is_some());
        assert!(matrix.insert(&key, &value, &options).expect("insert").written().is_some());
    }
    check(&matrix);
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    let settled: BTreeSet<Position> = scrubbed.settled.iter().copied().collect();
    assert_eq!(settled, BTreeSet::from([at(0, 0), at(0, 1)]), "{scrubbed:?}");
    check(&matrix);
    assert_eq!(iterate(&matrix).expect("iterate"), all);
    assert_eq!(changes(&matrix).expect("changes"), all);
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    assert_eq!(get(&matrix, b"absent"), None);
}

/// Writes waited for the first device, which has lost some since: it is unknown whether its peer has the
/// newest records of their keys.
#[test]
fn what_only_a_damaged_device_had_is_not_served_older() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    (0..1000).for_each(|it| put(&matrix, &key(it), format!("old {it:04} and more").as_bytes()));
    matrix.sync().expect("sync");
    // From here on its peer gets nothing.
    let gate = shelf.gate(at(0, 0));
    gate.is_lagging.store(true, Ordering::SeqCst);
    put(&matrix, &key(500), b"new");
    shelf.cut_power();
    gate.is_lagging.store(false, Ordering::SeqCst);
    drop(matrix);
    shelf.restore_power();
    break_leaf(&shelf, at(0, 1), &key(500));
    let check = |matrix: &Matrix| {
        let lost = (0..1000).filter(|it| matrix.get(&key(*it)).is_err()).collect::<Vec<u64>>();
        assert!(lost.contains(&500) && lost.len() < 500, "{lost:?}");
        let (first, last) = (lost[0], lost[lost.len() - 1]);
        // Keys between the existing ones may have been lost as well.
        assert_eq!(lost.len() as u64, last - first + 1);
        assert!(matrix.get(&[key(500).as_slice(), b"?"].concat()).is_err());
        assert!(scan(matrix, b"", None, false).is_err() && iterate(matrix).is_err());
        assert_eq!(scan(matrix, b"", Some(&key(first)), false).expect("scan").len() as u64, first);
        assert_eq!(
            scan(matrix, &key(last + 1), None, true).expect("scan").len() as u64,
            999 - last
        );
        let options = WriteOptions::default();
        assert!(matrix.insert(&key(500), b"", &options).is_err());
        assert!(matrix.delete(&key(500), &options).is_err());
        (first, last)
    };
    let matrix = opened(&shelf).expect("open");
    check(&matrix);
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    // The open has settled the doubt: the record has its range.
    assert_eq!((scrubbed.settled, scrubbed.lost_ranges.len()), (vec![], 1));
    let (first, last) = check(&matrix);
    assert!((first..last).contains(&500));
    // Later writes are known.
    put(&matrix, &key(first), b"since");
    assert_eq!(get(&matrix, &key(first)).as_deref(), Some(&b"since"[..]));
    matrix.close().expect("close");
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(get(&matrix, &key(first)).as_deref(), Some(&b"since"[..]));
    assert!(matrix.get(&key(500)).is_err(), "it is in doubt after a close, too");
    matrix.close().expect("close");
    drop(matrix);
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("open");
    assert_eq!(get(&matrix, &key(500)).as_deref(), Some(&b"old 0500 and more"[..]));
    assert_eq!(scan(&matrix, b"", None, false).expect("scan").len(), 1000);
    drop(matrix);
    assert_eq!(scan(&opened(&shelf).expect("open"), b"", None, false).expect("scan").len(), 1000);
}

/// A matrix at `first` that was killed when its primary had a write that its peer lacks; both have had all keys since
/// a close, and a leaf of the primary is damaged.
fn with_a_lost_leaf() -> Shelf {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    (0..1000).for_each(|it| put(&matrix, &key(it), format!("old {it:04} and more").as_bytes()));
    matrix.close().expect("close");
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    let gate = shelf.gate(at(0, 0));
    gate.is_lagging.store(true, Ordering::SeqCst);
    put(&matrix, &key(500), b"new");
    shelf.cut_power();
    gate.is_lagging.store(false, Ordering::SeqCst);
    drop(matrix);
    shelf.restore_power();
    break_leaf(&shelf, at(0, 1), &key(500));
    shelf
}

/// The range of a leaf is lost once: what is written since is read after each kill, and no kill makes more of it.
#[test]
fn what_is_written_since_is_known_after_each_kill() {
    let shelf = with_a_lost_leaf();
    let matrix = opened(&shelf).expect("open");
    let lost = (0..1000).filter(|it| matrix.get(&key(*it)).is_err()).collect::<Vec<u64>>();
    let (first, last) = (lost[0], lost[lost.len() - 1]);
    assert!((first..last).contains(&500), "{lost:?}");
    put(&matrix, &key(first), b"since");
    drop(matrix);
    for round in 0..3 {
        let matrix = opened(&shelf).expect("open");
        assert_eq!(matrix.indeterminate_keys().ranges, 1, "{round}");
        assert_eq!(get(&matrix, &key(first)).as_deref(), Some(&b"since"[..]), "{round}");
        assert_eq!(matrix.devices_with_lost_ranges(), [], "{round}");
        for unknown in first + 1..=last {
            assert!(matrix.get(&key(unknown)).is_err(), "{round}: {unknown}");
        }
        put(&matrix, &key(last + 1 + round), b"more");
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    }
    // A later damage of that range makes the same keys unknown.
    break_leaf(&shelf, at(0, 1), &key(first));
    let matrix = opened(&shelf).expect("open");
    assert!(matrix.get(&key(first)).is_err());
    drop(matrix);
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("open");
    assert_eq!(get(&matrix, &key(first)).as_deref(), Some(&b"since"[..]));
    assert_eq!(scan(&matrix, b"", None, false).expect("scan").len(), 1000);
}

/// An accepted loss is over, though nobody scrubs.
#[test]
fn an_accepted_loss_of_a_leaf_does_not_come_back() {
    let shelf = with_a_lost_leaf();
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("open");
    assert_eq!(scan(&matrix, b"", None, false).expect("scan").len(), 1000);
    put(&matrix, &key(500), b"newest");
    drop(matrix);
    for _ in 0..2 {
        drop(opened(&shelf).expect("open"));
    }
    let matrix = opened(&shelf).expect("open");
    assert_eq!(scan(&matrix, b"", None, false).expect("scan").len(), 1000);
    assert_eq!(get(&matrix, &key(500)).as_deref(), Some(&b"newest"[..]));
    for number in (0..1000).filter(|it| *it != 500) {
        let old = format!("old {number:04} and more");
        assert_eq!(get(&matrix, &key(number)), Some(old.into_bytes()), "{number}");
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A device that cannot tell what it has lost is named.
#[test]
fn a_device_that_cannot_be_looked_at_has_lost_something() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    put(&matrix, b"key", b"value");
    assert_eq!(matrix.devices_with_lost_ranges(), []);
    shelf.gate(at(0, 0)).damages_cares.store(1, Ordering::SeqCst);
    let damaged = matrix.devices_with_lost_ranges();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!(damaged[0].1, 1);
}

/// No scan, iteration or list of changes shows a write that is taken back.
#[test]
fn nothing_is_shown_that_is_taken_back() {
    type Look = fn(&Matrix) -> Result<Keys, Error>;
    let scan_all: Look = |matrix| scan(matrix, b"", None, false);
    for look in [scan_all, iterate, changes] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (2, 1), Ack::All);
        matrix.hold_tombstones(0).expect("hold");
        let keys = [key_of(0, 2, 0), key_of(1, 2, 0)];
        put(&matrix, &keys[1], b"old");
        let mut batch = Batch::new();
        batch.put(&keys[0], b"new").put(&keys[1], b"new");
        let gate = shelf.gate(at(1, 0));
        gate.holds_puts.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let apply = || matrix.apply(&batch, &WriteOptions::default()).map(|_| ());
            let applies = scope.spawn(apply);
            while gate.held_puts.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let looks = scope.spawn(|| look(&matrix));
            std::thread::sleep(std::time::Duration::from_millis(50));
            gate.is_full.store(true, Ordering::SeqCst);
            gate.holds_puts.store(false, Ordering::SeqCst);
            let refused = applies.join().expect("no panic");
            assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
            let shown = looks.join().expect("no panic").expect("a look");
            assert_eq!(shown, BTreeSet::from([keys[1].clone()]));
        });
    }
}
