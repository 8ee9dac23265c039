//! A workload that records its operations, and decides which of their results may be found after a power cut.

use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Model, Run, SimOptions, Standing, Subject};
use coreplane_pmem::spin::Backoff;
use coreplane_tsdb::{
    Column, Error, FieldValue, Options, Point, Policy, Reader, SeriesKey, Store, TagFilter,
};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const PAGE: u32 = 1024;
pub(crate) const HOUR: i64 = 3_600_000_000_000;

pub(crate) fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// A field of a series at a time.
pub(crate) type Place = (String, String, i64);

/// A recorded operation.
#[derive(Debug, Clone)]
pub(crate) enum Made {
    Database,
    Points(Vec<(Place, i64)>),
    /// All places whose series begins with this are empty.
    Dropped(String),
    /// All places before this time are empty.
    Expired(i64),
    /// A reader has seen a point, or a measurement.
    Seen(Place, i64),
    /// Sealing and merging change nothing.
    Nothing,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Story {
    pub(crate) seed: u64,
    pub(crate) sets: u32,
    pub(crate) rounds: u64,
    /// One round in so many seals all points; drops a measurement; drops expired shards.
    pub(crate) seal_in: u64,
    pub(crate) drop_in: u64,
    pub(crate) expire_in: u64,
    /// Series.
    pub(crate) series: u64,
    pub(crate) pages: u64,
    /// Writers side by side, each with series of its own.
    pub(crate) threads: u64,
    /// No place is written twice, and a reader records the points that it sees.
    pub(crate) is_watched: bool,
}

/// The place that stands for a measurement.
pub(crate) fn place_of(measurement: &str) -> Place {
    (measurement.to_owned(), "a measurement".to_owned(), 0)
}

pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    pub(crate) fn hits(&mut self, once_in: u64) -> bool {
        once_in > 0 && self.next(once_in) == 0
    }
}

impl Story {
    pub(crate) fn new(seed: u64, sets: u32) -> Self {
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

    pub(crate) fn options(&self) -> Options {
        Options { sets: self.sets, page_len: PAGE, head_bytes: 3 << 10, ..Options::default() }
    }

    pub(crate) fn sim_options(&self, model: Model) -> SimOptions {
        let len = self.pages * u64::from(PAGE);
        SimOptions {
            spaces: self.sets as usize,
            len,
            max_len: len,
            page_size: PAGE,
            model,
            seed: self.seed,
            images_per_cut: if is_full_scale() { 8 } else { 5 },
            ..SimOptions::default()
        }
    }

    /// Points of some series, and the places that they fill. `serial` is in each value.
    pub(crate) fn points(&self, draw: &mut Draw, serial: u64, thread: u64) -> Vec<(Place, i64)> {
        let mut made: BTreeMap<Place, i64> = BTreeMap::new();
        for at in 0..1 + draw.next(8) {
            let number = draw.next(self.series);
            let series = format!("m{},n={number},t={thread}", number % 2);
            // Around now, sometimes long before, sometimes at the same place again.
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

    pub(crate) fn write(&self, store: &Store, points: &[(Place, i64)]) -> Result<bool, Error> {
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
            // A point is older than the policy keeps.
            Ok(_) => Ok(false),
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records the points that it sees.
    pub(crate) fn watch(&self, run: &Run<'_, Made>, store: &Store) {
        let mut seen: BTreeMap<Place, i64> = BTreeMap::new();
        for _ in 0..self.rounds * 12 {
            let reader = store.reader("db", None).expect("a reader");
            let found = places(&reader).expect("points");
            for (place, value) in found {
                if seen.insert(place.clone(), value).is_none() {
                    run.acknowledged(Made::Seen(place, value), || ());
                }
            }
            // The other threads go on.
            Backoff::new().wait();
        }
    }

    pub(crate) fn drop_some(&self, run: &Run<'_, Made>, store: &Store, draw: &mut Draw) {
        let number = draw.next(self.series);
        let name = format!("m{}", number % 2);
        if draw.hits(2) {
            let call = run.began(Made::Dropped(format!("{name},")));
            match store.drop_measurement("db", &name) {
                Ok(()) => call.returned(),
                // The measurement did not exist.
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

    pub(crate) fn live(&self, run: &Run<'_, Made>, store: &Store, thread: u64) {
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
pub(crate) fn places(reader: &Reader<'_>) -> Result<BTreeMap<Place, i64>, String> {
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
                // Other threads may have written points meanwhile.
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

pub(crate) const BOTH: [Model; 2] = [Model::X86, Model::File];
