//! Pools from the outside: what they keep, and what they refuse.

use coreplane_pmem::pool::ROOT_WORDS;
use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool, PoolError};
use std::path::PathBuf;

const PAGE: u32 = 64 << 10;

fn options(pages: u64) -> CreateOptions {
    CreateOptions {
        size: pages * u64::from(PAGE) + 17,
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [1, 2, 3, 4, 5, 6, 7, u64::MAX],
    }
}

/// A directory on a memory file system and one on whatever `/tmp` is.
fn directories() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()]
}

fn root_of(seed: u64) -> [u64; ROOT_WORDS] {
    std::array::from_fn(|at| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64))
}

#[test]
fn a_pool_is_found_again_as_it_was_left() {
    for directory in directories() {
        let path = directory.path().join("p");
        let pool = Pool::create(&path, &options(4)).unwrap();
        assert_eq!(pool.space().len(), 4 * u64::from(PAGE));
        assert_eq!(pool.root(), [0; ROOT_WORDS]);
        let uuid = pool.uuid();
        for seed in 1..=5 {
            pool.set_root(root_of(seed)).unwrap();
        }
        pool.grow(9 * u64::from(PAGE) + 1).unwrap();
        assert_eq!(pool.space().pages(), 9);
        pool.check().unwrap();
        drop(pool);

        let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!((pool.uuid(), pool.kind()), (uuid, "test"));
        assert_eq!(pool.parameters(), options(1).parameters);
        assert_eq!(pool.root(), root_of(5));
        assert_eq!(pool.space().pages(), 9);
        assert_eq!(pool.path(), Some(path.as_path()));
        pool.check().unwrap();
        pool.expect_kind("test").unwrap();
        assert!(matches!(pool.expect_kind("scmkv"), Err(PoolError::WrongKind { .. })));
    }
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    for directory in directories() {
        let path = directory.path().join("p");
        let open = || Pool::open(&path, &OpenOptions::default());
        let pool = Pool::create(&path, &options(2)).unwrap();
        assert!(matches!(open(), Err(PoolError::Locked { path: locked }) if locked == path));
        assert!(matches!(
            Pool::create(&path, &options(2)),
            Err(PoolError::Exists { path: there }) if there == path
        ));
        let space = pool.space().clone();
        drop(pool);
        assert!(matches!(open(), Err(PoolError::Locked { .. })), "the mapping still lives");
        drop(space);
        open().unwrap();
    }
}

#[test]
fn no_path_is_left_behind_by_a_refused_creation() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path: PathBuf = directory.path().join("p");
    let dax = CreateOptions { media: MediaChoice::Dax, ..options(2) };
    assert!(matches!(Pool::create(&path, &dax), Err(PoolError::NotPowerSafe { .. })));
    assert!(!path.exists());
}
