//! Random sequences of changes beside a naive model, which has plain lists and filters all series.
//!
//! After each sequence three catalogues must equal the model: the live one, one that replays its log, and one that
//! replays the log written anew.

use super::super::{Catalogue, Change, Field, Limits, Next, Policy, Series, Shard, TagFilter};
use super::{DAY, HOUR, apply, series_that};
use crate::error::Error;
use crate::value::FieldType;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A request.
#[derive(Debug, Clone)]
enum Wish {
    Database(&'static str),
    DropDatabase(Index),
    Policy(Index, &'static str, u64, u64, bool),
    DropPolicy(Index),
    Shard(Index, i64),
    DropShard(Index),
    Measurement(Index, &'static str),
    DropMeasurement(Index),
    Field(Index, &'static str, FieldType),
    Series(Index, BTreeMap<&'static str, &'static str>),
    DropSeries(Vec<Index>),
}

const TAGS: [&str; 3] = ["a", "b c", "d=,"];
const VALUES: [&str; 5] = ["1", "2", "v 1", "v,2", "v=3"];
const TIMES: [i64; 6] = [0, -1, DAY as i64 * 3, DAY as i64 * 40, i64::MAX - 1, i64::MIN + 2];

fn wishes() -> impl Strategy<Value = Wish> {
    let index = any::<Index>;
    let durations = (select(&[0, HOUR, DAY, 100 * DAY][..]), select(&[0, HOUR, 5 * HOUR][..]));
    let tags = prop::collection::btree_map(select(&TAGS[..]), select(&VALUES[..]), 0..4);
    let types = select(&[FieldType::Float, FieldType::String][..]);
    prop_oneof![
        2 => select(&["x", "y"][..]).prop_map(Wish::Database),
        1 => index().prop_map(Wish::DropDatabase),
        4 => (index(), select(&["p", "autogen"][..]), durations, any::<bool>())
            .prop_map(|(of, name, (keep, shard), it)| Wish::Policy(of, name, keep, shard, it)),
        1 => index().prop_map(Wish::DropPolicy),
        8 => (index(), select(&TIMES[..])).prop_map(|(of, time)| Wish::Shard(of, time)),
        2 => index().prop_map(Wish::DropShard),
        4 => (index(), select(&["m", "n o"][..])).prop_map(|(of, name)| Wish::Measurement(of, name)),
        1 => index().prop_map(Wish::DropMeasurement),
        6 => (index(), select(&["f", "g", "h"][..]), types)
            .prop_map(|(of, name, it)| Wish::Field(of, name, it)),
        40 => (index(), tags).prop_map(|(of, tags)| Wish::Series(of, tags)),
        4 => prop::collection::vec(index(), 0..6).prop_map(Wish::DropSeries),
    ]
}

fn filters() -> impl Strategy<Value = TagFilter> {
    let key = || select(&[TAGS[0], TAGS[1], TAGS[2], "none"][..]).prop_map(str::to_owned);
    let value = || select(&["", "1", "2", "v 1", "v,2", "none"][..]).prop_map(str::to_owned);
    let regex = || {
        let texts = vec!["", "^$", "1", "^v", "^(1|v=3)?$", "none", ".+"];
        select(texts).prop_map(|text| Regex::new(text).unwrap())
    };
    let leaf = prop_oneof![
        Just(TagFilter::All),
        (key(), value()).prop_map(|(key, it)| TagFilter::Equal(key, it)),
        (key(), value()).prop_map(|(key, it)| TagFilter::NotEqual(key, it)),
        (key(), regex()).prop_map(|(key, it)| TagFilter::Match(key, it)),
        (key(), regex()).prop_map(|(key, it)| TagFilter::NotMatch(key, it)),
    ];
    leaf.prop_recursive(4, 12, 2, |of| {
        prop_oneof![
            (of.clone(), of.clone()).prop_map(|(a, b)| TagFilter::And(a.into(), b.into())),
            (of.clone(), of).prop_map(|(a, b)| TagFilter::Or(a.into(), b.into())),
        ]
    })
}

/// Plain lists of the live objects: databases, measurements and fields by numbers, policies with their databases.
#[derive(Debug, Default)]
struct Model {
    databases: BTreeMap<u32, String>,
    policies: BTreeMap<u32, (u32, Policy)>,
    shards: BTreeMap<u32, Shard>,
    measurements: BTreeMap<u32, (u32, String)>,
    fields: BTreeMap<u32, (u32, Field)>,
    series: BTreeMap<u32, Named>,
    ever: Next,
}

#[derive(Debug, Clone)]
struct Named {
    measurement: u32,
    set: u32,
    key: String,
    tags: BTreeMap<String, String>,
}

fn pick<T>(of: &BTreeMap<u32, T>, index: Index) -> Option<u32> {
    (!of.is_empty()).then(|| *of.keys().nth(index.index(of.len())).unwrap())
}

fn escape(text: &str, escaped: &[char]) -> String {
    text.chars()
        .flat_map(|it| escaped.contains(&it).then_some('\\').into_iter().chain([it]))
        .collect()
}

fn key_of(measurement: &str, tags: &BTreeMap<String, String>) -> String {
    let mut key = escape(measurement, &[',', ' ']);
    for (name, value) in tags {
        let [name, value] = [name, value].map(|text| escape(text, &[',', ' ', '=']));
        key += &format!(",{name}={value}");
    }
    key
}

fn passes(tags: &BTreeMap<String, String>, filter: &TagFilter) -> bool {
    let tag = |key: &String| tags.get(key).map_or("", |value| value);
    match filter {
        TagFilter::All => true,
        TagFilter::Equal(key, value) => tag(key) == value,
        TagFilter::NotEqual(key, value) => tag(key) != value,
        TagFilter::Match(key, regex) => regex.is_match(tag(key)),
        TagFilter::NotMatch(key, regex) => !regex.is_match(tag(key)),
        TagFilter::And(a, b) => passes(tags, a) && passes(tags, b),
        TagFilter::Or(a, b) => passes(tags, a) || passes(tags, b),
    }
}

impl Model {
    fn tags_of(tags: &BTreeMap<&str, &str>) -> BTreeMap<String, String> {
        tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// The changes that fulfil a request, if it is possible.
    fn grant(&self, catalogue: &Catalogue, wish: &Wish) -> Option<Vec<Change>> {
        let one = |change: Result<Change, Error>| change.ok().map(|change| vec![change]);
        match wish {
            Wish::Database(name) => catalogue.database_changes(name).ok().map(Vec::from),
            Wish::DropDatabase(of) => {
                pick(&self.databases, *of).map(|id| vec![Change::DatabaseDropped { id }])
            }
            Wish::Policy(of, name, duration_ns, shard_ns, is_default) => {
                let (name, is_default) = ((*name).to_owned(), *is_default);
                let (duration_ns, shard_ns) = (*duration_ns, *shard_ns);
                let policy = Policy { name, duration_ns, shard_ns, is_default };
                one(catalogue.policy_change(pick(&self.databases, *of)?, &policy))
            }
            Wish::DropPolicy(of) => {
                pick(&self.policies, *of).map(|id| vec![Change::PolicyDropped { id }])
            }
            Wish::Shard(of, time) => one(catalogue.shard_change(pick(&self.policies, *of)?, *time)),
            Wish::DropShard(of) => {
                pick(&self.shards, *of).map(|id| vec![Change::ShardDropped { id }])
            }
            Wish::Measurement(of, name) => {
                one(catalogue.measurement_change(pick(&self.databases, *of)?, name))
            }
            Wish::DropMeasurement(of) => {
                pick(&self.measurements, *of).map(|id| vec![Change::MeasurementDropped { id }])
            }
            Wish::Field(of, name, field_type) => {
                one(catalogue.field_change(pick(&self.measurements, *of)?, name, *field_type))
            }
            Wish::Series(of, tags) => {
                let of = pick(&self.measurements, *of)?;
                let key = key_of(&self.measurements[&of].1, &Self::tags_of(tags));
                one(catalogue.series_change(of, 7, &key))
            }
            Wish::DropSeries(of) => {
                let ids: BTreeSet<u32> =
                    of.iter().filter_map(|index| pick(&self.series, *index)).collect();
                Some(vec![Change::SeriesDropped { ids: ids.into_iter().rev().collect() }])
            }
        }
    }

    fn apply(&mut self, change: &Change, wish: &Wish) {
        match change.clone() {
            Change::Database { id, name } => {
                self.databases.insert(id, name.to_string());
                self.ever.database = id + 1;
            }
            Change::DatabaseDropped { id } => _ = self.databases.remove(&id),
            Change::Policy { database, id, policy } => {
                for (_, other) in self.policies.values_mut().filter(|(of, _)| *of == database) {
                    other.is_default &= !policy.is_default;
                }
                self.policies.insert(id, (database, policy));
                self.ever.policy = self.ever.policy.max(id + 1);
            }
            Change::PolicyDropped { id } => _ = self.policies.remove(&id),
            Change::Measurement { id, database, name } => {
                self.measurements.insert(id, (database, name.to_string()));
                self.ever.measurement = id + 1;
            }
            Change::MeasurementDropped { id } => _ = self.measurements.remove(&id),
            Change::Field { id, measurement, name, field_type } => {
                self.fields.insert(id, (measurement, Field { id, name, field_type }));
                self.ever.field = id + 1;
            }
            Change::Series { id, measurement, set, key } => {
                let Wish::Series(_, tags) = wish else { panic!("{wish:?}") };
                let (key, tags) = (key.into_string(), Self::tags_of(tags));
                self.series.insert(id, Named { measurement, set, key, tags });
                self.ever.series = id + 1;
            }
            Change::SeriesDropped { ids } => self.series.retain(|id, _| !ids.contains(id)),
            Change::Shard { id, policy, start, end } => {
                self.shards.insert(id, Shard { id, policy, start, end });
                self.ever.shard = id + 1;
            }
            Change::ShardDropped { id } => _ = self.shards.remove(&id),
            Change::Next(_) => panic!("not wished"),
        }
        let Self { databases, policies, shards, measurements, fields, series, .. } = self;
        policies.retain(|_, (of, _)| databases.contains_key(of));
        shards.retain(|_, it| policies.contains_key(&it.policy));
        measurements.retain(|_, (of, _)| databases.contains_key(of));
        fields.retain(|_, (of, _)| measurements.contains_key(of));
        series.retain(|_, it| measurements.contains_key(&it.measurement));
    }

    fn check(&self, catalogue: &Catalogue, filters: &[TagFilter]) {
        let databases = catalogue.databases().map(|(id, name)| (id, name.to_string()));
        assert!(databases.eq(self.databases.clone()));
        for (id, name) in &self.databases {
            assert_eq!(catalogue.database(name), Some(*id));
            self.check_policies(catalogue, *id);
            let mut names: Vec<_> = self
                .measurements
                .iter()
                .filter(|(_, (of, _))| of == id)
                .map(|(id, (_, name))| (name.as_str(), *id))
                .collect();
            names.sort_unstable();
            assert!(catalogue.measurements(*id).map(|(name, id)| (&**name, id)).eq(names));
        }
        for (id, (database, name)) in &self.measurements {
            assert_eq!(catalogue.measurement(*database, name), Some(*id));
            self.check_measurement(catalogue, *id, filters);
        }
        for id in 0..self.ever.shard + 2 {
            assert_eq!(catalogue.shard(id), self.shards.get(&id));
            assert_eq!(catalogue.is_shard_live(id), self.shards.contains_key(&id));
        }
        for id in 0..self.ever.series + 2 {
            let series = self.series.get(&id);
            assert_eq!(catalogue.is_series_live(id), series.is_some());
            let found = catalogue.series(id);
            assert_eq!(found.map(|it| (&*it.key, it.set)), series.map(|it| (&*it.key, it.set)));
            let Some(Named { measurement, key, tags, .. }) = series else { continue };
            let (database, _) = self.measurements[measurement];
            assert!(Arc::ptr_eq(catalogue.series_of(database, key).unwrap(), found.unwrap()));
            let tags = tags.iter().map(|(key, value)| (&**key, &**value));
            assert!(found.unwrap().tags().eq(tags));
        }
        assert_eq!(catalogue.series_count(), self.series.len());
        assert_eq!(catalogue.measurement_count(), self.measurements.len());
        assert_eq!(catalogue.next(), self.ever);
    }

    fn check_policies(&self, catalogue: &Catalogue, of: u32) {
        let policies = self.policies.iter().filter(|(_, (database, _))| *database == of);
        let policies: Vec<_> = policies.map(|(id, (_, policy))| (*id, policy)).collect();
        assert!(catalogue.policies(of).eq(policies.clone()));
        let default = policies.iter().find(|(_, policy)| policy.is_default).copied();
        assert_eq!(catalogue.policy(of, None), default);
        for (id, policy) in policies {
            assert_eq!(catalogue.policy(of, Some(&policy.name)), Some((id, policy)));
            let mut shards: Vec<_> = self.shards.values().filter(|it| it.policy == id).collect();
            shards.sort_unstable_by_key(|it| it.start);
            assert!(catalogue.shards(id).eq(shards.iter().copied()));
            for time in TIMES {
                let shard = shards.iter().find(|it| it.start <= time && time < it.end).copied();
                assert_eq!(catalogue.shard_of(id, time), shard);
                let (start, end) = catalogue.shard_window(id, time).unwrap();
                assert!(start <= time && time < end);
                let meets = |it: &&&Shard| it.start < end && start < it.end;
                assert_eq!(shards.iter().find(meets).copied(), shard);
            }
        }
    }

    fn check_measurement(&self, catalogue: &Catalogue, id: u32, filters: &[TagFilter]) {
        let measurement = catalogue.measurement_by_id(id).unwrap();
        let fields = self.fields.values().filter(|(of, _)| *of == id).map(|(_, field)| field);
        assert!(measurement.fields().iter().eq(fields));
        let mine: Vec<_> = self.series.iter().filter(|(_, it)| it.measurement == id).collect();
        assert_eq!(measurement.postings.all().len(), mine.len());
        let keys: BTreeSet<&str> =
            mine.iter().flat_map(|(_, it)| it.tags.keys().map(String::as_str)).collect();
        assert!(measurement.tag_keys().iter().map(|key| &**key).eq(keys));
        for key in TAGS {
            let values: BTreeSet<&str> =
                mine.iter().filter_map(|(_, it)| Some(it.tags.get(key)?.as_str())).collect();
            let mut found = measurement.tag_values(key);
            found.sort();
            assert!(found.iter().map(|value| &**value).eq(values));
        }
        for filter in filters {
            let passing = mine.iter().filter(|(_, it)| passes(&it.tags, filter));
            let mut passing: Vec<_> = passing.map(|(id, it)| (it.key.as_str(), **id)).collect();
            passing.sort_unstable();
            let found = series_that(catalogue, id, filter);
            let found: Vec<_> = found.iter().map(|it: &Arc<Series>| (&*it.key, it.id)).collect();
            assert_eq!(found, passing, "{filter:?}");
        }
    }
}

/// The catalogue that results from a log, and the bytes of the log.
fn replay(log: impl Iterator<Item = Change>) -> (Catalogue, u64) {
    let mut catalogue = Catalogue::new(Limits::default());
    let mut bytes = 0;
    for change in log {
        bytes += change.encoded_bytes();
        apply(&mut catalogue, change);
    }
    (catalogue, bytes)
}

proptest! {
    #[test]
    fn every_log_of_a_state_comes_to_that_state(
        wishes in prop::collection::vec(wishes(), 1..150),
        filters in prop::collection::vec(filters(), 8),
    ) {
        let mut catalogue = Catalogue::new(Limits::default());
        let mut model = Model::default();
        let mut log = Vec::new();
        for wish in &wishes {
            for change in model.grant(&catalogue, wish).unwrap_or_default() {
                apply(&mut catalogue, change.clone());
                model.apply(&change, wish);
                log.push(change);
            }
        }
        model.check(&catalogue, &filters);
        let (same, _) = replay(log.into_iter());
        model.check(&same, &filters);
        prop_assert!(same.changes().eq(catalogue.changes()));
        prop_assert_eq!(same.memory_bytes(), catalogue.memory_bytes());
        let (mut anew, bytes) = replay(catalogue.changes());
        model.check(&anew, &filters);
        prop_assert!(anew.changes().eq(catalogue.changes()));
        prop_assert_eq!((bytes, anew.garbage_bytes()), (catalogue.live_bytes, 0));
        prop_assert_eq!(anew.memory_bytes(), catalogue.memory_bytes());
        for id in model.databases.keys() {
            anew.apply(Change::DatabaseDropped { id: *id }).unwrap();
        }
        let left: Vec<_> = anew.changes().collect();
        prop_assert_eq!(left, [Change::Next(catalogue.next())]);
        prop_assert_eq!(anew.memory_bytes(), 0);
    }

    #[test]
    fn what_is_impossible_changes_nothing(
        kind in 0_u8..14,
        numbers in prop::collection::vec(prop_oneof![9 => 0_u32..4, 1 => any::<u32>()], 0..7),
        byte in prop::option::of(0_u8..7),
        text in prop::option::of("m|m,t=[12]|[a-z\\n]{0,3}|autogen|db"),
    ) {
        let (mut catalogue, db) = super::with_database(Limits::default());
        let m = super::put_measurement(&mut catalogue, db, "m");
        for key in ["m", "m,t=1"] {
            super::put_series(&mut catalogue, m, key);
        }
        let before: Vec<_> = catalogue.changes().collect();
        let mut bytes = vec![kind];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(byte);
        if let Some(text) = text {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        let Some(change) = Change::decode(&bytes) else { return Ok(()) };
        let mut again = Vec::new();
        change.encode(&mut again);
        prop_assert_eq!(again, bytes);
        if catalogue.apply(change).is_err() {
            prop_assert!(catalogue.changes().eq(before));
        } else {
            let (anew, _) = replay(catalogue.changes());
            prop_assert!(anew.changes().eq(catalogue.changes()));
        }
    }
}
