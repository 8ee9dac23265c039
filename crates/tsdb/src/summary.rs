//! Aggregates of points: count, sum, least, greatest, first and last.

use crate::error::Result as Fallible;
use crate::value::{Block, Column, Value};
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// The division of time into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Nanoseconds; more than 0.
    pub width: i64,
    /// The beginning of one of the buckets.
    pub origin: i64,
}

impl Buckets {
    /// The start of the bucket of this time; the least possible time, if that is later.
    #[must_use]
    pub fn start(&self, time: i64) -> i64 {
        time.checked_sub(self.since_start(time)).unwrap_or(i64::MIN)
    }

    /// The last time of the bucket of this time.
    #[must_use]
    pub fn end(&self, time: i64) -> i64 {
        let left = self.width.max(1) - 1 - self.since_start(time);
        time.saturating_add(left)
    }

    /// Nanoseconds from the start of the bucket of this time.
    fn since_start(&self, time: i64) -> i64 {
        let width = self.width.max(1);
        match time.checked_sub(self.origin) {
            Some(from) => from.rem_euclid(width),
            None => {
                let from = i128::from(time) - i128::from(self.origin);
                // Less than the width.
                i64::try_from(from.rem_euclid(i128::from(width))).unwrap_or(0)
            }
        }
    }
}

/// The aggregates of some points of a field. Minimum and maximum are the earliest of equal values; of booleans
/// false is less than true. Strings have only a count, a first and a last (the other values are those of the
/// first).
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The number of points.
    pub count: u64,
    /// Their sum; of integers and unsigned integers it wraps; of other types 0.
    pub sum: Value,
    /// The least, and its time.
    pub min: (i64, Value),
    /// The greatest, and its time.
    pub max: (i64, Value),
    /// The earliest.
    pub first: (i64, Value),
    /// The latest.
    pub last: (i64, Value),
}

/// Bytes of the texts of values, if these are strings; a text that the first value shares counts once.
pub(crate) fn text_bytes([first, others @ ..]: [&Value; 4]) -> usize {
    let Value::String(text) = first else { return 0 };
    let others = others.iter().map(|it| match it {
        Value::String(other) if !Arc::ptr_eq(other, text) => other.len(),
        _ => 0,
    });
    text.len() + others.sum::<usize>()
}

/// The places of the least and of the greatest value, the first of equals.
fn extremes<T: Copy>(values: &[T], less: impl Fn(T, T) -> bool) -> (usize, usize) {
    let Some(first) = values.first() else { return (0, 0) };
    let (mut min, mut max) = ((0, *first), (0, *first));
    for (at, value) in values.iter().enumerate() {
        if less(*value, min.1) {
            min = (at, *value);
        }
        if less(max.1, *value) {
            max = (at, *value);
        }
    }
    (min.0, max.0)
}

fn zero(of: &Column) -> Value {
    match of {
        Column::Float(_) => Value::Float(0.0),
        Column::Unsigned(_) => Value::Unsigned(0),
        _ => Value::Integer(0),
    }
}

impl Summary {
    /// The summary of some points of a block; none if there is no point.
    pub(crate) fn of(block: &Block, range: Range<usize>) -> Option<Self> {
        Self::of_points(&block.times, &block.values, range)
    }

    /// The summary of some of these points; none if there is no point.
    fn of_points(all: &[i64], values: &Column, range: Range<usize>) -> Option<Self> {
        let times = all.get(range.clone())?;
        let (first, last) = (*times.first()?, *times.last()?);
        let (least, greatest, sum) = match values {
            Column::Float(of) => {
                let of = of.get(range.clone())?;
                let (min, max) = extremes(of, |one, other| one < other);
                (min, max, Value::Float(of.iter().sum()))
            }
            Column::Integer(of) => {
                let of = of.get(range.clone())?;
                let (min, max) = extremes(of, |one, other| one < other);
                let sum = of.iter().fold(0_i64, |sum, it| sum.wrapping_add(*it));
                (min, max, Value::Integer(sum))
            }
            Column::Unsigned(of) => {
                let of = of.get(range.clone())?;
                let (min, max) = extremes(of, |one, other| one < other);
                let sum = of.iter().fold(0_u64, |sum, it| sum.wrapping_add(*it));
                (min, max, Value::Unsigned(sum))
            }
            Column::Boolean(of) => {
                let (min, max) = extremes(of.get(range.clone())?, |one, other| !one & other);
                (min, max, zero(values))
            }
            Column::String(_) => (0, 0, zero(values)),
        };
        let at = |place: usize| {
            let place = range.start + place;
            Some((*all.get(place)?, values.get(place)?))
        };
        Some(Self {
            count: times.len() as u64,
            sum,
            min: at(least)?,
            max: at(greatest)?,
            first: (first, values.get(range.start)?),
            last: (last, values.get(range.end - 1)?),
        })
    }

    fn text_bytes(&self) -> usize {
        text_bytes([&self.first.1, &self.last.1, &self.min.1, &self.max.1])
    }

    /// Keeps only the number and the times of strings.
    fn drop_texts(&mut self) {
        for (_, value) in [&mut self.min, &mut self.max, &mut self.first, &mut self.last] {
            if matches!(value, Value::String(_)) {
                *value = Value::Integer(0);
            }
        }
    }

    /// Merges the summary of other points of the field, or of the same field of another series.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = match (&self.sum, &other.sum) {
            (Value::Float(one), Value::Float(other)) => Value::Float(one + other),
            (Value::Integer(one), Value::Integer(other)) => {
                Value::Integer(one.wrapping_add(*other))
            }
            (Value::Unsigned(one), Value::Unsigned(other)) => {
                Value::Unsigned(one.wrapping_add(*other))
            }
            _ => self.sum.clone(),
        };
        let takes = |one: &(i64, Value), other: &(i64, Value), wanted: Ordering| match compare(
            &other.1, &one.1,
        ) {
            Ordering::Equal => other.0 < one.0,
            found => found == wanted,
        };
        if takes(&self.min, &other.min, Ordering::Less) {
            self.min = other.min.clone();
        }
        if takes(&self.max, &other.max, Ordering::Greater) {
            self.max = other.max.clone();
        }
        if other.first.0 < self.first.0 {
            self.first = other.first.clone();
        }
        if other.last.0 > self.last.0 {
            self.last = other.last.clone();
        }
    }
}

/// Strings are all equal: they have no least. Both zeros are equal, as in [`extremes`].
fn compare(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Float(one), Value::Float(other)) => {
            one.partial_cmp(other).unwrap_or(Ordering::Equal)
        }
        (Value::Integer(one), Value::Integer(other)) => one.cmp(other),
        (Value::Unsigned(one), Value::Unsigned(other)) => one.cmp(other),
        (Value::Boolean(one), Value::Boolean(other)) => one.cmp(other),
        _ => Ordering::Equal,
    }
}

/// Buckets, and bytes of their texts, between two checks whether there may be so many.
const ASKED: usize = 64;
const TEXT_ASKED: usize = 256 << 10;

/// Counts the buckets of all fields of a series and the bytes of their texts, and asks `may` while they are made
/// whether there may be so many. Only buckets that have points count.
pub(crate) struct Most<'m> {
    count: usize,
    texts: usize,
    /// The bytes of texts when `may` was asked.
    asked: usize,
    has_texts: bool,
    may: &'m dyn Fn(usize, usize) -> Fallible<()>,
}

impl<'m> Most<'m> {
    /// No bucket is counted yet.
    pub(crate) fn new(may: &'m dyn Fn(usize, usize) -> Fallible<()>) -> Self {
        Self { count: 0, texts: 0, asked: 0, has_texts: true, may }
    }

    /// The same, for summaries of strings without their texts, of which only the number is needed.
    pub(crate) fn without_texts(self) -> Self {
        Self { has_texts: false, ..self }
    }

    /// Counts one more bucket, with its texts.
    #[inline]
    fn grow(&mut self, texts: usize) -> Fallible<()> {
        self.count += 1;
        self.texts += texts;
        self.ask_sometimes()
    }

    #[inline]
    fn ask_sometimes(&mut self) -> Fallible<()> {
        let is_due =
            self.count.is_multiple_of(ASKED) || self.texts.saturating_sub(self.asked) >= TEXT_ASKED;
        if is_due { self.ask() } else { Ok(()) }
    }

    /// Counts the texts of a bucket that have changed.
    fn change(&mut self, before: usize, after: usize) -> Fallible<()> {
        self.texts = self.texts.saturating_sub(before) + after;
        if after > before { self.ask_sometimes() } else { Ok(()) }
    }

    /// Asks whether there may be as many buckets as there are.
    ///
    /// # Errors
    /// The error of `may`.
    pub(crate) fn ask(&mut self) -> Fallible<()> {
        self.asked = self.texts;
        (self.may)(self.count, self.texts)
    }
}

/// Sums points up by buckets of ascending time.
#[derive(Debug)]
pub(crate) struct Sums {
    /// None: one bucket, which begins here.
    buckets: Result<Buckets, i64>,
    pub(crate) all: Vec<(i64, Summary)>,
}

impl Sums {
    pub(crate) fn new(buckets: Option<Buckets>, start: i64) -> Self {
        Self { buckets: buckets.ok_or(start), all: Vec::new() }
    }

    /// True if all times from `from` to `to` are in one bucket.
    pub(crate) fn is_one(&self, from: i64, to: i64) -> bool {
        self.buckets.is_err() || self.buckets.is_ok_and(|it| it.start(from) == it.start(to))
    }

    /// Adds a summary of later points of one bucket.
    ///
    /// # Errors
    /// An error if there are too many buckets.
    pub(crate) fn add(&mut self, summary: Summary, most: &mut Most<'_>) -> Fallible<()> {
        let start = match &self.buckets {
            Ok(buckets) => buckets.start(summary.first.0),
            Err(start) => *start,
        };
        self.add_to(start, summary, most)
    }

    fn add_to(&mut self, start: i64, mut summary: Summary, most: &mut Most<'_>) -> Fallible<()> {
        if !most.has_texts {
            summary.drop_texts();
        }
        match self.all.last_mut() {
            Some((last, sum)) if *last == start => {
                let before = sum.text_bytes();
                sum.merge(&summary);
                let after = sum.text_bytes();
                if before == after { Ok(()) } else { most.change(before, after) }
            }
            _ => {
                most.grow(summary.text_bytes())?;
                self.all.push((start, summary));
                Ok(())
            }
        }
    }

    /// Adds later points.
    ///
    /// # Errors
    /// As [`Sums::add`].
    pub(crate) fn add_block(&mut self, block: &Block, most: &mut Most<'_>) -> Fallible<()> {
        self.add_points(&block.times, &block.values, 0..block.len(), most)
    }

    /// Adds some of later points.
    ///
    /// # Errors
    /// As [`Sums::add`].
    pub(crate) fn add_points(
        &mut self,
        times: &[i64],
        values: &Column,
        range: Range<usize>,
        most: &mut Most<'_>,
    ) -> Fallible<()> {
        let mut from = range.start;
        while let Some(time) = times.get(from).filter(|_| from < range.end) {
            let (start, to) = match &self.buckets {
                Ok(buckets) => {
                    let end = buckets.end(*time);
                    let rest = times.get(from..range.end).unwrap_or_default();
                    (buckets.start(*time), from + rest.partition_point(|time| *time <= end))
                }
                Err(start) => (*start, range.end),
            };
            if let Some(summary) = Summary::of_points(times, values, from..to) {
                self.add_to(start, summary, most)?;
            }
            from = to.max(from + 1);
        }
        Ok(())
    }
}

/// A value as eight bytes of an entry; 0 for a string.
pub(crate) fn to_bits(value: &Value) -> u64 {
    match value {
        Value::Float(value) => value.to_bits(),
        Value::Integer(value) => *value as u64,
        Value::Unsigned(value) => *value,
        Value::Boolean(value) => u64::from(*value),
        Value::String(_) => 0,
    }
}

/// The value of type `of` that these bytes of an entry stand for.
pub(crate) fn of_bits(of: crate::value::FieldType, bits: u64) -> Value {
    use crate::value::FieldType;
    match of {
        FieldType::Float => Value::Float(f64::from_bits(bits)),
        FieldType::Integer => Value::Integer(bits as i64),
        FieldType::Unsigned => Value::Unsigned(bits),
        FieldType::Boolean => Value::Boolean(bits != 0),
        FieldType::String => Value::String(Arc::from("")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_has_its_width_and_begins_where_it_should(
            time in any::<i64>(),
            width in 1..=i64::MAX,
            origin in any::<i64>(),
            is_small in any::<bool>(),
        ) {
            let part = |of: i64| if is_small { of >> 40 } else { of };
            let (time, width, origin) = (part(time), part(width).max(1), part(origin));
            let wide = |of: i64| i128::from(of);
            let start = wide(time) - (wide(time) - wide(origin)).rem_euclid(wide(width));
            let buckets = Buckets { width, origin };
            prop_assert_eq!(buckets.start(time), i64::try_from(start).unwrap_or(i64::MIN));
            let end = start + wide(width) - 1;
            prop_assert_eq!(buckets.end(time), i64::try_from(end).unwrap_or(i64::MAX));
        }
    }

    #[test]
    fn sums_of_parts_are_those_of_the_whole() {
        let times: Vec<i64> = (0..100).map(|at| at * 7 - 300).collect();
        // Both zeros are least in the first half, and greatest in the second.
        let value = |at: usize| [0.0, -0.0, 1.0][at % 3] * if at < 50 { 1.0 } else { -1.0 };
        let values = (0..100).map(value).collect();
        let block = Block { times, values: Column::Float(values) };
        let buckets = Buckets { width: 50, origin: 3 };
        let mut whole = Sums::new(Some(buckets), 0);
        let any = &mut Most::new(&|_, _| Ok(()));
        whole.add_block(&block, any).expect("a block");
        let mut parts = Sums::new(Some(buckets), 0);
        for at in 0..100 {
            parts.add(Summary::of(&block, at..at + 1).expect("a point"), any).expect("a point");
        }
        assert_eq!(whole.all, parts.all);
        assert_eq!(whole.all[0].0, -347);
        let count: u64 = whole.all.iter().map(|(_, it)| it.count).sum();
        assert_eq!(count, 100);
        let few = |count: usize, _: usize| match count > 70 {
            true => Err(Error::Limit("many".into())),
            false => Ok(()),
        };
        let single = Buckets { width: 1, origin: 0 };
        let mut sums = Sums::new(Some(single), 0);
        let mut most = Most::new(&few);
        assert!(sums.add_block(&block, &mut most).is_ok() && most.ask().is_err());
        assert_eq!(sums.all.len(), 100);
        assert!(Sums::new(Some(single), 0).add_block(&block, &mut most).is_err());
        assert_eq!(buckets.start(i64::MIN), i64::MIN);
        assert_eq!(buckets.end(i64::MAX), i64::MAX);
    }
}
