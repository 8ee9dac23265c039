//! Where commands write: a file that is there, a pool, a full disk, a pipe that nobody reads.

use crate::pool::{Place, Pool};
use crate::session::{self, Outcome, coreplane, expect, free_port, text};
use std::fs::{File, Permissions};
use std::io::{PipeWriter, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

const MARKER: &str = "a value that is looked for in the file";

fn filled(place: &Place, name: &str, engine: &str) -> Outcome<Pool> {
    let pool = place.created(name, &["--size", "16MiB", "--engine", engine])?;
    for (key, value) in [("before", "x"), ("greeting", MARKER), ("later", "y")] {
        pool.expect(0, &["put", key, value])?;
    }
    Ok(pool)
}

/// Flips a bit of the value.
fn damage(pool: &Pool) -> Outcome<()> {
    let mut bytes = pool.bytes()?;
    let is_marker = |at: &usize| bytes[*at..].starts_with(MARKER.as_bytes());
    let places: Vec<usize> = (0..bytes.len() - MARKER.len()).filter(is_marker).collect();
    assert!(!places.is_empty(), "the value is not in the file");
    places.into_iter().for_each(|at| bytes[at + 3] ^= 0x10);
    pool.put_bytes(&bytes)
}

/// Runs a command on the pool whose standard output is this.
fn run_to(output: impl Into<Stdio>, pool: &Pool, command: &[&str]) -> Outcome<Output> {
    run_with(output, Stdio::piped(), pool, command)
}

/// As [`run_to`], with this standard error.
fn run_with(
    output: impl Into<Stdio>,
    complaints: impl Into<Stdio>,
    pool: &Pool,
    command: &[&str],
) -> Outcome<Output> {
    let mut run = Command::new(env!("CARGO_BIN_EXE_coreplane"));
    let run = run.args(command).args(["--pool", &pool.name]).stdout(output).stderr(complaints);
    Ok(run.spawn()?.wait_with_output()?)
}

/// A pipe whose reader has gone.
fn unread() -> Outcome<PipeWriter> {
    Ok(std::io::pipe()?.1)
}

/// The exit code of a command whose output nobody reads.
fn code_unread(pool: &Pool, command: &[&str]) -> Outcome<Option<i32>> {
    Ok(run_to(unread()?, pool, command)?.status.code())
}

fn names_in(place: &Place) -> Outcome<Vec<String>> {
    let entries = std::fs::read_dir(place.path(""))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Outcome<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

/// The positional argument is the output: a pool that is named there is not wiped.
#[test]
fn no_pool_is_overwritten() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, "pool", "scmkv")?;
    let other = filled(&place, "other", "bptree")?;
    symlink(&other.path, place.path("link"))?;
    let series = place.argument("series")?;
    let made = ["ts", "serve", "--http-port", "0", "--size", "32MiB", "--sets", "1"];
    session::Served::start_as(&made, Stdio::null(), &["--pool", &series])?.terminate()?;
    let first = Pool::at(&place.path("series/q0"))?;
    let bytes = other.bytes()?;
    for output in [&other.name, &place.argument("link")?, &first.name] {
        pool.says(3, &["is a pool"], &["dump", output])?;
        let export = ["ts", "export", "--pool", &series, output];
        assert_eq!(coreplane(&export, b"")?.status.code(), Some(3), "{output}");
    }
    assert!(other.bytes()? == bytes, "it was changed");
    expect(0, &["ts", "verify", "--pool", &series])?;
    let served = other.serve(&[])?;
    let asked = ["dump", "--server", &served.address, &other.name];
    assert_eq!(coreplane(&asked, b"")?.status.code(), Some(3));
    served.terminate()?;
    // Neither one whose header is damaged.
    let mut bytes = other.bytes()?;
    bytes[20..24].fill(0x99);
    other.put_bytes(&bytes)?;
    pool.says(3, &["is a pool"], &["dump", &other.name])?;
    assert!(other.bytes()? == bytes, "it was changed");
    assert_eq!(names_in(&place)?, ["link", "other", "pool", "series"]);
    Ok(())
}

#[test]
fn a_dump_that_fails_leaves_the_one_before_it() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, "pool", "bptree")?;
    let (backup, link) = (place.path("backup"), place.argument("link")?);
    symlink(&backup, &link)?;
    let broken = filled(&place, "broken", "bptree")?;
    damage(&broken)?;
    let (code, said) = broken.ask(&["dump", &link], b"")?;
    assert!(code > 0, "{said}");
    assert_eq!(names_in(&place)?, ["broken", "link", "pool"], "a part is where the link leads");
    broken.remove()?;
    // A link to a file that is not there yet, and one to a file that is.
    for _ in 0..2 {
        pool.expect(0, &["dump", &link])?;
        assert_eq!(std::fs::read_to_string(&backup)?.lines().count(), 3);
        assert!(std::fs::symlink_metadata(&link)?.is_symlink());
    }
    let whole = std::fs::read(&backup)?;
    // What a killed command has left is used again, and of two commands one is refused.
    let partial = place.path("backup.partial");
    std::fs::write(&partial, vec![b'x'; 1 << 20])?;
    pool.expect(0, &["dump", &link])?;
    assert!(std::fs::read(&backup)? == whole && !partial.exists());
    let other = File::create(&partial)?;
    other.lock()?;
    pool.says(5, &["another command"], &["dump", &link])?;
    drop(other);
    std::fs::remove_file(&partial)?;
    damage(&pool)?;
    for output in [&link, text(&backup)?] {
        let (code, said) = pool.ask(&["dump", output], b"")?;
        assert!(code > 0, "{said}");
        assert!(std::fs::read(&backup)? == whole, "the backup was changed");
    }
    assert_eq!(names_in(&place)?, ["backup", "link", "pool"], "nothing is left beside it");
    Ok(())
}

/// Where no file can be written beside it, a file with content stays, and an empty one is written to.
#[test]
fn a_file_that_cannot_be_replaced_is_not_emptied() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, "pool", "bptree")?;
    // So long that there is no name with `.partial` behind it.
    let long = "b".repeat(250);
    let backup = place.argument(&long)?;
    pool.expect(0, &["dump", &backup])?;
    let whole = std::fs::read(&backup)?;
    assert_eq!(whole.iter().filter(|byte| **byte == b'\n').count(), 3);
    pool.says(5, &[&format!("{backup}.partial")], &["dump", &backup])?;
    assert!(std::fs::read(&backup)? == whole, "it was changed");
    std::fs::write(&backup, "")?;
    pool.expect(0, &["dump", &backup])?;
    assert!(std::fs::read(&backup)? == whole);
    // A file beside it that is of somebody else, and that a killed command has left.
    let other = place.argument("backup")?;
    std::fs::rename(&backup, &other)?;
    let partial = place.path("backup.partial");
    File::create(&partial)?.set_permissions(Permissions::from_mode(0o444))?;
    if File::options().write(true).open(&partial).is_err() {
        pool.says(5, &["backup.partial"], &["dump", &other])?;
        assert!(std::fs::read(&other)? == whole, "it was changed");
    }
    Ok(())
}

#[test]
fn streams_are_written_to() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, "pool", "bptree")?;
    let dumped = pool.expect(0, &["dump"])?;
    assert_eq!(pool.expect(0, &["dump", "/dev/stdout"])?, dumped);
    let file = place.path("redirected");
    let output = run_to(File::create(&file)?, &pool, &["dump", "/dev/stdout"])?;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&file)?, dumped);
    let fifo = place.argument("fifo")?;
    assert!(Command::new("mkfifo").arg(&fifo).status()?.success());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::read_to_string(fifo)
    });
    pool.expect(0, &["dump", &fifo])?;
    assert_eq!(reader.join().map_err(|_| "panicked")??, dumped);
    pool.expect(5, &["dump", text(&place.path(""))?])?;
    assert_eq!(names_in(&place)?, ["fifo", "pool", "redirected"]);
    Ok(())
}

/// A listing is over when its reader has seen enough. A verdict or a backup has not reached anybody then.
#[test]
fn what_nobody_reads_is_no_success() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["scmkv", "bptree"] {
        let pool = filled(&place, engine, engine)?;
        for command in [&["scan"][..], &["get", "greeting"], &["info"], &["stats"]] {
            assert_eq!(code_unread(&pool, command)?, Some(0), "{engine} {command:?}");
        }
        for command in [&["dump"][..], &["dump", "/dev/stdout"], &["verify"]] {
            assert_eq!(code_unread(&pool, command)?, Some(5), "{engine} {command:?}");
        }
        damage(&pool)?;
        assert_eq!(code_unread(&pool, &["verify"])?, Some(5), "{engine}");
        // Nothing is given up of which nobody is told.
        assert_eq!(code_unread(&pool, &["verify", "--repair"])?, Some(5), "{engine}");
        let (code, said) = pool.ask(&["verify"], b"")?;
        assert!(code > 0, "{engine}: {said}");
        pool.says(1, &["\nsound: "], &["verify", "--repair"])?;
        pool.is_sound()?;
    }
    Ok(())
}

/// A message is no result: its reader may have gone.
#[test]
fn exit_codes_depend_on_no_reader_of_messages() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, "pool", "scmkv")?;
    let none = place.pool("none")?;
    for (pool, code, command) in [
        (&pool, 1, &["get", "missing"][..]),
        (&pool, 1, &["put", "--if-absent", "greeting", "x"]),
        (&pool, 0, &["grow", "--size", "16MiB"]),
        (&none, 2, &["get", "missing"]),
        (&none, 64, &["get", "--key-hex", "z"]),
    ] {
        let ended = run_with(Stdio::null(), unread()?, pool, command)?;
        assert_eq!(ended.status.code(), Some(code), "{command:?}");
    }
    Ok(())
}

/// A server has messages from its start on.
#[test]
fn no_server_waits_for_a_reader_of_its_messages() -> Outcome<()> {
    let place = Place::in_memory()?;
    let (port, peers) = (free_port()?.to_string(), format!("1=127.0.0.1:{}", free_port()?));
    let node = ["serve", "--port", &port, "--cluster-id", "1", "--cluster-peers", &peers];
    let series = ["ts", "serve", "--http-port", "0", "--sets", "1"];
    for (number, command) in
        [&["serve", "--port", "0"][..], &["nbd", "serve", "--port", "0"], &series, &node]
            .into_iter()
            .enumerate()
    {
        let (reader, writer) = std::io::pipe()?;
        let mut full = writer.try_clone()?;
        // It is filled until the reader has gone.
        let filler = std::thread::spawn(move || while full.write_all(&[b'.'; 4096]).is_ok() {});
        let (has_ended, ended) = channel();
        let watcher = std::thread::spawn(move || {
            let ended = ended.recv_timeout(Duration::from_secs(60));
            drop(reader);
            ended
        });
        for (name, complaints) in [("full", writer), ("closed", unread()?)] {
            let pool = place.argument(&format!("{name}-{number}"))?;
            let arguments = ["--size", "32MiB", "--pool", &pool];
            session::Served::start_as(command, complaints, &arguments)?.terminate()?;
        }
        has_ended.send(())?;
        let ended = watcher.join().map_err(|_| "panicked")?;
        assert!(ended.is_ok(), "{command:?} waits for a reader");
        filler.join().map_err(|_| "panicked")?;
    }
    Ok(())
}

/// A value without an end of line stays in the buffer of the output until it is flushed.
#[test]
fn a_value_that_could_not_be_written_is_told() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = filled(&place, "pool", "scmkv")?;
    for command in [&["get", "greeting"][..], &["get", "--raw", "greeting"], &["dump"]] {
        let full = File::options().write(true).open("/dev/full")?;
        let output = run_to(full, &pool, command)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{command:?}: {said}");
        assert!(said.contains("No space"), "{command:?}: {said}");
    }
    assert_eq!(expect(0, &["get", "--raw", "--pool", &pool.name, "later"])?, "y");
    Ok(())
}
