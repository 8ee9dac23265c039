//! A pool that is outlived: its file is truncated under the mapping, and the process goes on; a
//! thread that has read missing bytes finds the mark.

use coreplane_pmem::{
    Claim, CreateOptions, Durable, MediaChoice, OpenOptions, Pool, PoolError, Preparation, epoch,
};
use std::fs::File;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: u32 = 64 << 10;
const PAGES: u64 = 32;

/// A pool with pages full of sevens from the second on, except the last, which has words.
fn pool_at(path: &Path) -> Pool {
    let options = CreateOptions {
        size: PAGES * u64::from(PAGE),
        media: MediaChoice::Emulated("none".to_owned()),
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    };
    let pool = Pool::create(path, &options).unwrap();
    for page in 1..PAGES as u32 - 1 {
        let mut writer = pool.space().claim_log(page).unwrap();
        writer.append(&[&vec![7; PAGE as usize]]).unwrap();
        writer.publish();
    }
    assert!(pool.space().claim_words(PAGES as u32 - 1, Claim::Words));
    pool
}

fn cut(path: &Path, pages: u64) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    file.set_len(pages * u64::from(PAGE)).unwrap();
    file
}

/// The sum of a page, read without regard to a loss.
fn sum(pool: &Pool, page: u64) -> u64 {
    let guard = epoch::pin();
    let start = page * u64::from(PAGE);
    let bytes = pool.space().bytes(&guard, start, u64::from(PAGE)).unwrap();
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

const WHOLE: u64 = 7 * PAGE as u64;

#[test]
fn a_lost_pool_reads_as_zeroes_says_so_and_leaves_its_file_alone() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (path, other) = (directory.path().join("p"), directory.path().join("q"));
    let (pool, peer) = (pool_at(&path), pool_at(&other));
    assert!(pool.outlive().unwrap() && peer.outlive().unwrap());
    let file = cut(&path, 2);
    let before = std::fs::read(&path).unwrap();
    let space = pool.space();
    assert!(space.check_lost().is_ok() && space.fence().is_ok(), "nobody has looked yet");
    assert_eq!(sum(&pool, 9), 0);
    let lost = space.check_lost().unwrap_err();
    assert_eq!(lost.offset, 9 * u64::from(PAGE));
    assert_eq!(std::io::Error::from(lost).raw_os_error(), Some(libc::EIO));
    assert!(space.fence().is_err() && space.check_sync().is_err());
    assert_eq!(sum(&pool, 1), 0, "what is there still is not shown either");
    // Stores have no effect, and the file stays truncated.
    let word = space.word::<Durable>((PAGES - 1) * u64::from(PAGE)).unwrap();
    word.store(77);
    assert_eq!(word.load(), 77);
    space.populate(0, space.len());
    assert!(pool.set_root([1; 8]).is_err() && pool.grow(space.len() * 2).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    // The other pool is unchanged.
    assert!(peer.space().check_lost().is_ok() && peer.space().fence().is_ok());
    assert_eq!(sum(&peer, 9), WHOLE);
    drop(pool);
    // Another pool may be mapped at its address by now.
    drop(file);
    let third = pool_at(&directory.path().join("r"));
    assert!(third.outlive().unwrap());
    assert!(third.space().check_lost().is_ok());
    assert_eq!(sum(&third, 9), WHOLE);
}

/// A thread that sees a zero finds the mark, whichever thread has met the loss.
#[test]
fn nobody_sees_a_zero_without_the_mark() {
    const THREADS: u64 = 4;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for round in 0..20 {
        let path = directory.path().join(format!("p{round}"));
        let pool = pool_at(&path);
        assert!(pool.outlive().unwrap());
        let (start, looks, found) =
            (Barrier::new(THREADS as usize + 1), AtomicU64::new(0), AtomicU64::new(0));
        let is_cut = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, start, looks, found, is_cut) = (&pool, &start, &looks, &found, &is_cut);
                scope.spawn(move || {
                    start.wait();
                    for look in 0.. {
                        let page = 1 + (look * 7 + thread * 5) % (PAGES - 2);
                        let seen = sum(pool, page);
                        looks.fetch_add(1, Ordering::Relaxed);
                        if pool.space().check_lost().is_err() {
                            assert!(is_cut.load(Ordering::SeqCst), "it was there");
                            found.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        assert_eq!(seen, WHOLE, "page {page}, and no mark");
                    }
                });
            }
            start.wait();
            while looks.load(Ordering::Relaxed) < 8 * THREADS {
                std::thread::yield_now();
            }
            is_cut.store(true, Ordering::SeqCst);
            cut(&path, 1 + round);
        });
        assert_eq!(found.into_inner(), THREADS);
        std::fs::remove_file(path).unwrap();
    }
}

/// A pool on a file system, that is outlived.
fn pool_on_a_file(path: &Path) -> Pool {
    let (size, media) = (PAGES * u64::from(PAGE), MediaChoice::File);
    let (kind, parameters) = ("test".to_owned(), [0; 8]);
    let options = CreateOptions { size, media, page_size: PAGE, kind, parameters };
    let pool = Pool::create(path, &options).unwrap();
    assert!(pool.outlive().unwrap());
    pool
}

/// Nobody has looked at what is missing: free pages are prepared, and the pool is made larger.
#[test]
fn a_file_that_was_cut_short_does_not_get_its_length_back() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("p");
    let pool = pool_on_a_file(&path);
    let file = cut(&path, 2);
    let space = pool.space();
    assert!(space.prepare(9, Preparation::First).is_err());
    let grown = pool.grow(2 * PAGES * u64::from(PAGE));
    assert!(matches!(grown, Err(PoolError::Truncated { .. })), "{grown:?}");
    assert!(space.prepare(9, Preparation::Again).is_err());
    assert_eq!(file.metadata().unwrap().len(), 2 * u64::from(PAGE));
    drop((pool, file));
    let opened = Pool::open(&path, &OpenOptions::default());
    assert!(matches!(opened, Err(PoolError::Truncated { .. })), "{opened:?}");
}

/// A sync of a truncated file succeeds.
#[test]
fn a_sync_of_a_lost_file_proves_nothing() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("p");
    let pool = pool_on_a_file(&path);
    let space = pool.space();
    let mut writer = space.claim_log(9).unwrap();
    let offset = writer.append(&[&[7; 64]]).unwrap();
    let _file = cut(&path, 2);
    space.flush(offset, 64);
    writer.publish();
    assert_eq!(space.bytes(&epoch::pin(), offset, 64).unwrap(), [0; 64]);
    let generation = space.sync_generation();
    assert!(space.sync_wait(generation).is_err());
    assert!(space.sync_is_done(generation).is_err());
}

/// Without a check of the length, a write by a call would extend the truncated file.
#[test]
fn a_block_is_not_written_behind_the_end_of_a_file_that_was_cut_short() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("p");
    let pool = pool_on_a_file(&path);
    let space = pool.space();
    let append = |page| {
        let mut writer = space.claim_log(page).unwrap();
        let appended = writer.append_block(&[7; PAGE as usize]);
        assert_eq!(appended, Some(u64::from(page * PAGE)));
        writer.publish();
    };
    append(1);
    assert!(space.fence().is_ok());
    assert_eq!(sum(&pool, 1), WHOLE);
    let file = cut(&path, 2);
    append(9);
    assert_eq!(space.check_lost().unwrap_err().offset / u64::from(PAGE), 9);
    append(1 + 9);
    assert!(space.fence().is_err());
    assert_eq!(file.metadata().unwrap().len(), 2 * u64::from(PAGE));
}
