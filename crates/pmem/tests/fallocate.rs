//! Pools where `fallocate` does not work, as on file systems without it, or where a sandbox refuses it.

mod refusal;

use coreplane_pmem::pool::ROOT_WORDS;
use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool};
use refusal::fail_calls;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const PAGE: u32 = 64 << 10;
const PAGES: u64 = 16;

/// From now on `fallocate` of this thread fails as if the kernel did not have it.
fn refuse_fallocate() {
    fail_calls(&[(libc::SYS_fallocate, libc::ENOSYS)]);
}

fn create(path: &Path) -> Pool {
    let options = CreateOptions {
        size: PAGES * u64::from(PAGE),
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    };
    Pool::create(path, &options).expect("a pool")
}

fn open(path: &Path) -> Pool {
    Pool::open(path, &OpenOptions::default()).expect("the pool")
}

/// A copy that leaves out what is zero, as `cp --sparse=always` makes it; returns its bytes.
fn copy(from: &Path, to: &Path) -> Vec<u8> {
    let bytes = std::fs::read(from).expect("bytes");
    let file = File::create(to).expect("a copy");
    file.set_len(bytes.len() as u64).expect("its length");
    for (number, block) in (0..).zip(bytes.chunks(4096)) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, number * 4096).expect("written");
        }
    }
    assert!(file.metadata().expect("its state").blocks() * 512 < bytes.len() as u64);
    bytes
}

/// Each test is in a thread of its own, which has the filter to its end.
#[test]
fn a_sparse_copy_is_opened_unchanged() {
    for directory in [tempfile::tempdir_in("/dev/shm"), tempfile::tempdir()] {
        let directory = directory.expect("a directory");
        let (path, sparse) = (directory.path().join("p"), directory.path().join("sparse"));
        let pool = create(&path);
        let mut writer = pool.space().claim_log(9).expect("a page");
        writer.append(&[&[7; 4096]]).expect("appended");
        writer.publish();
        pool.set_root([5; ROOT_WORDS]).expect("the root");
        pool.space().persist(9 * u64::from(PAGE), 4096).expect("a fence");
        drop(pool);
        let bytes = copy(&path, &sparse);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                refuse_fallocate();
                assert_eq!(open(&sparse).root(), [5; ROOT_WORDS]);
            });
        });
        assert!(std::fs::read(&sparse).expect("bytes") == bytes);
        // It has all blocks.
        let state = std::fs::metadata(&sparse).expect("its state");
        assert!(state.blocks() * 512 >= bytes.len() as u64);
    }
}

#[test]
fn a_pool_is_made_and_grown() {
    refuse_fallocate();
    for directory in [tempfile::tempdir_in("/dev/shm"), tempfile::tempdir()] {
        let directory = directory.expect("a directory");
        let path = directory.path().join("p");
        let pool = create(&path);
        pool.set_root([5; ROOT_WORDS]).expect("the root");
        pool.grow(2 * PAGES * u64::from(PAGE)).expect("grown");
        drop(pool);
        let state = std::fs::metadata(&path).expect("its state");
        assert_eq!(state.len(), 2 * PAGES * u64::from(PAGE));
        assert!(state.blocks() * 512 >= state.len());
        assert_eq!(open(&path).root(), [5; ROOT_WORDS]);
    }
}

/// The call may have got the report of an earlier write error, which the kernel makes once.
#[test]
fn a_growth_that_cannot_write_marks_the_pool() {
    for error in [libc::EIO, libc::ENOSPC] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("p");
        let pool = create(&path);
        let mark = directory.path().join("p.sync-failed");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fail_calls(&[(libc::SYS_fallocate, libc::ENOSYS), (libc::SYS_pwrite64, error)]);
                pool.grow(2 * PAGES * u64::from(PAGE)).expect_err("no zeroes");
            });
        });
        assert!(mark.exists(), "error {error}");
        assert_eq!(std::fs::metadata(&path).expect("its state").len(), PAGES * u64::from(PAGE));
        pool.set_root([5; ROOT_WORDS]).expect("the root");
        drop(pool);
        assert_eq!(open(&path).root(), [5; ROOT_WORDS]);
        assert!(!mark.exists(), "it is settled");
    }
}

/// A file system may count blocks of its own as the file's, as ext4 does those of a tree of extents: then a file with a
/// hole has as many blocks as bytes.
#[test]
fn a_hole_is_filled_in_a_file_of_many_extents() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("p");
    drop(create(&path));
    let file = File::options().write(true).open(&path).expect("the file");
    // Behind the header every other block is written, the rest is only allocated.
    let blocks = (PAGES * u64::from(PAGE)) / 4096;
    for block in (16..blocks).step_by(2) {
        file.write_all_at(&[7; 4096], block * 4096).expect("written");
    }
    file.sync_all().expect("synced");
    let allocated = || std::fs::metadata(&path).expect("its state").blocks();
    let whole = allocated();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 100 * 4096, 4096).expect("a hole");
    assert!(allocated() < whole);
    drop(open(&path));
    assert_eq!(allocated(), whole);
}

/// Blocks that were never written are told as holes. Each in a thread of its own, which has the filter to its end.
#[test]
fn a_pool_that_is_wholly_allocated_needs_no_space_to_be_opened() {
    for error in [libc::ENOSPC, libc::ENOSYS] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("p");
        drop(create(&path));
        let opened = std::thread::spawn(move || {
            fail_calls(&[(libc::SYS_fallocate, error), (libc::SYS_pwrite64, libc::EIO)]);
            Pool::open(&path, &OpenOptions::default()).map(drop)
        });
        opened.join().expect("no panic").expect("the pool");
    }
}
