//! Damaged rows of overflow pages.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::volume::overflow::Row;
use coreplane_engine::{Error, Visibility, WriteOptions};
use coreplane_pmem::epoch;
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use std::os::unix::fs::FileExt as _;

const KEY: &[u8] = b"key";

/// The chain of pages of a damaged value leads back to the first one, which holds one byte of it.
#[test]
fn a_row_that_leads_back_to_itself_ends_with_an_error() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let create = create_options(1 << 20, 4096, MediaChoice::Auto);
    let options = Options { background: false, ..Options::default() };
    let pool = Pool::create(&path, &create).expect("a pool");
    let store = Store::format(pool, &options).expect("a store");
    let _outcome = store.put(KEY, &[7; 10_000], &WriteOptions::default()).expect("put");
    let (row, mut name) = {
        let guard = epoch::pin();
        let page = store.inner.descend(KEY).leaf;
        let leaf = store.leaves.get(page as usize);
        let view = store.record_at(&guard, page, leaf, 0).expect("a record");
        let row = store.overflow_of(&guard, &view, true).expect("the value");
        (row.into_iter().map(|it| it.0).collect::<Vec<_>>(), view.value().to_vec())
    };
    assert_eq!(row.len(), 3);
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    let head = store.space.start_of(row[0]);
    file.write_all_at(&row[0].to_le_bytes(), head + 16).expect("write");
    let is_told = |store: &Store| {
        let read = store.get_with(KEY, Visibility::Durable, &mut |_| panic!("it is shown"));
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    };
    is_told(&store);
    // A damaged name.
    name[5] = 1;
    let read = store.row(&epoch::pin(), Row::Value, &name, false).map(|it| it.len());
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    for len in [1_u32, 5000] {
        file.write_all_at(&len.to_le_bytes(), head + 20).expect("write");
        is_told(&store);
    }
    file.write_all_at(&1_u32.to_le_bytes(), head + 20).expect("write");
    drop(store);
    let pool = Pool::open(&path, &OpenOptions::default()).expect("a pool");
    let store = Store::open(pool, &options, &|_| {}).expect("open");
    is_told(&store);
    let _outcome = store.put(KEY, b"new", &WriteOptions::default()).expect("put");
}
