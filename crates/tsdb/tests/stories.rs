//! The behaviour of a store, as its users see it.

use coreplane_pmem::MediaChoice;
use coreplane_tsdb::{
    Buckets, Column, Error, FieldValue, Options, Outcome, Point, Policy, STRING_MAX, SeriesKey,
    Store, TagFilter, Value,
};
use std::collections::BTreeMap;

fn options() -> Options {
    Options {
        sets: 3,
        size: 16 << 20,
        media: MediaChoice::Auto,
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

/// All points of a field of all series of a measurement, by series and time.
fn all(store: &Store, measurement: &str, field: &str) -> BTreeMap<(String, i64), f64> {
    let reader = store.reader("db", None).expect("a reader");
    let fields = reader.fields(measurement);
    let Some(field) = fields.iter().find(|it| *it.name == *field) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for series in reader.series(measurement, &TagFilter::All) {
        let mut last = i64::MIN;
        for block in reader.points(&series, field, i64::MIN..=i64::MAX, false) {
            let block = block.expect("a block");
            let Column::Float(values) = block.values else { panic!("floats") };
            for (time, value) in block.times.iter().zip(values) {
                assert!(*time > last, "{time} behind {last}");
                last = *time;
                assert!(found.insert((series.key.to_string(), *time), value).is_none());
            }
        }
    }
    found
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }
}

#[test]
fn what_was_written_is_read_back_sealed_merged_and_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let mut store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    let mut draw = Draw(1);
    let mut expected: BTreeMap<(String, i64), f64> = BTreeMap::new();
    for round in 0..60 {
        let mut points = Vec::new();
        for _ in 0..200 {
            let series = format!("cpu,host=h{}", draw.next(12));
            // Mostly in order; sometimes late, sometimes at the same time again.
            let late = if draw.next(9) == 0 { draw.next(5_000) } else { 0 };
            let time = (round * 200 + draw.next(200)).saturating_sub(late) as i64 * 1_000_000_000;
            let value = draw.next(1_000_000) as f64 / 4.0;
            expected.insert((series.clone(), time), value);
            points.push(point(&series, time, &[("load", value), ("other", 1.0)]));
        }
        let outcome = store.write("db", None, &points).expect("written");
        assert_eq!(outcome, Outcome { written: 200, rejected: vec![] });
        if round % 10 == 9 {
            assert_eq!(all(&store, "cpu", "load"), expected, "round {round}");
        }
        if round % 17 == 16 {
            store.seal().expect("sealed");
        }
        if round % 20 == 19 {
            drop(store);
            store = Store::open(&path, &options()).expect("opened");
            assert_eq!(store.damage().count(), 0);
            assert_eq!(all(&store, "cpu", "load"), expected, "opened in round {round}");
        }
    }
    let stats = store.stats();
    assert!(stats.series == 12 && stats.sealed_points > 10_000, "{stats:?}");

    // Aggregates, of whole chunks and of parts.
    let reader = store.reader("db", None).expect("a reader");
    let field = reader.fields("cpu").into_iter().find(|it| *it.name == *"load").expect("load");
    for series in reader.series("cpu", &TagFilter::All) {
        let its: Vec<(i64, f64)> = expected
            .iter()
            .filter(|((key, _), _)| **key == *series.key)
            .map(|((_, time), value)| (*time, *value))
            .collect();
        for width in [7, 700, 40_000] {
            let buckets = Buckets { width: width * 1_000_000_000, origin: 5 };
            let range = 333_000_000_000..=9_999_000_000_000;
            let found =
                reader.summaries(&series, &field, range.clone(), Some(buckets)).expect("sums");
            let mut sums: BTreeMap<i64, (u64, f64, f64, f64)> = BTreeMap::new();
            for (time, value) in its.iter().filter(|(time, _)| range.contains(time)) {
                let start = (time - 5).div_euclid(buckets.width) * buckets.width + 5;
                let sum = sums.entry(start).or_insert((0, 0.0, f64::MAX, f64::MIN));
                *sum = (sum.0 + 1, sum.1 + value, sum.2.min(*value), sum.3.max(*value));
            }
            assert_eq!(found.len(), sums.len());
            for ((start, summary), (expected_start, sum)) in found.iter().zip(&sums) {
                assert_eq!((start, summary.count), (expected_start, sum.0));
                assert_eq!(summary.sum, Value::Float(sum.1));
                assert_eq!(
                    (&summary.min.1, &summary.max.1),
                    (&Value::Float(sum.2), &Value::Float(sum.3))
                );
            }
        }
        let backwards: Vec<i64> = reader
            .points(&series, &field, i64::MIN..=i64::MAX, true)
            .flat_map(|block| block.expect("a block").times.into_iter().rev().collect::<Vec<i64>>())
            .collect();
        let times: Vec<i64> = its.iter().rev().map(|it| it.0).collect();
        assert_eq!(backwards, times);
    }
}

#[test]
fn what_cannot_be_is_refused_by_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { series_max: 3, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    let missing = store.write("db", None, &[point("m", 1, &[("f", 1.0)])]);
    assert!(matches!(missing, Err(Error::NotFound(_))));
    store.create_database("db").expect("a database");
    let policy = Policy {
        name: "day".to_owned(),
        duration_ns: 86_400_000_000_000,
        shard_ns: 3_600_000_000_000,
        is_default: false,
    };
    store.put_policy("db", &policy).expect("a policy");
    assert!(matches!(store.write("db", Some("x"), &[]), Err(Error::NotFound(_))));
    let mut integer = point("m,a=1", 5, &[]);
    integer.fields.push(("f".into(), FieldValue::Integer(1)));
    let points = [
        point("m,a=1", 1, &[("f", 1.0)]),
        integer,
        point("m,a=2", 2, &[("f", 2.0)]),
        point("m,a=3", 3, &[("f", 3.0)]),
        point("m,a=4", 4, &[("f", 4.0)]),
        point("m,a=1", i64::MAX, &[("f", 4.0)]),
        point("m,a=1", 6, &[("f", 6.0)]),
        point("m,a=1", 7, &[("time", 6.0)]),
        point("m,a=1", 8, &[("time", 6.0), ("f", 7.0)]),
        point("m,time=1", 9, &[("f", 7.0)]),
    ];
    let outcome = store.write("db", None, &points).expect("an outcome");
    assert_eq!(outcome.written, 5);
    let places: Vec<usize> = outcome.rejected.iter().map(|it| it.0).collect();
    assert_eq!(places, [1, 4, 5, 7, 9]);
    assert!(outcome.rejected[0].1.contains("field type conflict"), "{outcome:?}");
    assert!(outcome.rejected[1].1.contains("max-series"), "{outcome:?}");
    assert_eq!(all(&store, "m", "f").len(), 5);
    assert_eq!(all(&store, "m", "time").len(), 0);
    let old =
        store.write("db", Some("day"), &[point("m,a=1", 1, &[("f", 1.0)])]).expect("an outcome");
    assert_eq!(old.rejected.len(), 1);
}

/// Points that are acknowledged together with too long strings are there, before and after they are sealed.
#[test]
fn a_string_that_is_too_long_takes_no_other_point_with_it() {
    let text = |len: usize| FieldValue::String("x".repeat(len).into());
    for (page_len, short, long) in [(4096, 3_900, 4_096), (256 << 10, STRING_MAX, STRING_MAX + 1)] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ts");
        let options = Options { sets: 1, page_len, ..options() };
        let mut store = Store::open(&path, &options).expect("a store");
        store.create_database("db").expect("a database");
        let mut points: Vec<_> = (0..3).map(|at| point("m,a=1", at, &[("f", 1.0)])).collect();
        // Its first row would be complete before the long string is met.
        points[1].fields.push(("s".into(), text(short)));
        points[1].fields.push(("t".into(), text(long)));
        let mut other = point("m,a=1", 3, &[("f", 1.0)]);
        other.fields.push(("s".into(), text(short)));
        points.push(other);
        let outcome = store.write("db", None, &points).expect("an outcome");
        let refused: Vec<usize> = outcome.rejected.iter().map(|it| it.0).collect();
        assert_eq!((outcome.written, refused), (3, vec![1]));
        for is_opened in [false, true] {
            if is_opened {
                store.seal().expect("sealed");
                drop(store);
                store = Store::open(&path, &options).expect("opened");
            }
            assert_eq!(store.damage().count(), 0);
            let times: Vec<i64> = all(&store, "m", "f").into_keys().map(|it| it.1).collect();
            assert_eq!(times, [0, 2, 3], "pages of {page_len}, opened {is_opened}");
            assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
        }
    }
}

#[test]
fn what_was_dropped_stays_dropped() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let mut store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    let points: Vec<Point<'_>> = (0..900)
        .map(|at| {
            point(&format!("m{},a={}", at % 3, at % 5), at * 1_000_000_000, &[("f", at as f64)])
        })
        .collect();
    for is_sealed in [false, true] {
        store.write("db", None, &points).expect("written");
        if is_sealed {
            store.seal().expect("sealed");
        }
        store.drop_measurement("db", "m0").expect("dropped");
        let equal = TagFilter::Equal("a".to_owned(), "2".to_owned());
        assert_eq!(store.drop_series("db", "m1", &equal).expect("dropped"), 1);
        for is_opened in [false, true] {
            if is_opened {
                drop(store);
                store = Store::open(&path, &options()).expect("opened");
            }
            let lens = ["m0", "m1", "m2"].map(|it| all(&store, it, "f").len());
            assert_eq!(lens, [0, 240, 300], "sealed {is_sealed}, opened {is_opened}");
        }
        // A new measurement of the same name is empty.
        store.write("db", None, &points[..1]).expect("written");
        assert_eq!(all(&store, "m0", "f").len(), 1);
        store.drop_database("db").expect("dropped");
        assert!(store.reader("db", None).is_err());
        store.create_database("db").expect("made");
        assert_eq!(all(&store, "m2", "f").len(), 0);
    }
    let before = store.stats().used_bytes;
    store.seal().expect("sealed");
    assert!(store.stats().used_bytes <= before);
    assert_eq!(store.stats().segments, 0, "shards that are gone give their pages back");
}

/// The same place is written again and again, in segments of which some are merged, and others follow.
#[test]
fn the_last_value_of_a_time_wins() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let mut store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    let place = |time: i64| ("m,a=1".to_owned(), time);
    for round in 0..14_i64 {
        // The newer a chunk, the earlier it begins, and the later it ends.
        let times = [20 - round, 50, 80 + round];
        let points = times.map(|time| point("m,a=1", time, &[("f", round as f64)]));
        store.write("db", None, &points).expect("written");
        store.seal().expect("sealed");
        for is_opened in [false, true] {
            if is_opened {
                drop(store);
                store = Store::open(&path, &options()).expect("opened");
            }
            let found = all(&store, "m", "f");
            for time in times {
                let value = found.get(&place(time)).copied();
                assert_eq!(value, Some(round as f64), "{time}, opened {is_opened}");
            }
            assert_eq!(found.len() as i64, 2 * round + 3);
        }
    }
    assert!(store.stats().segments > 1);
    let before = all(&store, "m", "f");
    store.merge().expect("merged");
    assert_eq!(store.stats().segments, 1);
    assert_eq!(all(&store, "m", "f"), before);
}

#[test]
fn pools_of_different_times_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let write = |series: &str| {
        let store = Store::open(&path, &options()).expect("a store");
        store.create_database("db").expect("a database");
        let points: Vec<_> =
            (0..40).map(|at| point(&format!("{series},a={at}"), 1, &[("f", 1.0)])).collect();
        store.write("db", None, &points).expect("written");
    };
    write("m");
    let before = std::fs::read(path.join("q0")).expect("a pool");
    write("n");
    let after = std::fs::read(path.join("q0")).expect("a pool");
    std::fs::write(path.join("q0"), before).expect("a copy");
    let found = Store::open(&path, &options());
    assert!(matches!(&found, Err(Error::Pools(_))), "{found:?}");
    drop(found);
    std::fs::write(path.join("q0"), after).expect("a copy");
    let store = Store::open(&path, &options()).expect("a store");
    assert_eq!((all(&store, "m", "f").len(), all(&store, "n", "f").len()), (40, 40));
}

/// A pool without room reports it, keeps acknowledged points, and takes points again after a drop.
#[test]
fn a_full_pool_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { sets: 1, size: 1 << 20, page_len: 4096, ..options() };
    let mut store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    let mut draw = Draw(5);
    let mut expected = BTreeMap::new();
    let mut full = 0;
    for round in 0..20_000_i64 {
        let value = draw.next(1 << 50) as f64;
        let key = |at: i64| format!("m{},a={at}", round % 2);
        let points: Vec<_> =
            (0..20).map(|at| point(&key(at), round, &[("f", value + at as f64)])).collect();
        match store.write("db", None, &points) {
            Ok(outcome) => assert_eq!(outcome.written, 20),
            Err(Error::Full(_)) if full == 20 => break,
            Err(Error::Full(_)) => {
                full += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        expected.extend((0..20).map(|at| ((key(at), round), value + at as f64)));
    }
    assert!(full == 20, "it has {} points", expected.len());
    for is_opened in [false, true] {
        if is_opened {
            drop(store);
            store = Store::open(&path, &options).expect("opened");
        }
        let mut found = all(&store, "m0", "f");
        found.extend(all(&store, "m1", "f"));
        // A part of a failed write may be there, too.
        for (place, value) in &expected {
            assert_eq!(found.get(place), Some(value), "{place:?}, opened {is_opened}");
        }
    }
    store.drop_database("db").expect("dropped");
    store.create_database("db").expect("made");
    store.merge().expect("there is room for what is left");
    store.write("db", None, &[point("m,a=1", 1, &[("f", 1.0)])]).expect("there is room again");
}

#[test]
fn pools_without_the_first_one_are_not_made_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    drop(Store::open(&path, &options()).expect("a store"));
    // The state after a making of the store was cut off.
    std::fs::remove_file(path.join("q0")).expect("removed");
    std::fs::write(path.join("q2"), [0; 4096]).expect("written");
    std::fs::write(path.join("incomplete"), "").expect("written");
    let store = Store::open(&path, &options()).expect("a store");
    assert!(!path.join("incomplete").exists());
    store.create_database("db").expect("a database");
    // The points of one device are in the first pool, as all names are: the others are as they were made.
    store.write("db", None, &[point("m,a=1", 1, &[("f", 1.0)])]).expect("written");
    drop(store);
    let others = || ["q1", "q2"].map(|it| std::fs::read(path.join(it)).expect("a pool"));
    let before = others();
    let away = directory.path().join("q0");
    std::fs::rename(path.join("q0"), &away).expect("moved");
    let refused = Store::open(&path, &options()).map(drop);
    assert!(matches!(refused, Err(Error::Pools(_))), "{refused:?}");
    assert!(others() == before);
    // A link to a place that is not mounted.
    let missing = directory.path().join("missing/q0");
    std::os::unix::fs::symlink(missing, path.join("q0")).expect("a link");
    let refused = Store::open(&path, &options()).map(drop);
    assert!(matches!(refused, Err(Error::Pool(_))), "{refused:?}");
    assert!(others() == before);
    std::fs::rename(&away, path.join("q0")).expect("moved");
    let store = Store::open(&path, &options()).expect("opened");
    assert_eq!(all(&store, "m", "f").len(), 1);
    drop(store);
    // Another file that has the name of a pool.
    let other = directory.path().join("other");
    std::fs::create_dir(&other).expect("a directory");
    std::fs::write(other.join("q1"), "mine").expect("written");
    assert!(Store::open(&other, &options()).is_err());
    assert_eq!(std::fs::read(other.join("q1")).expect("there"), b"mine");
}

/// A making that was cut off leaves the first pool without its first bytes, which are written last.
#[test]
fn a_store_whose_first_pool_was_never_made_whole_is_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    drop(Store::open(&path, &options()).expect("a store"));
    let whole = std::fs::read(path.join("q0")).expect("a pool");
    for (len, rest) in [(0, None), (4096, Some(8)), (4096, None), (16 << 20, Some(8))] {
        let mut blank = vec![0; len];
        // The first page, but for its beginning.
        rest.into_iter().for_each(|from| blank[from..2048].copy_from_slice(&whole[from..2048]));
        for is_alone in [false, true] {
            if is_alone {
                for other in ["q1", "q2"] {
                    std::fs::remove_file(path.join(other)).expect("removed");
                }
            }
            std::fs::write(path.join("q0"), &blank).expect("written");
            assert!(Store::open(&path, &options()).is_err(), "without the mark of a making");
            std::fs::write(path.join("incomplete"), "").expect("written");
            let is_there = || Store::is_there(&path, &MediaChoice::Auto).expect("an answer");
            assert!(!is_there(), "{len} bytes");
            drop(Store::open(&path, &options()).expect("a store"));
            assert!(is_there());
            // Unused ones beside it.
            std::fs::remove_dir_all(&path).expect("removed");
            drop(Store::open(&path, &options()).expect("a store"));
        }
    }
    // A pool with data is none that was cut off, whatever its first bytes are, and so is what is beside it.
    let store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    drop(store);
    let whole = std::fs::read(path.join("q0")).expect("a pool");
    let mut damaged = whole.clone();
    damaged[..8].fill(0);
    std::fs::write(path.join("q0"), &damaged).expect("written");
    assert!(Store::open(&path, &options()).is_err(), "its first bytes are damaged");
    std::fs::remove_file(path.join("q0")).expect("removed");
    std::fs::write(path.join("q1"), &damaged).expect("written");
    let refused = Store::open(&path, &options()).map(drop);
    assert!(matches!(refused, Err(Error::Pools(_))), "{refused:?}");
    assert!(std::fs::read(path.join("q1")).expect("there") == damaged);
    std::fs::remove_file(path.join("q1")).expect("removed");
    // A link leads to a place that somebody has chosen.
    std::fs::write(directory.path().join("mine"), [0; 4096]).expect("written");
    std::os::unix::fs::symlink(directory.path().join("mine"), path.join("q0")).expect("a link");
    assert!(Store::open(&path, &options()).is_err());
}

#[test]
fn a_store_that_several_make_larger_has_each_page_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { sets: 1, ..options() };
    let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
    for size in [20 << 20, 24 << 20, 28 << 20, 32 << 20] {
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| store.grow(size).expect("grown"))));
        });
        store.check_pages().expect("pages");
    }
}

#[test]
fn a_measurement_that_ends_with_an_escaped_equals_sign_is_there_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    // The equals sign follows a backslash that escapes nothing.
    store.write("db", None, &[point(r"\\=,t=a\=b", 1, &[("f", 0.5)])]).expect("a write");
    drop(store);
    let store = Store::open(&path, &options()).expect("the store");
    let found = BTreeMap::from([((r"\\=,t=a\=b".to_owned(), 1), 0.5)]);
    assert_eq!(all(&store, r"\=", "f"), found);
    let reader = store.reader("db", None).expect("a reader");
    let series = reader.series(r"\=", &TagFilter::Equal("t".into(), "a=b".into()));
    let tags: Vec<_> = series.iter().flat_map(|it| it.tags()).collect();
    assert_eq!(tags, [("t", "a=b")]);
}
