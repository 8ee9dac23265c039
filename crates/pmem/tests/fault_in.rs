//! Faulting in in the background, and holding it back. A separate test, since a hold affects the whole process.

use coreplane_pmem::pool::FaultInHold;
use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: u32 = 64 << 10;
const LEN: u64 = 32 << 20;
const SMALL: u64 = 256 << 10;

/// Bytes of a file that are mapped into this process.
fn resident(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = smaps.split_once(path.to_str().unwrap()).unwrap().1;
    let line = of_file.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn created(path: &Path, size: u64) {
    let options = CreateOptions {
        size,
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    };
    drop(Pool::create(path, &options).unwrap());
}

#[test]
fn faulting_in_waits_for_whoever_holds_it_and_a_pool_that_goes_does_not() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    created(&path, LEN);
    let small = directory.path().join("small");
    created(&small, SMALL);
    let pool = Pool::open(&small, &OpenOptions::default()).unwrap();
    pool.fault_in();
    assert_eq!(resident(&small), SMALL, "a small one is there at once");
    drop(pool);
    let hold = FaultInHold::begin();
    let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
    pool.fault_in();
    std::thread::sleep(Duration::from_millis(50));
    assert!(resident(&path) < LEN / 2, "{} bytes", resident(&path));
    let held = Pool::open(&small, &OpenOptions::default()).unwrap();
    held.fault_in();
    assert!(resident(&small) < SMALL, "{} bytes", resident(&small));
    // The drop ends although faulting in is held back.
    drop((pool, held));
    let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
    pool.fault_in();
    drop(hold);
    let late = Instant::now() + Duration::from_secs(60);
    while resident(&path) < LEN - u64::from(PAGE) {
        assert!(Instant::now() < late, "{} bytes", resident(&path));
        std::thread::sleep(Duration::from_millis(1));
    }
}
