//! Bits that flip in the index of one device: its peer has the record.

use crate::shelf::sample::{at, numbered as key, put};
use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Engine, Record, Repairable, Visibility, WriteOptions};
use coreplane_mkvs::{Matrix, Options, Position, ReadPath, Shape};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;

/// Bytes of a record before its key: header and sequence.
const HEADER: usize = 28;

/// The bit of a slot that says that the key was deleted.
const TOMBSTONE: u32 = 40;

/// Reads of a key, enough that each of two devices is asked.
const READS: u64 = 130;

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

/// The places of the keys' index slots in the pool, by the keys' numbers: the only words that point at their
/// records. Not those of a key with two such words, of which one is a copy that is out of use.
fn slots_of(shelf: &Shelf, place: Position) -> BTreeMap<u64, u64> {
    let bytes = std::fs::read(shelf.path(place)).expect("read");
    let keys = bytes.windows(8).enumerate().filter(|(_, it)| it.starts_with(b"key-"));
    let number = |key: &[u8]| std::str::from_utf8(&key[4..]).ok()?.parse::<u64>().ok();
    let records: BTreeMap<u64, u64> =
        keys.filter_map(|(at, key)| Some(((at - HEADER) as u64, number(key)?))).collect();
    let words = bytes.chunks_exact(8).map(word).enumerate();
    let mut slots: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (at, slot) in words.filter(|(_, slot)| slot >> 41 != 0) {
        if let Some(number) = records.get(&((slot & ((1 << 39) - 1)) << 3)) {
            slots.entry(*number).or_default().push(8 * at as u64);
        }
    }
    slots.retain(|_, slots| slots.len() == 1);
    slots.into_iter().map(|(number, slots)| (number, slots[0])).collect()
}

/// Flips a bit of the word at `at`.
fn flip(file: &File, at: u64, bit: u32) {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).expect("read");
    file.write_all_at(&(word(&bytes) ^ 1 << bit).to_le_bytes(), at).expect("write");
}

/// One group of two devices, with the first 300 keys in it.
fn created(read_path: ReadPath) -> (Shelf, Matrix) {
    let shelf = Shelf::new(Kind::Scmkv, 16 << 20);
    let (shape, options) =
        (Shape { groups: 1, ..Shape::default() }, Options { read_path, ..Options::default() });
    let matrix = Matrix::create(&shelf, shape, &options).expect("create");
    (0..300).for_each(|number| put(&matrix, &key(number), &value(number)));
    (shelf, matrix)
}

/// Each device has a slot with a wrong bit, of a key of its own, each bit in turn: the record is found,
/// whichever device is asked first. The scrub mends all slots.
fn is_found_beside_flips(read_path: ReadPath, reads: u64) {
    let (shelf, matrix) = created(read_path);
    let deleted = key(299);
    let _outcome = matrix.delete(&deleted, &WriteOptions::default()).expect("delete");
    let slots = [0, 1].map(|device| slots_of(&shelf, at(0, device)));
    for bit in 0..64 {
        // The bit is not flipped back, since the device may have mended the slot in the background.
        let hurt = [(0_u8, 2 * bit), (1, 2 * bit + 1)];
        for (device, number) in hurt {
            let slot = slots[usize::from(device)][&u64::from(number)];
            flip(&file(&shelf, at(0, device)), slot, bit);
        }
        for read in 0..reads {
            for (_, number) in hurt.map(|(device, number)| (device, u64::from(number))) {
                let found = matrix.get(&key(number)).expect("get");
                assert_eq!(found, Some(value(number)), "bit {bit}, read {read}");
            }
        }
        for (_, number) in hurt.map(|(device, number)| (device, u64::from(number))) {
            let mut found = None;
            let visit = &mut |_, record: Option<Record<'_>>| {
                found = record.map(|record| record.value.to_vec());
            };
            let keys: &[&[u8]] = &[&key(number)];
            let _horizon = matrix.multi_get(keys, Visibility::Durable, visit).expect("multi_get");
            assert_eq!(found, Some(value(number)), "bit {bit}");
        }
        assert_eq!(matrix.get(&deleted).expect("get"), None);
    }
    assert!(matrix.stats().figure("damaged_reads").is_some_and(|reads| reads > 0));
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    assert!(scrubbed.lost.is_empty() && scrubbed.unreadable.is_empty(), "{scrubbed:?}");
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound(), "all are mended");
    for number in 0..299 {
        for device in 0..2 {
            let found = shelf.engine(at(0, device)).get(&key(number)).expect("get");
            assert_eq!(found, Some(value(number)), "device {device}");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_slot_hides_no_record_that_a_peer_has() {
    is_found_beside_flips(ReadPath::Inline, READS);
}

#[test]
fn nor_where_reads_go_through_the_rings() {
    is_found_beside_flips(ReadPath::Rings, 4);
}

/// A key that the filter denies costs no read of a device, any other absent key costs two.
#[test]
fn a_key_that_is_not_there_costs_one_read_more_where_the_filter_is_wrong() {
    let (shelf, matrix) = created(ReadPath::Inline);
    let gates = [0, 1].map(|device| shelf.gate(at(0, device)));
    let gets = || gates.iter().map(|gate| gate.gets.load(Ordering::SeqCst)).sum::<u64>();
    let wrong = || matrix.stats().figure("filter_false_hits").expect("a figure");
    // As many keys as the filter was made for.
    (300..12_000).for_each(|number| put(&matrix, &key(number), b"value"));
    let wrong_before = wrong();
    let gets_before = gets();
    for number in 20_000..60_000 {
        assert_eq!(matrix.get(&key(number)).expect("get"), None);
    }
    let gets = gets() - gets_before;
    // The figures of a group are updated by reads.
    let wrong = wrong() - wrong_before;
    assert!(wrong > 0 && wrong < 400, "{wrong} of 40,000");
    assert_eq!(gets, 2 * wrong);
}

/// The filter is made anew while a slot of the primary says that its key was deleted: the peer has the key, and the
/// filter denies neither this key nor, when it is deleted, any other.
#[test]
fn a_key_that_the_primary_hides_is_in_a_filter_that_grows() {
    let (shelf, matrix) = created(ReadPath::Inline);
    let more = |number: u64| format!("more-{number:05}").into_bytes();
    shelf.holds_filters.store(true, Ordering::SeqCst);
    (0..16_000).for_each(|number| put(&matrix, &more(number), b"value"));
    let slots = slots_of(&shelf, at(0, 1));
    let hidden: Vec<u64> = slots.keys().copied().take(100).collect();
    assert!(hidden.len() > 50, "{hidden:?}");
    hidden.iter().for_each(|number| flip(&file(&shelf, at(0, 1)), slots[number], TOMBSTONE));
    shelf.holds_filters.store(false, Ordering::SeqCst);
    wait_until(|| matrix.stats().figure("filter_growths").is_some_and(|made| made > 0));
    let get = |key: &[u8]| {
        // A new thread asks the filter.
        std::thread::scope(|scope| scope.spawn(|| matrix.get(key)).join()).expect("join")
    };
    for number in &hidden {
        assert_eq!(get(&key(*number)).expect("get"), Some(value(*number)), "{number}");
    }
    for number in &hidden {
        let _outcome = matrix.delete(&key(*number), &WriteOptions::default()).expect("delete");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..16_000 {
                assert!(matrix.get(&more(number)).expect("get").is_some(), "{number} is denied");
            }
        });
    });
}
