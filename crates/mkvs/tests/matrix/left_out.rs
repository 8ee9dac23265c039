//! Keys that are damaged on every device that has them, when another device is filled: it is filled without
//! them, and from then on they are errors on every device, after a restart too.

use crate::shelf::sample::{FRESH, at, created, numbered as key, opened, put, standing};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Batch, Engine, Entry, Error, Repairable, WriteOptions};
use coreplane_mkvs::{Ack, Copied, CopyOptions, Matrix, MemberState, Options};
use memchr::memmem;
use std::os::unix::fs::FileExt as _;

const KEYS: u64 = 40;
const HURT: [u64; 2] = [7, 23];

/// A value in pages of its own, with a tree.
fn value(number: u64) -> Vec<u8> {
    format!("the value of number {number:04}, and some more").repeat(100).into_bytes()
}

/// Flips a bit in the values of some keys on a device.
fn damage(shelf: &Shelf, device: u8, numbers: &[u64]) {
    for number in numbers {
        assert!(shelf.damage(at(0, device), &value(*number)[..40]) > 0);
    }
}

/// Two devices, of which the `second` is filled, fresh or out of date, while the other is damaged.
fn filled(kind: Kind, second: u8, is_fresh: bool, hurt: &[u64]) -> (Shelf, Matrix, Copied) {
    let shelf = Shelf::new(kind, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    (0..KEYS).for_each(|it| put(&matrix, &key(it), b"an older value"));
    shelf.pull(at(0, second));
    (0..KEYS).for_each(|it| put(&matrix, &key(it), &value(it)));
    shelf.put_back(at(0, second));
    damage(&shelf, 1 - second, hurt);
    let options = CopyOptions { is_fresh, ..CopyOptions::default() };
    let mut filled = matrix.replace(&shelf, at(0, second), &options, &|_| {}).expect("replace");
    filled.lost.sort();
    assert_eq!(standing(&matrix, at(0, second)), MemberState::Current);
    (shelf, matrix, filled)
}

fn scan(matrix: &Matrix) -> Result<usize, Error> {
    let mut count = 0;
    let visit = &mut |_: Entry<'_>| {
        count += 1;
        true
    };
    matrix.ordered().expect("order").scan(b"", None, false, usize::MAX, visit).map(|()| count)
}

/// The damaged keys are errors, and all others have their values.
fn check(matrix: &Matrix, hurt: &[u64]) {
    // Several rounds, so that each device is asked.
    for number in (0..3).flat_map(|_| 0..KEYS) {
        match matrix.get(&key(number)) {
            Ok(found) => {
                assert!(!hurt.contains(&number), "{number} is {found:?}");
                assert_eq!(found, Some(value(number)));
            }
            Err(error) => assert!(hurt.contains(&number), "{number}: {error}"),
        }
    }
    for number in hurt {
        let (key, options) = (key(*number), WriteOptions::default());
        assert!(matrix.insert(&key, b"", &options).is_err(), "nobody knows that it is not there");
        assert!(matrix.delete(&key, &options).is_err());
        let keys = [key.as_slice()];
        let read = matrix.multi_get(&keys, coreplane_engine::Visibility::Durable, &mut |_, _| {});
        assert!(read.is_err());
    }
    assert_eq!(scan(matrix).is_err(), !hurt.is_empty());
}

/// Also after another open, and after a write of one of the keys.
#[test]
fn what_is_left_out_of_a_fill_is_an_error_and_not_absent() {
    for (second, is_fresh) in [(0, true), (1, true), (0, false), (1, false)] {
        let (shelf, matrix, filled) = filled(Kind::Bptree, second, is_fresh, &HURT);
        assert_eq!(filled.lost, HURT.map(key));
        check(&matrix, &HURT);
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        assert!(!scrubbed.lost_ranges.is_empty() && scrubbed.repaired.is_empty(), "{scrubbed:?}");
        check(&matrix, &HURT);
        // First killed, and then closed.
        drop(matrix);
        let matrix = opened(&shelf).expect("open");
        check(&matrix, &HURT);
        matrix.close().expect("close");
        drop(matrix);
        let matrix = opened(&shelf).expect("open");
        check(&matrix, &HURT);
        // A later write is known, and the key remains readable.
        put(&matrix, &key(HURT[0]), &value(HURT[0]));
        check(&matrix, &HURT[1..]);
        drop(matrix);
        let matrix = opened(&shelf).expect("open");
        check(&matrix, &HURT[1..]);
        put(&matrix, &key(HURT[1]), &value(HURT[1]));
        matrix.scrub(&|_| {}).expect("scrub");
        check(&matrix, &[]);
        assert_eq!(scan(&matrix).expect("scan"), KEYS as usize);
        let _outcome = matrix.delete(&key(HURT[0]), &WriteOptions::default()).expect("delete");
        shelf.pull(at(0, 1 - second));
        assert_eq!(matrix.get(&key(HURT[0])).expect("get"), None);
        assert_eq!(matrix.get(&key(HURT[1])).expect("get"), Some(value(HURT[1])));
    }
}

/// The record forgets a key with the write that makes it known: nothing else would tell that it was deleted.
#[test]
fn what_is_written_is_known_after_a_kill_be_it_deleted_since_or_not() {
    let (shelf, matrix, _) = filled(Kind::Bptree, 1, true, &HURT);
    let mut batch = Batch::new();
    for number in HURT {
        batch.put(&key(number), b"in a batch");
    }
    let refused = matrix.apply(&batch, &WriteOptions::default());
    assert!(
        matches!(&refused, Err(Error::Unusable(what)) if what.contains("not in a batch")),
        "{refused:?}"
    );
    HURT.iter().for_each(|number| put(&matrix, &key(*number), &value(*number)));
    let _outcome = matrix.delete(&key(HURT[0]), &WriteOptions::default()).expect("delete");
    drop(matrix);
    let matrix = opened(&shelf).expect("open");
    assert_eq!(matrix.get(&key(HURT[0])).expect("get"), None);
    assert_eq!(matrix.get(&key(HURT[1])).expect("get"), Some(value(HURT[1])));
    assert_eq!(scan(&matrix).expect("scan"), KEYS as usize - 1);
    matrix.apply(&batch, &WriteOptions::default()).expect("they are known");
}

#[test]
fn what_was_left_out_of_a_fill_is_gone_when_that_is_accepted() {
    let (shelf, matrix, _) = filled(Kind::Bptree, 1, true, &HURT);
    drop(matrix);
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("open");
    for number in (0..KEYS).filter(|it| !HURT.contains(it)) {
        assert_eq!(matrix.get(&key(number)).expect("get"), Some(value(number)));
    }
    assert_eq!(scan(&matrix).expect("scan"), KEYS as usize - 2);
    for (number, device) in HURT.into_iter().flat_map(|it| [(it, 0), (it, 1)]) {
        assert_eq!(shelf.engine(at(0, device)).get(&key(number)).expect("get"), None);
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Both engines bring a device up to date.
#[test]
fn one_that_is_out_of_date_is_filled_but_for_what_is_damaged() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (_shelf, matrix, filled) = filled(kind, 1, false, &HURT);
        assert_eq!(filled.lost, HURT.map(key), "{kind:?}");
        for number in (0..3).flat_map(|_| 0..KEYS) {
            let found = matrix.get(&key(number));
            assert_eq!(found.is_err(), HURT.contains(&number), "{kind:?}, {number}: {found:?}");
        }
    }
}

/// Of a long key whose rest is damaged only the beginning is known.
#[test]
fn what_has_no_name_any_more_is_left_out_as_well() {
    const PAGE: usize = 8192;
    let long = |number: u64| [key(number), vec![b'l'; 3000], key(number)].concat();
    for (is_fresh, peer_has_it) in [(true, false), (false, false), (true, true)] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 3), Ack::All);
        (0..KEYS).for_each(|it| put(&matrix, &long(it), b"an older value"));
        let _outcome = matrix.delete(&long(1), &WriteOptions::default()).expect("delete");
        shelf.pull(at(0, 2));
        (0..KEYS).filter(|it| *it != 1).for_each(|it| put(&matrix, &long(it), &value(it)));
        shelf.put_back(at(0, 2));
        for device in if peer_has_it { 1..2 } else { 0..2 } {
            let path = shelf.path(at(0, device));
            let pool = std::fs::read(&path).expect("read");
            let needle = [&b"lll"[..], &key(7)].concat();
            let found = memmem::find(&pool, &needle).expect("the rest");
            let file = std::fs::File::options().write(true).open(&path).expect("open");
            // The kind of the page.
            let place = found / PAGE * PAGE + 4;
            file.write_at(&[pool[place] ^ 1], place as u64).expect("write");
        }
        let options = CopyOptions { is_fresh, ..CopyOptions::default() };
        let filled = matrix.replace(&shelf, at(0, 2), &options, &|_| {}).expect("replace");
        assert_eq!(filled.lost.is_empty(), peer_has_it, "{:?}", filled.lost);
        let check = |matrix: &Matrix| {
            for number in (0..4).flat_map(|_| 0..KEYS) {
                let found = matrix.get(&long(number));
                match (number, peer_has_it) {
                    (1, _) => assert_eq!(found.expect("it was deleted"), None),
                    (7, false) => assert!(found.is_err(), "{found:?}"),
                    _ => assert_eq!(found.expect("get"), Some(value(number))),
                }
            }
            assert_eq!(scan(matrix).is_err(), !peer_has_it);
        };
        check(&matrix);
        drop(matrix);
        let matrix = opened(&shelf).expect("open");
        check(&matrix);
        put(&matrix, &long(7), &value(7));
        assert_eq!(matrix.get(&long(7)).expect("get"), Some(value(7)));
    }
}

/// More such keys than a membership record may have.
#[test]
fn a_device_that_would_lack_too_much_is_not_admitted() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let long = |number: u64| [key(number), vec![b'k'; 900]].concat();
    let hurt: Vec<u64> = (0..100).collect();
    shelf.pull(at(0, 1));
    hurt.iter().for_each(|it| put(&matrix, &long(*it), &value(*it)));
    shelf.put_back(at(0, 1));
    damage(&shelf, 0, &hurt);
    let refused = matrix.replace(&shelf, at(0, 1), &FRESH, &|_| {});
    assert!(
        matches!(&refused, Err(Error::Unusable(what)) if what.contains("too many")),
        "{refused:?}"
    );
    // A membership record that is written later does not make it current.
    assert_ne!(standing(&matrix, at(0, 1)), MemberState::Current);
    matrix.close().expect("close");
    drop(matrix);
    assert_ne!(standing(&opened(&shelf).expect("open"), at(0, 1)), MemberState::Current);
}
