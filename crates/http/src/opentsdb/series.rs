//! Executes a sub-query: series are read, downsampled, turned into rates, and aggregated in their groups.
//!
//! A query is bounded by the samples and the series that it holds, and by its time: these are checked while it
//! searches and while it reads.

use super::FIELD;
use super::aggregate::Function;
use super::downsample::{Downsample, Samples};
use super::filter;
use super::meter::Meter;
use super::request::{Query, Sub};
use crate::influx::Refused;
use coreplane_tsdb::{Block, Buckets, Error, Field, FieldType, Reader, Series, Summary, Value};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A series of the answer.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) metric: String,
    /// Tags that all of its series have with the same value.
    pub(super) tags: BTreeMap<String, String>,
    /// Keys of the other tags.
    pub(super) aggregated: BTreeSet<String>,
    pub(super) samples: Samples,
    /// True if values that are not a number are written as null.
    pub(super) has_nulls: bool,
}

const MILLISECOND: i64 = 1_000_000;

/// Bytes of a series in the lists of its sub-query, of a group there, and of an empty group of the answer, about.
const LISTED: usize = 32;
const GROUP: usize = 128;
const ANSWERED: usize = 768;

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Float(value) => Some(*value),
        Value::Integer(value) => Some(*value as f64),
        Value::Unsigned(value) => Some(*value as f64),
        Value::Boolean(_) | Value::String(_) => None,
    }
}

/// The value of a function that can be computed from a summary, without the points.
fn of_summary(function: Function, summary: &Summary) -> Option<f64> {
    let sum = || match &summary.sum {
        Value::Float(sum) => Some(*sum),
        // Sums of integers wrap.
        _ => None,
    };
    match function {
        Function::Sum => sum(),
        Function::Average => sum().map(|sum| sum / summary.count as f64),
        Function::Min => number(&summary.min.1),
        Function::Max => number(&summary.max.1),
        Function::Count => Some(summary.count as f64),
        Function::First => number(&summary.first.1),
        Function::Last => number(&summary.last.1),
        _ => None,
    }
}

/// Reads series of one metric.
struct Source<'r, 's> {
    reader: &'r Reader<'s>,
    field: &'r Field,
    range: RangeInclusive<i64>,
}

impl Source<'_, '_> {
    /// Reads the points of a series in the range of milliseconds, ascending; of points in the same millisecond the
    /// last one counts. An error of `call` ends it.
    fn points(
        &self,
        series: &Series,
        range: &RangeInclusive<i64>,
        meter: &Meter,
        call: &mut dyn FnMut(i64, f64) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let range = range.start().saturating_mul(MILLISECOND)
            ..=range.end().saturating_add(1).saturating_mul(MILLISECOND).saturating_sub(1);
        for block in self.reader.points(series, self.field, range, false) {
            let block: Block = block?;
            meter.check()?;
            for (at, time) in block.times.iter().enumerate() {
                let value = block.values.get(at).as_ref().and_then(number);
                if let Some(value) = value {
                    call(time.div_euclid(MILLISECOND), value)?;
                }
            }
        }
        Ok(())
    }

    fn raw(&self, series: &Series, meter: &mut Meter) -> Result<Samples, Refused> {
        let mut samples = Samples::new();
        self.points(series, &self.range, meter, &mut |time, value| {
            match samples.last_mut() {
                Some(last) if last.0 == time => last.1 = value,
                _ => {
                    meter.may_hold(samples.len())?;
                    samples.push((time, value));
                }
            }
            Ok(())
        })?;
        meter.take(samples.len())?;
        Ok(samples)
    }

    /// One value for each interval.
    fn downsampled(
        &self,
        series: &Series,
        how: Downsample,
        meter: &mut Meter,
    ) -> Result<Samples, Refused> {
        meter.check()?;
        let range = how.points(&self.range);
        if range.is_empty() {
            return Ok(Samples::new());
        }
        let in_nanoseconds = range.start().saturating_mul(MILLISECOND)
            ..=range.end().saturating_add(1).saturating_mul(MILLISECOND).saturating_sub(1);
        let has_summaries = self.field.field_type == FieldType::Float
            && matches!(
                how.function,
                Function::Sum
                    | Function::Average
                    | Function::Min
                    | Function::Max
                    | Function::Count
                    | Function::First
                    | Function::Last
            );
        let buckets = how.interval.and_then(|interval| interval.checked_mul(MILLISECOND));
        let samples = if has_summaries && (buckets.is_some() || how.interval.is_none()) {
            let buckets = buckets.map(|width| Buckets { width, origin: 0 });
            let found = self.summaries(series, in_nanoseconds, buckets, meter)?;
            found
                .iter()
                .filter_map(|(time, summary)| {
                    let value = of_summary(how.function, summary)?;
                    Some((time.div_euclid(MILLISECOND), value))
                })
                .collect()
        } else {
            self.by_points(series, &range, how, meter)?
        };
        if how.fills() && how.count(&self.range) > meter.samples as u64 {
            return Err(Meter::too_many());
        }
        let samples = match how.interval {
            None => samples.into_iter().map(|(_, value)| (*self.range.start(), value)).collect(),
            Some(_) => how.fill(samples, &self.range),
        };
        meter.take(samples.len())?;
        Ok(samples)
    }

    /// Summaries; while they are made, their number is checked against the samples that may be held.
    fn summaries(
        &self,
        series: &Series,
        range: RangeInclusive<i64>,
        buckets: Option<Buckets>,
        meter: &Meter,
    ) -> Result<Vec<(i64, Summary)>, Refused> {
        const SAMPLES: usize = size_of::<(i64, Summary)>().div_ceil(size_of::<(i64, f64)>());
        let may = |count: usize| match count.saturating_mul(SAMPLES) > meter.samples {
            true => Err(Error::Limit(String::new())),
            false => Ok(()),
        };
        let found = self.reader.summaries_within(series, self.field, range, buckets, &may);
        found.map_err(|error| match error {
            Error::Limit(_) => Meter::too_many(),
            error => error.into(),
        })
    }

    fn by_points(
        &self,
        series: &Series,
        range: &RangeInclusive<i64>,
        how: Downsample,
        meter: &Meter,
    ) -> Result<Samples, Refused> {
        let begin = |time: i64| how.interval.map_or(*range.start(), |it| time.div_euclid(it) * it);
        let (mut samples, mut values, mut of) = (Samples::new(), Vec::new(), None);
        self.points(series, range, meter, &mut |time, value| {
            let interval = begin(time);
            if let Some(last) = of.replace(interval)
                && last != interval
            {
                samples.push((last, how.function.of(&mut values)));
                values.clear();
            }
            meter.may_hold(samples.len() + values.len())?;
            values.push(value);
            Ok(())
        })?;
        if let Some(last) = of {
            samples.push((last, how.function.of(&mut values)));
        }
        Ok(samples)
    }

    fn samples(&self, series: &Series, sub: &Sub, meter: &mut Meter) -> Result<Samples, Refused> {
        let samples = match sub.downsample {
            Some(how) => self.downsampled(series, how, meter)?,
            None => self.raw(series, meter)?,
        };
        Ok(match sub.rate {
            Some(rate) => rate.of(&samples),
            None => samples,
        })
    }
}

/// The tags of which no two series of a group have different values, and the keys of the others.
fn tags_of(
    group: &[Arc<Series>],
    meter: &mut Meter,
) -> Result<(BTreeMap<String, String>, BTreeSet<String>), Refused> {
    let mut common: BTreeMap<String, String> = BTreeMap::new();
    let mut aggregated = BTreeSet::new();
    for series in group {
        meter.check()?;
        for (key, value) in series.tags() {
            if aggregated.contains(key) {
                continue;
            }
            match common.get(key) {
                None => {
                    meter.take_bytes(key.len() + value.len())?;
                    common.insert(key.to_string(), value.to_string());
                }
                Some(known) if known == value => {}
                Some(_) => {
                    common.remove(key);
                    aggregated.insert(key.to_string());
                }
            }
        }
    }
    Ok((common, aggregated))
}

/// Series by the tags of their groups.
type Groups = BTreeMap<Vec<String>, Vec<Arc<Series>>>;

/// The series of a sub-query, and the number of samples that have the same room.
fn grouped(reader: &Reader<'_>, sub: &Sub, meter: &mut Meter) -> Result<(Groups, usize), Refused> {
    let may = |work| meter.may_search(work);
    let found = reader.series_within(&sub.metric, &filter::all(&sub.filters), &may)?;
    let (mut by_tags, mut held) = (Groups::new(), 0);
    for series in found {
        meter.check()?;
        let is_named = |key: &str| sub.filters.iter().any(|filter| filter.key == key);
        if sub.is_explicit && !series.tags().all(|(key, _)| is_named(key)) {
            continue;
        }
        let groups = sub.filters.iter().filter(|filter| filter.is_group);
        let mut key: Vec<String> =
            groups.map(|filter| series.tag(&filter.key).to_owned()).collect();
        if sub.aggregator.is_none {
            key.push(series.key.to_string());
        }
        held += meter.take_bytes(LISTED)?;
        let group = match by_tags.entry(key) {
            Entry::Occupied(group) => group.into_mut(),
            Entry::Vacant(place) => {
                let key = place.key().iter().map(|it| size_of::<String>() + it.len());
                held += meter.take_bytes(GROUP + key.sum::<usize>())?;
                place.insert(Vec::new())
            }
        };
        group.push(series);
    }
    Ok((by_tags, held))
}

/// The groups of a sub-query, in the order of their tags.
pub(super) fn groups(
    reader: &Reader<'_>,
    query: &Query,
    sub: &Sub,
    meter: &mut Meter,
) -> Result<Vec<Group>, Refused> {
    let fields = reader.fields(&sub.metric);
    let is_number = |field: &&Field| {
        let of = field.field_type;
        *field.name == *FIELD && !matches!(of, FieldType::Boolean | FieldType::String)
    };
    let Some(field) = fields.iter().find(is_number) else {
        return Err(Refused::new(400, format!("No such name for 'metrics': '{}'", sub.metric)));
    };
    let (by_tags, listed) = grouped(reader, sub, meter)?;
    let range = query.start..=query.end;
    if let Some(how) = sub.downsample {
        let intervals = how.count(&range);
        if intervals > meter.intervals {
            let message = "the query has too many intervals: make them longer";
            return Err(Refused::new(413, message));
        }
    }
    let source = Source { reader, field, range };
    let mut all = Vec::new();
    for group in by_tags.values() {
        let mut samples = Vec::with_capacity(group.len());
        for series in group {
            let found = source.samples(series, sub, meter)?;
            if !found.is_empty() {
                samples.push(found);
            }
        }
        if samples.is_empty() {
            continue;
        }
        let held: usize = samples.iter().map(Vec::len).sum();
        meter.take(held)?;
        let aggregator = match sub.rate {
            Some(_) => sub.aggregator.of_rates(),
            None => sub.aggregator,
        };
        let aggregated = aggregator.aggregate(&samples, &mut || meter.check())?;
        drop(samples);
        // Of the samples of the series only the answer is still held.
        meter.samples += held.saturating_mul(2).saturating_sub(aggregated.len());
        meter.take_bytes(ANSWERED + sub.metric.len())?;
        let (tags, keys) = tags_of(group, meter)?;
        let range = query.start..=query.end;
        let samples = aggregated.into_iter().filter(|(time, _)| range.contains(time)).collect();
        let has_nulls = sub.downsample.is_some_and(|it| it.fill == super::downsample::Fill::Null);
        all.push(Group { metric: sub.metric.clone(), tags, aggregated: keys, samples, has_nulls });
    }
    meter.samples += listed;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Unwanted;
    use crate::parameters::Parameters;
    use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store};
    use std::time::{Duration, Instant};

    fn meter(samples: usize) -> Meter {
        let deadline = Instant::now() + Duration::from_secs(1000);
        Meter { deadline, samples, intervals: 10, unwanted: Unwanted::default() }
    }

    fn store(directory: &tempfile::TempDir) -> Store {
        let options = Options { sets: 1, size: 8 << 20, page_len: 16 << 10, ..Options::default() };
        let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
        store.create_database("o").expect("a database");
        store
    }

    fn point(host: &str, time: i64, value: f64) -> Point<'static> {
        Point {
            series: SeriesKey::new("m", [("host", host)]).expect("a key").into_owned(),
            fields: [(FIELD.into(), FieldValue::Float(value))].into_iter().collect(),
            time: time * MILLISECOND,
        }
    }

    /// Worked out by hand from OpenTSDB's `AggregationIterator`: it does not interpolate rates.
    #[test]
    fn a_rate_counts_until_the_next_one_of_its_series() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = store(&directory);
        let a = [(100, 0.0), (110, 100.0), (130, 100.0)].map(|it| ("a", it));
        let b = [(105, 0.0), (115, 50.0), (125, 60.0)].map(|it| ("b", it));
        let points = [a, b].concat();
        let points: Vec<_> =
            points.iter().map(|(host, (at, value))| point(host, at * 1000, *value)).collect();
        assert_eq!(store.write("o", None, &points).expect("written").written, 6);
        let reader = store.reader("o", None).expect("a reader");
        for (m, expected) in [
            ("sum:rate:m", [10.0, 15.0, 11.0, 0.0]),
            ("zimsum:rate:m", [10.0, 15.0, 11.0, 0.0]),
            ("max:rate:m", [10.0, 10.0, 10.0, 0.0]),
            ("count:rate:m", [1.0, 2.0, 2.0, 1.0]),
        ] {
            let url = Parameters::of(Some(&format!("start=50&end=150&m={m}")));
            let query = Query::of_url(&url, 200_000).expect("a query");
            let found = groups(&reader, &query, &query.subs[0], &mut meter(1000)).expect("groups");
            let samples: Vec<f64> = found[0].samples.iter().map(|it| it.1).collect();
            assert_eq!(samples, expected, "{m}");
            let times: Vec<i64> = found[0].samples.iter().map(|it| it.0 / 1000).collect();
            assert_eq!(times, [110, 115, 125, 130], "{m}");
        }
    }

    /// Series without points in the time of the query, or with too many tags, take time and memory, too.
    #[test]
    fn the_search_for_series_is_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = store(&directory);
        let hosts: Vec<String> = (0..100).map(|at| format!("h{at}")).collect();
        let points: Vec<_> = hosts.iter().map(|host| point(host, 1, 1.0)).collect();
        assert_eq!(store.write("o", None, &points).expect("written").written, 100);
        let reader = store.reader("o", None).expect("a reader");
        let found = |m: &str, meter: &mut Meter| {
            let url = Parameters::of(Some(&format!("start=50&end=150&m={m}")));
            let query = Query::of_url(&url, 200_000).expect("a query");
            let groups = groups(&reader, &query, &query.subs[0], meter);
            groups.map(|it| it.len()).map_err(|it| it.status)
        };
        // Room for the series, for their lists, and for their groups.
        for (samples, list, groups) in
            [(99, Err(413), Err(413)), (299, Ok(0), Err(413)), (2000, Ok(0), Ok(0))]
        {
            assert_eq!(found("sum:m", &mut meter(samples)), list, "{samples}");
            let mut meter = meter(samples);
            assert_eq!(found("sum:m%7Bhost=*%7D", &mut meter), groups, "{samples}");
            assert!(groups.is_err() || meter.samples == samples, "all is given back");
        }
        let past = Meter { deadline: Instant::now(), ..meter(2000) };
        assert_eq!(found("sum:explicit_tags:m", &mut { past }), Err(504));
        let gone = meter(2000);
        gone.unwanted.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(found("sum:explicit_tags:m", &mut { gone }), Err(503));
    }

    /// A value is never computed from a part of the points of its interval, whichever interval has too many.
    #[test]
    fn an_interval_with_too_many_points_ends_the_query() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = store(&directory);
        let of = |host: &str, first: i64, count: i64| -> Vec<Point<'static>> {
            (0..count).map(|at| point(host, first + at, at as f64)).collect()
        };
        // Intervals of ten milliseconds.
        let points = [of("a", 0, 8), of("a", 10, 1), of("b", 0, 1), of("b", 10, 8)].concat();
        assert_eq!(store.write("o", None, &points).expect("written").written, 18);
        let reader = store.reader("o", None).expect("a reader");
        let field = reader.fields("m").pop().expect("a field");
        let source = Source { reader: &reader, field: &field, range: 0..=19 };
        let how = Downsample::of("10ms-dev").expect("a way");
        for series in reader.series("m", &coreplane_tsdb::TagFilter::All) {
            let key = &series.key;
            for samples in 0..8 {
                let found = source.downsampled(&series, how, &mut meter(samples));
                assert_eq!(found.map_err(|it| it.status), Err(413), "{samples} of {key}");
            }
            let found = source.downsampled(&series, how, &mut meter(9)).expect("room");
            let deviation = 5.25_f64.sqrt();
            let expected = match &**key {
                "m,host=a" => [(0, deviation), (10, 0.0)],
                _ => [(0, 0.0), (10, deviation)],
            };
            assert_eq!(found, expected, "{key}");
            // The points of a series as they are.
            assert_eq!(source.raw(&series, &mut meter(8)).map_err(|it| it.status), Err(413));
            assert_eq!(source.raw(&series, &mut meter(9)).expect("room").len(), 9);
        }
    }

    #[test]
    fn whoever_has_gone_costs_nothing_more() {
        let unwanted = Unwanted::default();
        let mut meter = Meter { unwanted: unwanted.clone(), ..meter(10) };
        assert!(meter.take(1).is_ok());
        unwanted.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(meter.take(1).unwrap_err().status, 503);
    }
}
