//! The memory of statements about very many names, measured: alone in its process.

use coreplane_tsdb::influxql::{Limits, Request, run};
use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store};
use std::time::{Duration, Instant};

/// The most memory that this process had so far, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

fn write(store: &Store, keys: impl Iterator<Item = String>) {
    let keys: Vec<String> = keys.collect();
    let point = |key| Point {
        series: SeriesKey::of_text(key).expect("a key"),
        fields: [("f".into(), FieldValue::Float(1.0))].into_iter().collect(),
        time: 1,
    };
    let points: Vec<_> = keys.iter().map(|key| point(key)).collect();
    let written = store.write("d", None, &points).expect("written").written;
    assert_eq!(written as usize, keys.len());
}

/// A condition is copied for one measurement at a time, and a dimension that is there twice is there once.
#[test]
fn names_are_not_multiplied() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let options = Options { sets: 1, size: 64 << 20, ..Options::default() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("d").expect("a database");
    write(&store, (0..2000).map(|at| format!("m{at},a=b")));
    write(&store, (0..600).map(|at| format!("m,k{at}=1")));
    let condition = format!("WHERE a = '{}'", "x".repeat(100_000));
    let stars = vec!["*"; 900].join(",");
    for text in [
        format!("SHOW SERIES {condition}"),
        format!("SHOW TAG VALUES WITH KEY = a {condition}"),
        format!("SHOW SERIES CARDINALITY {condition}"),
        format!("DROP SERIES {condition}"),
        format!("SELECT count(f) FROM m WHERE time > now() GROUP BY {stars}"),
    ] {
        let deadline = Instant::now() + Duration::from_secs(100);
        let (rows_max, buckets_max, bytes_max) = (1000, 1000, 16 << 20);
        let (cancel, threads_max) = (None, 1);
        let limits = Limits { rows_max, buckets_max, bytes_max, deadline, cancel, threads_max };
        let (database, is_read_only) = (Some("d"), false);
        let request = Request { text: &text, database, policy: None, now: 1, is_read_only, limits };
        let before = peak();
        let answers = run(&store, &request).expect("a query");
        let more = peak() - before;
        assert!(answers[0].outcome.is_ok(), "{text:.40}: {:?}", answers[0].outcome);
        assert!(more < 32 << 20, "{text:.40}: {more} bytes more");
    }
}
