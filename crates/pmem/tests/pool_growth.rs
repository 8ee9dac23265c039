//! Growth of pools in use.

use coreplane_pmem::pool::ROOT_WORDS;
use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool, PoolError};
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
        assert!(matches!(refused, Err(PoolError::Geometry(_))), "{refused:?}");
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
