//! Queries of a store, and the answers that InfluxDB 1.6.7 gave to them.
//!
//! `queries/data.lp` has the points that are written, and `queries/*.txt` are golden scripts: a line that begins
//! with `> ` is a query; the lines after it are the answer. `bench-peers/influx/golden.py` asks InfluxDB, so the
//! answers are checked by a second implementation. Every script is run over points in the head, over sealed points,
//! and over a store that was opened again. Floats may differ by 1e-12.

#[path = "queries/kinds.rs"]
mod kinds;
#[path = "queries/memory.rs"]
mod memory;
#[path = "queries/numbers.rs"]
mod numbers;

use coreplane_tsdb::influxql::{Answer, Cell, Limits, Request, Table, run};
use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store};
use smallvec::SmallVec;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The value of `now()`: 2020-09-13T13:26:40Z.
const NOW: i64 = 1_600_003_600_000_000_000;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queries")
}

fn opened(at: &Path) -> Store {
    let options = Options { sets: 2, size: 64 << 20, head_bytes: 1 << 20, ..Options::default() };
    Store::open(at, &options).unwrap()
}

/// A point of a line without escapes.
fn point(line: &str) -> Point<'_> {
    let (series, rest) = line.split_once(' ').unwrap();
    let (fields, time) = rest.rsplit_once(' ').unwrap();
    let mut point = Point {
        series: SeriesKey::of_text(series).unwrap(),
        fields: SmallVec::new(),
        time: time.parse().unwrap(),
    };
    for field in fields.split(',') {
        let (name, value) = field.split_once('=').unwrap();
        let value = match value {
            "true" => FieldValue::Boolean(true),
            "false" => FieldValue::Boolean(false),
            text if text.starts_with('"') => FieldValue::String(text.trim_matches('"').into()),
            text => match text.strip_suffix('i') {
                Some(integer) => FieldValue::Integer(integer.parse().unwrap()),
                None => FieldValue::Float(text.parse().unwrap()),
            },
        };
        point.fields.push((name.into(), value));
    }
    point
}

fn write(store: &Store) {
    store.create_database("d").unwrap();
    let data = fs::read_to_string(directory().join("data.lp")).unwrap();
    let points: Vec<Point<'_>> = data.lines().map(point).collect();
    for some in points.chunks(50) {
        let outcome = store.write("d", None, some).unwrap();
        assert_eq!(outcome.rejected, []);
    }
}

fn limits() -> Limits {
    Limits {
        rows_max: 100_000,
        buckets_max: 100_000,
        bytes_max: 64 << 20,
        deadline: Instant::now() + Duration::from_secs(100),
        cancel: None,
        threads_max: 0,
    }
}

fn request<'q>(text: &'q str, limits: Limits) -> Request<'q> {
    Request { text, database: Some("d"), policy: None, now: NOW, is_read_only: false, limits }
}

fn asked(store: &Store, text: &str) -> Vec<Answer> {
    run(store, &request(text, limits())).unwrap()
}

fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Null => "null".to_owned(),
        Cell::Time(it) | Cell::Integer(it) => it.to_string(),
        Cell::Float(it) => it.to_string(),
        Cell::Unsigned(it) => it.to_string(),
        Cell::Boolean(it) => it.to_string(),
        Cell::String(it) => format!("{it:?}"),
    }
}

fn table(table: &Table, to: &mut String) {
    let tags: Vec<String> =
        table.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let name = table.name.as_deref().unwrap_or("-");
    writeln!(to, "{name} {{{}}} {}", tags.join(","), table.columns.join(", ")).unwrap();
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(shown).collect();
        writeln!(to, "  {}", cells.join(", ")).unwrap();
    }
}

fn rendered(answers: &[Answer]) -> String {
    let mut text = String::new();
    for answer in answers {
        match &answer.outcome {
            Ok(tables) => tables.iter().for_each(|it| table(it, &mut text)),
            Err(error) => writeln!(text, "! {error}").unwrap(),
        }
    }
    text
}

fn is_close(one: &str, other: &str) -> bool {
    let (Ok(one), Ok(other)) = (one.parse::<f64>(), other.parse::<f64>()) else { return false };
    (one - other).abs() <= 1e-12 * one.abs().max(other.abs())
}

fn is_same(one: &str, other: &str) -> bool {
    let (a, b): (Vec<&str>, Vec<&str>) =
        (one.trim().split(", ").collect(), other.trim().split(", ").collect());
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a == b || is_close(a, b))
}

/// Runs the queries of a script and compares the answers.
fn check(store: &Store, path: &Path) {
    let script = fs::read_to_string(path).unwrap();
    let mut count = 0;
    for part in script.split("\n> ").skip(1) {
        let (query, expected) = part.split_once('\n').unwrap_or((part, ""));
        let expected: Vec<&str> = expected.lines().filter(|it| !it.starts_with('#')).collect();
        let expected: Vec<&str> = expected.into_iter().filter(|it| !it.is_empty()).collect();
        let answer = rendered(&asked(store, query));
        let found: Vec<&str> = answer.lines().collect();
        let is_equal = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, expected)| is_same(found, expected));
        assert!(is_equal, "{query}\nis\n{answer}\nand should be\n{}", expected.join("\n"));
        count += 1;
    }
    assert!(count > 5, "{} has {count} queries", path.display());
}

#[test]
fn answers_are_those_of_influxdb() {
    let directory_of_store = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = directory_of_store.path().join("ts");
    let mut scripts: Vec<PathBuf> =
        fs::read_dir(directory()).unwrap().map(|it| it.unwrap().path()).collect();
    scripts.retain(|it| it.extension().is_some_and(|it| it == "txt"));
    scripts.sort();
    assert!(scripts.len() >= 5);
    let store = opened(&at);
    write(&store);
    scripts.iter().for_each(|it| check(&store, it));
    drop(store);
    let store = opened(&at);
    scripts.iter().for_each(|it| check(&store, it));
}

/// A store with a point a second for some hours.
fn dense() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let lines: Vec<String> =
        (0..20_000_i64).map(|at| format!("m,host=a f={at} {}", at * 1_000_000_000)).collect();
    let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
    store.write("d", None, &points).unwrap();
    (directory, store)
}

fn error(store: &Store, text: &str, limits: Limits) -> String {
    let answers = run(store, &request(text, limits)).unwrap();
    let last = answers.last().unwrap();
    last.outcome.clone().map(|it| format!("{} tables of {text}", it.len())).unwrap_err()
}

#[test]
fn each_limit_ends_a_statement() {
    let (_directory, store) = dense();
    for text in [
        "SELECT mean(f) FROM m WHERE time >= 0 AND time < 100w GROUP BY time(1ns) fill(0)",
        "SELECT mean(f) FROM m WHERE time >= 0 GROUP BY time(1u)",
        "SELECT mean(f) FROM m GROUP BY time(1u)",
        "SELECT mean(f) FROM m GROUP BY time(1u) ORDER BY time DESC",
        "SELECT median(f) FROM m GROUP BY time(1u)",
        "SELECT derivative(mean(f)) FROM m WHERE time >= 0 GROUP BY time(1u)",
        "SELECT max(mean) FROM (SELECT mean(f) FROM m GROUP BY time(1u) fill(0))",
    ] {
        let said = error(&store, text, limits());
        assert!(said.contains("max-select-buckets"), "{text}: {said}");
    }
    let small = Limits { bytes_max: 100_000, ..limits() };
    for text in
        ["SELECT f FROM m", "SELECT median(f) FROM m", "SELECT max(f) FROM (SELECT f FROM m)"]
    {
        let said = error(&store, text, small.clone());
        assert!(said.contains("max-select-bytes"), "{text}: {said}");
    }
    assert!(
        error(&store, "SELECT moving_average(f, 1000000) FROM m", small.clone())
            .contains("max-select-bytes")
    );
    let stars = format!("SELECT {}* FROM m", "*,".repeat(2000));
    assert!(error(&store, &stars, small.clone()).contains("max-select-bytes"));
    let long = "x".repeat(2000);
    for text in [
        format!("SELECT f AS \"{long}\" FROM m GROUP BY *"),
        format!("SELECT {} mean(*) AS \"{long}\" FROM m", "mean(*),".repeat(20)),
    ] {
        let few = Limits { bytes_max: 20_000, ..limits() };
        assert!(error(&store, &text, few).contains("max-select-bytes"), "{text}");
    }
    let shown = "SHOW CONTINUOUS QUERIES;".repeat(1000);
    assert!(error(&store, &shown, small.clone()).contains("max-select-bytes"));
    // Bytes that a statement has held are free for the next one, except those of its answer.
    let three = "SELECT count(median) FROM (SELECT median(f) FROM m GROUP BY time(10s));".repeat(3);
    let enough = Limits { bytes_max: 700_000, ..limits() };
    let all = run(&store, &request(&three, enough)).unwrap();
    assert_eq!(all.iter().filter(|it| it.outcome.is_ok()).count(), 3, "{all:?}");
    let few = Limits { rows_max: 100, ..limits() };
    assert!(error(&store, "SELECT f FROM m", few).contains("max-row-limit"));
    let late = Limits { deadline: Instant::now(), ..limits() };
    for text in ["SELECT f FROM m", "SELECT mean(f) FROM m", "SHOW SERIES"] {
        assert!(error(&store, text, late.clone()).contains("query-timeout"), "{text}");
    }
    let unwanted = Limits { cancel: Some(Arc::new(AtomicBool::new(true))), ..limits() };
    for text in ["SELECT f FROM m", "SELECT mean(f) FROM m", "SHOW SERIES"] {
        assert_eq!(error(&store, text, unwanted.clone()), "query interrupted", "{text}");
    }
}

/// A point that is held counts with its text.
#[test]
fn the_texts_of_strings_count() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    for at in 0..200 {
        let line = format!("m s=\"{at}{}\" {at}", "x".repeat(10_000));
        assert_eq!(store.write("d", None, &[point(&line)]).unwrap().written, 1);
    }
    let small = Limits { bytes_max: 1 << 20, ..limits() };
    for text in ["SELECT mode(s) FROM m", "SELECT count(distinct(s)) FROM m"] {
        assert!(error(&store, text, small.clone()).contains("max-select-bytes"), "{text}");
        assert!(asked(&store, text).iter().all(|it| it.outcome.is_ok()), "{text}");
    }
}

/// The first and the last text of a bucket count, and a number of points needs none.
#[test]
fn the_texts_of_tallies_count() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let long = "x".repeat(10_000);
    for at in 0..200 {
        let time = at * 1_000_000_000_i64;
        // The first and the last text of a group may be empty.
        let inner = if (1..199).contains(&at) { &long } else { "" };
        let lines = [
            format!("m f=1,s=\"{at}{long}\" {time}"),
            format!("n,host={at} s=\"{long}\" {time}"),
            format!("e,host=0 s=\"{inner}\" {time}"),
            format!("e,host=1 s=\"{inner}\" {time}"),
        ];
        let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
        assert_eq!(store.write("d", None, &points).unwrap().written, 4);
    }
    for is_sealed in [false, true] {
        if is_sealed {
            store.seal().unwrap();
        }
        for threads_max in [0, 1] {
            let small = Limits { bytes_max: 1 << 20, threads_max, ..limits() };
            for rest in ["FROM m", "FROM m WHERE f = 1", "FROM n", "FROM n, m", "FROM e"] {
                let in_buckets = format!("{rest} GROUP BY time(1s) fill(none) LIMIT 1");
                for chosen in ["first(s)", "last(s)", "count(s), last(s)"] {
                    let text = format!("SELECT {chosen} {in_buckets}");
                    let said = error(&store, &text, small.clone());
                    assert!(said.contains("max-select-bytes"), "{text}: {said}");
                    assert!(asked(&store, &text).iter().all(|it| it.outcome.is_ok()), "{text}");
                }
                if rest.contains("WHERE") {
                    // The points that are looked at one by one are held with their texts.
                    continue;
                }
                // One bucket has few texts.
                for text in [
                    format!("SELECT count(s) {in_buckets}"),
                    format!(
                        "SELECT difference(count(s)) {rest} GROUP BY time(1s) fill(none) LIMIT 1"
                    ),
                    format!("SELECT first(s), last(s) {rest}"),
                ] {
                    let few = run(&store, &request(&text, small.clone())).unwrap();
                    assert!(few.iter().all(|it| it.outcome.is_ok()), "{text}: {few:?}");
                    assert_eq!(few, asked(&store, &text), "{text}");
                }
            }
        }
    }
}

/// Only the keys that are shown are copied, and these count with their texts.
#[test]
fn the_texts_of_shown_series_count() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let long = "x".repeat(10_000);
    let lines: Vec<String> =
        (0..100).map(|at| format!("m{},host={at}{long} f=1 5", at % 3)).collect();
    let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
    assert_eq!(store.write("d", None, &points).unwrap().written, 100);
    let small = Limits { bytes_max: 100_000, ..limits() };
    assert!(error(&store, "SHOW SERIES", small.clone()).contains("max-select-bytes"));
    let text = "SHOW SERIES LIMIT 3 OFFSET 33";
    let few = run(&store, &request(text, small)).unwrap();
    assert_eq!(few, asked(&store, text));
    let shown = rendered(&few);
    let keys: Vec<&str> = shown.split('"').filter(|it| it.starts_with('m')).collect();
    let mut all: Vec<String> =
        lines.iter().map(|it| it.split(' ').next().unwrap().to_owned()).collect();
    all.sort();
    assert_eq!(keys, all[33..36], "{shown}");
}

#[test]
fn statements_behind_an_error_are_not_run() {
    let (_directory, store) = dense();
    let answers = asked(&store, "SELECT count(f) FROM m; SELECT nope(f) FROM m; DROP DATABASE d");
    assert_eq!(answers.len(), 2);
    assert!(answers.first().is_some_and(|it| it.outcome.is_ok()));
    assert!(answers.last().is_some_and(|it| it.outcome.is_err()));
    assert_eq!(store.databases().len(), 1);
}

#[test]
fn names_are_changed_by_statements_that_may() {
    let (_directory, store) = dense();
    let refused = Request { is_read_only: true, ..request("DROP DATABASE d", limits()) };
    let said = run(&store, &refused).unwrap();
    assert!(
        said.first().is_some_and(|it| it.outcome.clone().is_err_and(|it| it.contains("read only")))
    );
    let policies = |text: &str| {
        assert_eq!(rendered(&asked(&store, text)), "", "{text}");
        rendered(&asked(&store, "SHOW RETENTION POLICIES"))
    };
    let shown = policies("CREATE RETENTION POLICY p ON d DURATION 3d REPLICATION 1");
    assert!(shown.contains(r#""p", "72h0m0s", "24h0m0s", 1, false"#), "{shown}");
    let shown = policies("ALTER RETENTION POLICY p ON d DURATION INF DEFAULT");
    assert!(shown.contains(r#""p", "0s", "24h0m0s", 1, true"#), "{shown}");
    let shorter = asked(&store, "ALTER RETENTION POLICY p ON d DURATION 2h");
    let shorter = rendered(&shorter);
    assert!(shorter.contains("must be greater than the shard duration"), "{shorter}");
    let shown = policies("ALTER RETENTION POLICY p ON d DURATION 2h SHARD DURATION 1h");
    assert!(shown.contains(r#""p", "2h0m0s", "1h0m0s", 1, true"#), "{shown}");
    let shown = policies("DROP RETENTION POLICY p ON d");
    assert!(!shown.contains(r#""p""#), "{shown}");
    assert_eq!(rendered(&asked(&store, "CREATE DATABASE e WITH DURATION 1d NAME q")), "");
    let shown = rendered(&asked(&store, "SHOW RETENTION POLICIES ON e"));
    assert!(shown.contains(r#""q", "24h0m0s", "1h0m0s", 1, true"#), "{shown}");
    assert!(!shown.contains("autogen"), "{shown}");
}

/// Two points that are far apart are two buckets, however narrow the buckets are.
#[test]
fn buckets_count_if_they_are_made_and_once() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let points = ["m f=1 5", "m f=2 900000000000000007"].map(point);
    store.write("d", None, &points).unwrap();
    for is_sealed in [false, true] {
        if is_sealed {
            store.seal().unwrap();
        }
        for range in ["", " WHERE time >= 0", " WHERE time > 3 AND f > 0"] {
            let text = format!("SELECT sum(f) FROM m{range} GROUP BY time(1u) fill(none)");
            let found = rendered(&asked(&store, &text));
            assert_eq!(found, "m {} time, sum\n  0, 1\n  900000000000000000, 2\n", "{text}");
        }
        let filled = "SELECT sum(f) FROM m WHERE time >= 0 GROUP BY time(1u)";
        assert!(error(&store, filled, limits()).contains("max-select-buckets"));
        // Ten filled buckets count as ten.
        let ten = Limits { buckets_max: 10, ..limits() };
        let text = "SELECT sum(f) FROM m WHERE time >= 0 AND time < 10u GROUP BY time(1u)";
        let found = rendered(&run(&store, &request(text, ten.clone())).unwrap());
        assert_eq!(found.lines().count(), 11, "{found}");
        let text = "SELECT sum(f) FROM m WHERE time >= 0 AND time < 11u GROUP BY time(1u)";
        assert!(error(&store, text, ten).contains("max-select-buckets"));
    }
}

/// Buckets are counted by their bytes while they are made, also for points that are looked at one by one.
#[test]
fn tallies_end_a_statement_before_they_are_made() {
    let (_directory, store) = dense();
    let small = Limits { bytes_max: 200_000, threads_max: 1, ..limits() };
    for text in [
        "SELECT sum(f) FROM m GROUP BY time(1s) fill(none)",
        "SELECT sum(f) FROM m WHERE f >= 0 GROUP BY time(1s) fill(none)",
    ] {
        let said = error(&store, text, small.clone());
        let held: Vec<usize> =
            said.split(['(', '/', ')']).filter_map(|it| it.parse().ok()).collect();
        // All buckets together would take three million bytes.
        assert!(said.contains("max-select-bytes") && held[0] < 400_000, "{text}: {said}");
    }
}

/// Names belong to their database, and to none of its policies.
#[test]
fn names_are_shown_and_dropped_without_a_default_policy() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    write(&store);
    let shows = [
        "SHOW MEASUREMENTS",
        "SHOW SERIES",
        "SHOW TAG KEYS",
        "SHOW TAG VALUES WITH KEY = host",
        "SHOW FIELD KEYS",
        "SHOW SERIES EXACT CARDINALITY",
    ];
    let said = |text: &str| rendered(&asked(&store, text));
    let before = shows.map(said);
    assert_eq!(said("DROP RETENTION POLICY autogen ON d"), "");
    assert_eq!(shows.map(said), before);
    assert!(said("SELECT * FROM cpu").starts_with("! retention policy not found"));
    let count = |text: &str| said(text).lines().count();
    assert!(said("DROP SERIES FROM cpu WHERE f = 1").starts_with("! fields"));
    assert_eq!(said("DROP SERIES FROM cpu WHERE host = 'a'"), "");
    assert!(count("SHOW SERIES") < before[1].lines().count());
    assert_eq!(said("DROP MEASUREMENT cpu"), "");
    assert_eq!(count("SHOW MEASUREMENTS"), before[0].lines().count() - 1);
}

#[test]
fn what_is_as_deep_as_it_may_be_is_run() {
    let (_directory, store) = dense();
    let open = |of: &str| of.repeat(900);
    let texts = [
        format!("SELECT f FROM m WHERE f = 1{}", open(" OR f = 1").get(..3600).unwrap_or("")),
        format!("SELECT f FROM m WHERE {}f = 1{}", open("("), open(")")),
        format!("SELECT {}f{} FROM m LIMIT 1", open("abs("), open(")")),
        format!("SELECT f{} FROM m LIMIT 1", open(" + 1")),
        format!(
            "SELECT f FROM m WHERE {}f{} > 5 AND host = 'b'",
            "-(".repeat(300),
            ")".repeat(300)
        ),
    ];
    for text in texts {
        // Threads of a server have a stack of 2 MiB, as this one has.
        let answers = asked(&store, &text);
        assert_eq!(answers.len(), 1);
    }
}
