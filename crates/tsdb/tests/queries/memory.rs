//! The memory of queries: what is held beside rows and buckets counts.

use super::{asked, limits, opened, point, request};
use coreplane_tsdb::Point;
use coreplane_tsdb::influxql::{Limits, run};

/// Values beside a point count, also if the point takes the place of another one of its tag set.
#[test]
fn the_texts_beside_held_points_count() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let long = "x".repeat(10_000);
    let week = 7 * 24 * 3_600_000_000_000_i64;
    for at in 0..40 {
        // The second point of a series is in a shard of its own, so that one text is read at a time.
        let (first, second) = (at, (at + 1) * week);
        for line in [
            format!("m,host={at} v=1,s=\"\" {first}"),
            format!("m,host={at} v=2,s=\"{at}{long}\" {second}"),
        ] {
            assert_eq!(store.write("d", None, &[point(&line)]).unwrap().written, 1);
        }
    }
    let small = Limits { bytes_max: 200_000, ..limits() };
    for (text, is_answered) in [
        ("SELECT percentile(v, 75), s FROM m", false),
        ("SELECT top(v, host, 1), s FROM m", false),
        ("SELECT max(v), s FROM m", true),
        ("SELECT percentile(v, 75) FROM m", true),
    ] {
        let outcome = run(&store, &request(text, small.clone())).unwrap();
        assert_eq!(outcome[0].outcome.is_ok(), is_answered, "{text}");
        assert!(asked(&store, text)[0].outcome.is_ok(), "{text}");
    }
}

/// All points of a series share the text of a tag.
#[test]
fn the_tags_beside_held_points_count_once() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let path = "p".repeat(10_000);
    let lines: Vec<String> = (0..100).map(|at| format!("m,path={path} v={at} {at}")).collect();
    let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
    assert_eq!(store.write("d", None, &points).unwrap().written, 100);
    for text in ["SELECT percentile(v, 75), path FROM m", "SELECT top(v, 3), path FROM m"] {
        let small = Limits { bytes_max: 200_000, ..limits() };
        let outcome = run(&store, &request(text, small)).unwrap();
        assert!(outcome[0].outcome.is_ok(), "{text}: {:?}", outcome[0].outcome);
    }
}

/// Each field of each series has a cursor while points are merged.
#[test]
fn the_cursors_of_all_fields_count() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let fields: Vec<String> = (0..100).map(|at| format!("f{at}={at}")).collect();
    let fields = fields.join(",");
    let lines: Vec<String> = (0..500).map(|at| format!("m,host={at} {fields} {at}")).collect();
    let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
    for some in points.chunks(50) {
        assert_eq!(store.write("d", None, some).unwrap().written, 50);
    }
    let small = Limits { bytes_max: 4 << 20, ..limits() };
    for (text, is_answered) in [
        ("SELECT * FROM m LIMIT 1", false),
        ("SELECT f0 FROM m WHERE f1 > 5 OR f2 > 5 LIMIT 1", true),
        ("SELECT f0 FROM m LIMIT 1; SELECT f1 FROM m LIMIT 1; SELECT f2 FROM m LIMIT 1", true),
    ] {
        let outcome = run(&store, &request(text, small.clone())).unwrap();
        let is_ok = outcome.iter().all(|it| it.outcome.is_ok());
        assert_eq!(is_ok, is_answered, "{text}: {outcome:?}");
        assert!(asked(&store, text).iter().all(|it| it.outcome.is_ok()), "{text}");
    }
}

/// A series has the rest of the condition that its tags leave, and a group a tag for each dimension.
#[test]
fn what_is_held_for_each_series_counts() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let lines: Vec<String> =
        (0..4000).map(|at| format!("m,host={at:04},odd={} v={at} {at}", at % 2)).collect();
    let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
    for some in points.chunks(500) {
        assert_eq!(store.write("d", None, some).unwrap().written, 500);
    }
    let over = |count: usize| (0..count).map(|at| format!("v > {at}")).collect::<Vec<_>>();
    let (odd, even) = (over(200).join(" OR "), over(199).join(" OR "));
    let dimensions: Vec<String> = (0..900).map(|at| format!("a{at}")).collect();
    let dimensions = dimensions.join(",");
    let small = Limits { bytes_max: 16 << 20, threads_max: 1, ..limits() };
    for (condition, is_answered) in [
        // All series share it.
        (format!("WHERE {odd}"), true),
        // It is another one than that of the series before.
        (format!("WHERE odd = '1' AND ({odd}) OR odd = '0' AND ({even})"), false),
        (format!("WHERE time > '2100-01-01' GROUP BY host,{dimensions}"), false),
        ("WHERE time > '2100-01-01' GROUP BY host,odd".to_owned(), true),
        // A tag that a group has, and no row, does not count.
        (format!("WHERE host = '0001' GROUP BY host,{dimensions}"), true),
    ] {
        let text = format!("SELECT count(v) FROM m {condition}");
        let outcome = run(&store, &request(&text, small.clone())).unwrap();
        assert_eq!(outcome[0].outcome.is_ok(), is_answered, "{text:.90}: {:?}", outcome[0].outcome);
        if !is_answered {
            let error = outcome[0].outcome.clone().unwrap_err();
            assert!(error.starts_with("max-select-bytes"), "{text:.90}: {error}");
        }
    }
}
