//! The sizes of the folios in which the kernel keeps the file of a pool, and the number of its mapped ranges.

use coreplane_pmem::{
    Claim, CreateOptions, Durable, MediaChoice, OpenOptions, Pool, Preparation, epoch,
};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes in a page of the usual size.
const PAGE: u32 = 2 << 20;

/// The most bytes that a store may make dirty: a system page, and a page of the file system.
const MOST: u64 = 8 << 10;

/// A pool on a file system, its path, and its directory.
fn create(size: u64, page_size: u32) -> (Pool, PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("p");
    let (kind, media) = ("test".to_owned(), MediaChoice::File);
    let options = CreateOptions { size, media, page_size, kind, parameters: [0; 8] };
    (Pool::create(&path, &options).unwrap(), path, directory)
}

/// Bytes that this thread has made dirty in files, as the kernel counts them: whole folios.
fn dirtied_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// Bytes that one store makes dirty.
fn dirtied_by(store: impl FnOnce()) -> u64 {
    let before = dirtied_bytes();
    store();
    dirtied_bytes() - before
}

/// With the kernel's default read-ahead, such a store makes up to 2 MiB dirty on ext4.
#[test]
fn a_store_to_a_prepared_page_or_a_table_dirties_one_system_page() {
    let (pool, _, _directory) = create(128 << 20, PAGE);
    let space = pool.space();
    assert!(space.is_preparable());
    for page in 1..24 {
        assert!(space.prepare(page, Preparation::First).unwrap());
        let mut writer = space.claim_log(page).unwrap();
        assert!(!space.prepare(page, Preparation::First).unwrap(), "it has a writer");
        for _ in 0..PAGE / 4096 {
            let bytes = dirtied_by(|| assert!(writer.append(&[&[7; 4096]]).is_some()));
            assert!(bytes <= MOST, "a log: {bytes} bytes");
        }
    }
    for page in 24..48 {
        assert!(space.claim_words(page, Claim::WordsAsStored));
        for at in (space.start_of(page)..).step_by(4096).take(PAGE as usize / 4096) {
            let word = space.word::<Durable>(at).unwrap();
            let bytes = dirtied_by(|| word.store(1));
            assert!(bytes <= MOST, "a table: {bytes} bytes");
        }
    }
}

/// Makes the kernel drop its pages of the file, which is not mapped, and read it with its default read-ahead.
fn read_ahead(path: &Path) {
    let mut file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = vec![0; 1 << 20];
    while file.read(&mut bytes).unwrap() > 0 {}
}

/// On a file system with large folios, such as ext4, the assertion on `again` fails without the
/// preparation: a store then makes 16 KiB to 2 MiB dirty.
#[test]
fn a_page_that_is_used_again_is_kept_in_small_folios_again() {
    let (pool, path, _directory) = create(64 << 20, PAGE);
    for page in 1..16 {
        assert!(pool.space().prepare(page, Preparation::First).unwrap());
        let mut writer = pool.space().claim_log(page).unwrap();
        assert!(writer.append(&[&vec![7; PAGE as usize]]).is_some());
        assert!(pool.space().fence().is_ok());
    }
    drop(pool);
    read_ahead(&path);
    let pool = Pool::open(&path, &OpenOptions { media: MediaChoice::File }).unwrap();
    let space = pool.space();
    for page in 1..16 {
        let prepared = dirtied_by(|| assert!(space.prepare(page, Preparation::Again).unwrap()));
        assert_eq!(prepared, 0, "nothing is written to have it so");
        let mut writer = space.claim_log(page).unwrap();
        for _ in 0..PAGE / 4096 {
            let again = dirtied_by(|| assert!(writer.append(&[&[8; 4096]]).is_some()));
            assert!(again <= MOST, "{again} bytes");
        }
    }
}

/// The pages of blocks are not prepared.
#[test]
fn a_block_that_is_appended_as_a_whole_dirties_itself() {
    let (pool, _, _directory) = create(64 << 20, 4096);
    let space = pool.space();
    for page in (2..space.pages()).step_by(3) {
        let mut writer = space.claim_log(page).unwrap();
        let bytes = dirtied_by(|| assert!(writer.append_block(&[7; 4096]).is_some()));
        assert!(bytes <= MOST, "{bytes} bytes");
        writer.publish();
        let guard = epoch::pin();
        assert_eq!(space.bytes(&guard, space.start_of(page), 4096), Some(&[7; 4096][..]));
    }
    // There is something to sync, but only once.
    let syncs = space.syncs();
    assert!(space.fence().is_ok() && space.fence().is_ok());
    assert_eq!(space.syncs(), syncs + 1);
}

/// The limit does not apply to stores through the mapping, but to writes; a process that exceeds it
/// is killed by a signal.
#[test]
fn a_limit_on_the_size_of_files_is_not_exceeded_by_what_can_be_left() {
    const PATH: &str = "COREPLANE_TEST_POOL_BEHIND_LIMIT";
    let name = "a_limit_on_the_size_of_files_is_not_exceeded_by_what_can_be_left";
    if let Some(path) = std::env::var_os(PATH) {
        let media = MediaChoice::File;
        let path = PathBuf::from(path);
        let pool = Pool::open(&path, &OpenOptions { media }).unwrap();
        assert!(pool.space().prepare(1, Preparation::First).unwrap(), "below the limit");
        assert!(pool.space().prepare(15, Preparation::First).unwrap(), "above it: left as it is");
        let mut writer = pool.space().claim_log(15).unwrap();
        assert!(writer.append_block(&[7; 4096]).is_some(), "above it: stored");
        drop(writer);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(14 * (64 << 10)).unwrap();
        assert!(pool.space().heal(14).is_err(), "above it: not written");
        return;
    }
    let (pool, path, _directory) = create(1 << 20, 64 << 10);
    drop(pool);
    // In units of 512 bytes or of 1 KiB, depending on the shell.
    let limited = "ulimit -f 512 && exec \"$0\" --exact \"$1\"";
    let output = std::process::Command::new("sh")
        .args(["-c", limited])
        .args([std::env::current_exe().unwrap().as_os_str(), name.as_ref()])
        .env(PATH, &path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The kernel keeps ranges with different advice apart, and limits their number in a process.
#[test]
fn tables_without_end_do_not_use_up_the_ranges_of_the_address_space() {
    let (pool, _, _directory) = create(24 << 20, 4096);
    let ranges = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.ends_with("/p")).count()
    };
    for page in (2..pool.space().pages()).step_by(2) {
        assert!(pool.space().claim_words(page, Claim::WordsAsStored));
    }
    let ranges = ranges();
    assert!((3..2100).contains(&ranges), "{ranges} ranges");
}

/// Bytes that this thread has had read from a disk.
fn read_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// After a failed sync the kernel takes pages for clean that the medium lacks. The next open reads from the medium.
#[test]
fn a_pool_whose_sync_has_failed_is_read_from_the_medium() {
    let (pool, path, _directory) = create(16 << 20, PAGE);
    let mut writer = pool.space().claim_log(3).unwrap();
    let offset = writer.append(&[&vec![7; 1 << 20]]).unwrap();
    pool.space().persist(offset, 1 << 20).unwrap();
    writer.publish();
    drop(writer);
    let read = |pool: &Pool| {
        let mut bytes = vec![0; 1 << 20];
        let before = read_bytes();
        // The offset within the file is that in the space.
        let file = std::fs::File::open(pool.path().unwrap()).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        read_bytes() - before
    };
    assert_eq!(read(&pool), 0, "it is in the page cache");
    pool.space().fail_syncs();
    let word = vec![1; 8];
    let mut writer = pool.space().claim_log(4).unwrap();
    let other = writer.append(&[&word]).unwrap();
    assert!(pool.space().persist(other, 8).is_err());
    drop((writer, pool));
    let mark = path.with_extension("sync-failed");
    assert!(mark.exists());
    // A copy that is looked at is of the medium, too.
    let copy = Pool::open_copy(&path, &OpenOptions::default()).unwrap();
    assert!(read(&copy) >= 1 << 20 && mark.exists());
    drop(copy);
    let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
    assert!(!mark.exists());
    assert!(read(&pool) >= 1 << 20, "it is still in the page cache");
    drop(pool);
    let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(read(&pool), 0);
}
