//! Drops: they need no room, and give back what was dropped.

use coreplane_tsdb::{Error, FieldValue, Options, Point, Policy, SeriesKey, Store, TagFilter};
use std::sync::{Mutex, PoisonError};

const HOUR: u64 = 3_600_000_000_000;

/// A reader keeps the pages of all stores, and what needs the last pages of one is refused meanwhile.
static ALONE: Mutex<()> = Mutex::new(());

fn options() -> Options {
    Options { sets: 1, size: 4 << 20, page_len: 4096, head_bytes: 1 << 30, ..Options::default() }
}

fn point(series: &str, time: i64, value: FieldValue<'static>) -> Point<'static> {
    Point {
        series: SeriesKey::of_text(series).expect("a key").into_owned(),
        fields: [("f".into(), value)].into_iter().collect(),
        time,
    }
}

/// Points of ten series of each of these measurements, in one shard, as one segment; returns their number.
fn fill(store: &Store, measurements: &[&str]) -> u64 {
    store.create_database("db").expect("a database");
    let series = |at: i64| measurements.iter().map(move |it| format!("{it},host=h{at}"));
    // Those of each series take the same room.
    let value = |at: i64| FieldValue::Float((at / 10 * (at / 10)) as f64 / 3.0);
    let points: Vec<_> = (0..3_000_i64)
        .flat_map(|at| series(at % 10).map(move |it| point(&it, at * 1_000_000, value(at))))
        .collect();
    store.write("db", None, &points).expect("written");
    store.merge().expect("merged");
    assert_eq!(store.stats().segments, 1);
    points.len() as u64
}

fn host(number: u32) -> TagFilter {
    TagFilter::Equal("host".to_owned(), format!("h{number}"))
}

/// From now on nobody gives anything back.
fn end_upkeep(store: &Store) {
    store.panic_upkeep();
    while store.failure().is_none() {
        std::thread::yield_now();
    }
}

/// Makes series until there is no room for more.
fn crowd(store: &Store) {
    let (mut at, mut same) = (0, 0);
    while same < 20 {
        let before = store.stats().series;
        let points: Vec<_> = (at..at + 500)
            .map(|at| point(&format!("m,a={at}"), 1, FieldValue::Float(1.0)))
            .collect();
        match store.write("db", None, &points) {
            Ok(_) | Err(Error::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
        // It may make room, or find none.
        let _sealed = store.seal();
        at += 500;
        same = if store.stats().series == before { same + 1 } else { 0 };
    }
}

/// New names take all pages that they may. Each kind of drop is still possible then, also after a start, when the log
/// of names needs a new page.
#[test]
fn a_store_that_is_full_of_names_can_be_emptied() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { size: 1 << 20, head_bytes: 64 << 10, ..options() };
    let store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    let short =
        Policy { name: "short".to_owned(), duration_ns: HOUR, shard_ns: HOUR, is_default: false };
    store.put_policy("db", &short).expect("a policy");
    store.set_clock(1);
    let kept = ["kept,a=1", "kept,a=2"].map(|it| point(it, 1, FieldValue::Float(1.0)));
    for policy in [None, Some("short")] {
        assert_eq!(store.write("db", policy, &kept).expect("written").written, 2);
    }
    crowd(&store);
    drop(store);
    let whole = std::fs::read(path.join("q0")).expect("a pool");
    type Dropped = fn(&Store) -> Result<(), Error>;
    let drops: [(&str, Dropped); 5] = [
        ("database", |it| it.drop_database("db")),
        ("policy", |it| it.drop_policy("db", "short")),
        ("measurement", |it| it.drop_measurement("db", "kept")),
        ("series", |it| it.drop_series("db", "kept", &TagFilter::All).map(drop)),
        ("shard", Store::expire),
    ];
    for (what, dropped) in drops {
        std::fs::write(path.join("q0"), &whole).expect("a pool");
        let store = Store::open(&path, &options).expect("opened");
        let refused = store.create_database("other");
        assert!(matches!(refused, Err(Error::Full(_))), "{what}: {refused:?}");
        dropped(&store).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(store);
        let store = Store::open(&path, &options).expect("opened");
        assert_eq!(store.reader("db", None).is_err(), what == "database");
        if what == "database" {
            store.merge().expect("merged");
            store.create_database("db").expect("a database");
            store.write("db", None, &kept).expect("there is room again");
        }
        assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
    }
}

/// Each start begins a page of the log of names at the first drop, and one of the manifest to give anything back.
#[test]
fn a_full_store_can_be_emptied_though_it_was_started_several_times() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { size: 1 << 20, head_bytes: 64 << 10, ..options() };
    let store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    let short =
        Policy { name: "short".to_owned(), duration_ns: HOUR, shard_ns: HOUR, is_default: false };
    store.put_policy("db", &short).expect("a policy");
    store.set_clock(1);
    let value = |at: i64| FieldValue::Float((at as f64).sqrt());
    for part in 0..4_i64 {
        let times = part * 5_000..(part + 1) * 5_000;
        let points: Vec<_> = times.map(|at| point("kept", at, value(at))).collect();
        store.write("db", Some("short"), &points).expect("written");
        store.seal().expect("sealed");
    }
    crowd(&store);
    drop(store);
    let started = || {
        let store = Store::open(&path, &options).expect("opened");
        store.set_clock(1);
        end_upkeep(&store);
        store
    };
    started().drop_policy("db", "short").expect("dropped");
    let mut dropped = 0;
    for number in 0..9 {
        let filter = TagFilter::Equal("a".to_owned(), number.to_string());
        match started().drop_series("db", "m", &filter) {
            Ok(count) => dropped += count,
            Err(error) => assert!(matches!(error, Error::Full(_)), "{error}"),
        }
    }
    assert!((2..9).contains(&dropped), "{dropped}");
    let store = Store::open(&path, &options).expect("opened");
    let before = store.stats();
    store.merge().expect("sealed and merged");
    let after = store.stats();
    assert!(before.used_bytes > after.used_bytes + 5 * 4096, "{before:?} {after:?}");
    store.create_database("other").expect("there is room again");
    store.drop_database("db").expect("dropped");
    store.merge().expect("merged");
    // While a reader keeps pages the log of names is not written anew. A later change tries it again.
    let is_short = || store.stats().used_bytes * 2 < after.used_bytes;
    let tried = (0..100).take_while(|_| !is_short());
    tried.for_each(|number| store.create_database(&format!("db{number}")).expect("a database"));
    assert!(is_short(), "{:?} {after:?}", store.stats());
    store.check_pages().expect("pages");
}

/// The log of names was written anew when it was long before.
#[test]
fn names_of_what_was_dropped_are_given_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(&directory.path().join("ts"), &options()).expect("a store");
    for (database, count) in [("large", 8000), ("small", 5000)] {
        store.create_database(database).expect("a database");
        let series = |at| point(&format!("m,a={at}"), 1, FieldValue::Float(1.0));
        let points: Vec<_> = (0..count).map(series).collect();
        store.write(database, None, &points).expect("written");
    }
    store.merge().expect("merged");
    let drop = |database| {
        let before = store.stats().used_bytes;
        store.drop_database(database).expect("dropped");
        store.merge().expect("merged");
        (before, store.stats().used_bytes)
    };
    let (all, rest) = drop("large");
    assert!(rest * 2 < all, "{rest} of {all}");
    let (rest, none) = drop("small");
    assert!(none * 4 < rest, "{none} of {rest}");
}

/// One segment for each shard is how a store ends up: no merge would ever come to it again.
#[test]
fn dropped_points_are_given_back_though_nothing_is_written_any_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    let all = fill(&store, &["m0", "m1"]);
    let full = store.stats();
    let sealed = || {
        store.seal().expect("sealed");
        store.stats().sealed_points
    };
    // A tenth is not worth the writing of the rest; three of them are.
    assert_eq!(store.drop_series("db", "m0", &host(9)).expect("dropped"), 1);
    assert_eq!(store.drop_series("db", "m1", &host(9)).expect("dropped"), 1);
    assert_eq!(sealed(), all);
    for number in [8, 7] {
        assert_eq!(store.drop_series("db", "m0", &host(number)).expect("dropped"), 1);
    }
    assert_eq!(sealed(), all);
    assert_eq!(store.drop_series("db", "m1", &host(8)).expect("dropped"), 1);
    assert_eq!(sealed(), all / 20 * 15);
    store.drop_measurement("db", "m0").expect("dropped");
    assert_eq!(sealed(), all / 20 * 8);
    assert!(store.stats().sealed_bytes < full.sealed_bytes * 2 / 3, "{full:?}");
    let reader = store.reader("db", None).expect("a reader");
    let field = reader.fields("m1").pop().expect("a field");
    for series in reader.series("m1", &TagFilter::All) {
        let blocks = reader.points(&series, &field, i64::MIN..=i64::MAX, false);
        assert_eq!(blocks.map(|it| it.expect("a block").len()).sum::<usize>(), 300);
    }
    drop(reader);
    // Without a point left there is nothing to write.
    store.drop_measurement("db", "m1").expect("dropped");
    assert_eq!((sealed(), store.stats().segments), (0, 0));
    store.check_pages().expect("pages");
}

#[test]
fn points_that_were_dropped_just_before_the_end_are_given_back_after_the_start() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    let all = fill(&store, &["m0", "m1"]);
    end_upkeep(&store);
    store.drop_measurement("db", "m0").expect("dropped");
    assert_eq!(store.stats().sealed_points, all);
    drop(store);
    let store = Store::open(&path, &options()).expect("opened");
    store.seal().expect("sealed");
    assert_eq!(store.stats().sealed_points, all / 2);
    store.check_pages().expect("pages");
}

/// As in InfluxDB: the field is then free for values of another type.
#[test]
fn a_measurement_goes_with_the_last_series_that_is_dropped() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    fill(&store, &["m0", "m1"]);
    let of_host = |number: u32, value| point(&format!("m0,host=h{number}"), 1, value);
    for number in 0..9 {
        assert_eq!(store.drop_series("db", "m0", &host(number)).expect("dropped"), 1);
    }
    assert_eq!(store.stats().measurements, 2);
    let refused = store.write("db", None, &[of_host(9, FieldValue::Integer(1))]);
    assert_eq!(refused.expect("an outcome").rejected.len(), 1, "the type is another");
    assert_eq!(store.drop_series("db", "m0", &host(9)).expect("dropped"), 1);
    assert_eq!(store.stats().measurements, 1);
    let written = store.write("db", None, &[of_host(9, FieldValue::Integer(1))]);
    assert_eq!(written.expect("an outcome").written, 1);
    drop(store);
    let store = Store::open(&path, &options()).expect("opened");
    assert_eq!((store.stats().measurements, store.damage().count()), (2, 0));
    assert_eq!(store.drop_series("db", "m1", &TagFilter::All).expect("dropped"), 10);
    assert_eq!(store.stats().measurements, 1);
}
