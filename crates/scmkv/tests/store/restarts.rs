//! The state that an earlier life of a store leaves to the next.

use crate::home::{Home, New, options, relaxed, write};
use crate::tiny::{created, recovered, simulated};
use coreplane_engine::{Engine, Error, Replicated, WriteOptions};
use coreplane_pmem::media::sim::Eviction;
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use coreplane_scmkv::Placement;
use std::sync::mpsc;

#[test]
fn a_crash_while_the_pool_grows() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(32));
    let _outcome = store.put(b"k", b"v", &write()).expect("put");
    store.close().expect("close");
    drop(store);
    // The state of a `grow` that crashes after the new size is durable.
    let pool = Pool::open(&home.path(), &OpenOptions { media: MediaChoice::Auto }).expect("pool");
    pool.grow(64 * 4096).expect("grow");
    drop(pool);
    let store = home.open(options(false));
    assert!(store.get(b"k").expect("get").is_some());
}

#[test]
fn a_drawn_sequence_is_above_all_writes_before_it() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(64));
    let given = WriteOptions { sequence: Some(1 << 60), ..write() };
    let _outcome = store.put(b"given", b"v", &given).expect("put");
    let written = store.put(b"other", b"v", &write()).expect("put").written().expect("written");
    let drawn = store.advance_sequence().expect("advance");
    assert!(written.sequence <= drawn, "{:#x} was before {drawn:#x}", written.sequence);
}

/// Sequences that callers draw above those that the store has given out stay above the store's own,
/// however many pages are filled meanwhile: otherwise each of them is compared with the record of
/// its key.
#[test]
fn pages_that_are_filled_leave_the_sequences_of_callers_above_its_own() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(64));
    let drawn = store.advance_sequence().expect("advance");
    // More than 4096 pages of 4 KiB, seven of these to a page.
    let last = drawn + 32_000;
    for sequence in drawn + 1..=last {
        let given = WriteOptions { sequence: Some(sequence), ..write() };
        store.put(b"given", &[7; 500], &given).expect("put").written().expect("written");
    }
    let own = store.put(b"own", b"v", &write()).expect("put").written().expect("written");
    // It may be of the same group.
    assert!(own.sequence <= last + 1, "{:#x} is above {last:#x}", own.sequence);
}

#[test]
fn a_slot_of_another_thread_is_durable_after_a_clean_close() {
    let sim = simulated(31);
    let store = created(&sim, relaxed());
    std::thread::scope(|scope| {
        scope.spawn(|| store.put(b"theirs", b"v", &write()).map(drop)).join().expect("join")
    })
    .expect("put");
    let _outcome = store.put(b"mine", b"v", &write()).expect("put");
    store.sync().expect("sync");
    store.close().expect("close");
    let (_sim, store) = recovered(&sim.crash(Eviction::Nothing));
    assert!(store.get(b"mine").expect("get").is_some());
    assert!(store.get(b"theirs").expect("get").is_some(), "closed cleanly, and lost");
}

#[test]
fn no_key_has_two_slots_after_a_crash() {
    let mut twice = Vec::new();
    for fill in 8..28_u32 {
        for variant in 0..40_u32 {
            let sim = simulated(64);
            let store = created(&sim, options(false));
            std::thread::scope(|scope| {
                let (go, goes) = mpsc::channel::<()>();
                let (ready, is_ready) = mpsc::channel::<()>();
                let store = &store;
                let other = scope.spawn(move || {
                    let _outcome = store.put(b"warm", b"v", &write()).expect("put");
                    ready.send(()).expect("send");
                    goes.recv().expect("recv");
                    let _outcome =
                        store.put(format!("y{variant}").as_bytes(), b"v", &write()).expect("put");
                });
                is_ready.recv().expect("recv");
                for number in 0..fill {
                    let key = format!("f{number}-{variant}");
                    let _outcome = store.put(key.as_bytes(), b"v", &write()).expect("put");
                }
                // Its slot is unfenced by this thread for ever.
                let _outcome =
                    store.put(format!("x{variant}").as_bytes(), b"v", &write()).expect("put");
                go.send(()).expect("send");
                other.join().expect("join");
            });
            for image in sim.crashes(8) {
                let (_sim, store) = recovered(&image);
                let len = store.len().expect("len");
                if len != u64::from(fill) + 3 {
                    twice.push((fill, variant, len));
                    // The effect: the key is deleted, and comes back.
                    let key = format!("y{variant}");
                    let _outcome = store.delete(key.as_bytes(), &write()).expect("delete");
                    let mut shown = false;
                    store
                        .iterate(0, 1000, &mut |entry| shown |= entry.key == key.as_bytes())
                        .expect("iterate");
                    assert!(!shown, "{key} is deleted, and SCAN shows it");
                }
            }
        }
    }
    assert!(twice.is_empty(), "(fill, variant, len): {twice:?}");
}

#[test]
fn a_flipped_bit_in_an_open_page_is_not_taken_for_the_end_of_the_log() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(32).placed(Placement::Dram));
    for number in 0..5_u8 {
        let _outcome = store.put(&[number; 16], &[0xa0 + number; 40], &write()).expect("put");
    }
    drop(store);
    let mut bytes = home.bytes();
    let at = bytes.windows(40).position(|window| window == [0xa1; 40]).expect("the second value");
    bytes[at + 3] ^= 4;
    home.put_bytes(&bytes);
    let error = home.try_open(options(false));
    let is_told = matches!(&error, Err(Error::Corrupt { what, .. }) if what.contains("checksum"));
    assert!(is_told, "{error:?}");
    // The last record alone cannot be distinguished from one that a crash has cut off.
    bytes[at + 3] ^= 4;
    let at = bytes.windows(40).position(|window| window == [0xa4; 40]).expect("the last value");
    bytes[at + 3] ^= 4;
    home.put_bytes(&bytes);
    let store = home.open(options(false));
    assert!(store.get(&[3; 16]).expect("get").is_some());
    assert!(store.get(&[4; 16]).expect("get").is_none());
}

#[test]
fn a_write_after_the_close_changes_no_byte_of_the_pool() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(64));
    let _outcome = store.put(b"k", b"v", &write()).expect("put");
    store.close().expect("close");
    let closed = home.bytes();
    for durability in [Some(relaxed().durability), None] {
        let options = WriteOptions { durability, ..write() };
        let refused = store.put(b"k", b"w", &options);
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
        let refused = store.delete(b"k", &options);
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
        assert!(home.bytes() == closed, "{durability:?}: the pool was written to");
    }
}
