//! Writers and readers side by side, while points are sealed and merged.

use coreplane_tsdb::influxql::{Limits, Request, run};
use coreplane_tsdb::{
    Column, Error, FieldValue, Options, Point, SeriesKey, Store, TagFilter, Value, Work,
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 3;

/// Each writer's points ascend by one, and all points that were acknowledged before are there.
fn look(store: &Store, done: &[AtomicI64]) {
    let floors: Vec<i64> = done.iter().map(|it| it.load(Ordering::Acquire)).collect();
    let reader = store.reader("db", None).expect("a reader");
    let Some(field) = reader.fields("m").pop() else { return };
    for series in reader.series("m", &TagFilter::All) {
        let writer: usize = series.tag("w").parse().expect("a number");
        let everything = 0..=i64::MAX;
        let mut next = 0;
        for block in reader.points(&series, &field, everything.clone(), false) {
            let block = block.expect("a block");
            let Column::Integer(values) = block.values else { panic!("integers") };
            for value in values {
                assert_eq!(value, next, "of {writer}");
                next += 1;
            }
        }
        assert!(next >= floors[writer], "{next} of {} of {writer}", floors[writer]);
        // The last point, which may be newer, is not before any of the points that were there.
        let last = reader.last(&series, &field, everything.clone()).expect("a last point");
        let time = last.as_ref().map_or(-1, |it| it.0);
        assert!(time >= next - 1, "{last:?} of {writer} behind {next} others");
        assert!(last.is_none_or(|(time, value)| value == Value::Integer(time)));
        let sums = reader.summaries(&series, &field, everything, None).expect("sums");
        let Some((_, sum)) = sums.first() else { continue };
        let count = sum.count as i64;
        assert!(count >= floors[writer]);
        assert_eq!(sum.sum, Value::Integer(count * (count - 1) / 2));
    }
}

#[test]
fn a_reader_sees_what_was_acknowledged_before_it_came() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        sets: 2,
        size: 64 << 20,
        page_len: 16 << 10,
        head_bytes: 40 << 10,
        ..Options::default()
    };
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    let done: Vec<AtomicI64> = (0..WRITERS).map(|_| AtomicI64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (store, done) = (&store, &done);
                scope.spawn(move || {
                    for round in 0..1500_i64 {
                        let points: Vec<Point<'_>> = (0..10)
                            .map(|at| Point {
                                series: SeriesKey::new("m", [("w", &*writer.to_string())])
                                    .expect("a key"),
                                fields: [("f".into(), FieldValue::Integer(round * 10 + at))]
                                    .into_iter()
                                    .collect(),
                                time: round * 10 + at,
                            })
                            .collect();
                        assert_eq!(store.write("db", None, &points).expect("written").written, 10);
                        done[writer].store((round + 1) * 10, Ordering::Release);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    look(&store, &done);
                }
            });
        }
        for writer in writers {
            writer.join().expect("a writer");
        }
        is_over.store(true, Ordering::Release);
    });
    // The thread that seals may have had no processor.
    let since = Instant::now();
    while store.stats().sealed_points <= 10_000 && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stats = store.stats();
    assert!(stats.sealed_points > 10_000, "{stats:?}");
    drop(store);
    let store = Store::open(&path, &options).expect("a store");
    store.check_pages().expect("pages");
    let reader = store.reader("db", None).expect("a reader");
    let field = reader.fields("m").pop().expect("a field");
    for series in reader.series("m", &TagFilter::All) {
        let sums = reader.summaries(&series, &field, 0..=i64::MAX, None).expect("sums");
        assert_eq!(sums[0].1.count, 15_000);
    }
}

#[test]
fn names_that_are_made_beside_a_drop_of_their_database_are_found_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, size: 8 << 20, page_len: 16 << 10, ..Options::default() };
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options).expect("a store");
    let is_over = AtomicBool::new(false);
    let (mut written, mut failure) = (0, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                store.create_database("db").expect("made");
                store.drop_database("db").expect("dropped");
            }
        });
        while written < 300 && failure.is_none() {
            let points = ["a", "b"].map(|name| Point {
                series: SeriesKey::new(name, []).expect("a key"),
                fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
                time: 1,
            });
            match store.write("db", None, &points) {
                Ok(outcome) => written += outcome.written,
                Err(Error::NotFound(_)) => {}
                Err(error) => failure = Some(error.to_string()),
            }
        }
        is_over.store(true, Ordering::Release);
    });
    assert_eq!(failure, None);
    drop(store);
    Store::open(&path, &options).expect("a store");
}

/// Runs a statement; its error, if it has one.
fn stated(store: &Store, text: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(1000);
    let (rows_max, buckets_max, bytes_max) = (1000, 1000, 1 << 20);
    let limits =
        Limits { rows_max, buckets_max, bytes_max, deadline, cancel: None, threads_max: 1 };
    let (database, policy, now) = (None, None, 0);
    let request = Request { text, database, policy, now, is_read_only: false, limits };
    let answers = run(store, &request).expect("a statement");
    answers.into_iter().try_for_each(|it| it.outcome.map(drop))
}

/// Runs statements at the same time, each in a thread of its own.
fn stated_together<const N: usize>(store: &Store, texts: [&str; N]) -> [Result<(), String>; N] {
    let barrier = Barrier::new(N);
    std::thread::scope(|scope| {
        let threads = texts.map(|text| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                stated(store, text)
            })
        });
        threads.map(|it| it.join().expect("a statement"))
    })
}

fn small_store(directory: &tempfile::TempDir) -> Store {
    let options = Options { sets: 1, size: 8 << 20, page_len: 16 << 10, ..Options::default() };
    Store::open(&directory.path().join("ts"), &options).expect("a store")
}

/// A writer tries again until the database is there; its points are not in a policy that goes.
#[test]
fn points_of_a_writer_that_waits_for_the_database_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = small_store(&directory);
    for round in 0..50 {
        let name = format!("d{round}");
        let text = format!("CREATE DATABASE {name} WITH DURATION INF NAME mine");
        let point = Point {
            series: SeriesKey::new("m", []).expect("a key"),
            fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
            time: 1,
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                loop {
                    match store.write(&name, None, std::slice::from_ref(&point)) {
                        Ok(outcome) => break outcome.written,
                        Err(Error::NotFound(_)) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            // Two that make the same database do not disturb each other.
            let made = stated_together(&store, [&text, &text]);
            assert_eq!(made, [Ok(()), Ok(())], "{round}");
            assert_eq!(writer.join().expect("a writer"), 1);
        });
        let policies = store.policies(&name).expect("the database");
        assert_eq!(policies.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["mine"], "{round}");
        let reader = store.reader(&name, None).expect("a reader");
        let field = reader.fields("m").pop().expect("a field");
        let series = reader.series("m", &TagFilter::All).pop().expect("a series");
        let last = reader.last(&series, &field, 0..=i64::MAX).expect("a last point");
        assert_eq!(last, Some((1, Value::Integer(1))), "{round}");
        drop(reader);
        store.drop_database(&name).expect("dropped");
    }
}

#[test]
fn changes_of_a_policy_at_the_same_time_all_count() {
    const HOUR: u64 = 3_600_000_000_000;
    let directory = tempfile::tempdir().expect("a directory");
    let store = small_store(&directory);
    store.create_database("db").expect("a database");
    let policy = |name: &str| {
        let all = store.policies("db").expect("the database");
        all.into_iter().find(|it| it.name == name)
    };
    for round in 0..50 {
        let made = stated_together(
            &store,
            [
                "CREATE RETENTION POLICY p ON db DURATION 50h REPLICATION 1",
                "CREATE RETENTION POLICY p ON db DURATION 60h REPLICATION 1",
            ],
        );
        assert_eq!(made.iter().filter(|it| it.is_ok()).count(), 1, "{round}: {made:?}");
        let hours = if made[0].is_ok() { 50 } else { 60 };
        assert_eq!(policy("p").map(|it| it.duration_ns), Some(hours * HOUR), "{round}");
        let altered = stated_together(
            &store,
            [
                "ALTER RETENTION POLICY p ON db DURATION 70h",
                "ALTER RETENTION POLICY p ON db SHARD DURATION 5h",
            ],
        );
        assert_eq!(altered, [Ok(()), Ok(())], "{round}");
        let found = policy("p").map(|it| (it.duration_ns, it.shard_ns));
        assert_eq!(found, Some((70 * HOUR, 5 * HOUR)), "{round}");
        // The order of these is any, but what was dropped does not come back.
        let [_, dropped] = stated_together(
            &store,
            ["ALTER RETENTION POLICY p ON db DURATION 80h", "DROP RETENTION POLICY p ON db"],
        );
        assert_eq!(dropped, Ok(()), "{round}");
        assert_eq!(policy("p"), None, "{round}");
    }
}

/// While a query evaluates its expressions other threads make names, and find them.
#[test]
fn a_search_for_series_holds_up_no_other_thread() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, size: 8 << 20, page_len: 16 << 10, ..Options::default() };
    let store = &Store::open(&directory.path().join("ts"), &options).expect("a store");
    for database in ["db", "other"] {
        store.create_database(database).expect("a database");
    }
    let write = &|database: &str, hosts: std::ops::Range<usize>| {
        let points = hosts.map(|host| Point {
            series: SeriesKey::new("m", [("host", &*format!("h{host:03}"))]).expect("a key"),
            fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
            time: 1,
        });
        store.write(database, None, &points.collect::<Vec<_>>()).expect("written");
    };
    write("db", 0..200);
    let reader = store.reader("db", None).expect("a reader");
    let regex = &|text: &str| regex::Regex::new(text).expect("an expression");
    let found = &|text| TagFilter::Match("host".into(), regex(text));
    let not_found = |text| TagFilter::NotMatch("host".into(), regex(text));
    let few = TagFilter::NotMatch("host".into(), regex("^h0"));
    for (filter, count) in [
        (found("9$"), 20),
        (not_found("9$"), 180),
        (TagFilter::And(few.into(), found("9$").into()), 10),
        (TagFilter::NotEqual("host".into(), String::new()), 200),
    ] {
        let looks = std::cell::Cell::new(0);
        let series = std::thread::scope(|scope| {
            // Between two values another thread makes a name, uses it, and drops it.
            let may = |work| {
                if !matches!(work, Work::Match(_)) || looks.replace(looks.get() + 1) > 0 {
                    return Ok(());
                }
                let (done, is_done) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    write("db", 1009..1010);
                    write("other", 0..1);
                    let dropped = store.drop_series("db", "m", &found("^h1009$"));
                    // The test may have waited in vain.
                    let _sent = done.send(dropped).is_ok();
                });
                // Much longer than it takes.
                let dropped = is_done.recv_timeout(Duration::from_secs(20));
                assert_eq!(dropped.map_err(|_| "it waits")?.expect("a drop"), 1);
                Ok::<_, &str>(())
            };
            reader.series_within("m", &filter, &may)
        });
        assert_eq!(series.map(|it| it.len()), Ok(count), "{filter:?}");
        assert!(looks.get() > 0, "{filter:?}");
    }
}
