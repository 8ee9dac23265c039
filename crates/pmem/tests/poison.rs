//! A lost page ends the process with a clear message, and a probe with an error. The loss happens
//! in a child process: this test binary, run again with `LOSE` set.

use coreplane_pmem::{CreateOptions, MediaChoice, Pool, epoch, poison};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

const PAGE: u32 = 64 << 10;
const LOSE: &str = "COREPLANE_TEST_LOSE";
/// Printed by a child whose kernel has no `UFFDIO_POISON`.
const CANNOT: &str = "this kernel cannot poison";

fn child(way: &str, directory: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child", "--nocapture"])
        .env(LOSE, way)
        .current_dir(directory)
        .output()
        .unwrap()
}

#[test]
fn a_lost_page_is_named_before_the_process_ends() {
    for way in ["truncate", "poison", "threads"] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let output = child(way, directory.path());
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        if stdout.contains(CANNOT) {
            // By `writeln!`, which the test runner does not swallow.
            writeln!(std::io::stdout(), "\nSKIPPED: a poisoned page: {CANNOT}").unwrap();
            continue;
        }
        assert!(stdout.contains("probe: unreadable (poisoned) at offset 0x11000"), "{stdout}");
        let expected = "pool p: poisoned page at offset 0x11000; run coreplane verify\n";
        assert!(stderr.ends_with(expected), "{way}: {stderr}");
        assert_eq!(stderr.matches("poisoned").count(), 1, "{way}: {stderr}");
        assert_eq!(output.status.code(), Some(poison::EXIT_STATUS), "{way}");
    }
}

/// A truncated file: the part behind its end cannot be read until it is healed.
#[test]
fn what_is_lost_can_be_read_again_as_zeroes() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    let options = CreateOptions {
        size: 4 * u64::from(PAGE),
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    };
    let pool = Pool::create(&path, &options).unwrap();
    let space = pool.space();
    let mut writer = space.claim_log(2).unwrap();
    writer.append(&[&vec![7; PAGE as usize]]).unwrap();
    writer.publish();
    assert!(space.heal(2).unwrap().is_empty(), "nothing is lost");
    assert!(space.can_load(1..4) && !space.can_load(1..5), "there is no page 4");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(2 * u64::from(PAGE) + 0xe000).unwrap();
    assert_eq!(space.probe(2).unwrap_err().offset, 0x2_e000);
    assert_eq!(space.probe_loads(2).unwrap_err().offset, 0x2_e000);
    assert!(space.can_load(0..2) && !space.can_load(0..3) && !space.can_load(2..3));
    assert!(space.heal(2).is_err(), "somebody may have a slice of it");
    drop(writer);
    assert!(space.retire(2));
    while space.reclaim().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(space.heal(2).unwrap(), [0x2_e000, 0x2_f000]);
    space.probe(2).unwrap();
    assert!(space.adopt_log(2, PAGE));
    let guard = epoch::pin();
    let bytes = space.bytes(&guard, 2 * u64::from(PAGE), u64::from(PAGE)).unwrap();
    assert!(bytes[..0xe000].iter().all(|byte| *byte == 7), "what was there is there");
    assert!(bytes[0xe000..].iter().all(|byte| *byte == 0));
}

#[test]
fn the_child() {
    let Ok(way) = std::env::var(LOSE) else {
        return;
    };
    poison::install_handler().unwrap();
    let options = CreateOptions {
        size: 4 * u64::from(PAGE),
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [0; 8],
    };
    let pool = Pool::create(Path::new("p"), &options).unwrap();
    let space = pool.space();
    let mut writer = space.claim_log(1).unwrap();
    let start = writer.append(&[&vec![7; PAGE as usize]]).unwrap();
    writer.flush_from(start);
    space.fence().unwrap();
    writer.publish();
    let guard = epoch::pin();
    let bytes = space.bytes(&guard, start, u64::from(PAGE)).unwrap();
    assert_eq!(bytes[0x1000], 7);
    for page in 0..4 {
        space.probe(page).unwrap();
    }
    assert!(space.probe(4).is_err(), "there is no such page");
    match way.as_str() {
        "truncate" | "threads" => {
            let file = std::fs::File::options().write(true).open("p").unwrap();
            file.set_len(u64::from(PAGE) + 0x1000).unwrap();
        }
        _ => {
            if let Err(error) = user_fault::poison(bytes[0x1000..].as_ptr()) {
                println!("{CANNOT}: {error}");
                return;
            }
        }
    }
    space.probe(0).unwrap();
    println!("probe: {}", space.probe(1).unwrap_err());
    let read = || {
        let byte = std::hint::black_box(bytes)[0x1000];
        unreachable!("read {byte}");
    };
    if way == "threads" {
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    read();
                });
            }
        });
    }
    read();
}

/// The part of `userfaultfd(2)` that poisons a page.
mod user_fault {
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    const LEN: u64 = 4096;
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const POISON: libc::c_ulong = 0xc020_aa08;
    const FEATURE_POISON: u64 = 1 << 14;

    fn control<const N: usize>(
        fd: &OwnedFd,
        request: libc::c_ulong,
        mut words: [u64; N],
    ) -> io::Result<()> {
        // SAFETY: each request reads and writes a structure of as many words as it is given here
        // (api: 3, register and poison: 4).
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes the page at `address` unreadable.
    pub(super) fn poison(address: *const u8) -> io::Result<()> {
        // SAFETY: a new file descriptor without another owner.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as i32)
        };
        control(&fd, API, [0xaa, FEATURE_POISON, 0])?;
        let start = address.addr() as u64;
        // SAFETY: drops the page-table entry of a shared page: no byte changes.
        if unsafe { libc::madvise(address as _, LEN as usize, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
        control(&fd, REGISTER, [start, LEN, 1, 0])?;
        control(&fd, POISON, [start, LEN, 0, 0])?;
        // The page stays registered and poisoned as long as the descriptor is open.
        std::mem::forget(fd);
        Ok(())
    }
}
