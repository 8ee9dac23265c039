//! The memory of queries: what is held beside rows and buckets counts.

use super::{asked, limits, opened, point, request};
use coreplane_tsdb::Point;
use coreplane_tsdb::influxql::{Limits, run};

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
