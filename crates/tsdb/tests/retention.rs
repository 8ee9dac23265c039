//! Series whose points retention has dropped leave, and no acknowledged point leaves with them.

use coreplane_tsdb::{
    Column, FieldValue, Options, Outcome, Point, Policy, SeriesKey, Store, TagFilter,
};
use std::sync::atomic::{AtomicI64, Ordering};

const HOUR: i64 = 3_600_000_000_000;

fn store(path: &std::path::Path, series_max: u64, hours: i64) -> Store {
    store_of(path, 16 << 20, series_max, hours)
}

fn store_of(path: &std::path::Path, size: u64, series_max: u64, hours: i64) -> Store {
    let (page_len, head_bytes) = (16 << 10, 64 << 10);
    let options = Options { sets: 2, size, page_len, head_bytes, series_max, ..Options::default() };
    let store = Store::open(path, &options).expect("a store");
    store.set_clock(HOUR);
    store.create_database("db").expect("a database");
    let policy = Policy {
        name: "autogen".to_owned(),
        duration_ns: (hours * HOUR) as u64,
        shard_ns: HOUR as u64,
        is_default: true,
    };
    store.put_policy("db", &policy).expect("a policy");
    store
}

fn point(series: &str, time: i64, value: i64) -> Point<'static> {
    Point {
        series: SeriesKey::of_text(series).expect("a key").into_owned(),
        fields: [("f".into(), FieldValue::Integer(value))].into_iter().collect(),
        time,
    }
}

fn written(store: &Store, points: &[Point<'_>]) -> Outcome {
    store.write("db", None, points).expect("written")
}

/// The values of a series at a time; none if there is no such series.
fn value(store: &Store, series: &str, time: i64) -> Option<i64> {
    let reader = store.reader("db", None).expect("a reader");
    let name = series.split(',').next().expect("a measurement");
    let its = reader.series(name, &TagFilter::All).into_iter().find(|it| *it.key == *series)?;
    let field = reader.fields(name).into_iter().find(|it| *it.name == *"f")?;
    let block = reader.points(&its, &field, time..=time, false).next()?.expect("a block");
    let Column::Integer(values) = block.values else { panic!("integers") };
    values.first().copied()
}

/// Devices come and go for a hundred hours; those of two hours are kept. Three times as many series as there may be
/// are made.
#[test]
fn series_leave_with_their_last_points() {
    const A_ROUND: i64 = 40;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let mut store = store(&path, 6 * A_ROUND as u64, 2);
    for hour in 1..=100_i64 {
        let now = hour * HOUR;
        store.set_clock(now);
        let mut points: Vec<Point<'_>> = (0..A_ROUND)
            .map(|at| point(&format!("m,device={hour}-{at}"), now + at, hour))
            .collect();
        points.push(point("m,device=always", now, hour));
        points.push(point(&format!("of{hour},device=a"), now, hour));
        assert_eq!(written(&store, &points).rejected, [], "in hour {hour}");
        if hour % 3 == 0 {
            store.seal().expect("sealed");
        }
        if hour % 20 == 0 {
            drop(store);
            store = self::store(&path, 6 * A_ROUND as u64, 2);
            store.set_clock(now);
        }
        store.expire().expect("dropped");
        let stats = store.stats();
        assert!(stats.series <= 4 * (A_ROUND as u64 + 2), "{} series", stats.series);
        assert!(stats.measurements <= 5, "{} measurements", stats.measurements);
        // All points that the policy keeps are there.
        for kept in (hour - 1).max(1)..=hour {
            assert_eq!(value(&store, "m,device=always", kept * HOUR), Some(kept));
            let last = A_ROUND - 1;
            let series = format!("m,device={kept}-{last}");
            assert_eq!(value(&store, &series, kept * HOUR + last), Some(kept));
            assert_eq!(value(&store, &format!("of{kept},device=a"), kept * HOUR), Some(kept));
        }
    }
    let reader = store.reader("db", None).expect("a reader");
    assert!(!reader.measurements().contains(&"of1".into()));
    assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
}

/// A policy that is dropped takes the series with it that have points in no other.
#[test]
fn series_leave_with_a_policy() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = store(&directory.path().join("ts"), 100, 0);
    let policy = Policy {
        name: "other".to_owned(),
        duration_ns: 0,
        shard_ns: HOUR as u64,
        is_default: false,
    };
    store.put_policy("db", &policy).expect("a policy");
    let other = [point("m,a=1", 1, 1), point("m,a=2", 1, 1), point("n,a=1", 1, 1)];
    assert_eq!(store.write("db", Some("other"), &other).expect("written").written, 3);
    assert_eq!(written(&store, &[point("m,a=2", 2, 2)]).written, 1);
    store.expire().expect("nothing to drop");
    assert_eq!(store.stats().series, 3);
    store.drop_policy("db", "other").expect("dropped");
    store.expire().expect("dropped");
    assert_eq!((store.stats().series, store.stats().measurements), (1, 1));
    assert_eq!(value(&store, "m,a=2", 2), Some(2));
    // The type of a field leaves with its measurement.
    let mut text = point("n,a=1", 3, 0);
    text.fields = [("f".into(), FieldValue::String("text".into()))].into_iter().collect();
    assert_eq!(written(&store, &[text]).written, 1);
}

/// Writers use few series, which lose their last points all the time: each acknowledged point is there at once.
#[test]
fn no_acknowledged_point_leaves_with_its_series() {
    const WRITERS: usize = 2;
    const ROUNDS: i64 = 4_000;
    let directory = tempfile::tempdir().expect("a directory");
    // Twice a page for the shard of each round: room for all of them, however late they are dropped.
    let store = store_of(&directory.path().join("ts"), 128 << 20, 1_000, 1);
    // The round of each writer. Points of a round are three hours after those of the round before.
    let rounds: Vec<AtomicI64> = (0..WRITERS).map(|_| AtomicI64::new(0)).collect();
    let least = || rounds.iter().map(|it| it.load(Ordering::Acquire)).min().unwrap_or(0);
    let time_of = |round: i64| (10 + 3 * round) * HOUR;
    std::thread::scope(|scope| {
        let (store, rounds) = (&store, &rounds);
        let writer = |number: usize| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let series = format!("m{},n={},w={number}", round % 2, round % 5);
                    let time = time_of(round);
                    let outcome = written(store, &[point(&series, time, round)]);
                    assert_eq!(outcome.written, 1, "{outcome:?}");
                    assert_eq!(value(store, &series, time), Some(round), "{series}");
                    rounds[number].store(round + 1, Ordering::Release);
                }
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        let mut dropped = 0;
        while !writers.iter().all(|it| it.is_finished()) {
            // All points of the present round are kept.
            let round = least();
            store.set_clock(time_of(round));
            let before = store.stats().series;
            store.expire().expect("dropped");
            dropped += before.saturating_sub(store.stats().series);
        }
        assert!(dropped > 100, "{dropped}");
    });
}
