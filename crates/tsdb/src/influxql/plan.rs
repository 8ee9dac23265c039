//! The plan of a SELECT, with every name resolved.
//!
//! Columns are formulas over the slots of a row: first the calls of functions, then the fields and tags beside
//! them. Wildcards are expanded, the kinds of references are known, the bounds of time are numbers, and a sub-query
//! is a plan of its own whose groups are at least as fine as those of the SELECT around it.

use super::ast::{Expr, Fill, Select, Window};
use super::budget::{Budget, Fallible};
use super::columns::{self, Columns};
use super::condition::{Said, resolved, split};
use super::function::{Call, Function, Simple, Step};
use super::inputs::{Input, Inputs};
use super::interval::Interval;
use super::kinds::Kinds;
use super::time::{TIME_MAX, TIME_MIN, looks_like_time, moment};
use super::validate::{Frame, check, without_time};
use std::collections::BTreeSet;

/// The times that a SELECT reads; both bounds belong to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Range {
    /// The least time; [`TIME_MIN`] if the range is open.
    pub(super) start: i64,
    /// The greatest time; [`TIME_MAX`] if the range is open.
    pub(super) end: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Plan {
    /// The name of the time column.
    pub(super) time_name: String,
    /// The columns.
    pub(super) columns: Columns,
    /// The tags by which it groups, ascending.
    pub(super) dimensions: Vec<String>,
    /// The tags by which it groups without those of the SELECT around.
    pub(super) own_dimensions: BTreeSet<String>,
    /// The buckets of time.
    pub(super) interval: Option<Interval>,
    /// The times.
    pub(super) range: Range,
    /// True if times and groups descend.
    pub(super) is_descending: bool,
    /// The content of empty buckets.
    pub(super) fill: Fill,
    /// The window of rows of each group.
    pub(super) rows: Window,
    /// The window of groups.
    pub(super) series: Window,
    /// The rest of the WHERE clause.
    pub(super) condition: Option<Expr>,
    /// Its inputs.
    pub(super) inputs: Vec<Input>,
}

/// The part of the SELECT around that a sub-query takes over.
#[derive(Debug, Clone, Copy)]
struct Around {
    range: Range,
    interval: Option<Interval>,
    is_descending: bool,
}

impl Plan {
    /// The plan of a SELECT. It counts as held until the statement ends.
    pub(super) fn new(
        select: &Select,
        inputs: &mut Inputs<'_>,
        budget: &Budget<'_>,
        now: i64,
    ) -> Fallible<Self> {
        Self::within(select, (inputs, budget), now, None)
    }

    fn within(
        select: &Select,
        (inputs, budget): (&mut Inputs<'_>, &Budget<'_>),
        now: i64,
        around: Option<Around>,
    ) -> Fallible<Self> {
        if select.into.is_some() {
            return Err("SELECT INTO is not supported".to_owned());
        }
        let (condition, said) = split(select.condition.as_ref(), now)?;
        let own = interval(&select.dimensions, now)?;
        let is_descending = select.descending.unwrap_or(false);
        let range = range(said, own.is_some(), now, around);
        if let Some(around) = around
            && select.descending.is_some_and(|it| it != around.is_descending)
        {
            return Err(
                "subqueries must be ordered in the same direction as the query itself".to_owned()
            );
        }
        let is_descending = around.map_or(is_descending, |it| it.is_descending);
        let interval = own.or(around.and_then(|it| it.interval));
        let (asked, time_name) = without_time(&select.columns);
        let frame = Frame {
            has_interval: interval.is_some(),
            is_inherited: own.is_none(),
            limit: select.rows.limit,
            fill: select.fill,
        };
        check(&asked, frame)?;

        let mut read = Vec::new();
        for source in &select.sources {
            match source {
                super::ast::Source::Measurement(it) => inputs.stored(it, budget, &mut read)?,
                super::ast::Source::Select(it) => {
                    let around = Around { range, interval, is_descending };
                    let inner = Self::within(it, (&mut *inputs, budget), now, Some(around))?;
                    read.push(Input::Inner(Box::new(inner)));
                }
            }
        }
        let own_dimensions = dimensions(&select.dimensions, &read, inputs, budget)?;
        let wanted = columns::Asked { columns: &asked, groups: &select.dimensions };
        let columns = columns::Columns::new(wanted, &own_dimensions, &read, inputs, budget)?;
        let is_raw = columns.calls.is_empty();
        let fill = match select.fill {
            Fill::Null if around.is_some() && !is_raw => Fill::None,
            fill => fill,
        };
        let kinds = Kinds::new(&read, inputs, budget);
        let condition = condition.map(|it| resolved(&it, &|name, cast| kinds.of(name, cast)));
        kinds.end()?;
        let mut plan = Self {
            time_name: time_name.unwrap_or_else(|| "time".to_owned()),
            columns,
            dimensions: own_dimensions.iter().cloned().collect(),
            own_dimensions,
            interval,
            range,
            is_descending,
            fill,
            rows: select.rows,
            series: select.series,
            condition,
            inputs: read,
        };
        plan.prepare_inner(budget)?;
        Ok(plan)
    }

    /// Passes to sub-queries the groups, and the buckets before the range that a function looks at.
    fn prepare_inner(&mut self, budget: &Budget<'_>) -> Fallible<()> {
        let range = self.range_of_all();
        for input in &mut self.inputs {
            let Input::Inner(inner) = input else { continue };
            for dimension in &self.dimensions {
                budget.hold(size_of::<String>() + dimension.len())?;
                inner.dimensions.push(dimension.clone());
            }
            inner.dimensions.sort();
            inner.dimensions.dedup();
            inner.series.limit += self.series.limit;
            inner.series.offset += self.series.offset;
            if inner.range.start == self.range.start {
                inner.range.start = range.start;
            }
            if inner.range.end == self.range.end {
                inner.range.end = range.end;
            }
        }
        Ok(())
    }

    /// The range, extended by `buckets` buckets before its beginning.
    pub(super) fn range_before(&self, buckets: i64) -> Range {
        let width = self.interval.map_or(0, |it| it.width).saturating_mul(buckets);
        let mut range = self.range;
        if self.is_descending {
            range.end =
                if range.end == TIME_MAX { TIME_MAX } else { range.end.saturating_add(width) };
        } else if range.start != TIME_MIN {
            range.start = range.start.saturating_sub(width).max(TIME_MIN + 1);
        }
        range
    }

    /// The range with the buckets before it that any call looks at.
    fn range_of_all(&self) -> Range {
        let before = self.calls().iter().map(Call::buckets_before).max();
        self.range_before(before.unwrap_or(0))
    }

    /// The times of the rows of a sub-query that are there for other calls than one with this range; none if there
    /// are none. The rows of the buckets of a sub-query belong to the bucket of this SELECT in which they begin.
    pub(super) fn range_of_others(&self, inner: &Self, range: Range) -> Option<Range> {
        let all = self.range_of_all();
        let interval = self.interval.filter(|_| all != range)?;
        let first = inner.interval.map_or(all.start, |it| it.start(all.start));
        let (start, end) = match (self.is_descending, inner.rows_have_own_times()) {
            (true, true) => (range.end.saturating_add(1), all.end),
            (true, false) => (interval.start(range.end).saturating_add(interval.width), all.end),
            (false, true) => (first, range.start.saturating_sub(1)),
            (false, false) => (first, interval.start(range.start).saturating_sub(1)),
        };
        Some(Range { start, end })
    }

    /// True if the rows of this sub-query, which reads measurements, have the times of points, and none that of a
    /// bucket.
    fn rows_have_own_times(&self) -> bool {
        self.calls().iter().all(|it| match it.function {
            Function::Step(step) => !matches!(step, Step::Integral(_)),
            _ => false,
        })
    }

    /// True if the only call chooses points.
    pub(super) fn is_selector(&self) -> bool {
        match self.columns.calls.as_slice() {
            [call] => call.is_selector(),
            _ => false,
        }
    }

    /// True if only the last points of a series are needed.
    pub(super) fn is_last(&self) -> bool {
        let is_last = |it: &Call| matches!(it.function, Function::Simple(Simple::Last));
        self.interval.is_none() && self.calls().iter().all(is_last)
    }

    /// True if only the numbers of points are needed.
    pub(super) fn is_count(&self) -> bool {
        let is_count = |it: &Function| matches!(it, Function::Simple(Simple::Count));
        self.calls().iter().all(|it| match &it.function {
            Function::StepOf(_, inner) => is_count(&inner.function),
            function => is_count(function),
        })
    }

    /// The time of a bucket without a beginning.
    pub(super) fn time_of_all(&self, range: Range) -> i64 {
        if range.start == TIME_MIN { 0 } else { range.start }
    }

    /// The calls.
    pub(super) fn calls(&self) -> &[Call] {
        &self.columns.calls
    }
}

/// The times of a SELECT.
fn range(said: Said, has_interval: bool, now: i64, around: Option<Around>) -> Range {
    let end = if has_interval { now } else { TIME_MAX };
    let range = Range { start: said.min.unwrap_or(TIME_MIN), end: said.max.unwrap_or(end) };
    match around {
        None => range,
        Some(Around { range: outer, .. }) => {
            Range { start: range.start.max(outer.start), end: range.end.min(outer.end) }
        }
    }
}

/// The buckets of a GROUP BY clause.
fn interval(dimensions: &[Expr], now: i64) -> Fallible<Option<Interval>> {
    let mut found: Option<Interval> = None;
    for dimension in dimensions {
        match dimension {
            _ if dimension.is_time() => {
                return Err("time() is a function and expects at least one argument".to_owned());
            }
            Expr::Reference(..) | Expr::Wildcard(_) | Expr::Regex(_) => {}
            Expr::Call(name, arguments) if name == "time" => {
                let (width, offset) = match arguments.as_slice() {
                    [width] => (width, None),
                    [width, offset] => (width, Some(offset)),
                    _ => return Err("time dimension expected 1 or 2 arguments".to_owned()),
                };
                let Expr::Duration(width) = width else {
                    return Err("time dimension must have duration argument".to_owned());
                };
                if found.is_some() {
                    return Err("multiple time dimensions not allowed".to_owned());
                }
                if *width > 0 {
                    let offset = offset.map_or(Ok(0), |it| offset_of(it, now))?;
                    found = Some(Interval { width: *width, offset: offset % *width });
                }
            }
            Expr::Call(..) => return Err("only time() calls allowed in dimensions".to_owned()),
            _ => return Err("only time and tag dimensions allowed".to_owned()),
        }
    }
    Ok(found)
}

fn offset_of(offset: &Expr, now: i64) -> Fallible<i64> {
    match offset {
        Expr::Duration(it) => Ok(*it),
        Expr::Call(name, arguments) if name == "now" && arguments.is_empty() => Ok(now),
        Expr::Call(name, _) if name == "now" => {
            Err("time dimension offset now() function requires no arguments".to_owned())
        }
        Expr::Call(..) => Err("time dimension offset function must be now()".to_owned()),
        Expr::String(text) if looks_like_time(text) => {
            let time = moment(text).and_then(|it| i64::try_from(it).ok());
            time.ok_or_else(|| "invalid timestamp string".to_owned())
        }
        _ => Err("time dimension offset must be duration or now()".to_owned()),
    }
}

/// The tags of a GROUP BY clause.
fn dimensions(
    asked: &[Expr],
    read: &[Input],
    inputs: &Inputs<'_>,
    budget: &Budget<'_>,
) -> Fallible<BTreeSet<String>> {
    let has_wildcard = asked.iter().any(|it| matches!(it, Expr::Wildcard(_) | Expr::Regex(_)));
    let all = if has_wildcard { columns::tags(read, inputs, budget)? } else { Default::default() };
    let mut found = BTreeSet::new();
    for dimension in asked {
        if let Expr::Reference(name, _) = dimension {
            columns::put(name, &mut found, budget)?;
        }
        for key in &all {
            let is_wanted = match dimension {
                Expr::Wildcard(_) => true,
                Expr::Regex(pattern) => budget.finds(&pattern.0, key)?,
                _ => break,
            };
            if is_wanted {
                columns::put(key, &mut found, budget)?;
            }
        }
    }
    Ok(found)
}
