//! Damaged records that are found when a matrix is opened after a crash, and that are newer than the
//! watermark: one of them does not keep the matrix from opening, its key is not answered with an older
//! record, and it is named.

use crate::shelf::sample::{FRESH, at, created, opened, put, standing};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Error, Repairable, UnixMillis, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options, Position, Rack, TimeSource};
use coreplane_mvcc::MapKind;
use memchr::memmem;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PAGE: usize = 8192;
const KEYS: u64 = 60;
/// A key with a damaged record, and a key that only one device ever had.
const HURT: u64 = 42;
const NEW: u64 = 77;

/// A key whose end is in a page of its own.
fn long_key(number: u64) -> Vec<u8> {
    let number = format!("{number:04}").into_bytes();
    [&b"key-"[..], &number, &[b'l'; 3000], &number].concat()
}

/// The damaged part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A byte of the key's rest, or the kind of the page with that rest.
    KeysRest,
    KeysPage,
    /// The same of its value.
    Value,
    ValuesPage,
    /// Of a record of a map: the kind in its header, its value, or its value in pages of its own.
    Head(MapKind),
    Record(MapKind),
    Chain(MapKind),
}

const PARTS: [Part; 10] = [
    Part::KeysRest,
    Part::KeysPage,
    Part::Value,
    Part::ValuesPage,
    Part::Head(MapKind::List),
    Part::Record(MapKind::List),
    Part::Chain(MapKind::List),
    Part::Head(MapKind::CowTree),
    Part::Record(MapKind::CowTree),
    Part::Chain(MapKind::CowTree),
];

impl Part {
    fn kind(self) -> Kind {
        match self {
            Self::Head(kind) | Self::Record(kind) | Self::Chain(kind) => Kind::Map(kind),
            _ => Kind::Bptree,
        }
    }

    /// Reads do not check it, and neither does an open.
    fn is_unchecked(self) -> bool {
        matches!(self, Self::Value | Self::Record(MapKind::CowTree) | Self::Chain(_))
    }

    fn is_of_key(self) -> bool {
        matches!(self, Self::KeysRest | Self::KeysPage)
    }

    fn key(self, number: u64) -> Vec<u8> {
        if self.is_of_key() { long_key(number) } else { format!("key-{number:04}").into_bytes() }
    }

    fn value(self, number: u64) -> Vec<u8> {
        // The value is in pages of its own.
        let is_short = self.is_of_key() || matches!(self, Self::Head(_) | Self::Record(_));
        let more = if is_short { 0 } else { 5000 };
        [format!("the value of number {number:04}, and some more").into_bytes(), vec![7; more]]
            .concat()
    }

    /// Damages the record of a key on a device that is not open.
    fn damage(self, shelf: &Shelf, place: Position, number: u64) {
        let needle = match self {
            Self::KeysRest | Self::KeysPage => format!("lll{number:04}").into_bytes(),
            Self::Head(_) => [self.key(number), self.value(number)].concat(),
            _ => self.value(number).into_iter().take(40).collect(),
        };
        let pool = std::fs::read(shelf.path(place)).expect("read");
        let file = std::fs::File::options().write(true).open(shelf.path(place)).expect("open");
        let mut damaged = 0;
        for found in memmem::find_iter(&pool, &needle) {
            let (offset, bit) = match self {
                Self::KeysPage | Self::ValuesPage => (found / PAGE * PAGE + 4, 1),
                Self::Head(_) => (head_of(&pool, found, self.key(number).len()) + 6, 2),
                _ => (found + needle.len() - 1, 1),
            };
            file.write_at(&[pool[offset] ^ bit], offset as u64).expect("write");
            damaged += 1;
        }
        assert!(damaged > 0, "{self:?}");
    }
}

/// Where the record of a map begins whose key of `len` bytes is at `key`.
fn head_of(pool: &[u8], key: usize, len: usize) -> usize {
    let word = |at: usize| u32::from_le_bytes(pool[at..at + 4].try_into().expect("four bytes"));
    let heads = [20, 28, 36].map(|head| key - head);
    let is_head = |at: &usize| word(at + 4) & 0x1_ffff == len as u32;
    heads.into_iter().find(is_head).expect("a header")
}

/// A matrix that was killed when all devices had every write.
fn killed(part: Part, ack: Ack) -> Shelf {
    killed_of(part, ack, 2)
}

fn killed_of(part: Part, ack: Ack, devices: u8) -> Shelf {
    let shelf = Shelf::new(part.kind(), 16 << 20);
    let matrix = created(&shelf, (1, devices), ack);
    (0..KEYS).for_each(|it| put(&matrix, &part.key(it), &part.value(it)));
    matrix.sync().expect("sync");
    shelf
}

/// Gives the primary a write that no other device gets.
fn written_on_the_primary(shelf: &Shelf, part: Part, number: u64) {
    written_on(shelf, &[at(0, 1)], part, number);
}

fn written_on(shelf: &Shelf, places: &[Position], part: Part, number: u64) {
    let clock: TimeSource = Arc::new(UnixMillis::now);
    let open = |place: &Position| shelf.open(*place, &clock).expect("open");
    let devices: Vec<_> = places.iter().map(open).collect();
    let newest = devices.iter().map(|device| device.advance_sequence().expect("a sequence"));
    let options =
        WriteOptions { sequence: newest.max().map(|newest| newest + 1), ..WriteOptions::default() };
    let value = [part.value(number), b"!".to_vec()].concat();
    for device in devices {
        let _outcome = device.put(&part.key(number), &value, &options).expect("put");
        if matches!(part.kind(), Kind::Map(_)) {
            // Otherwise damage of the last record would look like a torn end.
            device.close().expect("close");
        }
    }
}

fn are_right(matrix: &Matrix, part: Part, but: Option<u64>) {
    for number in (0..KEYS).filter(|it| Some(*it) != but) {
        let value = matrix.get(&part.key(number)).expect("get");
        assert!(value == Some(part.value(number)), "{part:?} {number}");
    }
    are_standing(matrix);
}

fn are_standing(matrix: &Matrix) {
    assert!(matrix.member_states().iter().all(|(_, standing)| *standing == MemberState::Current));
}

/// Its peer has the same write.
#[test]
fn a_matrix_opens_although_a_new_record_of_one_device_is_damaged() {
    for (part, ack) in PARTS.into_iter().flat_map(|part| [(part, Ack::All), (part, Ack::First)]) {
        for device in [0, 1] {
            let shelf = killed(part, ack);
            part.damage(&shelf, at(0, device), HURT);
            let matrix =
                opened(&shelf).unwrap_or_else(|error| panic!("{part:?}, {ack:?}: {error}"));
            // Reads do not check a value.
            are_right(&matrix, part, part.is_unchecked().then_some(HURT));
            let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
            // The open has written the record anew that said nothing of its sequence.
            let is_healed = part == Part::Head(MapKind::CowTree);
            let repaired = if is_healed { vec![] } else { vec![at(0, device)] };
            assert_eq!((scrubbed.repaired, scrubbed.lost.len()), (repaired, 0), "{part:?}");
            assert_eq!(scrubbed.lost_ranges, [], "{part:?}, {ack:?}");
            assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
            are_right(&matrix, part, None);
            shelf.pull(at(0, 1 - device));
            (0..KEYS).for_each(|it| assert!(matrix.get(&part.key(it)).expect("get").is_some()));
        }
    }
}

/// A damaged node of a tree: its records are still there, and nothing leads to them.
#[test]
fn a_device_that_cannot_tell_what_is_damaged_is_left_out() {
    let part = Part::Record(MapKind::CowTree);
    for (device, ack) in [(0, Ack::All), (1, Ack::All), (0, Ack::First), (1, Ack::First)] {
        let shelf = killed(part, ack);
        let (key, record) = (part.key(HURT), [part.key(HURT), part.value(HURT)].concat());
        let path = shelf.path(at(0, device));
        let pool = std::fs::read(&path).expect("read");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        for found in memmem::find_iter(&pool, &key) {
            if !pool[found..].starts_with(&record) {
                file.write_at(&[pool[found] ^ 1], found as u64).expect("write");
            }
        }
        let opened = opened(&shelf);
        // The primary may have been the only one with a write.
        assert_eq!(
            opened.is_ok(),
            (device, ack) != (1, Ack::First),
            "{device}, {ack:?}: {opened:?}"
        );
        let Ok(matrix) = opened else { continue };
        for number in 0..KEYS {
            assert_eq!(matrix.get(&part.key(number)).expect("get"), Some(part.value(number)));
        }
        assert_eq!(standing(&matrix, at(0, device)), MemberState::Absent);
        let damaged: Vec<Position> = matrix.damaged().iter().map(|(at, _)| *at).collect();
        assert_eq!(damaged, [at(0, device)]);
        let fresh = CopyOptions { is_fresh: true, ..CopyOptions::default() };
        matrix.replace(&shelf, at(0, device), &fresh, &|_| {}).expect("replace");
        are_right(&matrix, part, None);
    }
}

/// However many records are damaged, each device is read as often.
#[test]
fn many_damaged_records_are_reconciled_with_one_walk() {
    for part in [Part::ValuesPage, Part::Record(MapKind::List)] {
        let looks = [1, 40].map(|hurt| {
            let shelf = killed(part, Ack::All);
            (0..hurt).for_each(|number| part.damage(&shelf, at(0, 1), number));
            let matrix = opened(&shelf).unwrap_or_else(|error| panic!("{part:?}: {error}"));
            let looks = [0, 1].map(|it| shelf.gate(at(0, it)).looks.load(Ordering::SeqCst));
            are_standing(&matrix);
            matrix.scrub(&|_| {}).expect("scrub");
            are_right(&matrix, part, None);
            looks
        });
        assert_eq!(looks[0], looks[1], "{part:?}");
    }
}

/// Only one device has the write, so that it was not acknowledged: its peer's record counts.
#[test]
fn where_all_are_waited_for_what_one_has_alone_and_damaged_never_was() {
    for part in PARTS {
        let shelf = killed(part, Ack::All);
        for number in [HURT, NEW] {
            written_on_the_primary(&shelf, part, number);
            part.damage(&shelf, at(0, 1), number);
        }
        let matrix = opened(&shelf).unwrap_or_else(|error| panic!("{part:?}: {error}"));
        are_right(&matrix, part, None);
        assert_eq!(matrix.get(&part.key(NEW)).expect("get"), None, "{part:?}");
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        // The open has replaced both on the device, where their keys were known.
        let repaired = if part.is_of_key() { vec![at(0, 1)] } else { vec![] };
        assert_eq!((scrubbed.repaired, scrubbed.lost.len()), (repaired, 0), "{part:?}");
        are_right(&matrix, part, None);
        shelf.pull(at(0, 0));
        assert_eq!(matrix.get(&part.key(HURT)).expect("get"), Some(part.value(HURT)), "{part:?}");
    }
}

/// Only one device has the write, which may have been acknowledged: the record before it is not shown.
#[test]
fn where_one_is_waited_for_what_it_has_alone_and_damaged_is_an_error() {
    for part in PARTS {
        let shelf = killed(part, Ack::First);
        for number in [HURT, NEW] {
            written_on_the_primary(&shelf, part, number);
            part.damage(&shelf, at(0, 1), number);
        }
        for tries in 0..3 {
            let matrix = opened(&shelf).unwrap_or_else(|error| panic!("{part:?}: {error}"));
            are_right(&matrix, part, Some(HURT));
            for number in [HURT, NEW] {
                let found = matrix.get(&part.key(number));
                assert!(matches!(found, Err(Error::Unusable(_))), "{part:?}, {number}: {found:?}");
            }
            // A scrub meanwhile does not change that.
            let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
            assert_eq!(scrubbed.lost_ranges.len(), 2, "{part:?}: {scrubbed:?}");
            if tries == 1 {
                put(&matrix, &part.key(NEW), b"since");
                assert_eq!(
                    matrix.get(&part.key(NEW)).expect("get").as_deref(),
                    Some(&b"since"[..])
                );
                break;
            }
        }
        let accept = Options { accept_loss: true, ..Options::default() };
        for options in [accept, Options::default()] {
            let matrix = Matrix::open(&shelf, &options, &|_| {}).expect("open");
            let found = matrix.get(&part.key(HURT)).expect("it was accepted");
            assert_eq!(found, Some(part.value(HURT)), "{part:?}");
        }
    }
}

/// Such a key is still an error when its older record was written anew, because a write was refused or
/// because the device with the newer record was filled.
#[test]
fn what_may_be_older_is_an_error_still_when_it_was_written_anew() {
    // The device without space, or none, if a device is filled.
    for (full, is_closed) in [(Some(4), false), (Some(4), true), (None, false), (None, true)] {
        // A device that is filled must be able to show its record.
        let part = if full.is_some() { Part::ValuesPage } else { Part::Value };
        // Three of five, or one where writes wait for one: the others are too few to have every write.
        let (ack, others) = if full.is_some() { (Ack::Majority, 2) } else { (Ack::First, 0) };
        let shelf = killed_of(part, ack, 5);
        let holder = at(0, 4);
        let holders = &[holder, at(0, 3), at(0, 2)][..=others];
        written_on(&shelf, holders, part, HURT);
        holders.iter().for_each(|holder| part.damage(&shelf, *holder, HURT));
        let mut matrix = opened(&shelf).expect("open");
        let key = part.key(HURT);
        assert!(matrix.get(&key).is_err());
        if let Some(full) = full {
            shelf.gate(at(0, full)).is_full.store(true, Ordering::SeqCst);
            for _ in 0..4 {
                let refused = matrix.put(&key, b"refused", &WriteOptions::default());
                assert!(refused.is_err(), "{full}: {refused:?}");
            }
            shelf.gate(at(0, full)).is_full.store(false, Ordering::SeqCst);
        } else {
            shelf.pull(holder);
            put(&matrix, &part.key(0), &part.value(0));
            shelf.put_back(holder);
            let options = CopyOptions::default();
            matrix.replace(&shelf, holder, &options, &|_| {}).expect("replace");
        }
        for is_opened in [false, true] {
            if is_opened {
                if is_closed {
                    matrix.close().expect("close");
                }
                drop(matrix);
                matrix = opened(&shelf).expect("open");
            }
            for _ in 0..3 {
                let found = matrix.get(&key);
                let found = found.map(|value| value.map(|value| value.len()));
                assert!(matches!(found, Err(Error::Unusable(_))), "{full:?}: {found:?}");
            }
            are_right(&matrix, part, Some(HURT));
        }
        put(&matrix, &key, b"since");
        assert_eq!(matrix.get(&key).expect("get").as_deref(), Some(&b"since"[..]), "{full:?}");
    }
}

/// Jobs that look at every key of every device do not make a device leave whose records are damaged: its peer has
/// them, also where the peer has damaged records of other keys.
#[test]
fn a_device_with_damaged_records_stays_while_a_group_is_added_and_expired_records_go() {
    for part in PARTS {
        let shelf = killed(part, Ack::All);
        part.damage(&shelf, at(0, 0), HURT);
        part.damage(&shelf, at(0, 1), HURT + 1);
        let matrix = opened(&shelf).expect("open");
        matrix.sweep_expired().expect("sweep");
        are_standing(&matrix);
        matrix.add_group(&shelf, &CopyOptions::default(), &|_| {}).expect("add a group");
        are_standing(&matrix);
        matrix.scrub(&|_| {}).expect("scrub");
        are_right(&matrix, part, None);
    }
}

/// The primary has a lesser number than its peer, since an earlier primary has failed: scans and iterations go around
/// its damaged records. If both have some, they fail, and come to an end.
#[test]
fn scans_and_iterations_go_around_a_damaged_primary_whatever_its_number() {
    let part = Part::KeysPage;
    for are_both in [false, true] {
        let shelf = killed(part, Ack::All);
        let matrix = opened(&shelf).expect("open");
        shelf.pull(at(0, 1));
        put(&matrix, &part.key(0), &part.value(0));
        matrix.replace(&shelf, at(0, 1), &FRESH, &|_| {}).expect("replace");
        drop(matrix);
        part.damage(&shelf, at(0, 0), HURT);
        if are_both {
            part.damage(&shelf, at(0, 1), HURT + 1);
        }
        let matrix = opened(&shelf).expect("open");
        let ordered = matrix.ordered().expect("in order");
        let mut scanned = 0;
        let scan = ordered.scan(b"", None, false, usize::MAX, &mut |_| {
            scanned += 1;
            true
        });
        let (mut listed, mut cursor, mut calls) = (BTreeSet::new(), 0, 0);
        let listing = loop {
            let next = matrix.iterate(cursor, 7, &mut |entry| {
                listed.insert(entry.key.to_vec());
            });
            calls += 1;
            assert!(calls < 100, "it does not end");
            match next {
                Ok(0) => break Ok(()),
                Ok(next) => cursor = next,
                Err(error) => break Err(error),
            }
        };
        assert_eq!((scan.is_err(), listing.is_err()), (are_both, are_both), "{scan:?} {listing:?}");
        if !are_both {
            assert_eq!((scanned, listed.len() as u64), (KEYS, KEYS));
        }
        are_standing(&matrix);
    }
}

/// A record that is damaged on every device is deleted all the same.
#[test]
fn a_key_that_no_device_can_show_is_deleted() {
    for part in PARTS {
        let shelf = killed(part, Ack::All);
        // Records that are newer than the watermark would be lost ranges.
        opened(&shelf).expect("open").close().expect("close");
        [at(0, 0), at(0, 1)].iter().for_each(|place| part.damage(&shelf, *place, HURT));
        shelf.checks_reads.store(true, Ordering::SeqCst);
        let matrix = opened(&shelf).expect("open");
        assert!(matrix.get(&part.key(HURT)).is_err(), "{part:?}");
        let deleted = matrix.delete(&part.key(HURT), &WriteOptions::default());
        assert!(deleted.expect("delete").written().is_some(), "{part:?}");
        assert_eq!(matrix.get(&part.key(HURT)).expect("get"), None, "{part:?}");
        for number in (0..KEYS).filter(|it| *it != HURT) {
            assert_eq!(matrix.get(&part.key(number)).expect("get"), Some(part.value(number)));
        }
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound(), "{part:?}");
        are_standing(&matrix);
    }
}

/// A key in the first leaf, which has the matrix's own records, is damaged. The leaf is written anew without it, and
/// answers for each absent key with that damage.
#[test]
fn records_are_counted_beside_a_leaf_in_doubt() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 1), Ack::All);
    let hurt = b"a key that is damaged";
    put(&matrix, hurt, b"value");
    for number in 0..50_u32 {
        put(&matrix, format!("a{number:03}").as_bytes(), b"value");
    }
    let pool = std::fs::read(shelf.path(at(0, 0))).expect("read");
    let found = pool.windows(hurt.len()).position(|it| it == hurt).expect("the key");
    let file = std::fs::File::options().write(true).open(shelf.path(at(0, 0))).expect("open");
    file.write_at(&[pool[found + 5] ^ 1], found as u64 + 5).expect("write");
    for round in 0..20_u32 {
        for number in 0..50_u32 {
            put(&matrix, format!("a{number:03}").as_bytes(), &round.to_le_bytes());
        }
    }
    assert!(matrix.get(hurt).is_err(), "the leaf is in no doubt");
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let counted = matrix.len().is_ok_and(|len| len > 51);
        let verified = matrix.verify(&mut |_| ()).is_ok_and(|report| report.is_sound());
        let _is_heard = send.send((counted, verified)).is_ok();
    });
    let counted = receive.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(counted.expect("it ends"), (false, false));
}
