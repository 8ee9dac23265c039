//! The summary of the points of a bucket, for functions that need no more than that.
//!
//! A [`Tally`] is a summary made of summaries of series or of chunks, or of points, in any order. Of equal values
//! the earliest is the least and the greatest; at equal times the greater value is the first and the last. This is
//! InfluxDB's order.

use super::function::Simple;
use crate::summary::{Summary, text_bytes};
use crate::value::Value;
use std::cmp::Ordering;

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Winner {
    /// Its time.
    pub(super) time: i64,
    /// The value.
    pub(super) value: Value,
    /// The member of the group that has it.
    pub(super) member: u32,
    /// The row, if the member is the answer to a sub-query.
    pub(super) row: usize,
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tally {
    count: u64,
    sum: Value,
    min: Winner,
    max: Winner,
    first: Winner,
    last: Winner,
}

/// The order of two values of one type for a sort; values of different types are equal, and both zeros are. What is
/// no number (only sub-queries make such) is behind all numbers: a sort panics where the order is not total.
pub(super) fn order(a: &Value, b: &Value) -> Ordering {
    let is_nan = |it: &Value| matches!(it, Value::Float(it) if it.is_nan());
    compare(a, b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

/// The same for the choice of one value; none if one of them is no number, which then replaces no other.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    Some(match (a, b) {
        (Value::Float(a), Value::Float(b)) => return a.partial_cmp(b),
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::Unsigned(a), Value::Unsigned(b)) => a.cmp(b),
        (Value::Boolean(a), Value::Boolean(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => Ordering::Equal,
    })
}

/// The sum of two numbers of one type.
pub(super) fn sum(a: &Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => Value::Float(a + b),
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(a.wrapping_add(*b)),
        (Value::Unsigned(a), Value::Unsigned(b)) => Value::Unsigned(a.wrapping_add(*b)),
        _ => a.clone(),
    }
}

/// The difference of two numbers of one type.
pub(super) fn difference(a: &Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => Value::Float(a - b),
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(a.wrapping_sub(*b)),
        (Value::Unsigned(a), Value::Unsigned(b)) => Value::Unsigned(a.wrapping_sub(*b)),
        _ => a.clone(),
    }
}

impl Winner {
    fn is_below(&self, other: &Self) -> bool {
        match compare(&self.value, &other.value) {
            Some(Ordering::Equal) => self.time < other.time,
            order => order == Some(Ordering::Less),
        }
    }

    fn is_above(&self, other: &Self) -> bool {
        match compare(&self.value, &other.value) {
            Some(Ordering::Equal) => self.time < other.time,
            order => order == Some(Ordering::Greater),
        }
    }

    fn is_before(&self, other: &Self) -> bool {
        match self.time.cmp(&other.time) {
            Ordering::Equal => match (&self.value, &other.value) {
                (Value::Boolean(a), Value::Boolean(b)) => !a & b,
                (a, b) => compare(a, b) == Some(Ordering::Greater),
            },
            order => order == Ordering::Less,
        }
    }

    fn is_after(&self, other: &Self) -> bool {
        match self.time.cmp(&other.time) {
            Ordering::Equal => compare(&self.value, &other.value) == Some(Ordering::Greater),
            order => order == Ordering::Greater,
        }
    }
}

impl Tally {
    /// The tally of one point.
    pub(super) fn of(point: Winner) -> Self {
        Self {
            count: 1,
            sum: point.value.clone(),
            min: point.clone(),
            max: point.clone(),
            first: point.clone(),
            last: point,
        }
    }

    /// The tally of the summary of a series.
    pub(super) fn from(summary: Summary, member: u32) -> Self {
        let winner = |(time, value)| Winner { time, value, member, row: 0 };
        Self {
            count: summary.count,
            sum: summary.sum,
            min: winner(summary.min),
            max: winner(summary.max),
            first: winner(summary.first),
            last: winner(summary.last),
        }
    }

    /// True if the values are strings whose texts are kept.
    pub(super) fn has_texts(&self) -> bool {
        matches!(self.first.value, Value::String(_))
    }

    /// Bytes of the texts of strings.
    pub(super) fn text_bytes(&self) -> usize {
        text_bytes([&self.first.value, &self.last.value, &self.min.value, &self.max.value])
    }

    /// Adds another tally.
    pub(super) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = sum(&self.sum, &other.sum);
        if other.min.is_below(&self.min) {
            self.min = other.min;
        }
        if other.max.is_above(&self.max) {
            self.max = other.max;
        }
        if other.first.is_before(&self.first) {
            self.first = other.first;
        }
        if other.last.is_after(&self.last) {
            self.last = other.last;
        }
    }

    /// The value of a function, and the point that the function chose.
    pub(super) fn value(&self, of: Simple) -> (Option<Value>, Option<&Winner>) {
        let chosen = match of {
            Simple::Count => {
                let count = i64::try_from(self.count).unwrap_or(i64::MAX);
                return (Some(Value::Integer(count)), None);
            }
            Simple::Sum => return (Some(self.sum.clone()), None),
            Simple::Mean => {
                let sum = super::evaluate::as_float(&self.sum);
                return (sum.map(|it| Value::Float(it / self.count as f64)), None);
            }
            Simple::Spread => {
                // Unlike the greatest and the least value it is no number if one of the values is none.
                let is_nan = matches!(self.sum, Value::Float(it) if it.is_nan());
                let difference = difference(&self.max.value, &self.min.value);
                let value = if is_nan { self.sum.clone() } else { difference };
                return (Some(value), None);
            }
            Simple::Min => &self.min,
            Simple::Max => &self.max,
            Simple::First => &self.first,
            Simple::Last => &self.last,
        };
        (Some(chosen.value.clone()), Some(chosen))
    }
}

/// Adds tallies of buckets to others; both lists ascend.
pub(super) fn add_all(to: &mut Vec<(i64, Tally)>, more: Vec<(i64, Tally)>) {
    let mut at = 0;
    let mut missing = Vec::new();
    for (start, tally) in more {
        while to.get(at).is_some_and(|it| it.0 < start) {
            at += 1;
        }
        match to.get_mut(at) {
            Some(known) if known.0 == start => known.1.add(tally),
            _ => missing.push((start, tally)),
        }
    }
    if !missing.is_empty() {
        to.append(&mut missing);
        to.sort_by_key(|it| it.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn winner(time: i64, value: i64) -> Winner {
        Winner { time, value: Value::Integer(value), member: 0, row: 0 }
    }

    proptest! {
        #[test]
        fn parts_come_to_the_same_as_the_whole(
            points in proptest::collection::vec((0_i64..20, -5_i64..5), 1..40),
            cut in 0_usize..40,
        ) {
            let all = |of: &[(i64, i64)]| {
                let mut tallies = of.iter().map(|(time, value)| Tally::of(winner(*time, *value)));
                let mut whole = tallies.next()?;
                tallies.for_each(|it| whole.add(it));
                Some(whole)
            };
            let whole = all(&points).unwrap();
            let (left, right) = points.split_at(cut.min(points.len()));
            let mut parts = all(right).or_else(|| all(left)).unwrap();
            if !right.is_empty() && let Some(left) = all(left) {
                parts.add(left);
            }
            prop_assert_eq!(&parts, &whole);
            let least = points.iter().map(|it| (it.1, it.0)).min().unwrap();
            prop_assert_eq!(whole.value(Simple::Min).1, Some(&winner(least.1, least.0)));
            let last = points.iter().max().unwrap();
            prop_assert_eq!(whole.value(Simple::Last).1, Some(&winner(last.0, last.1)));
            let first = points.iter().map(|it| (it.0, -it.1)).min().unwrap();
            prop_assert_eq!(whole.value(Simple::First).1, Some(&winner(first.0, -first.1)));
        }
    }

    #[test]
    fn buckets_of_both_are_kept() {
        let mut to = vec![(1, Tally::of(winner(1, 1))), (3, Tally::of(winner(3, 3)))];
        add_all(&mut to, vec![(0, Tally::of(winner(0, 0))), (3, Tally::of(winner(4, 1)))]);
        let starts: Vec<i64> = to.iter().map(|it| it.0).collect();
        assert_eq!(starts, [0, 1, 3]);
        assert_eq!(to[2].1.value(Simple::Sum).0, Some(Value::Integer(4)));
    }
}
