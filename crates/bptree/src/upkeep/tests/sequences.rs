//! Writes with given sequences, as all writes of a matrix are.

use crate::upkeep::Store;
use crate::upkeep::tests::new_store;
use crate::volume::counters::Count;
use crate::write::plan::{Plan, RestsOn};
use coreplane_engine::{Batch, WriteOptions};

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

fn given(sequence: u64) -> WriteOptions {
    WriteOptions { sequence: Some(sequence), ..WriteOptions::default() }
}

fn rewrites(store: &Store) -> i64 {
    store.counters.get(Count::Rewrites) + store.counters.get(Count::Splits)
}

/// Otherwise each put with a sequence would have to look before it appends.
#[test]
fn a_rewritten_leaf_has_given_out_no_more_than_the_given_sequences() {
    let (_directory, store) = new_store();
    for sequence in 1..=600 {
        let (options, number) = (given(sequence), sequence % 40);
        if sequence % 5 == 0 {
            let mut batch = Batch::new();
            (0..3).for_each(|at| _ = batch.put(&key((number + at * 13) % 40), &[1; 100]));
            let _written = store.apply(&batch, &options).expect("a batch");
        } else {
            let _outcome = store.put(&key(number), &[2; 100], &options).expect("put");
        }
        let locked = store.lock_leaf(&key(number)).expect("a leaf");
        assert_eq!(locked.held.given(), sequence);
    }
    assert!(rewrites(&store) > 20, "{}", rewrites(&store));
}

/// Deletes that only replace tombstones do not make their leaf smaller.
#[test]
fn a_leaf_full_of_held_tombstones_is_not_rewritten_by_each_delete() {
    for keys in 96..128 {
        let (_directory, store) = new_store();
        store.hold_tombstones(0).expect("hold");
        for sequence in 1..=500 {
            let what = (&given(sequence), RestsOn::Nothing);
            let deleted = store.write(&key(sequence % keys), what, &mut |_| Ok(Plan::Delete));
            assert!(deleted.is_ok(), "{deleted:?}");
        }
        assert!(rewrites(&store) < 100, "{keys} keys, {}", rewrites(&store));
    }
}
