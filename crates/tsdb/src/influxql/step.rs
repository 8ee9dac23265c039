//! Functions from point to point.

use super::budget::{Budget, Fallible};
use super::evaluate::as_float;
use super::function::Step;
use super::interval::Interval;
use super::stream::{Point, Points, Stream};
use super::tally::{difference, sum};
use crate::value::Value;
use std::collections::VecDeque;

/// The results of a function from point to point.
pub(super) struct Steps<'a> {
    budget: &'a Budget<'a>,
    input: Stream<'a>,
    step: Step,
    interval: Option<Interval>,
    is_descending: bool,
    before: Option<(i64, Value)>,
    window: VecDeque<Value>,
    total: Option<Value>,
}

impl<'a> Steps<'a> {
    /// Nothing is read yet.
    pub(super) fn new(
        budget: &'a Budget<'a>,
        input: Stream<'a>,
        step: Step,
        interval: Option<Interval>,
        is_descending: bool,
    ) -> Self {
        Self {
            budget,
            input,
            step,
            interval,
            is_descending,
            before: None,
            window: VecDeque::new(),
            total: None,
        }
    }

    /// The result for a point, after those before it.
    fn answer(&mut self, time: i64, value: Value) -> Option<Value> {
        match self.step {
            Step::CumulativeSum => {
                let total = self.total.as_ref().map_or_else(|| value.clone(), |it| sum(it, &value));
                self.total = Some(total.clone());
                Some(total)
            }
            Step::MovingAverage(width) => self.average(width, value),
            Step::Elapsed(unit) => {
                let before = self.before.replace((time, value))?;
                Some(Value::Integer(time.wrapping_sub(before.0).checked_div(unit)?))
            }
            Step::Difference(is_non_negative) => {
                let (before, value) = self.pair(time, value)?;
                let change = difference(&value, &before.1);
                let is_kept = !is_non_negative || as_float(&change).is_some_and(|it| it >= 0.0);
                is_kept.then_some(change)
            }
            Step::Derivative(unit, is_non_negative) => {
                let (before, value) = self.pair(time, value)?;
                let change = change(&value, &before.1)?;
                let mut elapsed = time.wrapping_sub(before.0) as f64;
                if self.is_descending {
                    elapsed = -elapsed;
                }
                let unit = unit.or(self.interval.map(|it| it.width)).unwrap_or(1_000_000_000);
                let is_kept = !is_non_negative || change >= 0.0;
                is_kept.then(|| Value::Float(change / (elapsed / unit as f64)))
            }
            Step::Integral(_) => None,
        }
    }

    /// The previous point and this one; of points of one time only the first counts.
    fn pair(&mut self, time: i64, value: Value) -> Option<((i64, Value), Value)> {
        if self.before.as_ref().is_some_and(|it| it.0 == time) {
            return None;
        }
        let before = self.before.replace((time, value.clone()))?;
        Some((before, value))
    }

    fn average(&mut self, width: usize, value: Value) -> Option<Value> {
        let mut total = self.total.as_ref().map_or_else(|| value.clone(), |it| sum(it, &value));
        if self.window.len() >= width
            && let Some(oldest) = self.window.pop_front()
        {
            // As in InfluxDB: first the old value is subtracted, then the new one is added.
            let rest = self.total.as_ref().map(|it| difference(it, &oldest));
            total = rest.map_or(total, |it| sum(&it, &value));
        }
        self.window.push_back(value);
        self.total = Some(total.clone());
        if self.window.len() < width {
            return None;
        }
        as_float(&total).map(|it| Value::Float(it / width as f64))
    }
}

/// The change from one number to another, as a float.
fn change(to: &Value, from: &Value) -> Option<f64> {
    match (to, from) {
        (Value::Unsigned(to), Value::Unsigned(from)) if to < from => {
            Some(-(from.wrapping_sub(*to) as f64))
        }
        _ => as_float(&difference(to, from)),
    }
}

impl Points for Steps<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        while let Some(point) = self.input.next()? {
            let Some(value) = point.value else { continue };
            let before = self.window.len();
            let answer = self.answer(point.time, value);
            if self.window.len() > before {
                self.budget.hold(size_of::<Value>())?;
            }
            if let Some(value) = answer {
                let beside = point.beside;
                let member = point.member;
                return Ok(Some(Point { time: point.time, member, value: Some(value), beside }));
            }
        }
        Ok(None)
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        self.budget.release(self.window.len() * size_of::<Value>());
    }
}

/// The areas below the points, for each bucket or for all.
pub(super) struct Integral<'a> {
    input: Stream<'a>,
    unit: f64,
    interval: Option<Interval>,
    all: i64,
    is_descending: bool,
    before: Option<(i64, f64)>,
    start: i64,
    edge: i64,
    area: f64,
    is_ended: bool,
}

impl<'a> Integral<'a> {
    /// Nothing is read yet. `all` is the time of the area if there are no buckets.
    pub(super) fn new(
        input: Stream<'a>,
        unit: i64,
        interval: Option<Interval>,
        all: i64,
        is_descending: bool,
    ) -> Self {
        Self {
            input,
            unit: unit as f64,
            interval,
            all,
            is_descending,
            before: None,
            start: all,
            edge: 0,
            area: 0.0,
            is_ended: false,
        }
    }

    /// Moves to the bucket of a time.
    fn enter(&mut self, time: i64) {
        let Some(interval) = self.interval else {
            self.start = self.all;
            return;
        };
        let low = interval.start(time);
        let high = low.saturating_add(interval.width);
        (self.start, self.edge) = if self.is_descending { (high, low) } else { (low, high) };
    }

    /// Adds the area between the previous point and a time.
    fn extend(&mut self, time: i64, value: f64) {
        if let Some((before, of)) = self.before {
            self.area += 0.5 * (value + of) * (time.wrapping_sub(before) as f64 / self.unit);
        }
        self.before = Some((time, value));
    }

    /// Takes a point; returns the area of a bucket that ends before it.
    fn take(&mut self, time: i64, value: f64) -> Option<Point> {
        let Some((before, of)) = self.before else {
            self.enter(time);
            self.before = Some((time, value));
            return None;
        };
        if before == time {
            self.before = Some((time, value));
            return None;
        }
        let is_behind = if self.is_descending { time <= self.edge } else { time >= self.edge };
        if self.interval.is_none() || !is_behind {
            self.extend(time, value);
            return None;
        }
        if before != self.edge {
            let slope = (value - of) / (time.wrapping_sub(before) as f64);
            let at_edge = slope * (self.edge.wrapping_sub(before) as f64) + of;
            self.extend(self.edge, at_edge);
        }
        let done = self.point();
        self.enter(time);
        self.area = 0.0;
        self.extend(time, value);
        Some(done)
    }

    fn point(&self) -> Point {
        Point { time: self.start, value: Some(Value::Float(self.area)), ..Point::default() }
    }
}

impl Points for Integral<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        while let Some(point) = self.input.next()? {
            let Some(value) = point.value.as_ref().and_then(as_float) else { continue };
            if let Some(done) = self.take(point.time, value) {
                return Ok(Some(done));
            }
        }
        let is_last = !std::mem::replace(&mut self.is_ended, true);
        Ok(self.before.filter(|it| is_last && it.0 != self.start).map(|_| self.point()))
    }
}
