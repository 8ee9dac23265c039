//! A pool grows while it is in use: its blocks and pages take seconds, and nobody waits for them.

use coreplane_engine::{Engine, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;

const GROWN: u64 = 1 << 30;

#[test]
fn reads_and_writes_go_on_while_a_pool_grows() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..Options::default() };
        let (geometry, media) = (Geometry::default(), MediaChoice::Auto);
        let store = MapEngine::create(kind, &path, 8 << 20, geometry, media.clone(), &options);
        let store = store.expect("create");
        let put = |number: u64| {
            let put = store.put(&number.to_be_bytes(), &[7; 50], &WriteOptions::default());
            let _written = put.expect("room");
        };
        put(0);
        let mut count = 1;
        std::thread::scope(|scope| {
            let grows = scope.spawn(|| store.grow(GROWN).expect("grow"));
            let len = || std::fs::metadata(&path).expect("its state").len();
            while !grows.is_finished() && len() < GROWN {
                std::hint::spin_loop();
            }
            // The pages are faulted in now.
            while !grows.is_finished() {
                put(count % 1000);
                let value = store.get(&(count / 2 % 1000).to_be_bytes()).expect("get");
                assert_eq!(value, Some(vec![7; 50]));
                count += 1;
            }
        });
        // One may have waited, and the next may come before the thread has ended.
        assert!(count > 20, "{kind:?}: {count} calls");
        assert!(store.stats().pool_bytes >= GROWN);
        // They are where there was no room before.
        let value = vec![8; 1 << 20];
        for number in 0..20_u64 {
            let put = store.put(&number.to_be_bytes(), &value, &WriteOptions::default());
            let _written = put.expect("room");
        }
        store.audit().expect("counts that are kept");
        store.close().expect("close");
        drop(store);
        let store = MapEngine::open(kind, &path, media, &options, &|_| {}).expect("open");
        assert_eq!(store.get(&7_u64.to_be_bytes()).expect("get"), Some(value));
        store.audit().expect("counts that are found");
    }
}
