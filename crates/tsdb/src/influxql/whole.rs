//! Functions that need all points of a bucket.
//!
//! [`Wholes`] takes the points of a group bucket by bucket, holds those of one bucket, and returns the results of
//! the function in the order of InfluxDB: by time, whatever the direction; at equal times in the order of the
//! function.

use super::ast::Cast;
use super::budget::{Budget, Fallible};
use super::evaluate::as_float;
use super::function::Whole;
use super::interval::Interval;
use super::stream::{Ahead, Point, Points, Stream};
use super::tally::order;
use crate::value::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Bytes of a point that is held, with the values beside it. The text of a tag is not the point's: all points of its
/// series share it.
fn held(point: &Point, beside: &[(String, Cast)]) -> usize {
    let text = |value: &Value| match value {
        Value::String(text) => text.len(),
        _ => 0,
    };
    let fields = point.beside.iter().zip(beside);
    let fields = fields.filter(|(_, (_, kind))| !matches!(kind, Cast::Tag | Cast::None));
    let values = fields.map(|(value, _)| value).chain([&point.value]);
    let texts: usize = values.flatten().map(text).sum();
    let apart = if point.beside.spilled() { point.beside.capacity() } else { 0 };
    size_of::<Point>() + apart * size_of::<Option<Value>>() + texts
}

/// The number of the tag set of each member of the group; each tag set counts once.
pub(super) type TagSets = Vec<u32>;

/// See the module.
pub(super) struct Wholes<'a> {
    budget: &'a Budget<'a>,
    input: Ahead<'a>,
    beside: &'a [(String, Cast)],
    function: &'a Whole,
    sets: TagSets,
    interval: Option<Interval>,
    time_of_all: i64,
    is_bucket_time: bool,
    ready: std::vec::IntoIter<Point>,
}

impl<'a> Wholes<'a> {
    /// With `is_bucket_time` points get the time at which their bucket begins.
    pub(super) fn new(
        budget: &'a Budget<'a>,
        (input, beside): (Stream<'a>, &'a [(String, Cast)]),
        function: &'a Whole,
        sets: TagSets,
        interval: Option<Interval>,
        (time_of_all, is_bucket_time): (i64, bool),
    ) -> Self {
        let input = Ahead::new(input);
        let ready = Vec::new().into_iter();
        Self { budget, input, beside, function, sets, interval, time_of_all, is_bucket_time, ready }
    }

    /// The points of the next bucket, and the time at which the bucket begins.
    fn bucket(&mut self) -> Fallible<Option<(i64, Vec<Point>)>> {
        let mut start = None;
        let mut points = Vec::new();
        let mut seen = Seen::default();
        while let Some(point) = self.input.peek()? {
            let of = self.interval.map_or(self.time_of_all, |it| it.start(point.time));
            if start.is_some_and(|it| it != of) {
                break;
            }
            let Some(point) = self.input.take()? else { break };
            if point.value.is_none() {
                continue;
            }
            start = Some(of);
            self.budget.tick()?;
            if self.is_kept(&point, &mut points, &mut seen)? {
                self.budget.hold(held(&point, self.beside))?;
                points.push(point);
            }
        }
        Ok(start.map(|it| (it, points)))
    }

    /// True if a point must be held; some functions need only one of equal points, or the best ones.
    fn is_kept(&self, point: &Point, points: &mut Vec<Point>, seen: &mut Seen) -> Fallible<bool> {
        Ok(match self.function {
            Whole::Distinct | Whole::CountDistinct => match &point.value {
                Some(value) => seen.values.insert(Key::of(value), ()).is_none(),
                None => false,
            },
            Whole::Rank(is_top, _, tags) if !tags.is_empty() => {
                let set = self.sets.get(point.member as usize).copied().unwrap_or(0);
                let Some(best) = seen.sets.get(&set).and_then(|at| points.get_mut(*at)) else {
                    seen.sets.insert(set, points.len());
                    return Ok(true);
                };
                if ranked(*is_top, point, best) == Ordering::Less {
                    self.budget.hold(held(point, self.beside))?;
                    self.budget.release(held(best, self.beside));
                    *best = point.clone();
                }
                false
            }
            Whole::Rank(is_top, count, _) => {
                if points.len() >= count.saturating_mul(2).saturating_add(64) {
                    points.sort_by(|a, b| ranked(*is_top, a, b));
                    let rest = points.drain((*count).min(points.len())..);
                    self.budget.release(rest.map(|it| held(&it, self.beside)).sum());
                }
                true
            }
            _ => true,
        })
    }
}

/// The values and tag sets seen in a bucket.
#[derive(Default)]
struct Seen {
    values: BTreeMap<Key, ()>,
    sets: BTreeMap<u32, usize>,
}

/// A value as a key.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Bits(u64),
    Text(std::sync::Arc<str>),
}

impl Key {
    fn of(value: &Value) -> Self {
        match value {
            // Both zeros are one value.
            Value::Float(it) => Self::Bits(if *it == 0.0 { 0 } else { it.to_bits() }),
            Value::Integer(it) => Self::Bits(it.cast_unsigned()),
            Value::Unsigned(it) => Self::Bits(*it),
            Value::Boolean(it) => Self::Bits(u64::from(*it)),
            Value::String(it) => Self::Text(std::sync::Arc::clone(it)),
        }
    }
}

/// The order of two points among the greatest, or among the least.
fn ranked(is_top: bool, a: &Point, b: &Point) -> Ordering {
    let order = by_value(a, b);
    (if is_top { order.reverse() } else { order }).then(a.time.cmp(&b.time))
}

fn by_value(a: &Point, b: &Point) -> Ordering {
    match (&a.value, &b.value) {
        (Some(a), Some(b)) => order(a, b),
        _ => Ordering::Equal,
    }
}

impl Points for Wholes<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        loop {
            if let Some(point) = self.ready.next() {
                return Ok(Some(point));
            }
            let Some((start, points)) = self.bucket()? else { return Ok(None) };
            let held = points.iter().map(|it| held(it, self.beside)).sum();
            let mut made = made(self.function, points);
            self.budget.release(held);
            let is_bucket_time = self.is_bucket_time;
            for point in &mut made {
                if is_bucket_time || !keeps_time(self.function) {
                    point.time = start;
                }
            }
            self.ready = made.into_iter();
        }
    }
}

/// True for functions whose points have times of their own.
fn keeps_time(function: &Whole) -> bool {
    matches!(function, Whole::Percentile(_) | Whole::Rank(..))
}

/// The results of a function for the points of a bucket; there is at least one point.
fn made(function: &Whole, mut points: Vec<Point>) -> Vec<Point> {
    let one = |value: Value| vec![Point { value: Some(value), ..Point::default() }];
    match function {
        Whole::Distinct => {
            points.sort_by(|a, b| a.time.cmp(&b.time).then(by_value(a, b)));
            points
        }
        Whole::CountDistinct => one(Value::Integer(i64::try_from(points.len()).unwrap_or(0))),
        Whole::Median => median(points).map_or_else(Vec::new, one),
        Whole::Mode => mode(points).map_or_else(Vec::new, one),
        Whole::Stddev => one(Value::Float(stddev(&points))),
        Whole::Percentile(of) => {
            let rank = (points.len() as f64 * of / 100.0 + 0.5).floor() - 1.0;
            points.sort_by(by_value);
            if rank < 0.0 || rank >= points.len() as f64 {
                return Vec::new();
            }
            points.into_iter().nth(rank as usize).into_iter().collect()
        }
        Whole::Rank(is_top, count, _) => {
            points.sort_by(|a, b| ranked(*is_top, a, b));
            points.truncate(*count);
            points.sort_by_key(|it| it.time);
            points
        }
    }
}

fn median(mut points: Vec<Point>) -> Option<Value> {
    points.sort_by(by_value);
    let middle = points.len() / 2;
    let high = points.get(middle)?.value.as_ref()?;
    if points.len() % 2 == 1 {
        return as_float(high).map(Value::Float);
    }
    let low = points.get(middle - 1)?.value.as_ref()?;
    let distance = as_float(&super::tally::difference(high, low))?;
    Some(Value::Float(as_float(low)? + distance / 2.0))
}

/// The most frequent value. Of equally frequent values it is the one seen first; if all values occur once it is the
/// least.
fn mode(mut points: Vec<Point>) -> Option<Value> {
    if let Some(Value::Boolean(_)) = points.first().and_then(|it| it.value.as_ref()) {
        let ayes = points.iter().filter(|it| it.value == Some(Value::Boolean(true))).count();
        let is_one = points.len() == 1;
        return Some(Value::Boolean(if is_one { ayes == 1 } else { ayes * 2 >= points.len() }));
    }
    points.sort_by(by_value);
    let first = points.first()?;
    let (mut most, mut most_time, mut value) = (0_usize, first.time, first.value.clone());
    let (mut run, mut run_time, mut run_value) = (0_usize, first.time, first.value.clone());
    for point in &points {
        if point.value != run_value {
            (run, run_time, run_value) = (1, point.time, point.value.clone());
            continue;
        }
        run += 1;
        if most > run || (most == run && run_time > most_time) {
            continue;
        }
        (most, most_time, value) = (run, point.time, point.value.clone());
    }
    value
}

fn stddev(points: &[Point]) -> f64 {
    if points.len() < 2 {
        return f64::NAN;
    }
    let values = || points.iter().filter_map(|it| it.value.as_ref().and_then(as_float));
    let mut mean = 0.0;
    let mut count = 0.0;
    for value in values() {
        count += 1.0;
        mean += (value - mean) / count;
    }
    let variance: f64 = values().map(|it| (it - mean) * (it - mean)).sum();
    (variance / (count - 1.0)).sqrt()
}
