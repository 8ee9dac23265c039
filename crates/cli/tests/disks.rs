//! A disk that is full: a pool is created or grown whole or not at all, and one that exists goes
//! on whatever else fills the disk, since its blocks are its own from the beginning.
//!
//! Needs file systems of its own, 64 MiB each: tmpfs and, on a loop device, ext4. Who may not
//! mount leaves this out, and says so.

mod session;

use session::{Client, Outcome, Reply, Served, expect, text};
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

/// Says what is left out where the test runner does not swallow it.
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
    let pool = text(&disk.join("pool"))?.to_owned();
    let absent = text(&disk.join("absent"))?.to_owned();
    expect(4, &["create", "--pool", &absent, "--size", "128MiB"])?;
    assert!(!std::fs::exists(&absent)?, "a creation that fails leaves nothing");
    expect(0, &["create", "--pool", &pool, "--size", "32MiB"])?;
    expect(0, &["put", "--pool", &pool, "first", "value"])?;
    expect(4, &["grow", "--pool", &pool, "--size", "128MiB"])?;
    expect(4, &["create", "--pool", &absent, "--size", "48MiB"])?;
    assert!(!std::fs::exists(&absent)?);
    assert_eq!(expect(0, &["get", "--pool", &pool, "first"])?, "value\n");

    fill(disk)?;
    let served = Served::start(&["--pool", &pool])?;
    let mut client = served.connect()?;
    let value = |round: usize, number: usize| format!("{round} {number}").repeat(300).into_bytes();
    // More than the pool's size in all, so that every page is written, and written again.
    for round in 0..12 {
        // Those of a pipeline share a sync.
        for first in (0..2000).step_by(100) {
            let mut wire = Vec::new();
            for number in first..first + 100 {
                let key = format!("key:{number}");
                Client::encode(&[b"SET", key.as_bytes(), &value(round, number)], &mut wire);
            }
            client.stream.write_all(&wire)?;
            for number in first..first + 100 {
                assert_eq!(client.receive()?, Reply::Simple("OK".to_owned()), "{number}, {round}");
            }
        }
    }
    served.kill()?;
    expect(4, &["grow", "--pool", &pool, "--size", "40MiB"])?;
    let served = Served::start(&["--pool", &pool])?;
    let mut client = served.connect()?;
    for number in 0..2000 {
        let found = client.call(&[b"GET", format!("key:{number}").as_bytes()])?;
        assert!(found == Reply::Bulk(Some(value(11, number))), "key:{number}");
    }
    assert_eq!(served.terminate()?, Some(0));
    expect(0, &["verify", "--pool", &pool])?;
    std::fs::remove_file(disk.join("filling"))?;
    expect(0, &["grow", "--pool", &pool, "--size", "40MiB"])?;
    assert_eq!(expect(0, &["get", "--pool", &pool, "first"])?, "value\n");
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
