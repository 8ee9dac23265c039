//! The last values of series equal those of a full read, for any sequence of writes, seals, merges, drops, kills
//! and openings.
//!
//! Each value is asked for again and again, so that cached values meet later changes: late points, points that are
//! written again, dropped shards and series. The reference is a map of all points, and a reader that scans all
//! points.

use coreplane_tsdb::influxql::{Answer, Cell, Cells, Limits, Request, run};
use coreplane_tsdb::{
    Error, Field, FieldValue, Options, Point, Policy, Reader, Series, SeriesKey, Store, TagFilter,
    Value,
};
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
/// The beginning of a shard.
const START: i64 = 1_599_998_400 * SECOND;
/// The time for which points are kept, in hours.
const KEPT: i64 = 5;
const HOSTS: u8 = 4;

/// A host, a place in six hours, a value, and a bit set of fields.
type Drawn = (u8, u16, i8, u8);

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<Drawn>),
    Seal,
    Merge,
    /// The store is closed and opened again.
    Reopen,
    /// The store is opened again without being closed.
    Kill,
    DropSeries(u8),
    DropMeasurement,
    DropDatabase,
    /// The clock is set to half an hour behind this place.
    Clock(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let point = (0..HOSTS, 0_u16..360, any::<i8>(), 1_u8..8);
    let write = proptest::collection::vec(point, 1..30).prop_map(Step::Write);
    let step = prop_oneof![
        12 => write,
        5 => Just(Step::Seal),
        1 => Just(Step::Merge),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        1 => (0..HOSTS).prop_map(Step::DropSeries),
        1 => (4_u8..9).prop_map(Step::Clock),
        1 => prop_oneof![3 => Just(Step::DropMeasurement), 1 => Just(Step::DropDatabase)],
    ];
    proptest::collection::vec(step, 5..50)
}

/// All points: by host and field, by time.
type Model = BTreeMap<(String, String), BTreeMap<i64, Value>>;

struct World {
    /// The directory of the store, and the number of the next one.
    directory: tempfile::TempDir,
    number: u32,
    options: Options,
    store: Option<Arc<Store>>,
    clock: i64,
    model: Model,
}

fn time_of(place: u16) -> i64 {
    START + i64::from(place) * 60 * SECOND
}

fn fields_of((_, _, value, fields): Drawn) -> Vec<(&'static str, Value)> {
    let text = Arc::from(format!("text {value}").as_str());
    let all = [
        ("f", Value::Float(f64::from(value) / 4.0)),
        ("s", Value::String(text)),
        ("v", Value::Integer(value.into())),
    ];
    let is_its = |at: &usize| fields & 1 << at != 0;
    all.into_iter().enumerate().filter(|(at, _)| is_its(at)).map(|(_, it)| it).collect()
}

fn point_of(drawn: Drawn) -> Point<'static> {
    let host = drawn.0.to_string();
    let value = |it: Value| match it {
        Value::Float(it) => FieldValue::Float(it),
        Value::Integer(it) => FieldValue::Integer(it),
        Value::String(it) => FieldValue::String(it.to_string().into()),
        other => panic!("{other:?} is not drawn"),
    };
    let fields = fields_of(drawn).into_iter().map(|(name, it)| (name.into(), value(it)));
    let series = SeriesKey::new("m", [("host", &*host)]).unwrap().into_owned();
    Point { series, fields: fields.collect(), time: time_of(drawn.1) }
}

impl World {
    fn new(last_bytes: u64) -> Self {
        let options = Options {
            sets: 2,
            size: 4 << 20,
            page_len: 4 << 10,
            head_bytes: 12 << 10,
            last_bytes,
            ..Options::default()
        };
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let model = Model::new();
        let mut world = Self { directory, number: 0, options, store: None, clock: START, model };
        world.open();
        world.make();
        world
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(self.number.to_string())
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn open(&mut self) {
        let store = Store::open(&self.path(), &self.options).unwrap();
        assert_eq!(store.damage().count(), 0);
        store.set_clock(self.clock);
        self.store = Some(Arc::new(store));
    }

    fn make(&self) {
        self.store().create_database("d").unwrap();
        let policy = Policy {
            name: "autogen".to_owned(),
            duration_ns: (KEPT * HOUR) as u64,
            shard_ns: HOUR as u64,
            is_default: true,
        };
        self.store().put_policy("d", &policy).unwrap();
    }

    fn write(&mut self, drawn: &[Drawn]) {
        let points: Vec<Point<'_>> = drawn.iter().copied().map(point_of).collect();
        let oldest = self.clock - KEPT * HOUR;
        let outcome = self.store().write("d", None, &points).unwrap();
        let kept = drawn.iter().filter(|it| time_of(it.1) >= oldest);
        assert_eq!(outcome.written, kept.clone().count() as u64);
        for drawn in kept {
            for (name, value) in fields_of(*drawn) {
                let points = self.model.entry((drawn.0.to_string(), name.to_owned()));
                let points = points.or_default();
                points.insert(time_of(drawn.1), value);
            }
        }
    }

    /// Copies the files as a kill leaves them, and goes on with the copy. They are copied one page after the other:
    /// so nothing is given back or merged meanwhile.
    fn kill(&mut self) {
        let store = Arc::clone(self.store.as_ref().unwrap());
        let held = store.hold_upkeep();
        let from = self.path();
        self.number += 1;
        let to = self.path();
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(&from).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        drop(held);
        drop(store);
        self.store = None;
        fs::remove_dir_all(&from).unwrap();
        self.open();
    }

    fn is_there(&self) -> bool {
        self.store().reader("d", None).is_ok_and(|it| !it.fields("m").is_empty())
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Write(drawn) => self.write(drawn),
            Step::Seal => self.store().seal().unwrap(),
            Step::Merge => self.store().merge().unwrap(),
            Step::Reopen => {
                self.store = None;
                self.open();
            }
            Step::Kill => self.kill(),
            Step::DropSeries(host) if self.is_there() => {
                let host = host.to_string();
                let filter = TagFilter::Equal("host".to_owned(), host.clone());
                self.store().drop_series("d", "m", &filter).unwrap();
                self.model.retain(|(of, _), _| *of != host);
            }
            Step::DropMeasurement if self.is_there() => {
                self.store().drop_measurement("d", "m").unwrap();
                self.model.clear();
            }
            Step::DropDatabase => {
                self.store().drop_database("d").unwrap();
                self.make();
                self.model.clear();
            }
            Step::DropSeries(_) | Step::DropMeasurement => {}
            Step::Clock(hour) => {
                self.clock = self.clock.max(START + i64::from(*hour) * HOUR + HOUR / 2);
                self.store().set_clock(self.clock);
                self.store().expire().unwrap();
                // A shard lasts an hour.
                let end = (self.clock - KEPT * HOUR).div_euclid(HOUR) * HOUR;
                self.model.values_mut().for_each(|it| it.retain(|time, _| *time >= end));
            }
        }
    }

    fn check_all(&self, around: u16) {
        let reader = self.store().reader("d", None).unwrap();
        let of = all_of(&reader);
        check(&reader, &of, around);
        let mut expected = self.model.clone();
        for (series, field) in &of {
            let found = reader.last(series, field, 0..=i64::MAX).unwrap();
            let points = expected.remove(&(series.tag("host").to_owned(), field.name.to_string()));
            let last = points.unwrap_or_default().pop_last();
            assert_eq!(found, last, "{} of {}", field.name, series.key);
        }
        assert!(expected.values().all(BTreeMap::is_empty), "{expected:?} is missing");
    }
}

fn all_of(reader: &Reader<'_>) -> Vec<(Arc<Series>, Field)> {
    let fields = reader.fields("m");
    let series = reader.series("m", &TagFilter::All);
    let with = |it: &Arc<Series>| -> Vec<(Arc<Series>, Field)> {
        fields.iter().map(|field| (Arc::clone(it), field.clone())).collect()
    };
    series.iter().flat_map(with).collect()
}

/// Asks a reader for the last points of all fields of all series.
fn check(reader: &Reader<'_>, of: &[(Arc<Series>, Field)], around: u16) {
    let (one, other) = (time_of(around), time_of(around.saturating_add(45)));
    let everything = i64::MIN..=i64::MAX;
    for range in [everything, i64::MIN..=one, one..=i64::MAX, one..=other, other..=other] {
        for (series, field) in of {
            let found = reader.last(series, field, range.clone()).unwrap();
            let slow = slowly(reader, series, field, range.clone());
            assert_eq!(found, slow, "{} of {} in {range:?}", field.name, series.key);
        }
    }
}

fn slowly(
    reader: &Reader<'_>,
    series: &Series,
    field: &Field,
    range: RangeInclusive<i64>,
) -> Option<(i64, Value)> {
    let blocks = reader.points(series, field, range, false);
    let blocks: Result<Vec<_>, Error> = blocks.collect();
    let block = blocks.unwrap().pop()?;
    Some((*block.times.last()?, block.values.get(block.len() - 1)?))
}

fn asked(store: &Store, text: &str) -> Vec<Answer> {
    let limits = Limits {
        rows_max: 100_000,
        buckets_max: 100_000,
        bytes_max: 64 << 20,
        deadline: Instant::now() + Duration::from_secs(100),
        cancel: None,
        threads_max: 1,
    };
    let (database, now) = (Some("d"), START + 100 * HOUR);
    run(store, &Request { text, database, policy: None, now, is_read_only: true, limits }).unwrap()
}

/// Keeps the first rows of each table, and the first columns.
fn cut(answers: Vec<Answer>, rows: usize, columns: usize) -> Vec<Vec<Vec<Cell>>> {
    let tables = answers.into_iter().flat_map(|it| it.outcome.unwrap());
    let row = |row: Cells| row.into_iter().take(columns).collect();
    tables.map(|it| it.rows.into_iter().take(rows).map(row).collect()).collect()
}

/// Compares queries that last points can answer with the same queries over all points.
fn check_queries(store: &Store, around: u16) {
    let (one, other) = (time_of(around), time_of(around.saturating_add(45)));
    let times = [
        "time > 0".to_owned(),
        format!("time <= {one}"),
        format!("time > {one}"),
        format!("time >= {one} AND time < {other}"),
    ];
    for time in times {
        for by in ["", " GROUP BY host"] {
            for (field, all) in [("v", "v > -1000"), ("f", "f > -1000"), ("s", "s != ''")] {
                let quick = format!("SELECT last({field}) FROM m WHERE {time}{by}");
                let slow = format!("SELECT last({field}) FROM m WHERE {time} AND {all}{by}");
                assert_eq!(asked(store, &quick), asked(store, &slow), "{quick}");
            }
            let quick = format!("SELECT last(v), last(s) FROM m WHERE {time}{by}");
            let slow = format!("SELECT last(v), last(s), count(v) FROM m WHERE {time}{by}");
            let found = cut(asked(store, &quick), 1, 3);
            assert_eq!(found, cut(asked(store, &slow), 1, 3), "{quick}");
            for what in ["v", "v, host", "*", "s, f", "v + f AS sum", "f::integer"] {
                let text = format!("SELECT {what} FROM m WHERE {time}{by} ORDER BY time DESC");
                let found = cut(asked(store, &format!("{text} LIMIT 1")), 9, 9);
                let slow = cut(asked(store, &format!("{text} LIMIT 2")), 1, 9);
                assert_eq!(found, slow, "{text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 120, failure_persistence: None, ..Config::default() })]

    #[test]
    fn last_values_are_those_of_a_full_read(
        steps in steps(),
        around in 0_u16..360,
        last_bytes in prop_oneof![3 => Just(1_u64 << 20), 1 => Just(2_000), 1 => Just(0)],
    ) {
        let mut world = World::new(last_bytes);
        for step in &steps {
            if matches!(step, Step::Reopen | Step::Kill) {
                world.run(step);
            } else {
                // A reader from before the step asks before the step and after it.
                let store = Arc::clone(world.store.as_ref().unwrap());
                let reader = store.reader("d", None).unwrap();
                let of = all_of(&reader);
                check(&reader, &of, around);
                world.run(step);
                check(&reader, &of, around);
            }
            world.check_all(around);
        }
        check_queries(world.store(), around);
        let stats = world.store().stats();
        prop_assert!(stats.last_bytes <= last_bytes, "{stats:?}");
    }
}

/// A store with points, each of which is sealed by itself.
fn sealed_one_by_one(path: &Path, drawn: &[Drawn]) -> Store {
    let options = Options { sets: 1, size: 4 << 20, page_len: 4 << 10, ..Options::default() };
    let store = Store::open(path, &options).unwrap();
    store.create_database("d").unwrap();
    for drawn in drawn {
        store.write("d", None, &[point_of(*drawn)]).unwrap();
        store.seal().unwrap();
    }
    store
}

#[test]
fn a_reader_with_an_older_view_neither_sees_nor_spoils_what_is_known_by_now() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = sealed_one_by_one(&directory.path().join("ts"), &[(0, 10, 1, 4)]);
    let old = store.reader("d", None).unwrap();
    let (series, field) = all_of(&old).pop().unwrap();
    let last = |reader: &Reader<'_>| {
        let found = reader.last(&series, &field, 0..=i64::MAX).unwrap();
        assert_eq!(found, slowly(reader, &series, &field, 0..=i64::MAX));
        found
    };
    let value = |place: u16, value: i64| Some((time_of(place), Value::Integer(value)));
    // The old reader sees only the first of these writes, since its view has the head that takes that one in.
    for drawn in [(0, 20, 2, 4), (0, 30, 3, 4), (0, 30, 4, 4), (0, 25, 5, 4), (0, 30, 6, 4)] {
        store.write("d", None, &[point_of(drawn)]).unwrap();
        store.seal().unwrap();
        let new = store.reader("d", None).unwrap();
        last(&new);
        assert_eq!(last(&old), value(20, 2));
    }
    let new = store.reader("d", None).unwrap();
    assert_eq!(last(&new), value(30, 6));
    store.merge().unwrap();
    let merged = store.reader("d", None).unwrap();
    for reader in [&old, &new, &merged, &old] {
        last(reader);
    }
    assert_eq!((last(&old), last(&new), last(&merged)), (value(20, 2), value(30, 6), value(30, 6)));
}

#[test]
fn what_is_known_is_used_and_what_was_sealed_later_is_looked_into() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = sealed_one_by_one(&directory.path().join("ts"), &[(0, 10, 1, 7), (1, 20, 2, 7)]);
    assert_eq!((store.stats().last_values, store.stats().last_bytes), (0, 0));
    let texts = ["SELECT last(v) FROM m GROUP BY host", "SELECT last(*) FROM m WHERE time > 0"];
    for (text, known) in texts.iter().zip([2, 6]) {
        for _ in 0..3 {
            assert_eq!(asked(&store, text).len(), 1);
            assert_eq!(store.stats().last_values, known, "{text}");
        }
    }
    // The absence of a point in a field is cached as well.
    store.write("d", None, &[point_of((2, 359, 9, 4))]).unwrap();
    store.seal().unwrap();
    check_queries(&store, 15);
    assert!(store.stats().last_values >= 7);
    assert!(store.stats().last_bytes > 0);
}
