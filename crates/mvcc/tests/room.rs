//! Room in a pool that is full: for what takes the place of something.

use coreplane_engine::{Batch, Engine, Error, WriteOptions};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;

/// Bytes of a value that has pages of its own.
const LARGE: usize = 6000;

/// In a pool that takes no new value any more, large values of keys that are there are written anew, in a batch as alone.
#[test]
fn a_batch_overwrites_large_values_where_a_put_does() {
    for kind in MapKind::ALL {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..Options::default() };
        let geometry = Geometry { page_size: 4096, ..Geometry::default() };
        let store = MapEngine::create(kind, &path, 4 << 20, geometry, MediaChoice::Auto, &options);
        let store = store.expect("create");
        let put = |number: u32, byte: u8| {
            store.put(&number.to_be_bytes(), &[byte; LARGE], &WriteOptions::default())
        };
        let mut count = 0;
        let refused = loop {
            match put(count, 1) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
        assert!(put(0, 2).expect("there is room for it").written().is_some());
        for number in 0..20 {
            let mut batch = Batch::new();
            batch.put(&number_of(number, count), &[3; LARGE]);
            batch.put(&number_of(number + 1, count), &[3; LARGE]);
            store.apply(&batch, &WriteOptions::default()).expect("there is room for them");
        }
        let mut batch = Batch::new();
        batch.put(&count.to_be_bytes(), &[3; LARGE]);
        let refused = store.apply(&batch, &WriteOptions::default());
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "it is new: {refused:?}");
        assert_eq!(store.get(&number_of(20, count)).expect("get"), Some(vec![3; LARGE]));
    }
}

fn number_of(number: u32, count: u32) -> [u8; 4] {
    (number * 7 % count).to_be_bytes()
}
