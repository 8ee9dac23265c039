//! InfluxDB on ext4 on `coreplane nbd serve`: the database and its disk are both killed, and every acknowledged point
//! is there after the restart.
//!
//! Four clients write batches over HTTP; the database syncs its log before it answers (`wal-fsync-delay = "0s"`). The
//! stored points are read by `influx`.
//!
//! The test needs what `mount` needs, and Debian's influxdb and influxdb-client. If they are not available,
//! `cargo xtask test` reports them and names them in `COREPLANE_CLIENTS_LEFT_OUT`; without that this fails.
//!
//! Four rounds of each disk, or as many as `COREPLANE_KILL_ROUNDS` says; twenty at `COREPLANE_TEST_SCALE=full`.

mod disk;
mod mount;
mod pool;
mod session;

use disk::{Disk, lack, rounds, succeeds};
use mount::Mount;
use pool::Place;
use session::{Outcome, Served, free_port, text};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
/// Points of a batch at most.
const BATCH: u64 = 20;
const DATABASE: &str = "points";

/// The database, killed when it is dropped.
struct Influx {
    child: Child,
    port: String,
}

impl Influx {
    /// Starts the database in this directory and waits until it answers.
    fn start(at: &Path, place: &Place) -> Outcome<Self> {
        let port = free_port()?.to_string();
        let config = format!(
            "reporting-disabled = true
bind-address = \"127.0.0.1:0\"
[meta]
dir = {meta:?}
[data]
dir = {data:?}
wal-dir = {wal:?}
wal-fsync-delay = \"0s\"
# Small, so that its files are made anew while it is written.
cache-snapshot-memory-size = 262144
[monitor]
store-enabled = false
[http]
bind-address = \"127.0.0.1:{port}\"
log-enabled = false
",
            meta = at.join("meta"),
            data = at.join("data"),
            wal = at.join("wal"),
        );
        let path = place.argument("influxdb.conf")?;
        std::fs::write(&path, config)?;
        let log = std::fs::File::create(place.path("influxdb.log"))?;
        let mut command = Command::new("influxd");
        command.args(["run", "-config", &path]).stdin(Stdio::null());
        let child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut influx = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(60);
        while influx.writer().is_err() {
            if influx.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(place.path("influxdb.log"))?;
                return Err(format!("influxd does not start: {log}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(influx)
    }

    /// A connection to write by.
    fn writer(&self) -> Outcome<BufReader<TcpStream>> {
        let stream = TcpStream::connect(format!("127.0.0.1:{}", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(BufReader::new(stream))
    }

    /// Queries by the database's own client; the answer in CSV.
    fn ask(&self, query: &str) -> Outcome<String> {
        let place = ["-host", "127.0.0.1", "-port", &self.port, "-database", DATABASE];
        let how = ["-precision", "ns", "-format", "csv", "-execute", query];
        succeeds("influx", &[place, how].concat())
    }

    fn kill(&mut self) -> Outcome<()> {
        // It may have ended already.
        let _gone = self.child.kill().is_ok();
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Influx {
    fn drop(&mut self) {
        let _gone = self.kill().is_ok();
    }
}

fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Points of a writer are numbered: those up to `acknowledged` must be there, those up to `sent` may be.
#[derive(Debug, Default, Clone, Copy)]
struct Points {
    sent: u64,
    acknowledged: u64,
}

/// The text of a point, computed from its number.
fn text_of(writer: usize, number: u64) -> String {
    format!("{:016x}", mix(number << 8 | writer as u64))
}

/// A point in line protocol.
fn line_of(writer: usize, number: u64) -> String {
    let text = text_of(writer, number);
    format!("m,writer={writer} number={number}i,text=\"{text}\" {number}")
}

/// Writes batches until there is no answer.
fn write(influx: &Influx, writer: usize, points: &mut Points, answers: &AtomicU64) -> Outcome<()> {
    let mut stream = influx.writer()?;
    loop {
        let from = points.sent + 1;
        points.sent += 1 + mix(points.sent) % BATCH;
        let lines: Vec<String> =
            (from..=points.sent).map(|number| line_of(writer, number)).collect();
        let body = lines.join("\n");
        let head = format!(
            "POST /write?db={DATABASE}&precision=ns HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}",
            body.len()
        );
        stream.get_mut().write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
        let mut status = String::new();
        stream.read_line(&mut status)?;
        let mut line = status.clone();
        while !line.trim_end().is_empty() {
            line.clear();
            stream.read_line(&mut line)?;
        }
        if !status.contains(" 204 ") {
            // An error of the disk: not acknowledged.
            return Err(format!("no acknowledgement: {status:?}").into());
        }
        points.acknowledged = points.sent;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Every acknowledged point must be there with its values; the number of points.
fn check(influx: &Influx, writer: usize, points: &mut Points) -> Outcome<u64> {
    let answer = influx.ask(&format!("SELECT number, text FROM m WHERE writer = '{writer}'"))?;
    let mut number = 0;
    for line in answer.lines().filter(|line| line.starts_with("m,")) {
        number += 1;
        let expected = format!("m,{number},{number},{}", text_of(writer, number));
        if line != expected {
            return Err(format!("writer {writer}: {line:?}, and not {expected:?}").into());
        }
    }
    if !(points.acknowledged..=points.sent).contains(&number) {
        return Err(format!("writer {writer} has {number} points of {points:?}").into());
    }
    *points = Points { sent: number, acknowledged: number };
    Ok(number)
}

/// Writes until so many batches were acknowledged, then kills the database and its disk.
fn kill_in_mid_write(
    served: Served,
    mut mount: Mount,
    mut influx: Influx,
    points: &mut [Points],
    until: u64,
) -> Outcome<()> {
    let (answers, deadline) = (AtomicU64::new(0), Instant::now() + Duration::from_mins(5));
    std::thread::scope(|scope| {
        let database = &influx;
        let writers: Vec<_> = (0..)
            .zip(points)
            .map(|(writer, points)| {
                let answers = &answers;
                scope.spawn(move || write(database, writer, points, answers))
            })
            .collect();
        let is_well = || writers.iter().all(|writer| !writer.is_finished());
        while answers.load(Ordering::Relaxed) < until && Instant::now() < deadline && is_well() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let was_well = is_well();
        let killed = served.kill();
        mount.cut()?;
        let id = influx.child.id().to_string();
        succeeds("kill", &["-KILL", &id])?;
        for writer in writers {
            let ended = writer.join().map_err(|_| "a writer has panicked")?;
            let why = ended.err().ok_or("writers go on until the database is gone")?;
            assert!(was_well, "{why}");
        }
        killed
    })?;
    influx.kill()?;
    assert!(answers.into_inner() >= until, "the writers do not get on");
    Ok(())
}

/// Makes the database, and the first point of each writer.
///
/// This version creates files of series without a sync of their first bytes: after a power cut in the seconds after
/// that, on any disk, it does not start again. So they are synced here, once; nothing else is ever synced.
fn make_database(influx: &Influx, mount: &Mount, points: &mut [Points]) -> Outcome<()> {
    influx.ask(&format!("CREATE DATABASE {DATABASE}"))?;
    for (writer, points) in points.iter_mut().enumerate() {
        influx.ask(&format!("INSERT {}", line_of(writer, 1)))?;
        *points = Points { sent: 1, acknowledged: 1 };
    }
    succeeds("sync", &["-f", text(&mount.at)?]).map(drop)
}

/// Serves the disk, checks its file system, and starts the database on it; the database is created if it does not
/// exist.
fn begin(disk: &Disk, points: &mut [Points]) -> Outcome<(Served, Mount, Influx)> {
    let is_new = !disk.pool.is_there()?;
    let served = disk.serve()?;
    let mut mount = Mount::attach(disk)?;
    if is_new {
        mount.make()?;
    }
    mount.check()?;
    let influx = Influx::start(mount.mount()?, &disk.place)?;
    if is_new {
        make_database(&influx, &mount, points)?;
    }
    Ok((served, mount, influx))
}

fn check_all(influx: &Influx, points: &mut [Points]) -> Outcome<u64> {
    (0..).zip(points).map(|(writer, points)| check(influx, writer, points)).sum()
}

fn killed_under_influxdb(name: &str, disk: &Disk) -> Outcome<()> {
    if lack(&[&mount::NEEDED[..], &["influxd", "influx"]].concat())? {
        return Ok(());
    }
    let rounds = rounds(4, 20)?;
    let mut points = [Points::default(); WRITERS];
    for round in 0..rounds {
        let failed = |error| format!("{name}, round {round}: {error}");
        let (served, mount, influx) = begin(disk, &mut points).map_err(failed)?;
        check_all(&influx, &mut points).map_err(failed)?;
        kill_in_mid_write(served, mount, influx, &mut points, 300 + mix(round) % 700)?;
    }
    let (served, mount, mut influx) = begin(disk, &mut points)?;
    let all = check_all(&influx, &mut points)?;
    influx.kill()?;
    mount.detach()?;
    disk.finish(served)?;
    writeln!(std::io::stdout(), "\n{name}: {rounds} kills, {all} points")?;
    Ok(())
}

#[test]
fn influxdb_on_memory_has_every_acknowledged_point() -> Outcome<()> {
    let disk = Disk::new(Place::in_memory()?, &["--size", "256MiB"])?;
    killed_under_influxdb("memory", &disk)
}

#[test]
fn influxdb_on_a_file_has_every_acknowledged_point() -> Outcome<()> {
    let arguments = ["--size", "256MiB", "--queues", "2", "--media", "file"];
    let disk = Disk::new(Place::on_disk()?, &arguments)?;
    killed_under_influxdb("a file", &disk)
}

#[test]
fn a_point_that_is_lost_would_be_found() -> Outcome<()> {
    if lack(&[&mount::NEEDED[..], &["influxd", "influx"]].concat())? {
        return Ok(());
    }
    let disk = Disk::new(Place::in_memory()?, &["--size", "128MiB", "--queues", "1"])?;
    let mut points = [Points::default(); WRITERS];
    let (served, mount, influx) = begin(&disk, &mut points)?;
    kill_in_mid_write(served, mount, influx, &mut points, 50)?;
    let earlier = disk.pool.bytes()?;
    let (served, mount, influx) = begin(&disk, &mut points)?;
    kill_in_mid_write(served, mount, influx, &mut points, 100)?;
    disk.pool.put_bytes(&earlier)?;
    let (_served, _mount, influx) = begin(&disk, &mut points)?;
    assert!(check_all(&influx, &mut points).is_err(), "the second round is gone");
    Ok(())
}
