//! Values of a sub-query that are no numbers.

use super::{asked, opened, point};
use coreplane_tsdb::Point;
use coreplane_tsdb::influxql::Cell;

#[test]
fn what_is_no_number_is_sorted_as_well() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = opened(&directory.path().join("ts"));
    store.create_database("d").unwrap();
    let mut draw = 1_u64;
    for round in 0..50 {
        let lines: Vec<String> = (0..40)
            .map(|at| {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                format!("m{round} v={} {at}", (draw >> 33) as i32 % 90 - 30)
            })
            .collect();
        let points: Vec<Point<'_>> = lines.iter().map(|it| point(it)).collect();
        store.write("d", None, &points).unwrap();
        for call in ["median(x)", "percentile(x, 90)", "mode(x)", "top(x, 30)", "distinct(x)"] {
            let text = format!("SELECT {call} FROM (SELECT sqrt(v) AS x FROM m{round})");
            assert!(asked(&store, &text).iter().all(|it| it.outcome.is_ok()), "{text}");
        }
    }
    // It replaces no number, and is behind all of them in a sort, whatever its sign.
    let points = ["m v=4 1", "m v=-1 2", "m v=1 3", "m v=9 4"].map(point);
    store.write("d", None, &points).unwrap();
    for inner in ["sqrt(v)", "sqrt(v) * -1 * -1", "abs(sqrt(v))"] {
        let calls = "min(x), max(x), median(x), percentile(x, 50)";
        let text = format!("SELECT {calls} FROM (SELECT {inner} AS x FROM m)");
        let tables = asked(&store, &text)[0].outcome.clone().unwrap();
        let wanted = [1.0, 3.0, 2.5, 2.0].map(Cell::Float);
        assert_eq!(tables[0].rows[0][1..], wanted, "{text}");
    }
}
