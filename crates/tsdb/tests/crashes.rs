//! Power cuts at every fence and every return, and in recovery: each point that was acknowledged is there, once, and nothing
//! that was dropped comes back.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Eviction, History, Model, Run, Sim, SimOptions, Standing, Subject, explore,
};
use coreplane_pmem::spin::Backoff;
use coreplane_tsdb::{
    Column, Error, FieldValue, Options, Point, Policy, Reader, SeriesKey, Store, TagFilter,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u32 = 1024;
const HOUR: i64 = 3_600_000_000_000;

fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// A field of a series at a time.
type Place = (String, String, i64);

/// What was made.
#[derive(Debug, Clone)]
enum Made {
    Database,
    Points(Vec<(Place, i64)>),
    /// All places whose series begins so are empty.
    Dropped(String),
    /// All places before this time are.
    Expired(i64),
    /// Somebody has seen a point, or a measurement.
    Seen(Place, i64),
    /// Sealing and merging change nothing.
    Nothing,
}

#[derive(Debug, Clone, Copy)]
struct Story {
    seed: u64,
    sets: u32,
    rounds: u64,
    /// One round in so many seals all; drops a measurement; drops what is old.
    seal_in: u64,
    drop_in: u64,
    expire_in: u64,
    /// Series.
    series: u64,
    pages: u64,
    /// Writers side by side, each with series of its own.
    threads: u64,
    /// No place is written twice, and a reader says what it sees.
    is_watched: bool,
}

/// What stands for a measurement among places.
fn place_of(measurement: &str) -> Place {
    (measurement.to_owned(), "a measurement".to_owned(), 0)
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    fn hits(&mut self, once_in: u64) -> bool {
        once_in > 0 && self.next(once_in) == 0
    }
}

impl Story {
    fn new(seed: u64, sets: u32) -> Self {
        let (seal_in, drop_in, expire_in) = (12, 0, 0);
        Self {
            seed,
            sets,
            rounds: 40,
            seal_in,
            drop_in,
            expire_in,
            series: 5,
            pages: 400,
            threads: 1,
            is_watched: false,
        }
    }

    fn options(&self) -> Options {
        Options { sets: self.sets, page_len: PAGE, head_bytes: 3 << 10, ..Options::default() }
    }

    fn sim_options(&self, model: Model) -> SimOptions {
        let len = self.pages * u64::from(PAGE);
        SimOptions {
            spaces: self.sets as usize,
            len,
            max_len: len,
            page_size: PAGE,
            model,
            seed: self.seed,
            images_per_cut: 8,
            ..SimOptions::default()
        }
    }

    /// Points of some series, and what they make. `serial` is in each value.
    fn points(&self, draw: &mut Draw, serial: u64, thread: u64) -> Vec<(Place, i64)> {
        let mut made: BTreeMap<Place, i64> = BTreeMap::new();
        for at in 0..1 + draw.next(8) {
            let number = draw.next(self.series);
            let series = format!("m{},n={number},t={thread}", number % 2);
            // Around now, sometimes long before, sometimes again.
            let back = if draw.hits(6) { draw.next(200) } else { draw.next(4) };
            let back = if self.is_watched { 0 } else { back };
            let time = (serial.saturating_sub(back) as i64) * HOUR / 8;
            for field in ["a", "b"].iter().take(1 + draw.next(2) as usize) {
                let value = (serial * 100 + at) as i64;
                made.insert((series.clone(), (*field).to_owned(), time), value);
            }
        }
        made.into_iter().collect()
    }

    fn write(&self, store: &Store, points: &[(Place, i64)]) -> Result<bool, Error> {
        let all: Vec<Point<'_>> = points
            .iter()
            .map(|((series, field, time), value)| Point {
                series: SeriesKey::of_text(series).expect("a key"),
                fields: [(field.as_str().into(), FieldValue::Integer(*value))]
                    .into_iter()
                    .collect(),
                time: *time,
            })
            .collect();
        match store.write("db", None, &all) {
            Ok(outcome) if outcome.rejected.is_empty() => Ok(true),
            // Older than is kept.
            Ok(_) => Ok(false),
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says what it sees.
    fn watch(&self, run: &Run<'_, Made>, store: &Store) {
        let mut seen: BTreeMap<Place, i64> = BTreeMap::new();
        for _ in 0..self.rounds * 12 {
            let reader = store.reader("db", None).expect("a reader");
            let found = places(&reader).expect("points");
            for (place, value) in found {
                if seen.insert(place.clone(), value).is_none() {
                    run.acknowledged(Made::Seen(place, value), || ());
                }
            }
            // Others go on.
            Backoff::new().wait();
        }
    }

    fn drop_some(&self, run: &Run<'_, Made>, store: &Store, draw: &mut Draw) {
        let number = draw.next(self.series);
        let name = format!("m{}", number % 2);
        if draw.hits(2) {
            let call = run.began(Made::Dropped(format!("{name},")));
            match store.drop_measurement("db", &name) {
                Ok(()) => call.returned(),
                // Nothing was there.
                Err(Error::NotFound(_)) => drop(call),
                Err(error) => panic!("{error}"),
            }
        } else {
            let call = run.began(Made::Dropped(format!("{name},n={number},")));
            let equal = TagFilter::Equal("n".to_owned(), number.to_string());
            store.drop_series("db", &name, &equal).expect("dropped");
            call.returned();
        }
    }

    fn live(&self, run: &Run<'_, Made>, store: &Store, thread: u64) {
        let mut draw = Draw(self.seed * 31 + thread);
        for serial in 0..self.rounds {
            let points = self.points(&mut draw, serial, thread);
            let call = run.began(Made::Points(points.clone()));
            if self.write(store, &points).expect("written") {
                call.returned();
            }
            if draw.hits(self.seal_in) {
                let call = run.began(Made::Nothing);
                match store.seal() {
                    Ok(()) | Err(Error::Full(_)) => call.returned(),
                    Err(error) => panic!("{error}"),
                }
            }
            if draw.hits(self.drop_in) {
                self.drop_some(run, store, &mut draw);
            }
            if draw.hits(self.expire_in) {
                let now = serial as i64 * HOUR / 8;
                store.set_clock(now.max(1));
                // Shards of an hour, kept for one.
                let oldest = (now - HOUR - 1).div_euclid(HOUR) * HOUR;
                let call = run.began(Made::Expired(oldest));
                store.expire().expect("dropped");
                call.returned();
            }
        }
    }
}

/// All points, and the measurements.
fn places(reader: &Reader<'_>) -> Result<BTreeMap<Place, i64>, String> {
    let text = |error: Error| error.to_string();
    let mut found = BTreeMap::new();
    for measurement in reader.measurements() {
        found.insert(place_of(&measurement), 1);
        for series in reader.series(&measurement, &TagFilter::All) {
            for field in reader.fields(&measurement) {
                let everything = i64::MIN..=i64::MAX;
                let mut count = 0;
                for block in reader.points(&series, &field, everything.clone(), false) {
                    let block = block.map_err(text)?;
                    let Column::Integer(values) = block.values else {
                        return Err("no integers".to_owned());
                    };
                    count += values.len() as u64;
                    for (time, value) in block.times.into_iter().zip(values) {
                        let place = (series.key.to_string(), field.name.to_string(), time);
                        if found.insert(place.clone(), value).is_some() {
                            return Err(format!("{place:?} is there twice"));
                        }
                    }
                }
                let sums = reader.summaries(&series, &field, everything, None).map_err(text)?;
                let summed: u64 = sums.iter().map(|(_, it)| it.count).sum();
                // Others may have come in between.
                if summed < count {
                    return Err(format!("{summed} of {count} points are summed up"));
                }
            }
        }
    }
    Ok(found)
}

impl Subject for Story {
    type Op = Made;
    type Store = Option<Store>;
    type Contents = Option<BTreeMap<Place, i64>>;

    fn work(&self, run: &Run<'_, Made>) {
        let store = Store::simulated_create(run.spaces(), &self.options()).expect("a store");
        store.set_clock(1);
        run.acknowledged(Made::Database, || {
            store.create_database("db").expect("a database");
            if self.expire_in > 0 {
                let policy = Policy {
                    name: "autogen".to_owned(),
                    duration_ns: HOUR as u64,
                    shard_ns: HOUR as u64,
                    is_default: true,
                };
                store.put_policy("db", &policy).expect("a policy");
            }
        });
        if self.threads == 1 {
            return self.live(run, &store, 0);
        }
        run.threads(|threads| {
            for thread in 0..self.threads {
                let store = &store;
                threads.spawn(move || self.live(run, store, thread));
            }
            if self.is_watched {
                threads.spawn(|| self.watch(run, &store));
            }
        });
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Store>, String> {
        self.recover_all(std::slice::from_ref(space))
    }

    fn recover_all(&self, spaces: &[Arc<Space>]) -> Result<Option<Store>, String> {
        match Store::simulated_open(spaces, &self.options()) {
            Ok(store) => {
                let damage = store.damage().next().map(str::to_owned);
                damage.map_or(Ok(Some(store)), |damage| Err(format!("damage: {damage}")))
            }
            // Its making was cut off.
            Err(Error::Pools(_) | Error::Pool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Store>) -> Result<Self::Contents, String> {
        let Some(store) = store else { return Ok(None) };
        let text = |error: Error| error.to_string();
        store.check_pages()?;
        if store.databases().is_empty() {
            return Ok(None);
        }
        let reader = store.reader("db", None).map_err(text)?;
        Ok(Some(places(&reader)?))
    }

    fn check(&self, contents: &Self::Contents, history: &History<'_, Made>) -> Result<(), String> {
        let Some(contents) = contents else {
            let is_made = history.acknowledged().next().is_some();
            return if is_made { Err("the store is lost".to_owned()) } else { Ok(()) };
        };
        let mut allowed: BTreeMap<&Place, Vec<Option<i64>>> = BTreeMap::new();
        for (made, standing) in history.operations() {
            let is_done = standing == Standing::Acknowledged;
            let set = |values: &mut Vec<Option<i64>>, value: Option<i64>| {
                if is_done {
                    values.clear();
                }
                values.push(value);
            };
            match made {
                Made::Points(points) => {
                    for (place, value) in points {
                        set(allowed.entry(place).or_insert_with(|| vec![None]), Some(*value));
                    }
                }
                Made::Dropped(prefix) => {
                    for (place, values) in &mut allowed {
                        if place.0.starts_with(prefix.as_str()) {
                            set(values, None);
                        }
                    }
                }
                Made::Expired(before) => {
                    for (place, values) in &mut allowed {
                        if place.2 < *before {
                            set(values, None);
                        } else {
                            // The shard may be older than it looks.
                            values.push(None);
                        }
                    }
                }
                Made::Seen(place, value) => {
                    set(allowed.entry(place).or_insert_with(|| vec![None]), Some(*value));
                }
                Made::Database | Made::Nothing => {}
            }
        }
        for (place, values) in &allowed {
            let found = contents.get(*place).copied();
            if !values.contains(&found) {
                return Err(format!("{place:?} is {found:?}, none of {values:?}"));
            }
        }
        let is_known = |place: &Place| allowed.contains_key(place) || *place == place_of(&place.0);
        match contents.keys().find(|place| !is_known(place)) {
            Some(place) => Err(format!("{place:?} was never written")),
            None => Ok(()),
        }
    }
}

fn explored(story: &Story, model: Model) -> u64 {
    let report = explore(&story.sim_options(model), story);
    assert!(report.is_clean(), "{story:?} {model:?}: {report}");
    report.images
}

fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    first..first + if is_full_scale() { 10 * count } else { count }
}

const BOTH: [Model; 2] = [Model::X86, Model::File];

#[test]
fn an_acknowledged_point_is_there() {
    let mut images = 0;
    for seed in seeds(1, 3) {
        for model in BOTH {
            images += explored(&Story::new(seed, 1 + seed as u32 % 3), model);
        }
    }
    assert!(images > 500, "{images}");
}

#[test]
fn what_was_dropped_does_not_come_back() {
    for seed in seeds(21, 2) {
        for model in BOTH {
            let story = Story { drop_in: 9, seal_in: 7, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn a_shard_that_is_over_is_gone_in_all_sets_at_once() {
    for seed in seeds(41, 2) {
        for model in BOTH {
            let story = Story { expire_in: 6, seal_in: 9, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 100);
        }
    }
}

/// Heads and segments come and go until all pages have been something else.
#[test]
fn pages_come_round() {
    for seed in seeds(61, 2) {
        for model in BOTH {
            let story =
                Story { rounds: 150, seal_in: 5, drop_in: 25, pages: 160, ..Story::new(seed, 1) };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn writers_side_by_side_lose_nothing() {
    for seed in seeds(81, 2) {
        for model in BOTH {
            let story = Story { threads: 3, rounds: 12, seal_in: 8, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn what_was_seen_is_there() {
    for seed in seeds(101, 3) {
        for model in BOTH {
            let story = Story { threads: 2, rounds: 8, is_watched: true, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 50);
        }
    }
}

/// A write that is cut off, and another to the same places behind an opening: the second one counts, and stays.
#[test]
fn what_a_cut_has_left_does_not_come_back_behind_a_newer_point() {
    let story = Story { rounds: 0, ..Story::new(1, 1) };
    let places = |value: i64| -> Vec<(Place, i64)> {
        let field = |at: i64| format!("f{}", at % 40);
        (0..80).map(|at| (("m0,n=1".to_owned(), field(at), at / 40), value)).collect()
    };
    let mut cuts = 0;
    for model in BOTH {
        let sim = Sim::new(&story.sim_options(model)).expect("memory");
        let store = Store::simulated_create(sim.spaces(), &story.options()).expect("a store");
        store.create_database("db").expect("a database");
        assert!(story.write(&store, &places(1)).expect("written"));
        let before = sim.events();
        // Several records, on two pages.
        assert!(story.write(&store, &places(2)).expect("written"));
        for events in before..sim.events() {
            for seed in 0..6 {
                let sim = sim.crash_at(events, Eviction::Seeded(seed)).reopen().expect("memory");
                let open =
                    || Store::simulated_open(sim.spaces(), &story.options()).expect("opened");
                let store = open();
                assert!(story.write(&store, &places(3)).expect("written"));
                let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
                let store = Store::simulated_open(sim.spaces(), &story.options()).expect("opened");
                assert_eq!(store.damage().next(), None, "{model:?} {events} {seed}");
                let reader = store.reader("db", None).expect("a reader");
                let found = self::places(&reader).expect("points");
                assert_eq!(found.len(), 81);
                let is_new =
                    |(place, value): (&Place, &i64)| *value == 3 || *place == place_of("m0");
                assert!(found.iter().all(is_new), "{model:?} {events} {seed}: {found:?}");
                cuts += 1;
            }
        }
    }
    assert!(cuts > 100, "{cuts}");
}

/// A write of several records of one length is cut off when it has begun a page, whose use may be forgotten while its records
/// are there. A shorter one to the same place follows, in a page that is begun in the same place.
#[test]
fn a_page_that_a_cut_has_forgotten_does_not_come_back_behind_a_newer_point() {
    const LARGE: u32 = 64 << 10;
    let story = Story { rounds: 0, pages: 60 * u64::from(LARGE / PAGE), ..Story::new(1, 1) };
    let options = Options { page_len: LARGE, head_bytes: 1 << 20, ..story.options() };
    // A record has 546 of them.
    let points = |value: i64, records: usize| -> Vec<(Place, i64)> {
        vec![(("m0,n=1".to_owned(), "a".to_owned(), 1), value); records * 546]
    };
    for model in BOTH {
        let sim_options = SimOptions { page_size: LARGE, ..story.sim_options(model) };
        let sim = Sim::new(&sim_options).expect("memory");
        let store = Store::simulated_create(sim.spaces(), &options).expect("a store");
        store.create_database("db").expect("a database");
        // The log has pages 4 to 7: the word of the next one is the first of a line.
        for _ in 0..4 {
            assert!(story.write(&store, &points(1, 3)).expect("written"));
        }
        let before = sim.events();
        assert!(story.write(&store, &points(2, 3)).expect("written"));
        let (word, mut forgot) = (u64::from(LARGE) + 8 * 8, 0);
        for events in before..sim.events() {
            let mut image = sim.crash_at(events, Eviction::Everything);
            forgot += u32::from(image.word(word) != 0);
            image.fill_line(word, 0);
            let cut = image.reopen().expect("memory");
            let store = Store::simulated_open(cut.spaces(), &options).expect("opened");
            assert!(story.write(&store, &points(3, 1)).expect("written"));
            let cut = cut.crash(Eviction::Nothing).reopen().expect("memory");
            let store = Store::simulated_open(cut.spaces(), &options).expect("opened");
            assert_eq!(store.damage().next(), None, "{model:?} {events}");
            let found = places(&store.reader("db", None).expect("a reader")).expect("points");
            let place = ("m0,n=1".to_owned(), "a".to_owned(), 1);
            assert_eq!(found.get(&place), Some(&3), "{model:?} {events}");
        }
        assert!(forgot > 0, "{model:?}");
    }
}

/// Names that are made behind a sync that has failed.
#[test]
fn a_store_whose_sync_has_failed_can_be_opened_again() {
    let story = Story::new(1, 2);
    let sim = Sim::new(&story.sim_options(Model::File)).expect("memory");
    let store = Store::simulated_create(sim.spaces(), &story.options()).expect("a store");
    store.create_database("db").expect("a database");
    let point = |at: i64| vec![((format!("m{at}"), "a".to_owned(), at), at)];
    assert!(story.write(&store, &point(1)).expect("written"));
    sim.fail_syncs();
    for at in 2..5 {
        assert!(matches!(story.write(&store, &point(at)), Err(Error::Sync(_))));
    }
    let cut = sim.crash(Eviction::Everything).reopen().expect("memory");
    let store = Store::simulated_open(cut.spaces(), &story.options()).expect("opened");
    let found = places(&store.reader("db", None).expect("a reader")).expect("points");
    assert_eq!(found.get(&("m1".to_owned(), "a".to_owned(), 1)), Some(&1));
}

/// Points for which there was no room to be sealed, and others that came behind them.
#[test]
fn all_points_are_sealed_once_there_is_room() {
    let story = Story { pages: 400, ..Story::new(1, 1) };
    let options = Options { head_bytes: 1 << 20, ..story.options() };
    let sim = Sim::new(&story.sim_options(Model::X86)).expect("memory");
    let store = Store::simulated_create(sim.spaces(), &options).expect("a store");
    let write = |database: &str, range: std::ops::Range<i64>| -> Result<(), Error> {
        let texts: Vec<String> = range.map(|at| format!("m,n={at}")).collect();
        let point = |text| Point {
            series: SeriesKey::of_text(text).expect("a key"),
            fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
            time: 1,
        };
        let points: Vec<Point<'_>> = texts.iter().map(|text| point(text)).collect();
        store.write(database, None, &points).map(drop)
    };
    for database in ["old", "db"] {
        store.create_database(database).expect("a database");
    }
    write("old", 0..1300).expect("room");
    store.seal().expect("room");
    write("db", 0..600).expect("room");
    assert!(matches!(store.seal(), Err(Error::Full(_))), "{:?}", store.stats());
    store.drop_database("old").expect("dropped");
    // Gives back what the database had, behind that.
    assert!(store.seal().is_err());
    write("db", 0..1).expect("room");
    store.seal().expect("room");
    assert_eq!(store.stats().head_points, 0);
    store.check_pages().expect("pages");
}
