//! Callers beside one that waits for a sync.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::upkeep::tests::{GUARD, PAGE};
use coreplane_pmem::{MediaChoice, Pool};
use parking_lot::Mutex;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Pages that are blanked count as free, and a second taker waits for them. Whoever needs none of them does not.
#[test]
fn who_takes_no_page_does_not_wait_until_pages_are_blank() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(1 << 20, PAGE, MediaChoice::File);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, &options).expect("a store");
    let pages = &store.pages;
    let all = pages.take(pages.free_len() as usize, 0).expect("free pages");
    pages.offer(all[..10].iter().copied());
    let (begun, is_begun) = channel();
    let (end, ends) = channel::<()>();
    let gate = Mutex::new((begun, ends));
    // Called by the thread that syncs, before its fence returns.
    store.space.on_synced(Arc::new(move || {
        let gate = gate.lock();
        let _told = gate.0.send(()).is_ok();
        let _ended = gate.1.recv();
    }));
    let mut taken = std::thread::scope(|scope| {
        // Dropped where this fails: then the sync ends.
        let end = end;
        let first = scope.spawn(|| pages.take(1, 0));
        is_begun.recv().expect("a sync");
        let (asked, answer) = channel();
        scope.spawn(move || {
            let free = pages.free_len();
            let is_given_back = pages.give_back(all[20]);
            asked.send((free, pages.spare_len(), is_given_back))
        });
        // Only a safeguard against waiting for ever.
        assert_eq!(answer.recv_timeout(Duration::from_secs(30)), Ok((10, 11, true)));
        let second = scope.spawn(|| pages.take(1, 0));
        drop(end);
        [first, second].map(|it| it.join().expect("a thread").expect("a page")[0])
    });
    taken.sort_unstable();
    assert!(taken[0] != taken[1]);
    assert_eq!(pages.spare_len(), 9);
}
