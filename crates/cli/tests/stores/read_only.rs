//! Reading a store: no permission to write is needed, no byte of it changes, and several readers may do it at a time.

use crate::pool::{Place, Pool};
use crate::session::Outcome;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_coreplane");
/// The user who owns nothing.
const NOBODY: u32 = 65534;

const LOOKS: [&[&str]; 6] =
    [&["info"], &["get", "key:7"], &["scan"], &["dump"], &["stats"], &["verify"]];

/// The files of a store.
fn files(pool: &Pool) -> Outcome<Vec<PathBuf>> {
    if !pool.path.is_dir() {
        return Ok(vec![pool.path.clone()]);
    }
    let entries = fs::read_dir(&pool.path)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.into_iter().map(|entry| entry.path()).collect())
}

/// A checksum of each file, and the time of its last write.
fn state(pool: &Pool) -> Outcome<Vec<(PathBuf, u32, i64, i64)>> {
    let mut states = Vec::new();
    for path in files(pool)? {
        let (metadata, bytes) = (fs::metadata(&path)?, fs::read(&path)?);
        states.push((path, crc32c::crc32c(&bytes), metadata.mtime(), metadata.mtime_nsec()));
    }
    states.sort();
    Ok(states)
}

fn mode(path: &Path, bits: u32) -> Outcome<()> {
    Ok(fs::set_permissions(path, Permissions::from_mode(bits))?)
}

/// Runs a copy of the command as a user who owns nothing of the store.
fn as_nobody(binary: &Path, pool: &Pool, words: &[&str]) -> Outcome<Output> {
    let mut command = Command::new(binary);
    command.args(words).args(["--pool", &pool.name]);
    let is_root = fs::metadata("/proc/self")?.uid() == 0;
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ok(command.output()?)
}

/// A store whose server was killed, so that it must be recovered, and that is not writable.
fn killed(place: &Place, store: &[&str]) -> Outcome<Pool> {
    let pool = place.created("store", &[&["--size", "64MiB"], store].concat())?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for number in 0..500 {
        let key = format!("key:{number}");
        client.call(&[b"SET", key.as_bytes(), b"value"])?;
        client.call(&[b"SET", b"again", key.as_bytes()])?;
    }
    served.kill()?;
    for path in files(&pool)? {
        mode(&path, 0o444)?;
    }
    Ok(pool)
}

#[test]
fn a_store_that_may_not_be_written_is_looked_at() -> Outcome<()> {
    for store in [
        &["--engine", "scmkv"][..],
        &["--engine", "scmkv", "--index", "dram"],
        &["--engine", "bptree"],
        &["--engine", "list"],
        &["--engine", "cow-tree"],
        &["--matrix", "2x2"],
    ] {
        let place = Place::in_memory()?;
        let pool = killed(&place, store)?;
        let directory = pool.path.parent().ok_or("no directory")?;
        // The command itself may be in a directory that other users cannot read.
        let open_to_all = tempfile::tempdir()?;
        mode(open_to_all.path(), 0o755)?;
        let binary = open_to_all.path().join("coreplane");
        // Copied by another process: a file that is open for writing cannot be run, and a child that another thread
        // has just forked still has the open files of this process.
        assert!(Command::new("cp").arg(BINARY).arg(&binary).status()?.success());
        mode(&binary, 0o755)?;
        let matrix = pool.path.is_dir().then_some(pool.path.as_path());
        for place in [directory].into_iter().chain(matrix) {
            mode(place, 0o555)?;
        }
        let before = state(&pool)?;
        for look in LOOKS {
            let output = as_nobody(&binary, &pool, look)?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{store:?} {look:?}: {said}");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            match look[0] {
                "get" => assert_eq!(shown, "value\n", "{store:?}"),
                "scan" | "dump" => assert_eq!(shown.lines().count(), 501, "{store:?} {look:?}"),
                "verify" => assert!(shown.starts_with("sound: 501 records"), "{store:?}: {shown}"),
                _ => assert!(shown.contains("501"), "{store:?} {look:?}: {shown}"),
            }
            assert_eq!(state(&pool)?, before, "{store:?} {look:?}");
        }
        // A command that must write reports that it may not.
        for write in [&["put", "key", "value"][..], &["del", "key:7"], &["grow", "--size", "1GiB"]]
        {
            let output = as_nobody(&binary, &pool, write)?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains("ermission"), "{write:?}: {said}");
        }
        assert_eq!(state(&pool)?, before, "{store:?}");
        for place in [directory].into_iter().chain(matrix) {
            mode(place, 0o755)?;
        }
        // A user who may write recovers the store.
        for path in files(&pool)? {
            mode(&path, 0o644)?;
        }
        pool.expect(0, &["put", "new", "value"])?;
        assert_ne!(state(&pool)?, before, "{store:?}");
        assert_eq!(pool.expect(0, &["get", "key:7"])?, "value\n");
        pool.is_sound()?;
    }
    Ok(())
}

/// Readers do not exclude each other; a writer excludes all.
#[test]
fn several_look_at_a_store_at_a_time() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "64MiB"])?;
    pool.expect(0, &["put", "key", "value"])?;
    // A command that waits for the reader of its output has the pool open.
    let pipe = place.argument("pipe")?;
    assert!(Command::new("mkfifo").arg(&pipe).status()?.success());
    let mut dump = Command::new(BINARY).args(["dump", "--pool", &pool.name, &pipe]).spawn()?;
    // It opens the pool before the pipe, which is open once it can be read from.
    let reader = fs::File::open(&pipe)?;
    assert_eq!(pool.expect(0, &["get", "key"])?, "value\n");
    let shown = std::io::read_to_string(reader)?;
    assert!(dump.wait()?.success() && shown.contains("\"value\""), "{shown}");
    let served = pool.serve(&[])?;
    pool.says(2, &["locked"], &["get", "key"])?;
    served.terminate()
}
