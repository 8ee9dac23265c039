//! Bits that flip in the index of one device: its peer has the record.

mod shelf;

use coreplane_engine::{Engine, Record, Visibility, WriteOptions};
use coreplane_mkvs::{Matrix, Options, Position, ReadPath, Shape};
use shelf::sample::{at, put};
use shelf::{Kind, Shelf};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;

/// Bytes of a record before its key: header and sequence.
const HEADER: usize = 28;

/// Reads of a key, of which each device of two is asked for some.
const READS: u64 = 130;

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    format!("the value of number {number:04}").into_bytes()
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// The file of a device.
fn file(shelf: &Shelf, place: Position) -> File {
    File::options().read(true).write(true).open(shelf.path(place)).expect("open")
}

/// Where the slot of a key is in the pool: the only word that points at its record.
fn slot_of(shelf: &Shelf, place: Position, key: &[u8]) -> u64 {
    let bytes = std::fs::read(shelf.path(place)).expect("read");
    let mut records = bytes.windows(key.len()).enumerate().filter(|(_, it)| *it == key);
    let record = records.next().expect("the record").0 - HEADER;
    assert!(records.next().is_none() && record.is_multiple_of(8), "{record:#x}");
    let points_there =
        |slot: u64| slot >> 41 != 0 && (slot & ((1 << 39) - 1)) << 3 == record as u64;
    let words = bytes.chunks_exact(8).map(word).enumerate();
    let slots: Vec<_> = words.filter(|(_, slot)| points_there(*slot)).map(|(at, _)| at).collect();
    assert_eq!(slots.len(), 1, "{slots:x?}");
    8 * slots[0] as u64
}

fn word_at(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).expect("read");
    word(&bytes)
}

/// Flips a bit of a slot.
fn flip(file: &File, at: u64, bit: u32) {
    let flipped = word_at(file, at) ^ 1 << bit;
    file.write_all_at(&flipped.to_le_bytes(), at).expect("write");
}

/// Flips it back, unless the device has found it, which looks at its slots in the background.
fn flip_back(file: &File, at: u64, (bit, before): (u32, u64)) {
    if word_at(file, at) == before ^ 1 << bit {
        file.write_all_at(&before.to_le_bytes(), at).expect("write");
    }
}

/// One group of two devices, the first 300 keys in it.
fn created(read_path: ReadPath) -> (Shelf, Matrix) {
    let shelf = Shelf::new(Kind::Scmkv, 16 << 20);
    let (shape, options) =
        (Shape { groups: 1, ..Shape::default() }, Options { read_path, ..Options::default() });
    let matrix = Matrix::create(&shelf, shape, &options).expect("create");
    (0..300).for_each(|number| put(&matrix, &key(number), &value(number)));
    (shelf, matrix)
}

/// What each device holds of a key is flipped, each bit of its slot in turn: whichever device is asked first,
/// the record is found.
fn is_found_beside_flips(read_path: ReadPath, reads: u64) {
    let (shelf, matrix) = created(read_path);
    let deleted = key(299);
    let _outcome = matrix.delete(&deleted, &WriteOptions::default()).expect("delete");
    // Of another key on each device: whichever is asked first, it lacks one of them.
    let hurt = [(0, 7), (1, 8)].map(|(device, number)| {
        let slot = slot_of(&shelf, at(0, device), &key(number));
        let file = file(&shelf, at(0, device));
        let before = word_at(&file, slot);
        (file, slot, number, before)
    });
    for bit in 0..64 {
        hurt.iter().for_each(|(file, slot, ..)| flip(file, *slot, bit));
        for read in 0..reads {
            for (_, _, number, _) in &hurt {
                let found = matrix.get(&key(*number)).expect("get");
                assert_eq!(found, Some(value(*number)), "bit {bit}, read {read}");
            }
        }
        for (_, _, number, _) in &hurt {
            let mut found = None;
            let visit = &mut |_, record: Option<Record<'_>>| {
                found = record.map(|record| record.value.to_vec());
            };
            let keys: &[&[u8]] = &[&key(*number)];
            let _horizon = matrix.multi_get(keys, Visibility::Durable, visit).expect("multi_get");
            assert_eq!(found, Some(value(*number)), "bit {bit}");
        }
        assert_eq!(matrix.get(&deleted).expect("get"), None);
        for (file, slot, _, before) in &hurt {
            flip_back(file, *slot, (bit, *before));
        }
    }
    assert!(matrix.stats().figure("damaged_reads").is_some_and(|reads| reads > 0));
}

#[test]
fn a_flipped_bit_in_a_slot_hides_no_record_that_a_peer_has() {
    is_found_beside_flips(ReadPath::Inline, READS);
}

#[test]
fn nor_where_reads_go_through_the_rings() {
    is_found_beside_flips(ReadPath::Rings, 4);
}

/// What the filter denies costs no read of a device, what it does not costs two.
#[test]
fn a_key_that_is_not_there_costs_one_read_more_where_the_filter_is_wrong() {
    let (shelf, matrix) = created(ReadPath::Inline);
    let gates = [0, 1].map(|device| shelf.gate(at(0, device)));
    let gets = || gates.iter().map(|gate| gate.gets.load(Ordering::SeqCst)).sum::<u64>();
    let wrong = || matrix.stats().figure("filter_false_hits").expect("a figure");
    // As many as the filter was made for.
    (300..12_000).for_each(|number| put(&matrix, &key(number), b"value"));
    let wrong_before = wrong();
    let gets_before = gets();
    for number in 20_000..60_000 {
        assert_eq!(matrix.get(&key(number)).expect("get"), None);
    }
    let gets = gets() - gets_before;
    // The figures are made of reads, too.
    let wrong = wrong() - wrong_before;
    assert!(wrong > 0 && wrong < 400, "{wrong} of 40,000");
    assert_eq!(gets, 2 * wrong);
}
