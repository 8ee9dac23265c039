//! The memory of names has a limit: what does not fit is refused, and an opening does not depend on it.

use coreplane_tsdb::{FieldValue, Options, Outcome, Point, SeriesKey, Store, TagFilter};
use smallvec::SmallVec;

const LIMIT: u64 = 8 << 20;

fn options() -> Options {
    Options { sets: 1, size: 64 << 20, names_bytes: LIMIT, ..Options::default() }
}

/// A point with 6,000 tag keys that no other point has.
fn wide(measurement: &str, at: usize) -> Point<'static> {
    let keys: Vec<String> = (0..6000).map(|tag| format!("{:06x}", at * 6000 + tag)).collect();
    let series = SeriesKey::new(measurement, keys.iter().map(|key| (&**key, "1")));
    let fields = SmallVec::from_iter([("f".into(), FieldValue::Float(1.0))]);
    Point { series: series.expect("a key").into_owned(), fields, time: 1 }
}

/// A point with a thousand fields of a measurement of its own.
fn long(at: usize) -> Point<'static> {
    let fields = (0..1000).map(|field| (format!("field{field}").into(), FieldValue::Boolean(true)));
    let series = SeriesKey::of_text(&format!("long{at}")).expect("a key").into_owned();
    Point { series, fields: fields.collect(), time: 1 }
}

fn names_bytes(store: &Store) -> u64 {
    store.stats().names_bytes
}

/// Checks that some points are written, and that the others are refused for this reason; returns their number.
fn check(outcome: &Outcome, points: usize) -> usize {
    assert_eq!(outcome.written as usize + outcome.rejected.len(), points);
    for (_, why) in &outcome.rejected {
        assert!(why.starts_with("max-names-memory limit exceeded: (8388608 bytes)"), "{why}");
    }
    outcome.written as usize
}

#[test]
fn names_beyond_the_limit_of_memory_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    for database in ["one", "many", "fields"] {
        store.create_database(database).expect("a database");
    }
    // All of them in one write, and as many as fit are taken.
    let points: Vec<_> = (0..20).map(|at| wide("m", at)).collect();
    let taken = check(&store.write("one", None, &points).expect("written"), 20);
    assert!((3..=6).contains(&taken), "{taken}");
    assert!(names_bytes(&store) <= LIMIT && names_bytes(&store) > LIMIT / 2);
    // What is there takes points; a small name still fits.
    let again = store.write("one", None, &points[..taken]).expect("written");
    assert_eq!(again.written as usize, taken);
    let key = SeriesKey::of_text("m,a=b").expect("a key");
    let small = Point { series: key, ..points[0].clone() };
    assert_eq!(store.write("one", None, &[small]).expect("written").written, 1);
    // Room comes back with a drop. Now one write for each.
    store.drop_database("one").expect("dropped");
    assert!(names_bytes(&store) < LIMIT / 100);
    let written = |at| check(&store.write("many", None, &[wide("n", at)]).expect("an outcome"), 1);
    assert_eq!((0..20).map(written).sum::<usize>(), taken);
    assert!(names_bytes(&store) <= LIMIT);
    store.drop_database("many").expect("dropped");
    let points: Vec<_> = (0..150).map(long).collect();
    let written = check(&store.write("fields", None, &points).expect("an outcome"), 150);
    assert!((50..100).contains(&written), "{written}");
    assert!(names_bytes(&store) <= LIMIT && names_bytes(&store) > LIMIT / 2);
    let before = names_bytes(&store);
    drop(store);
    // Whatever the limit is now: names that are there stay.
    let store = Store::open(&path, &Options { names_bytes: 1000, ..options() }).expect("opened");
    assert_eq!((names_bytes(&store), store.damage().count()), (before, 0));
    assert_eq!(store.write("fields", None, &points[..1]).expect("written").written, 1);
    // In another shard, too.
    let later = Point { time: 1 << 60, ..points[0].clone() };
    assert_eq!(store.write("fields", None, &[later]).expect("written").written, 1);
    let refused = store.write("fields", None, &[wide("m", 0)]).expect("an outcome");
    assert!(refused.rejected[0].1.contains("max-names-memory limit exceeded: (1000 bytes)"));
}

/// What is refused for another limit takes no memory either.
#[test]
fn no_names_are_made_for_series_beyond_their_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { series_max: 2, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("db").expect("a database");
    let points: Vec<_> = (0..100).map(long).collect();
    assert_eq!(store.write("db", None, &points[..2]).expect("written").written, 2);
    let before = names_bytes(&store);
    assert_eq!(store.write("db", None, &points).expect("an outcome").rejected.len(), 98);
    assert_eq!((store.stats().measurements, names_bytes(&store)), (2, before));
}

/// Tags that series share are counted once, also before they are made.
#[test]
fn the_memory_of_a_draft_is_that_of_its_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { names_bytes: 1 << 20, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    store.create_database("db").expect("a database");
    let tags = (0..20).map(|tag| format!("tag{tag:02}=shared")).collect::<Vec<_>>().join(",");
    let point = |at: usize| Point {
        series: SeriesKey::of_text(&format!("m,host={at},{tags}")).expect("a key").into_owned(),
        fields: SmallVec::from_iter([("f".into(), FieldValue::Float(1.0))]),
        time: 1,
    };
    let points: Vec<_> = (0..2500).map(point).collect();
    let outcome = store.write("db", None, &points).expect("written");
    let reader = store.reader("db", None).expect("a reader");
    let series = reader.series("m", &TagFilter::All).len();
    assert_eq!(outcome.written as usize, series);
    // About 620 bytes each; with all tags as if they were new, 6,700.
    assert!(series < 2500 && names_bytes(&store) > (1 << 20) - 2000, "{series} {outcome:?}");
    assert!(names_bytes(&store) <= 1 << 20);
}
