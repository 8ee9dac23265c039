//! The points of several series in the order of time.
//!
//! The order of two series at equal times is not defined by time, and yet it is visible: in raw answers, and in
//! functions that take the first point. So the heap is the same as InfluxDB's (that of Go's `container/heap`), with
//! the same comparison: by time, then by the texts beside the value, up to the first value that is not a text.

use super::budget::Fallible;
use super::stream::{Point, Points, Stream};
use crate::value::Value;
use std::cmp::Ordering;

struct Item<'a> {
    point: Point,
    rest: Stream<'a>,
}

/// See the module.
pub(super) struct Merged<'a> {
    items: Vec<Item<'a>>,
    streams: Vec<Stream<'a>>,
    is_descending: bool,
}

/// One stream out of several.
pub(super) fn merged<'a>(mut streams: Vec<Stream<'a>>, is_descending: bool) -> Stream<'a> {
    if streams.len() == 1
        && let Some(stream) = streams.pop()
    {
        return stream;
    }
    Box::new(Merged { items: Vec::new(), streams, is_descending })
}

impl Merged<'_> {
    fn is_less(&self, a: usize, b: usize) -> bool {
        let (Some(a), Some(b)) = (self.items.get(a), self.items.get(b)) else { return false };
        let wanted = if self.is_descending { Ordering::Greater } else { Ordering::Less };
        match a.point.time.cmp(&b.point.time) {
            Ordering::Equal => {}
            order => return order == wanted,
        }
        for pair in a.point.beside.iter().zip(&b.point.beside) {
            let (Some(Value::String(a)), Some(Value::String(b))) = pair else { return false };
            match a.cmp(b) {
                Ordering::Equal => {}
                order => return order == wanted,
            }
        }
        false
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.is_less(at, parent) {
                break;
            }
            self.items.swap(parent, at);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize, end: usize) {
        loop {
            let left = 2 * at + 1;
            if left >= end {
                break;
            }
            let right = left + 1;
            let child = if right < end && self.is_less(right, left) { right } else { left };
            if !self.is_less(child, at) {
                break;
            }
            self.items.swap(at, child);
            at = child;
        }
    }

    /// Reads the first point of each stream.
    fn begin(&mut self) -> Fallible<()> {
        for mut rest in std::mem::take(&mut self.streams) {
            if let Some(point) = rest.next()? {
                self.items.push(Item { point, rest });
            }
        }
        let end = self.items.len();
        (0..end / 2).rev().for_each(|at| self.down(at, end));
        Ok(())
    }
}

impl Points for Merged<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        if !self.streams.is_empty() {
            self.begin()?;
        }
        let Some(last) = self.items.len().checked_sub(1) else { return Ok(None) };
        self.items.swap(0, last);
        self.down(0, last);
        let Some(mut item) = self.items.pop() else { return Ok(None) };
        match item.rest.next()? {
            None => Ok(Some(item.point)),
            Some(next) => {
                let point = std::mem::replace(&mut item.point, next);
                self.items.push(item);
                self.up(last);
                Ok(Some(point))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::influxql::stream::Ready;
    use proptest::prelude::*;

    fn times(mut stream: Stream<'_>) -> Vec<i64> {
        std::iter::from_fn(|| stream.next().unwrap().map(|it| it.time)).collect()
    }

    proptest! {
        #[test]
        fn merged_streams_are_in_order(
            mut lists in proptest::collection::vec(proptest::collection::vec(0_i64..50, 0..20), 0..9),
            is_descending: bool,
        ) {
            let mut all: Vec<i64> = lists.iter().flatten().copied().collect();
            all.sort();
            let mut streams: Vec<Stream<'_>> = Vec::new();
            for list in &mut lists {
                list.sort();
                if is_descending {
                    list.reverse();
                }
                let points: Vec<Point> =
                    list.iter().map(|it| Point { time: *it, ..Point::default() }).collect();
                streams.push(Box::new(Ready(points.into_iter())));
            }
            if is_descending {
                all.reverse();
            }
            prop_assert_eq!(times(merged(streams, is_descending)), all);
        }
    }
}
