//! Batches: all of their changes or none, also where some change nothing or space is short.

use crate::home::{Home, New, PAGE, options, write};
use crate::tiny::{ends, fill_key};
use coreplane_engine::{Batch, Engine, Error, Repairable};
use coreplane_scmkv::Placement;

#[test]
fn a_delete_of_nothing_in_a_batch_hides_none_of_its_other_changes() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(256));
    for number in 0..500_u32 {
        let key = format!("put-{number}");
        let mut batch = Batch::new();
        batch.delete(format!("missing-{number}").as_bytes()).put(key.as_bytes(), b"v");
        store.apply(&batch, &write()).expect("apply");
        assert!(store.get(key.as_bytes()).expect("get").is_some(), "batch {number}");
    }
    assert_eq!(store.len().expect("len"), 500);
}

#[test]
fn a_batch_for_which_there_is_no_space_is_refused() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(48));
        for number in 0..100_u32 {
            let _outcome = store.put(&number.to_le_bytes(), &[7; 470], &write()).expect("put");
        }
        let mut batch = Batch::new();
        for number in 0..400_u32 {
            batch.put(format!("{number:0100}").as_bytes(), &[7; 500]);
        }
        let applied = store.apply(&batch, &write()).map(drop);
        assert!(matches!(applied, Err(Error::NoSpace { .. })), "{applied:?}");
        assert_eq!(store.len().expect("len"), 100, "nothing of it was written");
        for number in 0..400_u32 {
            assert!(store.get(format!("{number:0100}").as_bytes()).expect("get").is_none());
        }
    });
}

/// The members do not fill their pages: the batch takes more pages than its bytes would fill.
#[test]
fn a_refused_batch_leaves_a_store_that_takes_writes() {
    ends(|| {
        let mut refused = 0;
        for filler in 60..140_u32 {
            let home = Home::in_memory();
            let store = home.create(New::tiny(48));
            for number in 0..filler {
                let _outcome = store.put(&fill_key(number), &[7; 470], &write()).expect("put");
            }
            let mut batch = Batch::new();
            for number in 0..190_u32 {
                batch.put(format!("{number:0160}").as_bytes(), &[7; 500]);
            }
            let before = store.stats().free_bytes;
            if store.apply(&batch, &write()).is_ok() {
                continue;
            }
            refused += 1;
            assert_eq!(store.stats().free_bytes, before, "pages after a refused batch");
            for round in 0..500_u32 {
                let put = store.put(&fill_key(0), &[round as u8; 470], &write()).map(drop);
                assert!(put.is_ok(), "{filler} records, overwrite {round}: {put:?}");
            }
        }
        assert!(refused > 0, "no batch was refused");
    });
}

#[test]
fn a_batch_cleans_for_the_pages_that_it_needs() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        for round in 0..200_u32 {
            let mut batch = Batch::new();
            for number in 0..60_u32 {
                batch.put(format!("{number:032}").as_bytes(), &[round as u8; 300]);
            }
            store.apply(&batch, &write()).expect("apply");
        }
        for number in 0..60_u32 {
            let value = store.get(format!("{number:032}").as_bytes()).expect("get");
            assert_eq!(value.as_deref(), Some(&[199; 300][..]), "{number}");
        }
    });
}

#[test]
fn batches_of_two_threads_do_not_take_the_same_pages() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(96));
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..60_u8 {
                        let mut batch = Batch::new();
                        for number in 0..60_u8 {
                            batch.put(&[thread, number], &[round; 400]);
                        }
                        match store.apply(&batch, &write()) {
                            Ok(_) | Err(Error::NoSpace { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        for thread in 0..3_u8 {
            let _outcome = store.put(&[thread, 0], &[1; 400], &write()).expect("put");
        }
    });
}

/// Of one key the last change counts, wherever the other changes of the batch lie between: also
/// where they have the same hash and the key is new, is present, or is deleted.
#[test]
fn of_many_changes_of_a_few_keys_the_last_ones_count() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(256));
    for round in 0..20_u32 {
        let mut batch = Batch::new();
        for number in 0..300_u32 {
            let key = (number % 7 + round % 3 * 5).to_le_bytes();
            if number % 5 == round % 5 {
                batch.delete(&key);
            } else {
                batch.put(&key, format!("{round} {number}").as_bytes());
            }
        }
        store.apply(&batch, &write()).expect("apply");
        for last in 293..300_u32 {
            let key = (last % 7 + round % 3 * 5).to_le_bytes();
            let expected = (last % 5 != round % 5).then(|| format!("{round} {last}").into_bytes());
            assert_eq!(store.get(&key).expect("get"), expected, "round {round}, change {last}");
        }
    }
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Each round of splits is one pass over the batch, however many segments are full.
#[test]
fn a_batch_of_many_new_keys_splits_many_segments() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(400));
    let mut batch = Batch::new();
    for number in 0..2000_u32 {
        batch.put(&number.to_le_bytes(), b"v");
    }
    store.apply(&batch, &write()).expect("apply");
    assert_eq!(store.len().expect("len"), 2000);
    for number in 0..2000_u32 {
        assert!(store.get(&number.to_le_bytes()).expect("get").is_some(), "{number}");
    }
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Records of 128 bytes fill a page to its last byte, and the log goes on in the page behind it,
/// which was used more or less often before.
#[test]
fn a_batch_that_fills_its_pages_to_the_end_is_there_after_a_kill() {
    const RECORDS: u64 = 3 * PAGE / 128;
    let key = |number: u64| format!("{number:012}").into_bytes();
    let home = Home::in_memory();
    let mut store = home.create(New::tiny(32).placed(Placement::Dram));
    for round in 0..60_u8 {
        let mut batch = Batch::new();
        for number in 0..RECORDS {
            batch.put(&key(number), &[round; 96]);
        }
        store.apply(&batch, &write()).expect("apply");
        // Pages are cleaned and used again, some more often than others.
        for number in 0..u32::from(round) * 7 % 40 {
            let _outcome = store.put(&fill_key(number), &[round; 300], &write()).expect("put");
        }
        store.clean().expect("clean");
        drop(store);
        store = home.open(options(false));
        for number in 0..RECORDS {
            let value = store.get(&key(number)).expect("get");
            assert_eq!(value.as_deref(), Some(&[round; 96][..]), "{number} of round {round}");
        }
    }
}

/// Segments are split between the looks at two changes of one key.
#[test]
fn two_changes_of_a_key_are_one_while_others_split_its_segment() {
    const KEYS: u32 = 300;
    const BATCHES: u32 = 4;
    let own = |batch: u32, number: u32| format!("own {batch} {number}").into_bytes();
    for _ in 0..80 {
        let home = Home::in_memory();
        let store = home.create(New::tiny(1000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..4000_u32 {
                    let _outcome = store.put(&number.to_le_bytes(), b"v", &write()).expect("put");
                }
            });
            for number in 0..BATCHES {
                let mut batch = Batch::new();
                for value in [b"earlier".as_slice(), b"last"] {
                    for key in 0..KEYS {
                        batch.put(&own(number, key), value);
                    }
                }
                store.apply(&batch, &write()).expect("apply");
            }
        });
        for number in 0..BATCHES {
            for key in 0..KEYS {
                let value = store.get(&own(number, key)).expect("get");
                assert_eq!(value.as_deref(), Some(&b"last"[..]), "{key} of batch {number}");
            }
        }
        assert_eq!(store.len().expect("len"), u64::from(4000 + KEYS * BATCHES));
    }
}
