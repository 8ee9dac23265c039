//! Points for buckets that have none.
//!
//! A group that has points gets a point for each bucket of the range. Without a lower bound the first point's
//! bucket is the first; in descending order, without a lower bound, the last point's bucket is the last. The
//! buckets are counted before they are made.

use super::ast::Fill;
use super::budget::{Budget, Fallible};
use super::evaluate::{as_float, cast};
use super::interval::Interval;
use super::plan::Range;
use super::stream::{Ahead, Point, Points, Stream};
use super::time::TIME_MIN;
use crate::value::{FieldType, Value};

/// See the module.
pub(super) struct Filled<'a> {
    budget: &'a Budget<'a>,
    input: Ahead<'a>,
    fill: Fill,
    of: Option<FieldType>,
    interval: Interval,
    range: Range,
    is_descending: bool,
    beside: usize,
    next: Option<i64>,
    last: i64,
    is_begun: bool,
    is_endless: bool,
    before: Option<Point>,
}

impl<'a> Filled<'a> {
    /// `of` is the type of the values, and `beside` the number of values beside them.
    pub(super) fn new(
        budget: &'a Budget<'a>,
        input: Stream<'a>,
        (fill, of): (Fill, Option<FieldType>),
        (interval, range): (Interval, Range),
        is_descending: bool,
        beside: usize,
    ) -> Self {
        Self {
            budget,
            input: Ahead::new(input),
            fill,
            of,
            interval,
            range,
            is_descending,
            beside,
            next: None,
            last: 0,
            is_begun: false,
            is_endless: false,
            before: None,
        }
    }

    /// Finds the first and the last bucket.
    fn begin(&mut self) -> Fallible<()> {
        self.is_begun = true;
        let Some(point) = self.input.peek()? else { return Ok(()) };
        let of_point = self.interval.start(point.time);
        let end = self.interval.start(self.range.end);
        let is_open = self.range.start == TIME_MIN;
        let start = if is_open { of_point } else { self.interval.start(self.range.start) };
        let (first, last) = if self.is_descending { (end, start) } else { (start, end) };
        // Descending without a lower bound: the points decide where it ends.
        self.is_endless = self.is_descending && is_open;
        self.last = if self.is_endless { i64::MAX } else { last };
        self.next = Some(first);
        let lowest = start.min(end);
        self.budget.buckets(self.interval.count(lowest, start.max(end)))
    }

    /// True if a bucket is in the range.
    fn is_in(&self, start: i64) -> bool {
        if self.is_descending { start >= self.last } else { start <= self.last }
    }

    /// The point for a bucket that has none.
    fn made(&mut self, start: i64) -> Fallible<Point> {
        let value = match self.fill {
            Fill::Null | Fill::None => None,
            Fill::Previous => self.before.as_ref().and_then(|it| it.value.clone()),
            Fill::Integer(it) => self.number(Value::Integer(it)),
            Fill::Number(it) => self.number(Value::Float(it)),
            Fill::Linear => self.between(start)?,
        };
        let beside = std::iter::repeat_n(None, self.beside).collect();
        Ok(Point { time: start, member: 0, value, beside })
    }

    /// A number as a value of the type; other types get InfluxDB's empty value.
    fn number(&self, number: Value) -> Option<Value> {
        match self.of {
            Some(FieldType::String) => Some(Value::String("".into())),
            Some(FieldType::Boolean) => Some(Value::Boolean(false)),
            Some(of) => Some(cast(number, of)),
            None => Some(number),
        }
    }

    /// The value on the line between the neighbouring buckets.
    fn between(&mut self, start: i64) -> Fallible<Option<Value>> {
        let width = self.interval.width;
        let (Some(before), Some(behind)) = (self.before.clone(), self.input.peek()?) else {
            return Ok(None);
        };
        let (Some(low), Some(high)) = (before.value, behind.value.as_ref()) else {
            return Ok(None);
        };
        let (from, to, at) = (before.time / width, behind.time / width, start / width);
        let (Some(rise), Some(base)) =
            (as_float(&super::tally::difference(high, &low)), as_float(&low))
        else {
            return Ok(None);
        };
        let value = rise / (to.wrapping_sub(from) as f64) * (at.wrapping_sub(from) as f64) + base;
        Ok(match low {
            Value::Float(_) => Some(Value::Float(value)),
            Value::Integer(_) => Some(Value::Integer(value as i64)),
            Value::Unsigned(_) => Some(Value::Unsigned(value as u64)),
            Value::Boolean(_) | Value::String(_) => None,
        })
    }
}

impl Points for Filled<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        if !self.is_begun {
            self.begin()?;
        }
        self.budget.tick()?;
        let is_descending = self.is_descending;
        let found = self.input.peek()?.map(|it| it.time);
        let Some(start) = self.next else { return self.input.take() };
        let is_missing = match found {
            None if !self.is_in(start) => return Ok(None),
            None => true,
            Some(time) => {
                if is_descending {
                    time < start
                } else {
                    time > start
                }
            }
        };
        let point = if is_missing {
            self.budget.buckets(usize::from(self.is_endless))?;
            self.made(start)?
        } else {
            let Some(point) = self.input.take()? else { return Ok(None) };
            if matches!(self.fill, Fill::Previous | Fill::Linear) {
                self.before = Some(point.clone());
            }
            point
        };
        self.next = self.interval.next(start, is_descending);
        Ok(Some(point))
    }
}
