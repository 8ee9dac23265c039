//! A disk that is full: a pool is created or grown whole or not at all, and an existing pool goes on whatever else
//! fills the disk, since all its blocks are allocated from the beginning.
//!
//! The test needs file systems of its own, 64 MiB each: tmpfs and, on a loop device, ext4. A user without the right
//! to mount skips it, with a message.

use crate::pool::Pool;
use crate::session::{Client, Outcome, Reply};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system, unmounted when it is dropped.
struct Disk {
    at: PathBuf,
    _place: tempfile::TempDir,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.at).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn done(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(complaint.trim().replace('\n', " ")) }
}

/// A disk of 64 MiB, or why there can be none.
fn disk(kind: &str) -> Outcome<Result<Disk, String>> {
    let place = tempfile::tempdir()?;
    let at = place.path().join("disk");
    std::fs::create_dir(&at)?;
    let made = match kind {
        "tmpfs" => {
            done(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(&at))
        }
        _ => {
            let image = place.path().join("image");
            std::fs::File::create(&image)?.set_len(64 << 20)?;
            done(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))
                .and_then(|()| done(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&at)))
        }
    };
    Ok(made.map(|()| Disk { at, _place: place }))
}

/// Reports what is left out on an output that the test runner does not capture.
fn leave_out(kind: &str, why: &str) -> Outcome<()> {
    Ok(writeln!(std::io::stdout(), "\nSKIPPED: a full disk, {kind}: {why}")?)
}

/// Fills the disk to the last byte.
fn fill(disk: &Path) -> Outcome<()> {
    let mut file = std::fs::File::create(disk.join("filling"))?;
    for piece in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0x5a; piece]).is_ok() {}
    }
    Ok(done(&mut Command::new("sync"))?)
}

fn a_full_disk(disk: &Path) -> Outcome<()> {
    let (pool, absent) = (Pool::at(&disk.join("pool"))?, Pool::at(&disk.join("absent"))?);
    absent.expect(4, &["create", "--size", "128MiB"])?;
    assert!(!absent.is_there()?, "a creation that fails leaves nothing");
    pool.expect(0, &["create", "--size", "32MiB"])?;
    pool.expect(0, &["put", "first", "value"])?;
    pool.expect(4, &["grow", "--size", "128MiB"])?;
    absent.expect(4, &["create", "--size", "48MiB"])?;
    assert!(!absent.is_there()?);
    assert_eq!(pool.expect(0, &["get", "first"])?, "value\n");

    fill(disk)?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    let value = |round: usize, number: usize| format!("{round} {number}").repeat(300).into_bytes();
    // In all more than the pool's size, so that every page is written, and rewritten.
    for round in 0..12 {
        // The writes of a pipeline share a sync.
        for first in (0..2000).step_by(100) {
            let mut wire = Vec::new();
            for number in first..first + 100 {
                let key = format!("key:{number}");
                Client::encode(&[b"SET", key.as_bytes(), &value(round, number)], &mut wire);
            }
            client.stream.write_all(&wire)?;
            for number in first..first + 100 {
                assert_eq!(client.receive()?, Reply::ok(), "{number}, {round}");
            }
        }
    }
    served.kill()?;
    pool.expect(4, &["grow", "--size", "40MiB"])?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for number in 0..2000 {
        let found = client.call(&[b"GET", format!("key:{number}").as_bytes()])?;
        assert!(found == Reply::bulk(value(11, number)), "key:{number}");
    }
    served.terminate()?;
    pool.is_sound()?;
    std::fs::remove_file(disk.join("filling"))?;
    pool.expect(0, &["grow", "--size", "40MiB"])?;
    assert_eq!(pool.expect(0, &["get", "first"])?, "value\n");
    Ok(())
}

#[test]
fn a_full_tmpfs() -> Outcome<()> {
    match disk("tmpfs")? {
        Ok(disk) => a_full_disk(&disk.at),
        Err(why) => leave_out("tmpfs", &why),
    }
}

#[test]
fn a_full_ext4() -> Outcome<()> {
    match disk("ext4")? {
        Ok(disk) => a_full_disk(&disk.at),
        Err(why) => leave_out("ext4", &why),
    }
}
