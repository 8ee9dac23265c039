//! Damaged leaves that are loaded late.

use crate::recovery::open::{Options, create_options};
use crate::upkeep::Store;
use crate::volume::hurt::is_damage;
use coreplane_engine::{Error, Visibility, WriteOptions};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;

/// The leaf is damaged, and there is no page for its replacement: a read reports the damage, and the leaf stays not
/// loaded; a write reports the lack of space.
#[test]
fn a_lost_leaf_for_which_there_is_no_page_stays_unloaded() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let create = create_options(1 << 20, 4096, MediaChoice::Auto);
    let options = Options { background: false, ..Options::default() };
    let pool = Pool::create(&path, &create).expect("a pool");
    let store = Store::format(pool, &options).expect("a store");
    let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
    let page = store.inner.leaves()[0].1;
    let head = store.space.start_of(page);
    store.close().expect("close");
    drop(store);
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_all_at(&[0xff], head + 20).expect("write");
    let pool = Pool::open(&path, &OpenOptions::default()).expect("a pool");
    let store = Store::open(pool, &options, &|_| {}).expect("open");
    let mut taken = Vec::new();
    while let Ok(pages) = store.pages.take(1, 0) {
        taken.extend(pages);
    }
    let unloaded = || store.opened.unloaded.load(Ordering::Relaxed);
    for _ in 0..3 {
        let read = store.get_with(b"key", Visibility::Durable, &mut |_| {});
        assert!(read.as_ref().is_err_and(is_damage), "{read:?}");
        let put = store.put(b"key", b"new", &WriteOptions::default());
        assert!(matches!(put, Err(Error::NoSpace { .. })), "{put:?}");
        assert_eq!(unloaded(), 1);
    }
    taken.into_iter().for_each(|page| store.pages.leave(page));
    let _outcome = store.put(b"key", b"new", &WriteOptions::default()).expect("put");
    assert_eq!(unloaded(), 0);
    store.clear().expect("clear");
    assert_eq!(unloaded(), 0);
}
