//! Write errors, which the kernel reports once: the fence that has to fail does so, and the pool is marked, whichever
//! call gets the report.

mod refusal;

use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool, Preparation};
use refusal::fail_calls;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE: u32 = 64 << 10;
const PAGES: u64 = 8;

const SYNCS: [libc::c_long; 3] = [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range];

/// Runs `run` in a thread in which calls that wait for writing fail with this error.
fn failing<R: Send>(error: libc::c_int, run: impl FnOnce() -> R + Send) -> R {
    let limited = || {
        fail_calls(&SYNCS.map(|call| (call, error)));
        run()
    };
    std::thread::scope(|scope| scope.spawn(limited).join().expect("no panic"))
}

fn options() -> CreateOptions {
    CreateOptions {
        size: PAGES * u64::from(PAGE),
        media: MediaChoice::File,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    }
}

/// A pool on a file system, its path, its mark, and its directory.
fn create() -> (Pool, PathBuf, PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("p");
    let mark = directory.path().join("p.sync-failed");
    (Pool::create(&path, &options()).expect("a pool"), path, mark, directory)
}

fn cut(path: &Path, len: u64) {
    let file = File::options().write(true).open(path).expect("the file");
    file.set_len(len).expect("truncated");
}

#[test]
fn an_error_that_a_heal_gets_fails_the_fence_of_everybody() {
    let (pool, path, mark, _directory) = create();
    let space = pool.space();
    let mut writer = space.claim_log(1).expect("a page");
    let offset = writer.append(&[&[7; 64]]).expect("appended");
    space.flush(offset, 64);
    cut(&path, 2 * u64::from(PAGE) + 4096);
    assert!(failing(libc::EIO, || space.heal(2)).is_err());
    assert!(space.fence().is_err(), "the kernel does not report the error again");
    assert!(space.has_failed() && mark.exists());
}

#[test]
fn a_heal_is_a_round_that_covers_what_was_flushed_before() {
    let (pool, path, _mark, _directory) = create();
    let space = pool.space();
    let mut writer = space.claim_log(1).expect("a page");
    let offset = writer.append(&[&[7; 64]]).expect("appended");
    space.flush(offset, 64);
    cut(&path, PAGES * u64::from(PAGE) - 4096);
    let syncs = space.syncs();
    assert_eq!(space.heal(PAGES as u32 - 1).expect("healed").len(), 1);
    assert_eq!(space.syncs(), syncs + 1);
    assert!(space.fence().is_ok());
    assert_eq!(space.syncs(), syncs + 1, "nothing is dirty any more");
}

/// The description for preparing pages gets its own report. But a process that is killed before its next fence leaves
/// nobody who could get another one.
#[test]
fn an_error_that_the_preparation_of_a_page_gets_leaves_the_mark() {
    let (pool, _path, mark, _directory) = create();
    let prepare = || pool.space().prepare(3, Preparation::First);
    assert!(failing(libc::ENOSYS, prepare).expect("written"));
    assert!(!mark.exists(), "the kernel lacks the call");
    assert!(failing(libc::EIO, prepare).expect("written"));
    assert!(mark.exists());
}

#[test]
fn a_sync_that_fails_before_the_pool_is_mapped_leaves_the_mark() {
    let (pool, path, mark, directory) = create();
    drop(pool);
    let open = OpenOptions { media: MediaChoice::File };
    let is_marked = |what: &str, failed: bool| {
        assert!(failed, "{what}");
        assert!(mark.exists(), "{what} leaves no mark");
        std::fs::remove_file(&mark).expect("removed");
    };
    let copy = || Pool::open_copy(&path, &open).is_err();
    is_marked("a copy", failing(libc::EIO, copy));
    let repair = || Pool::repair(&path, &open).is_err();
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(&[0x55; 8], 512).expect("a root slot is damaged");
    is_marked("a repair", failing(libc::EIO, repair));
    // Nothing is left of a pool that cannot be made.
    let other = path.with_extension("other");
    assert!(failing(libc::EIO, || Pool::create(&other, &options()).is_err()));
    let left = std::fs::read_dir(directory.path()).expect("a directory").flatten();
    assert!(left.into_iter().all(|file| !file.file_name().to_string_lossy().contains("other")));
}
