//! Time series as a user has them: `coreplane ts` and `coreplane serve --http-port`, on memory and on an ordinary file, and
//! clients as they are: `influx` of Debian's influxdb-client, and Python's influxdb.
//!
//! `cargo xtask test` installs the clients where they are missing. What it could not install it names in
//! `COREPLANE_CLIENTS_LEFT_OUT`; without that a missing client is a failure here.

mod disk;
mod pool;
mod session;

use disk::{lack, rounds, run, succeeds};
use pool::Place;
use session::{Outcome, Reply, Served, expect, expect_with, text};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MADE: [&str; 4] = ["--size", "32MiB", "--sets", "2"];

/// A store in a place, there or not.
struct Series {
    place: Place,
    pool: String,
    media: &'static str,
}

impl Series {
    fn new(place: Place, media: &'static str) -> Outcome<Self> {
        Ok(Self { pool: place.argument("series")?, place, media })
    }

    /// On memory, and on a file.
    fn both() -> Outcome<[Self; 2]> {
        Ok([Self::new(Place::in_memory()?, "auto")?, Self::new(Place::on_disk()?, "file")?])
    }

    fn serve(&self, arguments: &[&str]) -> Outcome<Served> {
        let complaints =
            File::options().create(true).append(true).open(self.place.path("complaints"))?;
        let pool = ["ts", "serve", "--http-port", "0", "--media", self.media, "--pool", &self.pool];
        Served::start_as(&pool, complaints, &[&MADE[..], arguments].concat())
    }

    fn with<'a>(&'a self, command: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        let pool = ["ts", command, "--media", self.media, "--pool", &self.pool];
        [&pool[..], arguments].concat()
    }

    fn expect(&self, code: i32, command: &str, arguments: &[&str]) -> Outcome<String> {
        expect(code, &self.with(command, arguments))
    }

    /// Makes the store, with nothing in it.
    fn make(&self) -> Outcome<()> {
        self.serve(&[])?.terminate()
    }

    /// Ends the server in good order; what it leaves is sound.
    fn finish(&self, served: Served) -> Outcome<()> {
        served.terminate()?;
        let verified = self.expect(0, "verify", &["--json"])?;
        assert!(verified.contains("\"sound\":true"), "{verified}");
        let complaints = std::fs::read_to_string(self.place.path("complaints"))?;
        assert!(!complaints.contains("panicked"), "{complaints}");
        Ok(())
    }
}

/// Asks a server over HTTP; the status, and the body.
fn ask(address: &str, method: &str, path: &str, body: &str) -> Outcome<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).ok_or("no status")?.parse()?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((status, body.unwrap_or_default()))
}

/// Points of several types, some out of order, in the order in which they are exported.
fn points() -> String {
    let mut lines = String::new();
    for host in ["a", "b"] {
        for at in 0..5_000_i64 {
            let text = if at % 1000 == 0 { ",note=\"a \\\"b\\\",\nc\"" } else { "" };
            let is_even = at % 2 == 0;
            lines += &format!(
                "cpu,host={host} busy={is_even},count={at}i,idle={}{text} {}\n",
                at as f64 / 8.0,
                at * 1_000_000_000
            );
        }
    }
    lines + "weather\\ report,city=New\\ York,zone=e\\=f temp=-1.5 -5\n"
}

#[test]
fn what_is_imported_is_exported() -> Outcome<()> {
    for series in Series::both()? {
        series.make()?;
        let (lines, database) = (points(), ["--database", "d"]);
        let said = expect_with(0, &series.with("import", &database), lines.as_bytes())?;
        assert_eq!(said, "10001 points written, 0 refused\n");
        assert_eq!(series.expect(0, "export", &database)?, lines);
        // Packed, into another store.
        let packed = series.place.argument("lines.gz")?;
        series.expect(0, "export", &["--database", "d", "--gzip", &packed])?;
        assert!(std::fs::read(&packed)?.starts_with(&[0x1f, 0x8b]));
        let other = Series::new(Place::in_memory()?, "auto")?;
        other.make()?;
        let said = other.expect(0, "import", &["--database", "e", "--json", &packed])?;
        assert_eq!(said, "{\"written\":10001,\"refused\":0}\n");
        assert_eq!(other.expect(0, "export", &["--database", "e"])?, lines);
        let stats = series.expect(0, "stats", &["--json"])?;
        for figure in [
            "\"series\":3",
            "\"measurements\":2",
            "\"sets\":2",
            "\"databases\":[\"opentsdb\",\"d\"]",
        ] {
            assert!(stats.contains(figure), "{figure}: {stats}");
        }
        assert!(series.expect(0, "stats", &[])?.contains("measurements     2\n"));
        series.expect(0, "grow", &["--size", "64MiB"])?;
        assert!(series.expect(0, "verify", &[])?.ends_with("sound\n"));
        assert_eq!(series.expect(0, "export", &database)?, lines);
    }
    Ok(())
}

#[test]
fn lines_that_are_no_points_are_told() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    series.make()?;
    let lines = b"m v=1 1\nm\n# a \"comment\nm v=2 2\nm v=\"x\" 3\n";
    let arguments = series.with("import", &["--database", "d", "--precision", "s"]);
    let output = session::coreplane(&arguments, lines)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(3), &b"2 points written, 2 refused\n"[..])
    );
    assert!(said.contains("line 2: unable to parse 'm': missing fields"), "{said}");
    assert!(said.contains("field type conflict"), "{said}");
    let there = series.expect(0, "export", &["--database", "d"])?;
    assert_eq!(there, "m v=1 1000000000\nm v=2 2000000000\n");
    Ok(())
}

#[test]
fn what_cannot_be_is_refused() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    for command in ["stats", "verify"] {
        series.expect(2, command, &[])?;
    }
    series.expect(2, "query", &["SHOW DATABASES"])?;
    series.expect(2, "export", &["--database", "d"])?;
    assert!(!Path::new(&series.pool).exists());
    let served = series.serve(&[])?;
    // It is open, and the port is taken.
    series.expect(2, "stats", &[])?;
    let port = served.address.rsplit(':').next().unwrap_or_default();
    let other = Series::new(Place::in_memory()?, "auto")?;
    other.expect(3, "serve", &["--http-port", port])?;
    assert!(!Path::new(&other.pool).exists(), "a store is made for no server");
    series.finish(served)?;
    series.expect(3, "export", &["--database", "none"])?;
    series.expect(3, "import", &["--database", "d", "--precision", "weeks"])?;
    series.expect(64, "query", &[])?;
    expect(3, &["ts", "query", "--url", "ftp://x", "SHOW DATABASES"])?;
    Ok(())
}

#[test]
fn a_killed_server_has_what_it_acknowledged() -> Outcome<()> {
    for series in Series::both()? {
        let served = series.serve(&[])?;
        let lines: String = (0..3_000).map(|at| format!("m,t={} v={at} {at}\n", at % 7)).collect();
        assert_eq!(
            ask(&served.address, "POST", "/write?db=opentsdb", &lines)?,
            (204, String::new())
        );
        let point = "{\"metric\":\"n\",\"timestamp\":7,\"value\":1,\"tags\":{\"a\":\"b\"}}";
        assert_eq!(ask(&served.address, "POST", "/api/put", point)?.0, 204);
        served.kill()?;
        let there = series.expect(0, "export", &["--database", "opentsdb"])?;
        let mut there: Vec<&str> = there.lines().collect();
        let mut expected: Vec<&str> = lines.lines().collect();
        expected.push("n,a=b value=1 7000000000");
        there.sort_unstable();
        expected.sort_unstable();
        assert_eq!(there, expected);
    }
    Ok(())
}

const WRITERS: u64 = 24;

/// Points of a writer are numbered: those up to `acknowledged` have to be there, those up to `sent` may be.
#[derive(Debug, Default, Clone, Copy)]
struct Numbers {
    sent: u64,
    acknowledged: u64,
}

/// Writes batches until there is no answer.
fn write_on(address: &str, writer: u64, numbers: &mut Numbers, answers: &AtomicU64) -> Outcome<()> {
    let mut stream = BufReader::new(TcpStream::connect(address)?);
    stream.get_ref().set_nodelay(true)?;
    loop {
        let from = numbers.sent + 1;
        numbers.sent += 1 + (from ^ writer) % 9;
        let lines: String = (from..=numbers.sent)
            .map(|at| format!("m,writer={writer} number={at}i,half={} {at}\n", at as f64 / 2.0))
            .collect();
        let head = format!(
            "POST /write?db=opentsdb HTTP/1.1\r\nHost: x\r\nContent-Length: {}",
            lines.len()
        );
        stream.get_mut().write_all(format!("{head}\r\n\r\n{lines}").as_bytes())?;
        let (mut status, mut line) = (String::new(), String::new());
        stream.read_line(&mut status)?;
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line)? == 0 {
                return Err(format!("no answer: {status:?}").into());
            }
        }
        assert!(status.contains(" 204 "), "{status}");
        numbers.acknowledged = numbers.sent;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Every acknowledged point of a writer is there, whole and once.
fn check_numbers(exported: &str, writer: u64, numbers: &mut Numbers) -> Outcome<u64> {
    let begin = format!("m,writer={writer} ");
    let mut number = 0;
    for line in exported.lines().filter(|line| line.starts_with(&begin)) {
        number += 1;
        let expected = format!("{begin}half={},number={number}i {number}", number as f64 / 2.0);
        if line != expected {
            return Err(format!("writer {writer}: {line:?}, and not {expected:?}").into());
        }
    }
    if !(numbers.acknowledged..=numbers.sent).contains(&number) {
        return Err(format!("writer {writer} has {number} points of {numbers:?}").into());
    }
    *numbers = Numbers { sent: number, acknowledged: number };
    Ok(number)
}

#[test]
fn many_writers_of_a_server_that_is_killed_have_what_was_acknowledged() -> Outcome<()> {
    for series in Series::both()? {
        let mut numbers = [Numbers::default(); WRITERS as usize];
        for round in 0..rounds(3, 20)? {
            let served = series.serve(&[])?;
            let answers = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let (address, answers) = (served.address.clone(), &answers);
                let writers: Vec<_> = (0..)
                    .zip(&mut numbers)
                    .map(|(writer, numbers)| {
                        let address = address.clone();
                        scope.spawn(move || write_on(&address, writer, numbers, answers))
                    })
                    .collect();
                let deadline = Instant::now() + Duration::from_secs(60);
                while answers.load(Ordering::Relaxed) < 500 + round * 77
                    && Instant::now() < deadline
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let killed = served.kill();
                for writer in writers {
                    assert!(writer.join().map_err(|_| "a writer has panicked")?.is_err());
                }
                killed
            })?;
            assert!(answers.into_inner() >= 500, "the writers do not get on");
            let exported = series.expect(0, "export", &["--database", "opentsdb"])?;
            let found: Outcome<Vec<u64>> = (0..)
                .zip(&mut numbers)
                .map(|(writer, it)| check_numbers(&exported, writer, it))
                .collect();
            let all: u64 = found.map_err(|error| format!("round {round}: {error}"))?.iter().sum();
            assert_eq!(exported.lines().count() as u64, all);
        }
    }
    Ok(())
}

#[test]
fn time_series_are_served_beside_records() -> Outcome<()> {
    let place = Place::in_memory()?;
    let (pool, secret) = (place.argument("records")?, place.argument("secret")?);
    std::fs::write(&secret, "hush\n")?;
    let arguments = [
        "--pool",
        &pool,
        "--size",
        "32MiB",
        "--http-port",
        "0",
        "--ts-size",
        "32MiB",
        "--ts-sets",
        "1",
    ];
    let served = Served::start(&[&arguments[..], &["--requirepass-file", &secret]].concat())?;
    let http = served.line.split("http on ").nth(1).and_then(|rest| rest.split(';').next());
    let http = http.ok_or_else(|| format!("no HTTP: {}", served.line))?.to_owned();
    assert!(served.line.contains(&format!("time series {pool}.ts")), "{}", served.line);
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"AUTH", b"hush"])?, Reply::ok());
    assert_eq!(client.call(&[b"SET", b"key", b"value"])?, Reply::ok());
    assert_eq!(ask(&http, "POST", "/write?db=opentsdb", "m v=1 1")?.0, 401);
    assert_eq!(ask(&http, "POST", "/write?db=opentsdb&u=me&p=hush", "m v=1 1")?.0, 204);
    let metrics = ask(&http, "GET", "/metrics?u=me&p=hush", "")?.1;
    assert!(metrics.contains("coreplane_http_points_written_total 1\n"), "{metrics}");
    served.terminate()?;
    let there =
        expect(0, &["ts", "export", "--pool", &format!("{pool}.ts"), "--database", "opentsdb"])?;
    assert_eq!(there, "m v=1 1\n");
    assert_eq!(expect(0, &["get", "--pool", &pool, "key"])?.trim_end(), "value");
    Ok(())
}

#[test]
fn the_client_of_influxdb_writes_and_asks() -> Outcome<()> {
    if lack(&["influx"])? {
        return Ok(());
    }
    for series in Series::both()? {
        let served = series.serve(&[])?;
        let port = served.address.rsplit(':').next().unwrap_or_default().to_owned();
        let influx = |arguments: &[&str]| {
            let place =
                ["-host", "127.0.0.1", "-port", &port, "-precision", "ns", "-format", "csv"];
            succeeds("influx", &[&place[..], arguments].concat())
        };
        influx(&["-execute", "CREATE DATABASE points"])?;
        assert_eq!(
            influx(&["-execute", "SHOW DATABASES"])?,
            "name,name\ndatabases,opentsdb\ndatabases,points\n"
        );
        let file = series.place.argument("import")?;
        let mut lines = "# DDL\nCREATE DATABASE more\n# DML\n# CONTEXT-DATABASE: more\n".to_owned();
        for at in 0..10_000 {
            lines += &format!("m,host=h{} v={at}i {at}\n", at % 10);
        }
        std::fs::write(&file, lines)?;
        let said = influx(&["-import", "-path", &file])?;
        assert!(
            said.contains("Processed 10000 inserts") && said.contains("Failed 0 inserts"),
            "{said}"
        );
        influx(&["-database", "points", "-execute", "INSERT m,host=x v=1.5,text=\"a b\" 5"])?;
        let found = influx(&["-database", "points", "-execute", "SELECT * FROM m"])?;
        assert_eq!(found, "name,time,host,text,v\nm,5,x,a b,1.5\n");
        let counted = "SELECT count(v), sum(v), max(v) FROM m WHERE host = 'h3'";
        let found = influx(&["-database", "more", "-execute", counted])?;
        assert_eq!(found, "name,time,count,sum,max\nm,0,1000,4998000,9993\n");
        let groups = "SELECT mean(v) FROM m WHERE time >= 0 AND time < 20 GROUP BY time(10ns)";
        let found = influx(&["-database", "more", "-execute", groups])?;
        assert_eq!(found, "name,time,mean\nm,0,4.5\nm,10,14.5\n");
        let (is_done, said) =
            run("influx", &["-host", "127.0.0.1", "-port", &port, "-execute", "SELECT"])?;
        assert!(!is_done && said.contains("error parsing query"), "{said}");
        series.finish(served)?;
        let served = series.serve(&[])?;
        let asked =
            ["ts", "query", "--url", &format!("http://{}", served.address), "--database", "more"];
        let found = expect(0, &[&asked[..], &[counted]].concat())?;
        assert_eq!(found, "name,tags,time,count,sum,max\nm,,0,1000,4998000,9993\n");
        series.finish(served)?;
        let found = series.expect(0, "query", &["--json", "--database", "more", counted])?;
        let expected = "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"m\",\"columns\":[\"time\",\"count\",\"sum\",\
            \"max\"],\"values\":[[\"1970-01-01T00:00:00Z\",1000,4998000,9993]]}]}]}\n";
        assert_eq!(found, expected);
        series.expect(3, "query", &["--database", "none", "SELECT v FROM m"])?;
        series.expect(3, "query", &["--database", "more", "SELECT"])?;
    }
    Ok(())
}

#[test]
fn the_client_of_python_writes_and_asks() -> Outcome<()> {
    if lack(&["influxdb-python"])? {
        return Ok(());
    }
    let series = Series::new(Place::in_memory()?, "auto")?;
    let secret = series.place.argument("secret")?;
    std::fs::write(&secret, "hush\n")?;
    let served = series.serve(&["--requirepass-file", &secret, "--http-user", "me"])?;
    let port = served.address.rsplit(':').next().unwrap_or_default();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/influxdb_client.py");
    let said = succeeds("python3", &[text(&script)?, port, "me", "hush"])?;
    assert_eq!(said.trim_end().lines().last(), Some("done"), "{said}");
    series.finish(served)
}
