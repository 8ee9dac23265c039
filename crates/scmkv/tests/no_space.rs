//! A store that is full reports it, takes deletes, and takes writes again when there is space.

mod home;
mod tiny;

use coreplane_engine::{Batch, Engine, Error, Repairable};
use coreplane_scmkv::Placement;
use home::{Home, New, PAGE, options, write};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Duration;
use tiny::{ends, fill, fill_key};

#[test]
fn a_page_in_which_nothing_was_written_is_not_lost() {
    let home = Home::in_memory();
    home.create(New::tiny(64)).close().expect("close");
    let mut free = Vec::new();
    for is_closed in [true, false].repeat(5) {
        let store = home.open(options(false));
        let _outcome = store.delete(b"missing", &write()).expect("delete");
        let _outcome = store.insert(b"there", b"v", &write()).expect("insert");
        let _outcome = store.delete(b"there", &write()).expect("delete");
        if is_closed {
            store.close().expect("close");
        }
        drop(store);
        while home.open(options(false)).clean().expect("clean") {}
        free.push(home.open(options(false)).stats().free_bytes / PAGE);
    }
    assert_eq!(free.first(), free.last(), "free pages after each restart: {free:?}");
}

#[test]
fn a_full_store_takes_deletes() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        let filled = fill(&store, 60, 0);
        let all = fill(&store, 0, filled);
        for number in 0..all {
            let deleted = store.delete(&fill_key(number), &write()).map(drop);
            assert!(deleted.is_ok(), "{number} of {all}: {deleted:?}");
        }
        assert_eq!(store.len().expect("len"), 0);
        let again = fill(&store, 60, 0);
        assert!(
            again >= filled * 9 / 10,
            "{again} records after all were deleted, {filled} before"
        );
    });
}

/// The index takes a page for which the writer must clean: nothing that the writer holds may keep
/// the cleaned page from being used again.
#[test]
fn a_put_into_a_full_group_gets_the_page_that_it_cleans() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(40));
        for number in 0..700 {
            let _outcome = store.put(&fill_key(number), b"", &write()).expect("put");
            // The free pages are never more than the least.
            for _ in 0..3 {
                let _outcome = store.put(b"hot", &[0; 400], &write()).expect("put");
            }
        }
        let splits = store.stats().figure("index_splits");
        assert!(splits > Some(20), "{splits:?} splits: the index takes no page");
        assert!(store.stats().cleaner_pages_freed > 100);
    });
}

#[test]
fn a_full_store_can_be_emptied_at_once() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        fill(&store, 0, fill(&store, 60, 0));
        store.clear().expect("clear");
        assert_eq!(store.len().expect("len"), 0);
        let _outcome = store.put(b"k", b"v", &write()).expect("put");
    });
}

#[test]
fn a_full_store_says_so_after_a_restart() {
    for is_closed in [true, false] {
        ends(move || {
            let home = Home::in_memory();
            let store = home.create(New::tiny(64));
            let all = fill(&store, 60, 0);
            if is_closed {
                store.close().expect("close");
            }
            drop(store);
            let store = home.open(options(false));
            fill(&store, 60, all);
            assert!(store.get(&fill_key(all - 1)).expect("get").is_some());
        });
    }
}

/// The commit records of long batches are needed as long as their members lie where they were.
#[test]
fn a_full_store_with_long_batches_says_so() {
    for background in [false, true] {
        ends(move || {
            let home = Home::in_memory();
            let store = home.create(New::tiny(128).with(options(background)));
            for round in 0..20_u8 {
                let mut batch = Batch::new();
                for number in 0..30_u8 {
                    batch.put(&[b'k', number, round], &[number; 200]);
                }
                store.apply(&batch, &write()).expect("apply");
            }
            fill(&store, 60, 0);
            drop(store);
            let store = home.open(options(background));
            for round in 0..20_u8 {
                for number in 0..30_u8 {
                    let value = store.get(&[b'k', number, round]).expect("get");
                    assert_eq!(value.as_deref(), Some(&[number; 200][..]), "{number} {round}");
                }
            }
            fill(&store, 10, 0);
        });
    }
}

#[test]
fn idle_logs_do_not_keep_all_tombstones() {
    ends(|| {
        let home = Home::in_memory();
        let store = std::sync::Arc::new(home.create(New::tiny(128)));
        // Threads that write once and live on.
        let (stop, stopped) = mpsc::channel::<()>();
        let stopped = std::sync::Arc::new(std::sync::Mutex::new(stopped));
        for number in 0..6_u8 {
            let (store, stopped) = (store.clone(), stopped.clone());
            let (ready, is_ready) = mpsc::channel();
            std::thread::spawn(move || {
                let _outcome = store.put(&[b'i', number], b"idle", &write()).expect("put");
                ready.send(()).expect("send");
                drop(stopped.lock().map(|stopped| stopped.recv()));
            });
            is_ready.recv().expect("ready");
        }
        for number in 0..30_000_u32 {
            let key = format!("session-{number:08}").into_bytes();
            let put = store.put(&key, &[1; 40], &write()).map(drop);
            assert!(put.is_ok(), "put {number} into a store that is empty: {put:?}");
            let deleted = store.delete(&key, &write()).map(drop);
            assert!(deleted.is_ok(), "delete {number}: {deleted:?}");
        }
        assert_eq!(store.len().expect("len"), 6);
        drop(stop);
    });
}

#[test]
fn a_slow_reader_delays_writers_and_fails_none() {
    ends(|| {
        let home = Home::in_memory();
        let all = fill(&home.create(New::tiny(64)), 60, 0) / 2;
        let home = Home::in_memory();
        let store = home.create(New::tiny(64));
        for number in 0..all {
            let _outcome = store.put(&fill_key(number), &[7; 60], &write()).expect("put");
        }
        for number in 0..all / 4 {
            let _outcome = store.put(&fill_key(number), &[8; 60], &write()).expect("overwrite");
        }
        let (pinned, is_pinned) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let guard = coreplane_pmem::epoch::pin();
            pinned.send(()).expect("send");
            std::thread::sleep(Duration::from_millis(500));
            drop(guard);
        });
        is_pinned.recv().expect("pinned");
        for round in 0..10_000_u32 {
            let number = all / 4 + (round.wrapping_mul(2_654_435_761) >> 7) % (all / 2);
            let put = store.put(&fill_key(number), &[8; 60], &write()).map(drop);
            assert!(put.is_ok(), "overwrite {round} while a reader is slow: {put:?}");
        }
        reader.join().expect("reader");
    });
}

/// Threads that have ended each leave an open page behind, and then another thread replaces what is in them.
#[test]
fn what_is_dead_in_open_pages_of_idle_threads_makes_room() {
    ends(|| {
        const PARTS: u8 = 7;
        let home = Home::in_memory();
        let store = home.create(New::tiny(160));
        let put_all = |thread: u8, byte: u8| {
            for part in 0..PARTS {
                let put = store.put(&[b't', thread, part], &[byte; 400], &write()).map(drop);
                assert!(put.is_ok(), "part {part} of thread {thread}, {byte}: {put:?}");
            }
        };
        for thread in 0..9 {
            std::thread::scope(|scope| {
                scope.spawn(|| put_all(thread, 0)).join().expect("joined");
            });
        }
        fill(&store, 400, 0);
        for byte in 1..4 {
            (0..9).for_each(|thread| put_all(thread, byte));
        }
    });
}

/// The page is full but for less than one record: a full page, or the open one of a thread that has ended.
#[test]
fn a_page_without_live_records_makes_a_page() {
    for is_open in [false, true] {
        ends(move || {
            let home = Home::in_memory();
            let store = home.create(New::tiny(64));
            let put = |number: u8, byte: u8| {
                let put = store.put(&[b'p', 0, number], &[byte; 400], &write()).map(drop);
                assert!(put.is_ok(), "{number}, open: {is_open}: {put:?}");
            };
            let put_all = || (0..9).for_each(|number| put(number, 0));
            if is_open {
                std::thread::scope(|scope| scope.spawn(put_all).join().expect("joined"));
            } else {
                put_all();
            }
            fill(&store, 400, 0);
            (0..18).for_each(|number| put(number % 9, 1));
        });
    }
}

/// A batch that needs pages cleans the page with the most dead bytes first, and a record in it is damaged.
#[test]
fn damage_of_one_key_is_no_error_of_a_write_of_another() {
    ends(|| {
        let home = Home::in_memory();
        let store = home.create(New::tiny(256).placed(Placement::Dram));
        let filled = fill(&store, 200, 0);
        fill(&store, 0, filled);
        let bytes = home.bytes();
        let key = fill_key(8);
        let at = bytes.windows(key.len()).position(|it| it == key).expect("a record") + 10;
        let file = File::options().write(true).open(home.path()).expect("open the file");
        file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("write");
        // The tombstones are in one page: for another one a page would be cleaned.
        let others = (40..).step_by(20).take(60);
        for number in others.chain((0..16).filter(|number| *number != 8)) {
            let deleted = store.delete(&fill_key(number), &write()).expect("delete");
            assert!(deleted.is_written(), "{number}");
        }
        let mut batch = Batch::new();
        for number in 3000..3040 {
            batch.put(&fill_key(number), &[1; 200]);
        }
        let cleaned = store.stats().cleaner_pages_freed;
        let applied = store.apply(&batch, &write()).map(drop);
        assert!(applied.is_ok(), "{applied:?}");
        assert!(store.stats().cleaner_pages_freed > cleaned, "there were free pages");
        assert!(!store.verify(&mut |_| {}).expect("verify").is_sound(), "the damage is told");
    });
}

/// The threads keep a fortieth of the pool: none of them may get the error that it is full.
#[test]
fn threads_that_overwrite_a_little_never_find_a_small_store_full() {
    for background in [false, true] {
        ends(move || {
            let home = Home::in_memory();
            let store = home.create(New::tiny(150).with(options(background)));
            std::thread::scope(|scope| {
                for thread in 0..3_u32 {
                    let store = &store;
                    scope.spawn(move || {
                        for round in 0..20_000_u32 {
                            let key = [thread as u8, (round.wrapping_mul(40_503) >> 4) as u8 % 60];
                            let done = if round % 4 == 3 {
                                store.delete(&key, &write())
                            } else {
                                store.put(&key, &[round as u8; 60], &write())
                            };
                            assert!(done.is_ok(), "thread {thread}, round {round}: {done:?}");
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn a_pool_does_not_grow_beyond_what_the_index_can_name() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(64));
    let grown = store.grow(5 << 40);
    assert!(matches!(grown, Err(Error::OutOfRange { .. })), "{grown:?}");
    let _outcome = store.put(b"k", b"v", &write()).expect("put");
    assert_eq!(store.stats().pool_bytes, 64 * PAGE);
}
