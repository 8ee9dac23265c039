//! Keys with one hash, which a client can construct: what is known of the writes of one says nothing about the other.

use crate::shelf::gate::Gate;
use crate::shelf::sample::{created, device, put};
use crate::shelf::{Kind, Shelf, wait_until};
use coreplane_engine::{Batch, Engine, Expected, WriteOptions};
use coreplane_mkvs::filter::hash_of;
use coreplane_mkvs::{Ack, Matrix};
use std::sync::atomic::Ordering;

/// Two keys with one hash.
const ONE: u128 = 0x314e_24bf_3f40_a076_3a52_9609_3bbc_56af;
const OTHER: u128 = 0xb939_42ea_7b73_8267_2b70_a54d_6eda_2127;

/// Writes `ONE` in a batch behind other `keys`, and then `OTHER` by itself. The device of the gate follows the first
/// write in its second batch, which waits, and has the second write by then.
fn overtake(matrix: &Matrix, gate: &Gate, keys: [&[u8]; 2]) {
    let (one, other) = (ONE.to_be_bytes(), OTHER.to_be_bytes());
    assert_eq!(hash_of(&one), hash_of(&other));
    put(matrix, &one, b"old");
    matrix.sync().expect("all devices have it");
    let hold_from = |number| gate.first_held_apply.store(number, Ordering::SeqCst);
    let wait_for = |number| wait_until(|| gate.applies.load(Ordering::SeqCst) == number);
    let apply = |last: &[u8], value: &[u8]| {
        let mut batch = Batch::new();
        batch.put(keys[0], b"");
        batch.put(last, value);
        assert!(matrix.apply(&batch, &WriteOptions::default()).is_ok());
    };
    hold_from(1);
    apply(keys[1], b"");
    wait_for(1);
    apply(&one, b"new");
    put(matrix, &other, b"another");
    // A processor takes writes of one key before each batch.
    hold_from(2);
    wait_for(2);
}

#[test]
fn a_reader_of_one_asks_a_device_that_has_it() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::First);
    let gate = shelf.gate(device(0));
    overtake(&matrix, &gate, [b"0", b"1"]);
    // Some of a thread's reads go to another device than the others.
    let mut found: Vec<_> = (0..200).map(|_| matrix.get(&ONE.to_be_bytes())).collect();
    gate.first_held_apply.store(0, Ordering::SeqCst);
    found.retain(|it| it.as_ref().is_ok_and(|it| it.as_deref() != Some(b"new".as_slice())));
    assert_eq!(found.len(), 0, "stale reads");
}

#[test]
fn a_write_that_depends_on_one_is_decided_where_its_newest_record_is() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 3), Ack::Majority);
    let one = ONE.to_be_bytes();
    // A batch waits for the primary, and for a device by the hash of its first key: not the one that writes of the
    // two keys wait for.
    let waits_for_another = |key: &[u8; 8]| hash_of(key) >> 32 & 1 != hash_of(&one) >> 32 & 1;
    let first = (0..).map(u64::to_be_bytes).find(waits_for_another).expect("a key");
    let gate = shelf.gate(device((hash_of(&one) >> 32 & 1) as u8));
    overtake(&matrix, &gate, [&first, b"1"]);
    let expected = Expected::Value(b"new");
    let outcome = matrix.compare_and_set(&one, expected, b"newer", &WriteOptions::default());
    gate.first_held_apply.store(0, Ordering::SeqCst);
    matrix.sync().expect("all devices have it");
    assert!(outcome.expect("it is decided").written().is_some(), "an acknowledged write is lost");
    for number in 0..3 {
        let found = shelf.engine(device(number)).get(&one).expect("get");
        assert_eq!(found.as_deref(), Some(b"newer".as_slice()), "device {number}");
    }
}
