//! Nothing lost: `coreplane nbd serve`, killed in the middle of writes of several devices, again and again.
//!
//! Each connection is a process of its own with libnbd, states its device, and has sectors of its own
//! (`disk/sectors.py`). Every acknowledged write is there, with or without FUA, on memory and on a file: a killed
//! process loses nothing. No sector is half old and half new.
//!
//! Six rounds of each disk, or as many as `COREPLANE_KILL_ROUNDS` says; fifty at `COREPLANE_TEST_SCALE=full`.

use crate::disk::{Disk, lack, python, rounds, succeeds};
use crate::pool::{Place, Pool};
use crate::session::{Outcome, Served};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CONNECTIONS: u64 = 4;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/disk/sectors.py");
/// Approximate bytes of the ledger for one request.
const LINE: u64 = 24;

fn ledger(disk: &Disk, connection: u64) -> Outcome<String> {
    disk.place.argument(&format!("ledger-{connection}"))
}

/// Arguments of the script, for one connection.
fn arguments(disk: &Disk, mode: &str, connection: u64) -> Outcome<Vec<String>> {
    // Devices with and without intervals, and one without parameters.
    let parameters = match connection {
        0 => String::new(),
        1 => "@device=1".to_owned(),
        _ => format!("@device={connection},interval={}ms", connection * 10),
    };
    let uri = disk.uri(&parameters);
    let ledger = ledger(disk, connection)?;
    Ok([SCRIPT, mode, &uri, &ledger, &connection.to_string()].map(str::to_owned).to_vec())
}

/// Compares every sector of every connection with its ledger; the number of requests.
fn check(disk: &Disk) -> Outcome<u64> {
    let python = python().ok_or("nbdsh has no Python")?;
    let mut requests = 0;
    for connection in 0..CONNECTIONS {
        let arguments = arguments(disk, "check", connection)?;
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = succeeds(python, &words)?;
        requests += said.split_whitespace().last().map_or(Ok(0), str::parse::<u64>)?;
    }
    Ok(requests)
}

/// Bytes of each ledger.
fn noted(disk: &Disk) -> Outcome<Vec<u64>> {
    let len =
        |connection| Ok(std::fs::metadata(ledger(disk, connection)?).map_or(0, |it| it.len()));
    (0..CONNECTIONS).map(len).collect()
}

/// Writes by all connections, and kills the server when each has recorded so many more requests.
fn kill_in_mid_write(disk: &Disk, served: Served, requests: u64) -> Outcome<()> {
    let python = python().ok_or("nbdsh has no Python")?;
    let before = noted(disk)?;
    let writers: Outcome<Vec<Child>> = (0..CONNECTIONS)
        .map(|connection| {
            let arguments = arguments(disk, "write", connection)?;
            Ok(Command::new(python).args(arguments).stdin(Stdio::null()).spawn()?)
        })
        .collect();
    let deadline = Instant::now() + Duration::from_mins(5);
    let get_on = |(now, before): (&u64, &u64)| *now > before + requests * LINE;
    while !noted(disk)?.iter().zip(&before).all(get_on) {
        assert!(Instant::now() < deadline, "the writers do not get on");
        std::thread::sleep(Duration::from_millis(1));
    }
    served.kill()?;
    for mut writer in writers? {
        assert!(writer.wait()?.success(), "a writer has failed otherwise than by the kill");
    }
    Ok(())
}

fn disks() -> Outcome<[(&'static str, Disk); 4]> {
    let size = ["--size", "16MiB"];
    let memory = |arguments: &[&str]| Disk::new(Place::in_memory()?, &[&size, arguments].concat());
    let file = |arguments: &[&str]| Disk::new(Place::on_disk()?, &[&size, arguments].concat());
    Ok([
        ("memory, four queue sets", memory(&[])?),
        ("memory, no queue", memory(&["--queues", "2", "--driver", "sync"])?),
        ("a file, two queue sets", file(&["--queues", "2", "--media", "file"])?),
        ("a file, one queue", file(&["--queues", "2", "--media", "file", "--driver", "single"])?),
    ])
}

#[test]
fn every_acknowledged_sector_is_there_after_a_kill() -> Outcome<()> {
    if lack(&["nbdsh"])? {
        return Ok(());
    }
    for (name, disk) in disks()? {
        let rounds = rounds(6, 50)?;
        let mut requests = 0;
        for round in 0..rounds {
            let served = disk.serve()?;
            requests = check(&disk).map_err(|error| format!("{name}, round {round}: {error}"))?;
            // Not at the same place in every round.
            kill_in_mid_write(&disk, served, 50 + round * 977 % 500)?;
            if round % 2 == 1 {
                disk.verify(0)?;
            }
        }
        let served = disk.serve()?;
        requests = check(&disk).map_err(|error| format!("{name}, at last: {error}"))?.max(requests);
        disk.finish(served)?;
        writeln!(std::io::stdout(), "\n{name}: {rounds} kills, {requests} requests")?;
    }
    Ok(())
}

#[test]
fn a_sector_that_is_lost_would_be_found() -> Outcome<()> {
    if lack(&["nbdsh"])? {
        return Ok(());
    }
    let disk = Disk::new(Place::in_memory()?, &["--size", "16MiB", "--queues", "1"])?;
    kill_in_mid_write(&disk, disk.serve()?, 100)?;
    let pool = Pool::at(&disk.pool.path)?;
    let earlier = pool.bytes()?;
    kill_in_mid_write(&disk, disk.serve()?, 100)?;
    pool.put_bytes(&earlier)?;
    let _served = disk.serve()?;
    assert!(check(&disk).is_err(), "the second round is gone");
    Ok(())
}
