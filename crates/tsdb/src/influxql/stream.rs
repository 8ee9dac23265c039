//! Points on their way to a row.
//!
//! A group's points come one by one, in the order of time or against it, from series ([`super::cursor`]) through a
//! merge and through functions. A point is read only when the next stage asks for it, so that a LIMIT reads no more
//! than it shows.

use super::budget::{Budget, Fallible};
use super::inputs::Inputs;
use crate::value::Value;
use smallvec::SmallVec;

/// Fields and tags that stand beside a value.
pub(super) type Beside = SmallVec<[Option<Value>; 2]>;

/// A point on its way.
#[derive(Debug, Clone, Default)]
pub(super) struct Point {
    /// Its time.
    pub(super) time: i64,
    /// The number of its member in the group.
    pub(super) member: u32,
    /// The value that a function takes; none in an empty bucket.
    pub(super) value: Option<Value>,
    /// The fields and tags beside it.
    pub(super) beside: Beside,
}

/// A source of points.
pub(super) trait Points {
    /// The next point.
    fn next(&mut self) -> Fallible<Option<Point>>;
}

/// Any source of points.
pub(super) type Stream<'a> = Box<dyn Points + 'a>;

/// The context that all parts of a statement need.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a, 's> {
    /// The readers.
    pub(super) inputs: &'a Inputs<'s>,
    /// The limits.
    pub(super) budget: &'a Budget<'a>,
}

/// Points that are already there.
pub(super) struct Ready(pub(super) std::vec::IntoIter<Point>);

impl Points for Ready {
    fn next(&mut self) -> Fallible<Option<Point>> {
        Ok(self.0.next())
    }
}

/// Some points of a stream: those after an offset, up to a limit.
pub(super) struct Limited<'a> {
    input: Stream<'a>,
    skip: usize,
    left: usize,
}

impl<'a> Limited<'a> {
    /// A limit of 0 is none.
    pub(super) fn new(input: Stream<'a>, window: super::ast::Window) -> Self {
        let left = if window.limit == 0 { usize::MAX } else { window.limit };
        Self { input, skip: window.offset, left }
    }
}

impl Points for Limited<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        while self.skip > 0 {
            self.skip -= 1;
            if self.input.next()?.is_none() {
                return Ok(None);
            }
        }
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.input.next()
    }
}

/// A stream whose next point can be seen before it is taken.
pub(super) struct Ahead<'a> {
    input: Stream<'a>,
    seen: Option<Point>,
    is_read: bool,
}

impl<'a> Ahead<'a> {
    /// Nothing is read yet.
    pub(super) fn new(input: Stream<'a>) -> Self {
        Self { input, seen: None, is_read: false }
    }

    /// The next point.
    pub(super) fn peek(&mut self) -> Fallible<Option<&Point>> {
        if !self.is_read {
            self.seen = self.input.next()?;
            self.is_read = true;
        }
        Ok(self.seen.as_ref())
    }

    /// Takes the next point.
    pub(super) fn take(&mut self) -> Fallible<Option<Point>> {
        self.peek()?;
        self.is_read = self.seen.is_none();
        Ok(self.seen.take())
    }
}
