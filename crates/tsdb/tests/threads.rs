//! Writers and readers side by side, while points are sealed and merged.

use coreplane_tsdb::{
    Column, Error, FieldValue, Options, Point, SeriesKey, Store, TagFilter, Value,
};
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
