//! Stores without room, or with trouble in the background thread: which writers wait, which get an error, and what
//! is stored.

use coreplane_tsdb::{Error, FieldValue, Options, Patience, Point, SeriesKey, Store, TagFilter};
use std::time::Duration;

fn options() -> Options {
    Options {
        sets: 3,
        size: 16 << 20,
        page_len: 16 << 10,
        head_bytes: 64 << 10,
        ..Options::default()
    }
}

fn point(series: &str, time: i64, fields: &[(&'static str, f64)]) -> Point<'static> {
    Point {
        series: SeriesKey::of_text(series).expect("a key").into_owned(),
        fields: fields.iter().map(|(name, it)| ((*name).into(), FieldValue::Float(*it))).collect(),
        time,
    }
}

/// The number of points that a field has in all series of a measurement.
fn count(store: &Store, measurement: &str) -> usize {
    let reader = store.reader("db", None).expect("a reader");
    let field = reader.fields(measurement).pop().expect("a field");
    let all = reader.series(measurement, &TagFilter::All);
    let blocks =
        all.iter().flat_map(|series| reader.points(series, &field, i64::MIN..=i64::MAX, false));
    blocks.map(|block| block.expect("a block").len()).sum()
}

/// A writer that writes in parts waits as long as one that writes once; a writer without patience does not wait.
#[test]
fn patience_is_that_of_all_parts_of_a_write_together() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, head_bytes: 1 << 10, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("db").expect("a database");
    let points: Vec<_> = (0..200).map(|at| point("m", at, &[("f", 1.0)])).collect();
    let held = store.hold_upkeep();
    let mut none = Patience::none();
    while !store.is_crowded() {
        store.write_within("db", None, &points, &mut none).expect("written");
    }
    let mut patience = Patience::of(Duration::from_millis(20));
    assert!(!patience.is_over());
    for _ in 0..100 {
        store.write_within("db", None, &points, &mut patience).expect("written");
        assert!(patience.is_over() && store.is_crowded());
    }
    drop(held);
    store.write("db", None, &points).expect("written");
    store.seal().expect("sealed");
    assert!(!store.is_crowded());
}

/// A writer gets an error, and does not wait for room that never comes; acknowledged points are there after an
/// opening.
#[test]
fn a_panic_in_the_background_is_said_and_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    let points: Vec<_> =
        (0..500).map(|at| point(&format!("m,a={}", at % 7), at, &[("f", 1.0)])).collect();
    store.write("db", None, &points).expect("written");
    assert_eq!((store.failure(), store.trouble()), (None, None));
    store.panic_upkeep();
    while store.failure().is_none() {
        std::thread::yield_now();
    }
    let refused = store.write("db", None, &points[..1]);
    let Err(Error::Upkeep(why)) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("panicked: as a test has asked for it"), "{why}");
    assert_eq!(store.trouble().as_ref(), Some(why));
    assert!(matches!(store.seal(), Err(Error::Upkeep(_))));
    assert_eq!(count(&store, "m"), 500, "readers go on");
    drop(store);
    let store = Store::open(&path, &options()).expect("opened");
    assert_eq!((store.damage().count(), count(&store, "m")), (0, 500));
    store.write("db", None, &points[..1]).expect("written");
}

/// The pages of the log are free once its points are sealed, however long a reader takes.
#[test]
fn a_long_query_does_not_make_the_store_full() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, size: 1 << 20, page_len: 4096, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("db").expect("a database");
    let points = |series: &str| -> Vec<_> {
        (0..500).map(|at| point(series, at, &[("f", at as f64)])).collect()
    };
    store.write("db", None, &points("m")).expect("written");
    store.seal().expect("sealed");
    let reader = store.reader("db", None).expect("a reader");
    let field = reader.fields("m").pop().expect("a field");
    let series = reader.series("m", &TagFilter::All).pop().expect("a series");
    let mut blocks = reader.points(&series, &field, 0..=i64::MAX, false).peekable();
    assert!(blocks.peek().is_some());
    let other = points("n");
    // Many times as much as the pool has room for.
    for _ in 0..200 {
        store.write("db", None, &other).expect("written");
        store.seal().expect("sealed");
    }
    let times: Vec<i64> = blocks.flat_map(|it| it.expect("a block").times).collect();
    assert_eq!(times, (0..500).collect::<Vec<_>>());
    drop(reader);
    store.check_pages().expect("pages");
}

/// Values that do not compress: about ten bytes each when they are sealed.
fn noise(from: i64, count: i64) -> Vec<Point<'static>> {
    let value = |at: i64| {
        let bits = at.cast_unsigned().wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        f64::from_bits((bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 2)
    };
    (from..from + count).map(|at| point("m", at, &[("f", value(at))])).collect()
}

/// The log of a head shares the last pages with what its points take when they are sealed. These pages are too few for
/// a head of the usual size, and are used all the same.
#[test]
fn a_store_is_full_of_sealed_points_and_not_of_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    let options =
        Options { sets: 1, size: 1 << 20, page_len: 4096, head_bytes: 1 << 20, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("db").expect("a database");
    let (mut written, used) = (0, || {
        let stats = store.stats();
        stats.used_bytes * 100 / stats.total_bytes
    });
    while used() < 55 {
        store.write("db", None, &noise(written, 500)).expect("written");
        store.seal().expect("sealed");
        written += 500;
    }
    // A merge in the background takes pages for a moment.
    let mut refused = 0;
    while refused < 3 {
        match store.write("db", None, &noise(written, 100)) {
            Ok(_) => (written, refused) = (written + 100, 0),
            Err(Error::Full(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if refused > 0 {
            // Full, too, if nothing more can be sealed.
            let _sealed = store.seal();
        }
    }
    assert!(used() >= 85, "{:?}", store.stats());
    assert!(count(&store, "m") >= written as usize);
    store.check_pages().expect("pages");
}

/// Each value is a column of its own: it takes five bytes of the log, and more than a hundred when it is sealed.
#[test]
fn wide_points_that_were_acknowledged_can_be_sealed() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, head_bytes: 1 << 30, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("db").expect("a database");
    let fields = || (0..100).map(|at| (format!("f{at}").into(), FieldValue::Boolean(true)));
    let series = |at: i64| SeriesKey::of_text(&format!("m,host=h{at}")).map(SeriesKey::into_owned);
    let (mut written, mut most) = (0, 0);
    let full = loop {
        let series = series(written).expect("a key");
        let point = Point { series, fields: fields().collect(), time: 1 };
        match store.write("db", None, &[point]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        most = most.max(store.stats().head_points);
    };
    assert!(matches!(full, Error::Full(_)), "{full}");
    store.seal().expect("sealed");
    assert_eq!(store.stats().head_points, 0);
    assert!(written > 600 && count(&store, "m") >= written as usize, "{written}");
    // No head was larger than the pool by much.
    assert!(most * 152 < 16 << 20, "{most}");
    store.check_pages().expect("pages");
}
