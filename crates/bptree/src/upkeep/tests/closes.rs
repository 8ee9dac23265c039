//! Closes beside writers.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::upkeep::tests::{GUARD, PAGE};
use coreplane_engine::WriteOptions;
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pages of a large value whose writer finds the store closed: when the close has begun, or when it is over.
#[test]
fn the_pages_of_a_write_that_a_close_ends_are_free_after_the_next_open() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    for (media, is_late) in [
        (MediaChoice::Auto, false),
        (MediaChoice::Auto, true),
        (MediaChoice::File, false),
        (MediaChoice::File, true),
    ] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let create = create_options(1 << 20, PAGE, media.clone());
        let options = Options { background: false, ..Options::default() };
        let pool = Pool::create(&path, &create).expect("a pool");
        let store = Store::format(pool, &options).expect("a store");
        let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
        let free = store.pages.free_len();
        let value = store.write_overflow(&[&[7; 10 * PAGE as usize]], 0).expect("a large value");
        std::thread::scope(|scope| {
            let close = scope.spawn(|| store.close().expect("close"));
            while !is_late && !store.closed.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if is_late {
                close.join().expect("the close");
            }
            drop(value);
        });
        drop(store);
        let pool = Pool::open(&path, &OpenOptions { media: media.clone() }).expect("a pool");
        let store = Store::open(pool, &options, &|_| {}).expect("open");
        // Readers of other tests keep the pages of the checkpoint for a moment.
        for _ in 0..1000 {
            if store.pages.free_len() == free {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(store.pages.free_len(), free, "{media:?}, late: {is_late}");
        assert!(!is_late || !store.opened.with_checkpoint, "{media:?}");
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}
