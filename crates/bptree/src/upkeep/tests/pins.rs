//! Full leaves while a reader keeps the pages that were given back.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::upkeep::tests::{GUARD, PAGE, new_store};
use crate::volume::counters::Count;
use crate::volume::pages::RESERVE;
use coreplane_engine::{Batch, Error, TimeSource, UnixMillis, WriteOptions};
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{MediaChoice, OpenOptions, Pool, epoch};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Takes pages until no more than `left` are free.
fn take_all_but(store: &Store, left: u32) -> Vec<u32> {
    let taken = store.pages.take((store.pages.free_len() - left) as usize, 0);
    taken.expect("free pages")
}

/// But for that reader pages abound, so that a leaf should have no more than 64 records; and there are too few to
/// split it.
#[test]
fn a_leaf_of_64_records_is_written_anew_once_for_one_more() {
    let _kept = GUARD.write().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    for number in 0..64_u32 {
        let _outcome = store.put(&number.to_be_bytes(), b"value", &write).expect("put");
    }
    assert_eq!(store.inner.leaves().len(), 1);
    let guard = epoch::pin();
    // Given back at once, and kept by the guard.
    drop(store.write_overflow(&[&[7; 100 * PAGE as usize]], 0).expect("free pages"));
    let taken = take_all_but(&store, 6);
    let before = store.counters.get(Count::Rewrites);
    let _outcome = store.put(&64_u32.to_be_bytes(), b"value", &write).expect("put");
    assert_eq!(store.counters.get(Count::Rewrites) - before, 1);
    drop(guard);
    taken.into_iter().for_each(|page| store.pages.leave(page));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A reader of another pool stays while a store that was killed is opened.
#[test]
fn a_recovered_store_has_pages_at_once() {
    let _kept = GUARD.write().unwrap_or_else(PoisonError::into_inner);
    let (directory, store) = new_store();
    let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
    let free = store.pages.free_len();
    drop(store);
    let guard = epoch::pin();
    let pool = Pool::open(&directory.path().join("pool"), &OpenOptions::default());
    let options = Options { background: false, ..Options::default() };
    let store = Store::open(pool.expect("a pool"), &options, &|_| {}).expect("a store");
    assert!(!store.opened.with_checkpoint);
    assert_eq!(store.pages.free_len(), free);
    drop(guard);
}

/// The sweep needs a page for that leaf, and a reader that leaves after a while keeps the only ones.
#[test]
fn a_sweep_waits_for_a_page_that_a_reader_keeps() {
    let _kept = GUARD.write().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(1 << 20, PAGE, MediaChoice::Auto);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let now = Arc::new(AtomicU64::new(1));
    let clock = Arc::clone(&now);
    let time: TimeSource = Arc::new(move || UnixMillis(clock.load(Ordering::Relaxed)));
    let options = Options { background: false, time: Some(time), ..Options::default() };
    let store = Store::format(pool, &options).expect("a store");
    let write = WriteOptions { expires_at: Some(UnixMillis(10)), ..WriteOptions::default() };
    let _outcome = store.put(b"key", b"value", &write).expect("put");
    let (pinned, is_pinned) = channel();
    let (swept, taken) = std::thread::scope(|scope| {
        // Dropped where this fails: then the reader ends.
        let (sweeps, is_swept) = channel();
        let reader = scope.spawn(move || {
            let guard = epoch::pin();
            pinned.send(()).expect("somebody sweeps");
            let _told = is_swept.recv();
            std::thread::sleep(Duration::from_millis(300));
            drop(guard);
        });
        is_pinned.recv().expect("a reader");
        drop(store.write_overflow(&[&[7; PAGE as usize]], 0).expect("free pages"));
        let taken = take_all_but(&store, 0);
        now.store(20, Ordering::Relaxed);
        sweeps.send(()).expect("a reader");
        let swept = store.sweep_expired();
        reader.join().expect("a reader");
        (swept, taken)
    });
    assert_eq!(swept.expect("a sweep"), 1);
    taken.into_iter().for_each(|page| store.pages.leave(page));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// Fills the leaf that holds `key`, while a reader keeps the only pages that there are.
fn fill_leaf(store: &Store, key: &[u8]) -> Vec<u32> {
    drop(store.write_overflow(&[&[7; PAGE as usize]], 0).expect("free pages"));
    let taken = take_all_but(store, 0);
    for _ in 0..3 {
        let _outcome = store.put(key, &[7; 900], &WriteOptions::default()).expect("put");
    }
    taken
}

/// The put is refused once the reader has stayed for two seconds.
#[test]
fn a_reader_that_stays_is_waited_for_once_for_a_put() {
    let _kept = GUARD.write().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
    let guard = epoch::pin();
    let taken = fill_leaf(&store, b"key");
    let put = || store.put(b"key", &[8; 900], &WriteOptions::default());
    assert_eq!(store.pages.waits.load(Ordering::Relaxed), 0);
    let refused = std::iter::repeat_with(put).take(4).find_map(|outcome| outcome.err());
    assert!(matches!(refused, Some(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(store.pages.waits.load(Ordering::Relaxed), 1);
    drop(guard);
    taken.into_iter().for_each(|page| store.pages.leave(page));
    let _outcome = put().expect("put");
}

#[test]
fn nobody_has_the_turn_to_search_who_waits_for_a_reader() {
    let _kept = GUARD.write().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
    let guard = epoch::pin();
    let taken = fill_leaf(&store, b"key");
    let mut batch = Batch::new();
    batch.put(b"key", &[8; 900]);
    std::thread::scope(|scope| {
        let batches = scope.spawn(|| {
            let apply = || store.apply(&batch, &WriteOptions::default());
            (0..4).find_map(|_| apply().err())
        });
        let mut backoff = Backoff::new();
        while store.pages.waits.load(Ordering::Relaxed) == 0 && !batches.is_finished() {
            backoff.wait();
        }
        assert!(!batches.is_finished(), "nobody waits");
        assert!(store.search_turn.try_lock().is_some());
        drop(guard);
        assert!(batches.join().expect("a writer").is_none(), "pages came back");
    });
    taken.into_iter().for_each(|page| store.pages.leave(page));
}

/// Its leaf is completely full, so that the put is made in a rewritten one, and there are no pages to write the value
/// again: a reader keeps those that are given back.
#[test]
fn a_large_value_is_written_once_for_a_leaf_that_is_rewritten() {
    let _kept = GUARD.write().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = new_store();
    let write = WriteOptions::default();
    for key in 0..4_u8 {
        let _outcome = store.put(&[key], &[7; 968], &write).expect("put");
    }
    assert_eq!(store.inner.leaves().len(), 1);
    let value = vec![8; 10 * PAGE as usize - 1000];
    let guard = epoch::pin();
    let taken = take_all_but(&store, 10 + RESERVE);
    let _outcome = store.put(&[1], &value, &write).expect("put");
    assert_eq!(store.counters.get(Count::Rewrites), 1, "its leaf had room");
    drop(guard);
    taken.into_iter().for_each(|page| store.pages.leave(page));
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
}
