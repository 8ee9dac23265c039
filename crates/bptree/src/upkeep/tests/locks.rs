//! Locks of leaves of a pool that is lost.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use coreplane_pmem::{MediaChoice, Pool, epoch};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The holder of the lock may wait for the lost medium.
#[test]
fn a_leaf_of_a_pool_that_is_lost_is_not_waited_for() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let create = create_options(1 << 20, 4096, MediaChoice::Auto);
    let pool = Pool::create(&path, &create).expect("a pool");
    assert!(pool.outlive().expect("a handler"));
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, &options).expect("a store");
    let (asked, answer) = channel();
    std::thread::scope(|scope| {
        let locked = store.lock_leaf(b"a").expect("a leaf");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        file.set_len(4096).expect("cut");
        // A lookup has to find the loss.
        assert!(store.head_of(&epoch::pin(), locked.page).is_err());
        scope.spawn(|| asked.send(store.lock_leaf(b"b").is_err()));
        // Only a safeguard against waiting for ever.
        assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(true));
    });
}
