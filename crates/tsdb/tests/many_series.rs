//! Queries of many series, which several threads read, answer the same as with one thread, bit by bit. Fields that
//! are read together give the same results as each of them alone.
//!
//! Series have gaps, late points, and fields that not all points have; some points are sealed, some are in the
//! head. Floats are of very different sizes, so that a sum in another order differs. With one core there is one
//! thread, and these tests compare it with itself. `COREPLANE_TEST_SCALE=full` draws more cases.

use coreplane_tsdb::influxql::{Answer, Cell, Limits, Request, run};
use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SERIES: usize = 150;
const SECOND: i64 = 1_000_000_000;
/// Some minutes before a shard ends.
const START: i64 = 1_600_041_000 * SECOND;

/// A point: the series, the second, and values of `a`, `b` and `c`, with twelve ways to omit some of them.
type Drawn = (usize, i64, f64, i64, u8);

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let float = prop_oneof![-1e3..1e3, -1e18..1e18, Just(0.0), Just(-0.0), -1e-9..1e-9];
    let point = (0..SERIES, 0_i64..1500, float, any::<i64>(), 0_u8..12);
    proptest::collection::vec(point, 2000..6000)
}

fn points(drawn: &[Drawn]) -> Vec<Point<'_>> {
    let made = drawn.iter().map(|(series, second, float, integer, left_out)| {
        let (host, rack) = (format!("h{series:03}"), format!("r{}", series % 7));
        let mut fields: SmallVec<_> = SmallVec::new();
        fields.push(("a".into(), FieldValue::Float(*float)));
        if left_out % 2 == 0 {
            fields.push(("b".into(), FieldValue::Integer(*integer)));
        }
        if left_out % 3 == 0 {
            fields.push(("c".into(), FieldValue::Float(float / 3.0)));
        }
        if *left_out == 0 {
            fields.push(("s".into(), FieldValue::String("text".into())));
        }
        let tags = [("host", host.as_str()), ("rack", rack.as_str())];
        let series = SeriesKey::new("m", tags).unwrap();
        Point { series, fields, time: START + second * SECOND }
    });
    made.collect()
}

/// Most points are sealed, some in a later segment that overlaps, and the rest is in the head. They are not moved
/// afterwards: the ends of chunks affect the last bits of sums.
fn store(drawn: &[Drawn]) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = Options { sets: 2, size: 64 << 20, page_len: 16 << 10, ..Options::default() };
    let store = Store::open(&directory.path().join("ts"), &options).unwrap();
    store.set_clock(START);
    store.create_database("d").unwrap();
    let points = points(drawn);
    let (early, rest) = points.split_at(points.len() / 10 * 6);
    let (later, last) = rest.split_at(rest.len() / 2);
    for (points, is_sealed) in [(early, true), (later, true), (last, false)] {
        for some in points.chunks(100) {
            assert_eq!(store.write("d", None, some).unwrap().rejected, []);
        }
        if is_sealed {
            store.seal().unwrap();
        }
    }
    let stats = store.stats();
    assert!(stats.sealed_points > 0 && stats.head_points > 0, "{stats:?}");
    (directory, store)
}

fn limits(threads_max: usize) -> Limits {
    Limits {
        rows_max: 1_000_000,
        buckets_max: 1_000_000,
        bytes_max: 64 << 20,
        deadline: Instant::now() + Duration::from_secs(100),
        cancel: None,
        threads_max,
    }
}

fn asked(store: &Store, text: &str, limits: Limits) -> Vec<Answer> {
    let now = START + 1500 * SECOND;
    let request =
        Request { text, database: Some("d"), policy: None, now, is_read_only: true, limits };
    run(store, &request).unwrap()
}

fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

fn config() -> Config {
    Config {
        cases: if is_full_scale() { 6 } else { 4 },
        failure_persistence: None,
        max_shrink_iters: 20,
        ..Config::default()
    }
}

/// As text with all bits of its floats: the text of a float is read as the same float.
fn bits(of: &impl Debug) -> String {
    format!("{of:?}")
}

fn queries() -> Vec<String> {
    let within = format!("time >= {} AND time < {}", START + 77 * SECOND, START + 1333 * SECOND);
    let mut all = Vec::new();
    for by in ["host", "rack", "time(1m), host", "time(7s), rack", "time(1m)", "time(2s), *"] {
        for fields in [
            "mean(a), sum(b), count(c), max(a)",
            "sum(a)",
            "first(c), last(b), min(a), count(s)",
            "spread(a), derivative(mean(c), 1s), nope(b)",
            "derivative(sum(a), 1s), mean(a)",
            "cumulative_sum(sum(a)), median(b), sum(b)",
            "mean(s), sum(a)",
            "max(c), host",
        ] {
            all.push(format!("SELECT {fields} FROM m WHERE {within} GROUP BY {by}"));
        }
        all.push(format!("SELECT mean(a), mean(c), sum(b) FROM m GROUP BY {by} fill(none)"));
        all.push(format!(
            "SELECT mean(a), sum(b) FROM m WHERE {within} GROUP BY {by} ORDER BY time DESC LIMIT 3"
        ));
        all.push(format!(
            "SELECT sum(a) FROM m WHERE (rack = 'r1' OR a > 0) AND {within} GROUP BY {by}"
        ));
        all.push(format!("SELECT count(a), sum(c) FROM m GROUP BY {by} fill(previous) SLIMIT 90"));
        all.push(format!(
            "SELECT sum(x) FROM (SELECT mean(a) AS x FROM m WHERE {within} GROUP BY {by}, host)"
        ));
    }
    for by in ["host", "rack", "*"] {
        all.push(format!("SELECT a, b, s FROM m WHERE {within} GROUP BY {by} LIMIT 9 OFFSET 2"));
        all.push(format!("SELECT a + c FROM m WHERE b > 0 GROUP BY {by} ORDER BY time DESC"));
        all.push(format!("SELECT top(a, 3), b FROM m GROUP BY {by}"));
        all.push(format!("SELECT x - 1 FROM (SELECT c AS x FROM m GROUP BY host) GROUP BY {by}"));
    }
    all
}

#[test]
fn several_threads_answer_as_one_does() {
    let mut runner = TestRunner::new(config());
    let run = runner.run(&drawn(), |drawn| {
        let (_directory, store) = store(&drawn);
        let mut answered = 0;
        for text in queries() {
            let one = asked(&store, &text, limits(1));
            answered += usize::from(one.iter().all(|it| it.outcome.is_ok()));
            for threads in [0, 2, 5] {
                let several = asked(&store, &text, limits(threads));
                prop_assert_eq!(bits(&several), bits(&one), "{} threads: {}", threads, &text);
            }
        }
        prop_assert!(answered > 40, "{answered} of {}", queries().len());
        Ok(())
    });
    run.unwrap();
}

/// The cells of an answer, by tags, time and column, without null cells.
fn cells(answers: &[Answer]) -> BTreeMap<(String, String, String), String> {
    let mut all = BTreeMap::new();
    for table in answers.iter().flat_map(|it| it.outcome.as_ref().unwrap()) {
        for row in &table.rows {
            for (name, cell) in table.columns.iter().zip(row).skip(1) {
                let key = (bits(&table.tags), bits(&row[0]), name.clone());
                all.extend((*cell != Cell::Null).then(|| (key, bits(cell))));
            }
        }
    }
    all
}

#[test]
fn fields_that_are_read_together_come_to_what_each_does() {
    let mut runner = TestRunner::new(config());
    let run = runner.run(&drawn(), |drawn| {
        let (_directory, store) = store(&drawn);
        for by in ["host", "time(50s), host", "time(1m), rack"] {
            let select = |what: &str| {
                let start = START + 99 * SECOND;
                let text =
                    format!("SELECT {what} FROM m WHERE time > {start} GROUP BY {by} fill(none)");
                cells(&asked(&store, &text, limits(1)))
            };
            let each = ["sum(a) AS a", "sum(b) AS b", "sum(c) AS c", "count(s) AS s"];
            let alone: BTreeMap<_, _> = each.iter().flat_map(|it| select(it)).collect();
            let together = select("sum(c) AS c, count(s) AS s, sum(a) AS a, sum(b) AS b");
            prop_assert!(together.len() > 400, "{}", together.len());
            prop_assert_eq!(together, alone, "by {}", by);
        }
        Ok(())
    });
    run.unwrap();
}

/// Points at even intervals.
fn even() -> Vec<Drawn> {
    let place = |at: usize| (at % SERIES, (at / SERIES) as i64 * 10, at as f64 / 7.0, at as i64, 1);
    (0..SERIES * 100).map(place).collect()
}

const LIMITS: [&str; 3] = ["max-select-bytes", "max-select-buckets", "max-row-limit"];

#[test]
fn a_query_of_several_threads_ends_where_one_of_one_thread_does() {
    let (_directory, store) = store(&even());
    // More buckets are asked for than are made.
    let backwards = format!(
        "SELECT mean(a) FROM m WHERE time <= {} GROUP BY time(10s), host ORDER BY time DESC",
        START + 990 * SECOND
    );
    let texts = [
        backwards.as_str(),
        "SELECT mean(a), sum(b), max(c) FROM m GROUP BY time(10s), host",
        "SELECT mean(a), sum(b), max(c) FROM m GROUP BY time(10s)",
        "SELECT max(x) FROM (SELECT mean(a) AS x FROM m GROUP BY time(10s), host)",
        // Points of a group are held while tallies of the other groups are held: the tallies are given up.
        "SELECT mean(a), median(a) FROM m GROUP BY rack",
        "SELECT a, b FROM m GROUP BY host",
        "SELECT sum(a) FROM m GROUP BY time(10s), host fill(none)",
        "SELECT percentile(a, 90) FROM m GROUP BY time(100s), host",
    ];
    let (mut ended, mut whole) = ([0; LIMITS.len()], 0);
    let steps = std::iter::successors(Some(4000_usize), |it| {
        Some(it + it / if is_full_scale() { 12 } else { 6 })
    });
    for (step, bytes_max) in steps.take_while(|it| *it < 16 << 20).enumerate() {
        for text in texts {
            // The limits grow, so that at some step they equal the buckets, or the rows, of the answer.
            let small = |threads| match step % 3 {
                0 => Limits { bytes_max, ..limits(threads) },
                1 => Limits { buckets_max: bytes_max / 256, ..limits(threads) },
                _ => Limits { rows_max: bytes_max / 256, ..limits(threads) },
            };
            let one = asked(&store, text, small(1));
            assert_eq!(bits(&asked(&store, text, small(0))), bits(&one), "{bytes_max}: {text}");
            for answer in &one {
                match &answer.outcome {
                    Ok(_) => whole += 1,
                    Err(said) => {
                        let limit = LIMITS.iter().position(|it| said.contains(it));
                        ended[limit.unwrap_or_else(|| panic!("{said}"))] += 1;
                    }
                }
            }
        }
    }
    assert!(ended.iter().all(|it| *it > 5) && whole > 10, "{ended:?} ended, {whole} did not");
}

#[test]
fn a_query_of_several_threads_ends_when_it_is_late_or_nobody_wants_it() {
    let (_directory, store) = store(&even());
    let text = "SELECT mean(a), sum(b) FROM m GROUP BY time(10s), host";
    let said = |limits| asked(&store, text, limits).pop().unwrap().outcome.unwrap_err();
    let late = Limits { deadline: Instant::now(), ..limits(0) };
    assert_eq!(said(late), "query-timeout limit exceeded");
    let cancel = Some(Arc::new(AtomicBool::new(true)));
    assert_eq!(said(Limits { cancel, ..limits(0) }), "query interrupted");
    // The query is asked again and again until it is ended in the middle, at any place.
    let flag = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            flag.store(true, Ordering::Relaxed);
        });
        let ended = (0..1_000_000).find_map(|_| {
            let limits = Limits { cancel: Some(Arc::clone(&flag)), ..limits(0) };
            asked(&store, text, limits).pop().unwrap().outcome.err()
        });
        assert_eq!(ended.as_deref(), Some("query interrupted"));
    });
}
