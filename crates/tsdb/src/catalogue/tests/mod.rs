//! Tests of names: the behaviour of InfluxDB, one by one; sequences of changes beside a naive model are in
//! `model.rs`.

mod draws;
mod model;
mod tags;

use super::{Catalogue, Change, DatabaseId, Limits, MeasurementId, Policy, Series, TagFilter};
use crate::error::{Error, Result};
use crate::value::FieldType;
use regex::Regex;
use std::sync::Arc;

const HOUR: u64 = 3_600_000_000_000;
const DAY: u64 = 24 * HOUR;
/// 2026-11-26 15:51:43, a Thursday, and the Monday before.
const THURSDAY: i64 = 1_795_708_303_000_000_000;
const MONDAY: i64 = 1_795_392_000_000_000_000;

fn apply(catalogue: &mut Catalogue, change: Change) {
    let mut bytes = Vec::new();
    change.encode(&mut bytes);
    assert_eq!(bytes.len() as u64, change.encoded_bytes());
    assert_eq!(Change::decode(&bytes).as_ref(), Some(&change));
    catalogue.apply(change).unwrap();
}

/// A catalogue with a database `db`, and the number of that database.
fn with_database(limits: Limits) -> (Catalogue, DatabaseId) {
    let mut catalogue = Catalogue::new(limits);
    for change in catalogue.database_changes("db").unwrap() {
        apply(&mut catalogue, change);
    }
    let id = catalogue.database("db").unwrap();
    (catalogue, id)
}

fn put_measurement(catalogue: &mut Catalogue, of: DatabaseId, name: &str) -> MeasurementId {
    let change = catalogue.measurement_change(of, name).unwrap();
    apply(catalogue, change);
    catalogue.measurement(of, name).unwrap()
}

fn put_series(catalogue: &mut Catalogue, of: MeasurementId, key: &str) -> u32 {
    let change = catalogue.series_change(of, 3, key).unwrap();
    apply(catalogue, change);
    let database = catalogue.measurement_by_id(of).unwrap().database;
    catalogue.series_of(database, key).unwrap().id
}

/// The series of a measurement that a filter lets through, ascending by key.
fn series_that(of: &Catalogue, measurement: MeasurementId, filter: &TagFilter) -> Vec<Arc<Series>> {
    let ids = of.series_ids_that(measurement, filter);
    let mut all: Vec<_> = ids.iter().filter_map(|id| of.series(*id).cloned()).collect();
    all.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    all
}

fn policy(name: &str, duration_ns: u64, shard_ns: u64, is_default: bool) -> Policy {
    Policy { name: name.to_owned(), duration_ns, shard_ns, is_default }
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result.unwrap_err() {
        Error::Input(message) => format!("input: {message}"),
        Error::Limit(message) => format!("limit: {message}"),
        Error::NotFound(message) => format!("not found: {message}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_new_database_has_a_policy_that_keeps_all() {
    let (catalogue, db) = with_database(Limits::default());
    let (_, default) = catalogue.policy(db, None).unwrap();
    assert_eq!(*default, policy("autogen", 0, 7 * DAY, true));
    assert_eq!(message(catalogue.database_changes("db")), "input: database already exists: db");
}

#[test]
fn names_are_checked() {
    let (catalogue, db) = with_database(Limits::default());
    let long = "x".repeat(256);
    for name in ["", "a\nb", &long] {
        assert!(matches!(catalogue.database_changes(name), Err(Error::Input(_))), "{name}");
        let result = catalogue.policy_change(db, &policy(name, 0, 0, false));
        assert!(matches!(result, Err(Error::Input(_))), "{name}");
    }
    assert!(catalogue.database_changes(&long[1..]).is_ok());
    assert!(catalogue.measurement_change(db, &long).is_ok());
    assert!(catalogue.measurement_change(db, &"x".repeat(65_535)).is_ok());
    assert!(catalogue.measurement_change(db, &"x".repeat(65_536)).is_err());
    assert!(catalogue.measurement_change(db, "").is_err());
    assert!(matches!(catalogue.measurement_change(db + 1, "m"), Err(Error::NotFound(_))));
}

#[test]
fn shard_durations_are_those_of_influxdb() {
    let (catalogue, db) = with_database(Limits::default());
    let shard_ns = |duration, shard| {
        let change = catalogue.policy_change(db, &policy("p", duration, shard, false)).unwrap();
        let Change::Policy { policy, .. } = change else { panic!("{change:?}") };
        policy.shard_ns
    };
    assert_eq!(shard_ns(0, 0), 7 * DAY);
    assert_eq!(shard_ns(HOUR, 0), HOUR);
    assert_eq!(shard_ns(2 * DAY - 1, 0), HOUR);
    assert_eq!(shard_ns(2 * DAY, 0), DAY);
    assert_eq!(shard_ns(180 * DAY - 1, 0), DAY);
    assert_eq!(shard_ns(180 * DAY, 0), 7 * DAY);
    assert_eq!(shard_ns(DAY, 1), HOUR);
    assert_eq!(shard_ns(DAY, 5 * HOUR), 5 * HOUR);
    let refused = |duration, shard| {
        message(catalogue.policy_change(db, &policy("p", duration, shard, false)))
    };
    assert_eq!(refused(HOUR - 1, 0), "input: retention policy duration must be at least 1h0m0s");
    assert_eq!(
        refused(DAY, 2 * DAY),
        "input: retention policy duration must be greater than the shard duration"
    );
    assert!(refused(0, u64::MAX).contains("above"));
}

#[test]
fn one_policy_at_most_is_the_default() {
    let (mut catalogue, db) = with_database(Limits::default());
    let change = catalogue.policy_change(db, &policy("day", DAY, 0, true)).unwrap();
    apply(&mut catalogue, change);
    assert_eq!(catalogue.policy(db, None).unwrap().1.name, "day");
    assert!(!catalogue.policy(db, Some("autogen")).unwrap().1.is_default);
    // After a change of its durations the policy is still the default one, and keeps its number.
    let id = catalogue.policy(db, None).unwrap().0;
    let change = catalogue.policy_change(db, &policy("day", 2 * DAY, 0, false)).unwrap();
    apply(&mut catalogue, change);
    assert_eq!(catalogue.policy(db, None), Some((id, &policy("day", 2 * DAY, DAY, true))));
    apply(&mut catalogue, Change::PolicyDropped { id });
    assert_eq!(catalogue.policy(db, None), None);
    assert_eq!(catalogue.policies(db).count(), 1);
}

#[test]
fn shards_begin_where_those_of_influxdb_do() {
    let (mut catalogue, db) = with_database(Limits::default());
    let (id, _) = catalogue.policy(db, None).unwrap();
    let week = 7 * DAY as i64;
    assert_eq!(catalogue.shard_window(id, THURSDAY), Some((MONDAY, MONDAY + week)));
    assert_eq!(catalogue.shard_window(id, MONDAY), Some((MONDAY, MONDAY + week)));
    assert_eq!(catalogue.shard_window(id, MONDAY - 1), Some((MONDAY - week, MONDAY)));
    // The first of January of 1970 was a Thursday.
    let day = DAY as i64;
    assert_eq!(catalogue.shard_window(id, -1), Some((-3 * day, 4 * day)));
    let (start, end) = catalogue.shard_window(id, i64::MIN + 2).unwrap();
    assert!(start == i64::MIN && end < i64::MIN + week);
    let (start, end) = catalogue.shard_window(id, i64::MAX - 1).unwrap();
    assert!(start > i64::MAX - week && end == i64::MAX);
    assert!(message(catalogue.shard_change(id, i64::MAX)).contains("time outside range"));
    let change = catalogue.shard_change(id, i64::MAX - 1).unwrap();
    apply(&mut catalogue, change);
    assert_eq!(catalogue.shard_of(id, i64::MAX - 1).unwrap().end, i64::MAX);
}

#[test]
fn shards_of_altered_durations_do_not_overlap() {
    let (mut catalogue, db) = with_database(Limits::default());
    let change = catalogue.policy_change(db, &policy("p", 30 * DAY, DAY, false)).unwrap();
    apply(&mut catalogue, change);
    let (id, _) = catalogue.policy(db, Some("p")).unwrap();
    let day = DAY as i64;
    for time in [MONDAY + day, MONDAY + 3 * day] {
        let change = catalogue.shard_change(id, time).unwrap();
        apply(&mut catalogue, change);
    }
    let change = catalogue.policy_change(db, &policy("p", 30 * DAY, 7 * DAY, false)).unwrap();
    apply(&mut catalogue, change);
    let window = |time| catalogue.shard_window(id, time).unwrap();
    assert_eq!(window(MONDAY), (MONDAY, MONDAY + day));
    assert_eq!(window(MONDAY + day), (MONDAY + day, MONDAY + 2 * day));
    assert_eq!(window(MONDAY + 2 * day), (MONDAY + 2 * day, MONDAY + 3 * day));
    assert_eq!(window(MONDAY + 5 * day), (MONDAY + 4 * day, MONDAY + 7 * day));
    let (start, end) = (MONDAY, MONDAY + day + 1);
    let overlap = Change::Shard { id: catalogue.next().shard, policy: id, start, end };
    assert!(matches!(catalogue.apply(overlap), Err(Error::Damage(_))));
}

#[test]
fn a_shard_expires_when_its_end_is_older_than_the_duration() {
    let (mut catalogue, db) = with_database(Limits::default());
    let change = catalogue.policy_change(db, &policy("day", DAY, HOUR, false)).unwrap();
    apply(&mut catalogue, change);
    for name in ["autogen", "day"] {
        let (id, _) = catalogue.policy(db, Some(name)).unwrap();
        let change = catalogue.shard_change(id, MONDAY).unwrap();
        apply(&mut catalogue, change);
    }
    let (id, _) = catalogue.policy(db, Some("day")).unwrap();
    let shard = *catalogue.shard_of(id, MONDAY).unwrap();
    let last = MONDAY + (HOUR + DAY) as i64;
    assert_eq!(catalogue.expired_shards(last).count(), 0);
    assert_eq!(catalogue.expired_shards(last + 1).collect::<Vec<_>>(), [shard.id]);
    assert_eq!(catalogue.expired_shards(i64::MAX).count(), 1);
    apply(&mut catalogue, Change::ShardDropped { id: shard.id });
    assert!(!catalogue.is_shard_live(shard.id) && catalogue.shard_of(id, MONDAY).is_none());
    let change = catalogue.shard_change(id, MONDAY).unwrap();
    assert!(matches!(change, Change::Shard { id, .. } if id > shard.id));
}

#[test]
fn a_field_has_one_type_and_is_found_with_and_without_a_hint() {
    let (mut catalogue, db) = with_database(Limits { fields_max: 2, ..Limits::default() });
    let m = put_measurement(&mut catalogue, db, "m");
    for (name, of) in [("x", FieldType::Integer), ("y", FieldType::Float)] {
        let change = catalogue.field_change(m, name, of).unwrap();
        apply(&mut catalogue, change);
    }
    assert_eq!(
        message(catalogue.field_change(m, "x", FieldType::Float)),
        "input: field type conflict: input field \"x\" on measurement \"m\" is type float, \
         already exists as type integer"
    );
    assert_eq!(
        message(catalogue.field_change(m, "z", FieldType::Float)),
        "limit: max-fields-per-measurement limit exceeded on \"m\": (2)"
    );
    let it = catalogue.measurement_by_id(m).unwrap();
    for hint in [0, 1, 2, usize::MAX] {
        let place = |name| it.field(name, hint).map(|(place, field)| (place, &*field.name));
        assert_eq!(place("x"), Some((0, "x")));
        assert_eq!(place("y"), Some((1, "y")));
        assert_eq!(place("z"), None);
    }
    // A measurement that is made again gives its fields new numbers.
    let old: Vec<_> = it.fields().iter().map(|field| field.id).collect();
    apply(&mut catalogue, Change::MeasurementDropped { id: m });
    let again = put_measurement(&mut catalogue, db, "m");
    let change = catalogue.field_change(again, "x", FieldType::Float).unwrap();
    assert!(again > m);
    assert!(matches!(change, Change::Field { id, .. } if !old.contains(&id)));
}

#[test]
fn limits_of_series_and_bytes_hold() {
    let (mut catalogue, db) = with_database(Limits { series_max: 2, ..Limits::default() });
    let m = put_measurement(&mut catalogue, db, "m");
    put_series(&mut catalogue, m, "m,t=a");
    let second = put_series(&mut catalogue, m, "m,t=b");
    assert_eq!(
        message(catalogue.series_change(m, 0, "m,t=c")),
        "limit: max-series-per-database limit exceeded: (2)"
    );
    apply(&mut catalogue, Change::SeriesDropped { ids: vec![second] });
    assert!(put_series(&mut catalogue, m, "m,t=b") > second);

    let (mut catalogue, db) = with_database(Limits { bytes_max: 100_000, ..Limits::default() });
    let m = put_measurement(&mut catalogue, db, "m");
    let refusal = loop {
        match catalogue.series_change(m, 0, &format!("m,t=v{}", catalogue.series_count())) {
            Ok(change) => apply(&mut catalogue, change),
            refusal => break message(refusal),
        }
    };
    assert_eq!(refusal, "limit: max-names-memory limit exceeded: (100000 bytes)");
    assert!(catalogue.series_count() > 100);
}

#[test]
fn keys_are_canonical() {
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "a b,c=d");
    let key = r"a\ b\,c=d,k\=1=v\,\ \=,l=\x\";
    let id = put_series(&mut catalogue, m, key);
    let series = catalogue.series(id).unwrap();
    assert_eq!((series.tag("k=1"), series.tag("l"), series.tag("z")), ("v, =", r"\x\", ""));
    assert_eq!((&*series.key, series.set, series.measurement), (key, 3, m));
    let m = put_measurement(&mut catalogue, db, "m");
    for key in [
        "",
        "n",
        "m,",
        "m,t",
        "m,t=",
        "m,=v",
        "m,t=v,",
        "m,t=v w",
        "m,t=v=w",
        "m,b=1,a=1",
        "m,a=1,a=2",
        "m m",
        "m\n",
        "m,t=\n",
        "m,a b=1",
        r"m\=",
        r"m\,\=",
    ] {
        assert!(matches!(catalogue.series_change(m, 0, key), Err(Error::Input(_))), "{key:?}");
        let change = Change::Series { id: 9, measurement: m, set: 0, key: key.into() };
        assert!(matches!(catalogue.apply(change), Err(Error::Damage(_))), "{key:?}");
    }
    put_series(&mut catalogue, m, "m");
}

#[test]
fn an_absent_tag_is_empty() {
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "m");
    for key in ["m,host=b,region=eu", "m", "m,host=a,region=eu", "m,region=us", "m,host=c"] {
        put_series(&mut catalogue, m, key);
    }
    let keys = |filter: TagFilter| {
        let series = series_that(&catalogue, m, &filter);
        series.iter().map(|it| it.key.get(1..).unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    let regex = |text| Regex::new(text).unwrap();
    let host = || "host".to_owned();
    let [a, b, c, us] = [",host=a,region=eu", ",host=b,region=eu", ",host=c", ",region=us"];
    assert_eq!(keys(TagFilter::All), format!(" {a} {b} {c} {us}"));
    assert_eq!(keys(TagFilter::Equal(host(), "a".into())), a);
    assert_eq!(keys(TagFilter::NotEqual(host(), "a".into())), format!(" {b} {c} {us}"));
    assert_eq!(keys(TagFilter::Equal(host(), String::new())), format!(" {us}"));
    assert_eq!(keys(TagFilter::NotEqual(host(), String::new())), format!("{a} {b} {c}"));
    assert_eq!(keys(TagFilter::Match(host(), regex("^[ab]$"))), format!("{a} {b}"));
    assert_eq!(keys(TagFilter::NotMatch(host(), regex("^[ab]$"))), format!(" {c} {us}"));
    assert_eq!(keys(TagFilter::Match(host(), regex("^a?$"))), format!(" {a} {us}"));
    assert_eq!(keys(TagFilter::NotMatch(host(), regex(".*"))), "");
    assert_eq!(keys(TagFilter::Equal("other".into(), String::new())), keys(TagFilter::All));
    let it = catalogue.measurement_by_id(m).unwrap();
    let texts = |texts: Vec<std::sync::Arc<str>>| texts.join(" ");
    assert_eq!(texts(it.tag_keys()), "host region");
    let mut hosts = it.tag_values("host");
    hosts.sort();
    assert_eq!(texts(hosts), "a b c");
    assert_eq!(texts(it.tag_values("other")), "");
}

#[test]
fn long_chains_of_one_operator_are_evaluated() {
    let (mut catalogue, db) = with_database(Limits::default());
    let m = put_measurement(&mut catalogue, db, "m");
    put_series(&mut catalogue, m, "m,t=1");
    put_series(&mut catalogue, m, "m,t=2");
    let term = |at: u32| TagFilter::Equal("t".into(), at.to_string());
    let chain = (1..10_000).fold(term(0), |all, at| TagFilter::Or(all.into(), term(at).into()));
    assert_eq!(catalogue.series_ids_that(m, &chain), [0, 1]);
}

#[test]
fn pages_of_dropped_objects_have_no_memory() {
    let mut pages = super::page::Pages::new();
    pages.insert(u32::MAX - 1, 1);
    pages.insert(5, 2);
    assert_eq!(pages.iter().collect::<Vec<_>>(), [(5, &2), (u32::MAX - 1, &1)]);
    assert_eq!((pages.remove(5), pages.remove(5), pages.len()), (Some(2), None, 1));
    assert_eq!((pages.get(5), pages.get(u32::MAX - 1)), (None, Some(&1)));
    assert_eq!(pages.page_count(), 1);
}
