//! Time series as a user sees them: `coreplane ts` and `coreplane serve --http-port`, on memory and on an ordinary
//! file.

mod pool;
mod series;
mod session;

use pool::Place;
use series::{Series, ask, query};
use session::{Outcome, Reply, Served, expect, expect_with};
use std::path::Path;
use std::time::{Duration, Instant};

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
        // Compressed, into another store.
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

/// All databases and policies, into a store that has none of them; strings contain texts like headings.
#[test]
fn a_store_is_exported_and_imported_as_a_whole() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    series.make()?;
    let statements = [
        r#"CREATE DATABASE "first one" WITH DURATION 52w SHARD DURATION 2d NAME "a \"year\"""#,
        r#"CREATE RETENTION POLICY hours ON "first one" DURATION 3000w REPLICATION 1"#,
        "CREATE DATABASE second",
        "CREATE RETENTION POLICY long ON second DURATION INF REPLICATION 1 DEFAULT",
    ];
    for statement in statements {
        series.expect(0, "query", &[statement])?;
    }
    let text = b"# CONTEXT-DATABASE: first one \n# CONTEXT-RETENTION-POLICY:hours\n\
        m,t=3.5\" v=\"a\n# DDL\n# CONTEXT-DATABASE:no\n\",w=1i 1600000000000000000\nm v=\"b\" 1600000000000000001\n\
        # CONTEXT-DATABASE:second\nm u=1 1\n# CONTEXT-RETENTION-POLICY:autogen\nm u=2 2\nm u= 3\n";
    let output = session::coreplane(&series.with("import", &[]), text)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(&output.stdout[..], b"4 points written, 1 refused\n", "{said}");
    assert!(said.contains("line 12: "), "{said}");
    let all = series.expect(0, "export", &[])?;
    let (head, points) = all.split_once("# DML\n").unwrap_or_default();
    assert!(head.starts_with("# DDL\nCREATE DATABASE ") && head.lines().count() >= 6, "{all}");
    assert!(!head.contains("NAME hours") && points.contains("POLICY:autogen\nm u=2 2\n"), "{all}");
    for packed in [false, true] {
        let other = Series::new(Place::in_memory()?, "auto")?;
        other.make()?;
        let file = series.place.argument(if packed { "all.gz" } else { "all" })?;
        let arguments = ["--gzip", &file];
        series.expect(0, "export", &arguments[usize::from(!packed)..])?;
        assert_eq!(other.expect(0, "import", &[&file])?, "4 points written, 0 refused\n");
        assert_eq!(other.expect(0, "export", &[])?, all);
        for database in ["first one", "second"] {
            let ask = format!("SHOW RETENTION POLICIES ON \"{database}\"");
            let sorted = |answer: String| {
                let mut lines: Vec<_> = answer.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            let asked = sorted(series.expect(0, "query", &[&ask])?);
            assert_eq!(sorted(other.expect(0, "query", &[&ask])?), asked);
        }
        // All of it into one database: then the headings are ignored.
        let said = other.expect(0, "import", &["--database", "one", &file])?;
        assert_eq!(said, "4 points written, 0 refused\n");
        assert_eq!(other.expect(0, "export", &["--database", "one"])?.lines().count(), 7);
    }
    let said = session::coreplane(&series.with("import", &[]), b"m v=1 1\n")?;
    assert_eq!(said.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&said.stderr).contains("--database"));
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
    // The store is open, and the port is in use.
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
        "--ts-query-threads",
        "1",
        "--ts-last-memory-max",
        "0",
        "--metrics",
        "127.0.0.1:0",
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
    for line in [
        "coreplane_http_points_written_total 1",
        "coreplane_ts_series 1",
        "coreplane_ts_in_trouble 0",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}: {metrics}");
    }
    let info = client.call(&[b"INFO", b"timeseries"])?.text().unwrap_or_default();
    for line in [
        "ts_enabled:1",
        "ts_points_written:1",
        "ts_series:1",
        "ts_scrub_damaged:0",
        "ts_trouble:none",
    ] {
        assert!(info.contains(&format!("\r\n{line}\r\n")), "{line}: {info}");
    }
    // The same figures on the metrics endpoint of the Redis side.
    let scraped = served.line.split("metrics on ").nth(1).and_then(|rest| rest.split(';').next());
    let scraped = ask(scraped.ok_or("no metrics")?, "GET", "/metrics", "")?.1;
    for line in [
        "coreplane_ts_points_written_total 1",
        "coreplane_ts_series 1",
        "coreplane_ts_scrub_damaged_total 0",
    ] {
        assert!(scraped.contains(&format!("\n{line}\n")), "{line}: {scraped}");
    }
    assert!(!scraped.contains("Nobody has said"), "{scraped}");
    served.terminate()?;
    let there =
        expect(0, &["ts", "export", "--pool", &format!("{pool}.ts"), "--database", "opentsdb"])?;
    assert_eq!(there, "m v=1 1\n");
    assert_eq!(expect(0, &["get", "--pool", &pool, "key"])?.trim_end(), "value");
    Ok(())
}

#[test]
fn series_without_end_are_refused_and_the_others_stay() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&["--series-max", "200"])?;
    let kept: String = (0..100).map(|at| format!("kept,t={at} v={at} 7\n")).collect();
    assert_eq!(ask(&served.address, "POST", "/write?db=opentsdb", &kept)?.0, 204);
    for round in 0..5 {
        // Valid lines among them are written: those of existing series.
        let bomb: String = (0..20_000)
            .map(|at| format!("bomb,t={round}x{at} v=1 1\nkept,t={} v={round} {at}\n", at % 100))
            .collect();
        let (status, body) = ask(&served.address, "POST", "/write?db=opentsdb", &bomb)?;
        let dropped = if round == 0 { 19_900 } else { 20_000 };
        let reason = "partial write: max-series-per-database limit exceeded: (200)";
        assert_eq!(
            (status, body),
            (400, format!("{{\"error\":\"{reason} dropped={dropped}\"}}\n"))
        );
    }
    let counted = query(&served.address, "SELECT count(v) FROM kept, bomb")?;
    assert!(counted.contains("[[0,20099]]") && counted.contains("[[0,100]]"), "{counted}");
    // Dropped series make room for others.
    query(&served.address, "DROP MEASUREMENT bomb")?;
    assert_eq!(ask(&served.address, "POST", "/write?db=opentsdb", "new,t=1 v=1 1")?.0, 204);
    series.finish(served)
}

#[test]
fn names_that_take_too_much_memory_are_refused_and_exported_names_are_not() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&["--names-memory-max", "64KiB"])?;
    let lines: String = (0..1000).map(|at| format!("m,t{at}={at} v=1 1\n")).collect();
    let (status, body) = ask(&served.address, "POST", "/write?db=opentsdb", &lines)?;
    let reason = "partial write: max-names-memory limit exceeded: (65536 bytes) dropped=";
    assert!(status == 400 && body.contains(reason), "{status} {body}");
    let counted = query(&served.address, "SELECT count(v) FROM m")?;
    assert!(counted.contains("\"count\""), "{counted}");
    series.finish(served)?;
    // The limit is the server's. A backup can be restored whatever it was.
    let file = series.place.argument("lines")?;
    std::fs::write(&file, &lines)?;
    let arguments = ["--database", "d", "--balance", "hash", "--interval-tag", "interval", &file];
    assert_eq!(series.expect(0, "import", &arguments)?, "1000 points written, 0 refused\n");
    Ok(())
}

/// A number of 40 bits that looks random.
fn scattered(number: u64) -> u64 {
    // Two rounds: multiples of one number would compress to almost nothing.
    let once = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (once ^ once >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 24
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has() -> Outcome<()> {
    for series in Series::both()? {
        let series = Series { size: "8MiB", ..series };
        let served = series.serve(&[])?;
        let mut acknowledged = 0;
        let full = loop {
            // Several batches, during which it may get full; values that do not compress.
            let lines: String = (0..12_000)
                .map(|at| {
                    let value = scattered(acknowledged * 12_000 + at);
                    format!("m,b={acknowledged},t={} v={value}i {at}\n", at % 7)
                })
                .collect();
            let (status, body) = ask(&served.address, "POST", "/write?db=opentsdb", &lines)?;
            if status != 204 {
                break (status, body);
            }
            acknowledged += 1;
            assert!(acknowledged < 1_000, "it is never full");
        };
        assert_eq!(full.0, 500, "{}", full.1);
        assert!(full.1.contains("engine: the store is full"), "{}", full.1);
        let check = |address: &str| {
            for batch in 0..acknowledged {
                let asked = format!("SELECT count(v), sum(v) FROM m WHERE b = '{batch}'");
                let found = query(address, &asked)?;
                let sum: u64 = (0..12_000).map(|at| scattered(batch * 12_000 + at)).sum();
                assert!(found.contains(&format!("[[0,12000,{sum}]]")), "{batch}: {found}");
            }
            Outcome::Ok(())
        };
        assert!(acknowledged > 0, "{}", full.1);
        check(&served.address)?;
        served.kill()?;
        let served = series.serve(&[])?;
        check(&served.address)?;
        // A drop makes room again.
        query(&served.address, "DROP MEASUREMENT m")?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while ask(&served.address, "POST", "/write?db=opentsdb", "n v=1 1")?.0 != 204 {
            assert!(Instant::now() < deadline, "there is no room though all is dropped");
            std::thread::sleep(Duration::from_millis(100));
        }
        series.finish(served)?;
    }
    Ok(())
}

/// A figure of a server, by its name in `/metrics`.
fn figure(address: &str, name: &str) -> Outcome<u64> {
    let metrics = ask(address, "GET", "/metrics", "")?.1;
    let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let value = lines.find_map(|line| line.strip_prefix(' ')).ok_or("no such figure")?;
    Ok(value.parse()?)
}

/// Waits until a figure is so high.
fn wait_for(address: &str, name: &str, least: u64) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while figure(address, name)? < least {
        assert!(Instant::now() < deadline, "{name} stays below {least}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Flips a bit of the first chunk of a segment, by the table of pages.
fn flip(pool: &str) -> Outcome<bool> {
    const PAGE: usize = 128 << 10;
    let mut bytes = std::fs::read(pool)?;
    let words = bytes.get(PAGE..2 * PAGE).ok_or("no table")?.as_chunks::<8>().0;
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    // The role of a page of a segment, and the segment's first page.
    let first = words.position(|word| word >> 44 & 15 == 4 && word & 0xffff == 0);
    let Some(byte) = first.and_then(|page| bytes.get_mut(page * PAGE)) else { return Ok(false) };
    *byte ^= 1;
    std::fs::write(pool, bytes)?;
    Ok(true)
}

/// True if a head has been sealed. After each batch the thread that seals has a tenth of a second, so that the pool
/// does not get full before it runs.
fn is_sealed(address: &str) -> Outcome<bool> {
    for _ in 0..20 {
        if figure(address, "coreplane_ts_segments")? > 0 {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

#[test]
fn a_served_store_finds_damage_that_nobody_has_asked_for() -> Outcome<()> {
    for series in Series::both()? {
        let series = Series { size: "8MiB", ..series };
        let served = series.serve(&[])?;
        // Until a head is large enough to be sealed.
        let mut batch = 0;
        while !is_sealed(&served.address)? {
            let value = |at: u64| scattered(batch * 12_000 + at);
            let lines: String = (0..12_000)
                .map(|at| format!("m,t={} v={}i {}\n", at % 7, value(at), batch * 12_000 + at))
                .collect();
            assert_eq!(ask(&served.address, "POST", "/write?db=opentsdb", &lines)?.0, 204);
            batch += 1;
        }
        wait_for(&served.address, "coreplane_ts_scrub_pages_total", 1)?;
        assert_eq!(figure(&served.address, "coreplane_ts_scrub_damaged_total")?, 0);
        series.finish(served)?;
        let pools = ["q0", "q1"].map(|it| format!("{}/{it}", series.pool));
        let flips = pools.iter().map(|it| flip(it)).collect::<Outcome<Vec<bool>>>()?;
        let flipped = flips.iter().filter(|it| **it).count();
        assert!(flipped > 0, "nothing is sealed");
        let served = series.serve(&["--scrub-percent", "50"])?;
        wait_for(&served.address, "coreplane_ts_scrub_rounds_total", 3)?;
        let damaged = figure(&served.address, "coreplane_ts_scrub_damaged_total")?;
        assert_eq!(damaged, flipped as u64);
        served.terminate()?;
        let complaints = std::fs::read_to_string(series.place.path("complaints"))?;
        let told: Vec<&str> = complaints.lines().filter(|it| it.contains("damaged")).collect();
        assert_eq!(told.len(), flipped, "{complaints}");
        assert!(told[0].contains("series \"m,t=") && told[0].contains("database \"opentsdb\""));
        // A scrub of 0 percent does not run.
        let served = series.serve(&["--scrub-percent", "0"])?;
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(figure(&served.address, "coreplane_ts_scrub_rounds_total")?, 0);
        served.terminate()?;
        assert!(series.expect(1, "verify", &[])?.contains("series \"m,t="));
    }
    Ok(())
}

#[test]
fn last_values_are_kept_in_the_memory_that_they_may_take() -> Outcome<()> {
    let series = Series { size: "8MiB", ..Series::new(Place::in_memory()?, "auto")? };
    let served = series.serve(&["--ts-query-threads", "2"])?;
    let mut written = 0;
    while !is_sealed(&served.address)? {
        let line = |at: u64| format!("m,t={} v={at}i,w={}i {at}\n", at % 7, scattered(at));
        let lines: String = (written..written + 7_000).map(line).collect();
        assert_eq!(ask(&served.address, "POST", "/write?db=opentsdb", &lines)?.0, 204);
        written += 7_000;
    }
    let text = "SELECT last(v) FROM m GROUP BY t";
    let found = query(&served.address, text)?;
    for last in written - 7..written {
        assert!(found.contains(&format!(",{last}]]")), "{last}: {found}");
    }
    // Of the queue sets that have sealed points.
    let known = figure(&served.address, "coreplane_ts_last_values")?;
    assert!((1..=7).contains(&known), "{known}");
    assert!(figure(&served.address, "coreplane_ts_last_bytes")? > 0);
    assert_eq!(query(&served.address, text)?, found);
    let known = figure(&served.address, "coreplane_ts_last_values")?;
    assert!((1..=7).contains(&known), "{known}");
    served.terminate()?;
    // Nothing is read ahead of a query, and it may take no memory.
    let served = series.serve(&["--query-threads", "1", "--last-memory-max", "0"])?;
    for _ in 0..2 {
        assert_eq!(query(&served.address, text)?, found);
        assert_eq!(figure(&served.address, "coreplane_ts_last_values")?, 0);
    }
    series.finish(served)
}
