//! The scrub of devices of `scmkv`: it repairs or reports everything that `verify` names.

use crate::shelf::sample::{at, numbered as key, put};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_mkvs::{Matrix, Options, Shape};
use std::os::unix::fs::FileExt as _;

fn value(number: u64) -> Vec<u8> {
    format!("the value of number {number:04}, and some more").into_bytes()
}

fn created() -> (Shelf, Matrix) {
    let shelf = Shelf::new(Kind::Scmkv, 16 << 20);
    let shape = Shape { groups: 1, ..Shape::default() };
    let matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    (0..300).for_each(|number| put(&matrix, &key(number), &value(number)));
    (shelf, matrix)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Flips a bit of the slot of a key on device 0.
fn flip_slot(shelf: &Shelf, key: &[u8], bit: u32) {
    let bytes = std::fs::read(shelf.path(at(0, 0))).expect("read");
    // Header and sequence come before the key.
    let record = bytes.windows(key.len()).position(|it| it == key).expect("the record") - 28;
    let is_of = |slot: u64| slot >> 41 != 0 && (slot & ((1 << 39) - 1)) << 3 == record as u64;
    let slot = bytes.chunks_exact(8).position(|it| is_of(word(it))).expect("the slot") * 8;
    let hit = word(&bytes[slot..slot + 8]) ^ 1 << bit;
    let file = std::fs::File::options().write(true).open(shelf.path(at(0, 0))).expect("open");
    file.write_all_at(&hit.to_le_bytes(), slot as u64).expect("write");
}

#[test]
fn a_slot_that_was_hit_is_mended_and_verify_is_content() {
    // A mark, the offset, the tag.
    for bit in [39, 40, 3, 20, 50, 63] {
        let (shelf, matrix) = created();
        flip_slot(&shelf, &key(7), bit);
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        // The device's own scrub in the background may have repaired it before.
        let is_told = scrubbed.repaired.iter().all(|place| *place == at(0, 0));
        assert!(is_told && scrubbed.repaired.len() <= 1, "bit {bit}: {scrubbed:?}");
        assert!(scrubbed.unreadable.is_empty(), "bit {bit}: {scrubbed:?}");
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound(), "bit {bit}");
        let again = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((again.repaired.len(), again.unreadable.len()), (0, 0), "bit {bit}: {again:?}");
        shelf.pull(at(0, 1));
        for number in 0..300 {
            assert_eq!(matrix.get(&key(number)).expect("get"), Some(value(number)), "bit {bit}");
        }
    }
}

/// A record that has been replaced, and one that has been deleted.
#[test]
fn a_scrub_that_finds_nothing_and_a_verify_that_does_are_not_both_right() {
    for is_deleted in [false, true] {
        let (shelf, matrix) = created();
        let bytes = std::fs::read(shelf.path(at(0, 0))).expect("read");
        let old = value(7);
        let found = bytes.windows(old.len()).position(|it| it == old).expect("the value");
        match is_deleted {
            true => drop(matrix.delete(&key(7), &WriteOptions::default()).expect("delete")),
            false => put(&matrix, &key(7), b"another"),
        }
        let file = std::fs::File::options().write(true).open(shelf.path(at(0, 0))).expect("open");
        file.write_all_at(&[old[2] ^ 4], found as u64 + 2).expect("write");
        for round in 0..3 {
            let is_sound = matrix.verify(&mut |_| {}).expect("verify").is_sound();
            let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
            let is_told = !scrubbed.repaired.is_empty() || !scrubbed.unreadable.is_empty();
            assert_eq!(is_told, !is_sound, "round {round}, deleted {is_deleted}: {scrubbed:?}");
        }
    }
}
