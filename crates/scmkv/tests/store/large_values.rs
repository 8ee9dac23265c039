//! Values in overflow records: they outlive cleaning, lose no update, and leave nothing behind when
//! their write is refused.

use crate::home::{Home, New, early, write};
use crate::tiny::{big, ends};
use coreplane_engine::{Batch, Engine, Error, Mutation};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn overflow_records_outlive_a_cleaner_that_comes_before_their_owner() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(128));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cleaner = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.clean().expect("clean");
            }
        });
        let mut lost = None;
        for round in 0..1000_usize {
            let _outcome = store.put(b"small", &[1; 40], &write()).expect("put");
            let _outcome = store.put(b"small", &[2; 40], &write()).expect("put");
            let _outcome = store.put(b"big", &big(round, 30_000), &write()).expect("put");
            let got = store.get(b"big");
            if got.as_ref().ok() != Some(&Some(big(round, 30_000))) {
                lost = Some((round, got.map(|value| value.map(|value| value.len()))));
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        cleaner.join().expect("cleaner");
        assert!(lost.is_none(), "an acknowledged value is gone: {lost:?}");
    });
}

#[test]
fn overflow_records_outlive_the_cleaning_that_makes_room_for_them() {
    ends(|| {
        for pages in 36..80 {
            let home = Home::in_memory();
            let store = home.create(New::tiny(pages));
            for round in 0..60_usize {
                let key = [b'b', (round % 3) as u8];
                let fill = (0..3_u8).all(|fill| {
                    store.put(&[b's', fill, (round % 8) as u8], &[1; 40], &write()).is_ok()
                        && store.put(b"small", &[1; 40], &write()).is_ok()
                });
                if !fill || store.put(&key, &big(round, 30_000), &write()).is_err() {
                    break;
                }
                let got = store.get(&key).expect("get");
                assert!(got == Some(big(round, 30_000)), "{pages} pages, round {round}");
            }
        }
    });
}

#[test]
fn no_update_of_a_large_value_is_lost() {
    const ROUNDS: u64 = 4000;
    let home = Home::in_memory();
    let store = home.create(New::tiny(256));
    let _outcome = store.put(b"counter", &[0; 1000], &write()).expect("put");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..ROUNDS).for_each(|_| count(&store)));
        }
    });
    let value = store.get(b"counter").expect("get").expect("there");
    assert_eq!(number_of(&value), 2 * ROUNDS);
}

fn number_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| value[at]))
}

fn count(store: &Scmkv) {
    let next = store.modify(b"counter", &write(), &mut |record| {
        let mut value = record.expect("there").value.to_vec();
        let next = number_of(&value) + 1;
        value[..8].copy_from_slice(&next.to_le_bytes());
        Mutation::Put { value, expires_at: None }
    });
    let _outcome = next.expect("modify");
}

/// The decision on a value that is in the log already stands unless another writer came between.
#[test]
fn a_lone_writer_decides_once() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(64));
    let _outcome = store.put(b"k", b"small", &write()).expect("put");
    for len in [100, 3000] {
        let mut calls = 0;
        let outcome = store.modify(b"k", &write(), &mut |_| {
            calls += 1;
            Mutation::Put { value: big(calls, len), expires_at: None }
        });
        assert!(outcome.expect("modify").written().is_some());
        assert!(store.get(b"k").expect("get") == Some(big(calls, len)));
        assert_eq!(calls, 1, "{len} bytes");
    }
}

/// Whenever one is decided on, another writer of its key goes on.
#[test]
fn a_large_value_that_is_decided_on_is_written_beside_writers_of_its_key() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        std::thread::scope(|scope| {
            let (go, goes) = std::sync::mpsc::channel::<()>();
            let store = &store;
            scope.spawn(move || {
                for () in goes {
                    let _outcome = store.put(b"k", b"theirs", &write()).expect("put");
                }
            });
            for round in 0..200 {
                let mut calls = 0;
                let outcome = store.modify(b"k", &write(), &mut |_| {
                    calls += 1;
                    go.send(()).expect("send");
                    match calls {
                        1..4 => Mutation::Put { value: big(round, 40_000), expires_at: None },
                        // It would go on like this.
                        _ => Mutation::Keep,
                    }
                });
                assert!(outcome.expect("modify").written().is_some(), "round {round}");
            }
        });
    });
}

#[test]
fn a_large_write_that_finds_no_space_leaves_none_behind() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        for number in 0..5_u8 {
            let _outcome = store.put(&[b'b', number], &big(1, 40_000), &write()).expect("put");
        }
        for _ in 0..20 {
            let put = store.put(b"too-large", &big(1, 44_000), &write()).map(drop);
            assert!(matches!(put, Err(Error::NoSpace { .. })), "{put:?}");
        }
        for number in 0..500_u32 {
            let put = store.put(&(number % 20).to_le_bytes(), &[1; 40], &write()).map(drop);
            assert!(put.is_ok(), "put {number}: {put:?}");
        }
    });
}

/// Another writer comes between the first look at the key and the second, and its write is kept.
#[test]
fn the_pages_of_a_large_write_that_was_refused_are_given_back() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        std::thread::scope(|scope| {
            let (go, goes) = std::sync::mpsc::channel::<()>();
            let store = &store;
            scope.spawn(move || {
                for round in goes {
                    let () = round;
                    let _outcome = store.put(b"k", b"theirs", &write()).expect("put");
                }
            });
            for _ in 0..2000_u32 {
                let _outcome = store.delete(b"k", &write()).expect("delete");
                let outcome = store.modify(b"k", &write(), &mut |record| match record {
                    Some(_) => Mutation::Keep,
                    None => {
                        go.send(()).expect("send");
                        Mutation::Put { value: big(1, 20_000), expires_at: None }
                    }
                });
                let _outcome = outcome.expect("modify");
            }
        });
    });
}

#[test]
fn a_store_full_of_large_values_says_so_and_keeps_them() {
    for len in [1000, 3000, 8000, 20_000] {
        ends(move || {
            let home = Home::in_memory();
            let store = home.create(New::tiny(96));
            let key = |number: usize| format!("l{number}").into_bytes();
            let mut count = 0;
            while store.put(&key(count), &big(count, len), &write()).is_ok() {
                count += 1;
                assert!(count < 1000, "it is never full");
            }
            let mut values: Vec<usize> = (0..count).collect();
            for round in 0..50 {
                // There may be space for an overwrite, or not.
                if store.put(&key(round % count), &big(round, len), &write()).is_ok() {
                    values[round % count] = round;
                }
            }
            for (number, serial) in values.into_iter().enumerate() {
                let got = store.get(&key(number)).expect("get");
                assert!(got == Some(big(serial, len)), "{number} of {count}, {len} bytes");
            }
        });
    }
}

/// A batch may use as many pages as a single put for values that replace others.
#[test]
fn a_full_store_takes_a_large_value_for_another_in_a_batch_as_by_itself() {
    const LEN: usize = 3000;
    ends(|| {
        let home = Home::in_memory();
        let geometry = Geometry { page_size: 1 << 14, groups: 4, ..Geometry::TINY };
        let store = home.create(New { size: 8 << 20, geometry, ..New::tiny(0) });
        let key = |number: usize| format!("l{number}").into_bytes();
        let mut count = 0;
        while store.put(&key(count), &big(count, LEN), &write()).is_ok() {
            count += 1;
            assert!(count < 10_000, "it is never full");
        }
        let (mut refused, mut alone) = (0, 0);
        for number in 0..count {
            let mut batch = Batch::new();
            batch.put(&key(number), &big(number + 1, LEN));
            refused += usize::from(store.apply(&batch, &write()).is_err());
            let put = store.put(&key(number), &big(number + 2, LEN), &write());
            alone += usize::from(put.is_err());
        }
        assert_eq!((refused, alone), (0, 0), "of {count}");
    });
}

#[test]
fn a_large_value_on_a_file_waits_for_no_sync_of_its_own() {
    let home = Home::on_disk();
    let store = home.create(New::of_size(64 << 20).placed(Placement::Dram));
    let _outcome = store.put(b"warm", b"v", &write()).expect("put");
    let fences = |value: &[u8]| {
        let before = store.stats().fences;
        let _outcome = store.put(b"k", value, &early()).expect("put");
        store.stats().fences - before
    };
    let small = fences(b"small");
    // Syncs that are requested and not waited for: by the record, and by the overflow records of
    // its page.
    let large = fences(&vec![1; 1 << 20]);
    assert!(large <= small + 1, "{large} syncs for a large value, {small} for a small one");
    assert_eq!(store.get(b"k").expect("get").map(|value| value.len()), Some(1 << 20));
}
