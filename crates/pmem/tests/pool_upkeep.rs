//! Growth of pools in use, and repair of truncated ones.

use coreplane_pmem::pool::ROOT_WORDS;
use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool, PoolError};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const PAGE: u32 = 64 << 10;

fn options(pages: u64) -> CreateOptions {
    CreateOptions {
        size: pages * u64::from(PAGE),
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    }
}

fn root_of(seed: u64) -> [u64; ROOT_WORDS] {
    [seed; ROOT_WORDS]
}

/// Readers and writers of the root, as those of an engine, wait for no block and no page of a growth.
#[test]
fn the_root_is_read_and_replaced_while_a_pool_grows() {
    const GROWN: u64 = 1 << 30;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    let pool = Pool::create(&path, &options(4)).unwrap();
    let len = || pool.file_state().unwrap().unwrap().len;
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| pool.grow(GROWN).unwrap());
        while !grows.is_finished() && len() < GROWN {
            std::hint::spin_loop();
        }
        // The pages are faulted in now.
        let mut replaced = 0;
        while !grows.is_finished() {
            pool.set_root(root_of(replaced)).unwrap();
            assert_eq!(pool.root(), root_of(replaced));
            replaced += 1;
        }
        // One may have waited, and the next may come before the thread has ended.
        assert!(replaced > 20, "{replaced} roots");
        assert_eq!(pool.root(), root_of(replaced - 1));
    });
    let last = pool.root();
    pool.check().unwrap();
    drop(pool);
    let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!((pool.root(), pool.size()), (last, GROWN));
}

/// A write or an allocation beyond the limit raises a signal that ends the process.
#[test]
fn a_limit_on_the_size_of_files_refuses_a_growth() {
    const PLACE: &str = "COREPLANE_TEST_POOL_BELOW_LIMIT";
    let name = "a_limit_on_the_size_of_files_refuses_a_growth";
    if let Some(place) = std::env::var_os(PLACE) {
        let path = PathBuf::from(place);
        let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
        let error = pool.grow(256 << 20).unwrap_err();
        assert!(error.to_string().contains("limit"), "{error}");
        assert_eq!(pool.size(), 4 * u64::from(PAGE));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * u64::from(PAGE));
        pool.grow(6 * u64::from(PAGE)).unwrap();
        let other = path.with_extension("other");
        let refused = Pool::create(&other, &CreateOptions { size: 256 << 20, ..options(4) });
        assert!(matches!(refused, Err(PoolError::OutOfRange { .. })), "{refused:?}");
        assert!(!other.exists());
        return;
    }
    for directory in [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()] {
        let path = directory.path().join("p");
        drop(Pool::create(&path, &options(4)).unwrap());
        // In units of 512 bytes or of 1 KiB, depending on the shell.
        let limited = "ulimit -f 100000 && exec \"$0\" --exact \"$1\"";
        let output = std::process::Command::new("sh")
            .args(["-c", limited])
            .args([std::env::current_exe().unwrap().as_os_str(), name.as_ref()])
            .env(PLACE, &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// From the moment at which a repair gives the file its length back until the repair is ended, the pool is reported
/// as not repaired.
#[test]
fn a_repair_that_is_not_ended_leaves_a_pool_that_is_cut_short() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    drop(Pool::create(&path, &options(4)).unwrap());
    let len = std::fs::metadata(&path).unwrap().len();
    let left = len - u64::from(PAGE);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
    let options = OpenOptions::default();
    for _ in 0..2 {
        let restored = Pool::repair(&path, &options).unwrap();
        assert!(restored[0].contains(&format!("{left} of {len} bytes are left")), "{restored:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        for opened in [Pool::open(&path, &options), Pool::open_copy(&path, &options)] {
            let is_told = matches!(
                &opened,
                Err(PoolError::Unrepaired { expected, found, .. })
                    if (*expected, *found) == (len, left)
            );
            assert!(is_told, "{opened:?}");
        }
        drop(Pool::open_repaired(&path, &options).unwrap());
    }
    Pool::end_repair(&path).unwrap();
    assert!(Pool::repair(&path, &options).unwrap().is_empty());
    drop(Pool::open(&path, &options).unwrap());
}

/// Only once: later writes to the page stay, even if the repair is begun again.
#[test]
fn a_page_of_which_a_part_was_cut_off_reads_as_zeroes_as_a_whole() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    drop(Pool::create(&path, &options(4)).unwrap());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    let (page, left) = (len - u64::from(PAGE), len - u64::from(PAGE) + 100);
    file.write_all_at(&[7; 200], page - 100).unwrap();
    file.set_len(left).unwrap();
    let read = || {
        let mut bytes = [1; 200];
        file.read_exact_at(&mut bytes, page - 100).unwrap();
        bytes
    };
    let options = OpenOptions::default();
    let restored = Pool::repair_in_pages(&path, &options).unwrap();
    assert!(restored[0].contains(&format!("{left} of {len} bytes are left")), "{restored:?}");
    assert!(read()[..100] == [7; 100] && read()[100..] == [0; 100]);
    file.write_all_at(&[8; 100], page).unwrap();
    assert!(Pool::is_cut_short(&path).unwrap());
    assert_eq!(Pool::repair_in_pages(&path, &options).unwrap().len(), 1);
    assert!(read()[100..] == [8; 100]);
    Pool::end_repair(&path).unwrap();
    assert!(!Pool::is_cut_short(&path).unwrap());
}

/// The advised remedy of a repair in vain: the user puts a copy in place of the pool.
#[test]
fn a_pool_that_was_replaced_during_its_repair_is_told_from_one_that_is_short() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    drop(Pool::create(&path, &options(8)).unwrap());
    let (whole, len) = (std::fs::read(&path).unwrap(), 8 * u64::from(PAGE));
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let options = OpenOptions::default();
    assert!(matches!(Pool::open(&path, &options), Err(PoolError::Truncated { .. })));
    assert_eq!(Pool::repair(&path, &options).unwrap().len(), 1);
    std::fs::write(&path, &whole).unwrap();
    let mark = directory.path().join("p.cut-short");
    for opened in [Pool::open(&path, &options), Pool::open_copy(&path, &options)] {
        let error = opened.unwrap_err();
        let said = error.to_string();
        assert!(said.contains(mark.to_str().unwrap()) && said.contains("replaced"), "{said}");
        let PoolError::Unrepaired { expected, found, .. } = error else { panic!("{said}") };
        assert_eq!((expected, found), (len, len / 2));
    }
    std::fs::remove_file(&mark).unwrap();
    drop(Pool::open(&path, &options).unwrap());
    // Whatever a mark says of a file that is shorter still.
    std::fs::write(&mark, "100000\n").unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(Pool::open(&path, &options), Err(PoolError::Truncated { .. })));
}
