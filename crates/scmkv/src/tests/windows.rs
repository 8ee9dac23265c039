//! Windows of `relaxed` writes beside a writer that keeps its log.

use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use coreplane_engine::{Durability, WriteOptions};
use coreplane_pmem::{MediaChoice, Pool, thread_number};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The owner of that log may wait for pages for seconds, and all other logs have windows.
#[test]
fn a_window_is_ended_while_another_log_is_kept() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let create = create_options(8 << 20, Geometry::TINY, MediaChoice::File);
    let pool = Pool::create(&directory.path().join("pool"), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    let (logs, mine) = (store.logs.len(), thread_number() % store.logs.len());
    assert!(logs > 1, "there is no other log");
    let window = Duration::from_secs(3600);
    let relaxed = Durability::Relaxed { window_bytes: 1 << 20, window };
    let write = WriteOptions { durability: Some(relaxed), ..WriteOptions::default() };
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        let _kept = store.logs[(mine + 1) % logs].lock();
        let _outcome = store.put(b"key", b"value", &write).expect("put");
        assert!(store.logs[mine].lock().is_unsettled());
        scope.spawn(|| done.send(store.end_windows_at_hand().is_ok()));
        // Only a guard against waiting for ever.
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
        assert!(!store.logs[mine].lock().is_unsettled());
    });
}
