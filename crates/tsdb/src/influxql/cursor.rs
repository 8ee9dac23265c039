//! The points of a series: a driving field, fields beside it, and a filter.
//!
//! A function reads one field, and the others at its times. Without a function every time counts at which any of
//! the fields has a value. Blocks are fetched one at a time for each field. Values beside the field are looked up
//! in one direction only.

use super::ast::{Cast, Expr};
use super::budget::Fallible;
use super::evaluate::{Formula, Place, cast};
use super::inputs::Stored;
use super::plan::Range;
use super::stream::{Beside, Context, Point, Points};
use crate::catalogue::Series;
use crate::value::{Block, Column, FieldType, Value};

/// A cursor over one field of one series.
pub(super) struct FieldCursor<'a, 's> {
    context: Context<'a, 's>,
    blocks: crate::read::Points<'a>,
    block: Block,
    taken: usize,
    /// Bytes that it holds beside itself.
    held: usize,
    is_descending: bool,
    cast: Option<FieldType>,
}

/// The conversion of values of one type when they are read as another: the inner type is none if they stay as they
/// are. None if they cannot be converted.
fn turned(from: FieldType, to: FieldType) -> Option<Option<FieldType>> {
    let is_number = |it| matches!(it, FieldType::Float | FieldType::Integer | FieldType::Unsigned);
    match from == to {
        true => Some(None),
        false => (is_number(from) && is_number(to)).then_some(Some(to)),
    }
}

impl<'a, 's: 'a> FieldCursor<'a, 's> {
    /// A cursor at the first point of the range; none if the measurement does not have the field.
    pub(super) fn open(
        context: Context<'a, 's>,
        of: &Stored,
        series: &Series,
        (name, kind): (&str, Cast),
        range: Range,
        is_descending: bool,
    ) -> Fallible<Option<Self>> {
        let (Some(field), Cast::Type(wanted)) = (of.fields.get(name), kind) else {
            return Ok(None);
        };
        let Some(cast) = turned(field.field_type, wanted) else { return Ok(None) };
        let Some(reader) = context.inputs.reader(of.reader) else { return Ok(None) };
        if range.start > range.end {
            return Ok(None);
        }
        let blocks = reader.points(series, field, range.start..=range.end, is_descending);
        let blocks = blocks.ended_by(context.budget.limits());
        // A query may open one for each of many fields of many series.
        let held = blocks.held_bytes();
        context.budget.hold(size_of::<Self>().saturating_add(held))?;
        Ok(Some(Self {
            context,
            blocks,
            block: Block { times: Vec::new(), values: Column::new(wanted) },
            taken: 0,
            held,
            is_descending,
            cast,
        }))
    }

    /// The time of the next point.
    pub(super) fn peek(&mut self) -> Fallible<Option<i64>> {
        while self.taken >= self.block.times.len() {
            // Reading a block takes longer than a check of the clock.
            self.context.budget.check()?;
            let Some(block) = self.blocks.next() else { return Ok(None) };
            self.context.budget.release(self.held);
            self.held = 0;
            let block = block.map_err(|it| it.to_string())?;
            let points = block.times.len().saturating_mul(16);
            let held = points.saturating_add(block.values.text_bytes());
            let held = held.saturating_add(self.blocks.held_bytes());
            self.context.budget.hold(held)?;
            self.held = held;
            self.block = block;
            self.taken = 0;
        }
        Ok(self.block.times.get(self.place()).copied())
    }

    /// The index of the next point in its block.
    fn place(&self) -> usize {
        if self.is_descending {
            (self.block.times.len() - 1).saturating_sub(self.taken)
        } else {
            self.taken
        }
    }

    /// Takes the point that was peeked at last.
    fn take(&mut self) -> Option<Value> {
        let value = self.block.values.get(self.place());
        self.taken += 1;
        match self.cast {
            Some(to) => value.map(|it| cast(it, to)),
            None => value,
        }
    }

    /// The next point.
    pub(super) fn next(&mut self) -> Fallible<Option<(i64, Value)>> {
        let Some(time) = self.peek()? else { return Ok(None) };
        Ok(self.take().map(|value| (time, value)))
    }

    /// The value at a time; earlier points are skipped.
    fn at(&mut self, time: i64) -> Fallible<Option<Value>> {
        while let Some(next) = self.peek()? {
            if next == time {
                return Ok(self.take());
            }
            if (next > time) != self.is_descending {
                return Ok(None);
            }
            self.taken += 1;
        }
        Ok(None)
    }
}

impl Drop for FieldCursor<'_, '_> {
    fn drop(&mut self) {
        self.context.budget.release(self.held.saturating_add(size_of::<Self>()));
    }
}

/// A value beside the driving field: of another field, or the same for all points.
enum Aside<'a, 's> {
    Field(Box<FieldCursor<'a, 's>>),
    Same(Option<Value>),
}

impl<'a, 's: 'a> Aside<'a, 's> {
    fn open(
        context: Context<'a, 's>,
        of: &Stored,
        series: &Series,
        (name, kind): (&str, Cast),
        range: Range,
        is_descending: bool,
    ) -> Fallible<Self> {
        match kind {
            Cast::Type(_) => {
                let field =
                    FieldCursor::open(context, of, series, (name, kind), range, is_descending)?;
                Ok(field.map_or(Self::Same(None), |field| Self::Field(Box::new(field))))
            }
            Cast::Tag | Cast::None => Ok(Self::Same(tag(series, name))),
            Cast::Field => Ok(Self::Same(None)),
        }
    }

    fn at(&mut self, time: i64) -> Fallible<Option<Value>> {
        match self {
            Self::Field(field) => field.at(time),
            Self::Same(value) => Ok(value.clone()),
        }
    }
}

/// A tag as a value; none if the series does not have it.
pub(super) fn tag(series: &Series, name: &str) -> Option<Value> {
    let value = series.tag(name);
    (!value.is_empty()).then(|| Value::String(value.into()))
}

/// The filter of the points of a series.
struct Filter<'a, 's> {
    formula: Formula,
    fields: Vec<Aside<'a, 's>>,
    row: Vec<Option<Value>>,
}

/// The data to read of the series of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'w> {
    /// The driving field; none if all fields beside it drive.
    pub(super) driver: Option<(&'w str, Cast)>,
    /// The fields and tags beside it.
    pub(super) beside: &'w [(String, Cast)],
    /// The times.
    pub(super) range: Range,
    /// The direction.
    pub(super) is_descending: bool,
}

/// The points of one series.
pub(super) struct SeriesPoints<'a, 's> {
    context: Context<'a, 's>,
    member: u32,
    driver: Option<FieldCursor<'a, 's>>,
    beside: Vec<Aside<'a, 's>>,
    filter: Option<Filter<'a, 's>>,
    is_descending: bool,
}

impl<'a, 's: 'a> SeriesPoints<'a, 's> {
    /// None if the series does not have the driving field.
    pub(super) fn open(
        context: Context<'a, 's>,
        of: &Stored,
        series: &Series,
        filter: Option<&Expr>,
        member: u32,
        wanted: Wanted<'_>,
    ) -> Fallible<Option<Self>> {
        let Wanted { driver, beside, range, is_descending } = wanted;
        let driver = match driver {
            None => None,
            Some(driver) => {
                match FieldCursor::open(context, of, series, driver, range, is_descending)? {
                    None => return Ok(None),
                    found => found,
                }
            }
        };
        let open = |name: &str, kind: Cast| {
            Aside::open(context, of, series, (name, kind), range, is_descending)
        };
        let beside: Fallible<Vec<_>> =
            beside.iter().map(|(name, kind)| open(name, *kind)).collect();
        let filter = filter.map(|filter| {
            let mut names: Vec<(String, Cast)> = Vec::new();
            let formula = Formula::new(filter, &mut |it| match it {
                Expr::Reference(name, Cast::Tag | Cast::None) => {
                    Formula::Literal(tag(series, name))
                }
                Expr::Reference(name, kind) => {
                    let wanted = (name.clone(), *kind);
                    let at = names.iter().position(|it| *it == wanted).unwrap_or_else(|| {
                        names.push(wanted);
                        names.len() - 1
                    });
                    Formula::Slot(at)
                }
                _ => Formula::Literal(None),
            });
            let fields: Fallible<Vec<_>> =
                names.iter().map(|(name, kind)| open(name, *kind)).collect();
            fields.map(|fields| Filter { formula, fields, row: Vec::new() })
        });
        context.budget.tick()?;
        Ok(Some(Self {
            context,
            member,
            driver,
            beside: beside?,
            filter: filter.transpose()?,
            is_descending,
        }))
    }

    /// The next time, and the value of the driving field.
    fn step(&mut self) -> Fallible<Option<(i64, Option<Value>)>> {
        if let Some(driver) = &mut self.driver {
            return Ok(driver.next()?.map(|(time, value)| (time, Some(value))));
        }
        let mut next: Option<i64> = None;
        for column in &mut self.beside {
            let Aside::Field(field) = column else { continue };
            if let Some(time) = field.peek()? {
                let is_sooner = next.is_none_or(|it| (time < it) != self.is_descending);
                next = if is_sooner { Some(time) } else { next };
            }
        }
        Ok(next.map(|time| (time, None)))
    }
}

impl Points for SeriesPoints<'_, '_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        while let Some((time, value)) = self.step()? {
            self.context.budget.tick()?;
            let mut beside = Beside::new();
            for column in &mut self.beside {
                beside.push(column.at(time)?);
            }
            if let Some(filter) = &mut self.filter {
                filter.row.clear();
                for field in &mut filter.fields {
                    filter.row.push(field.at(time)?);
                }
                let budget = self.context.budget;
                if !filter.formula.is_true(&filter.row, Place::Series, budget)? {
                    continue;
                }
            }
            return Ok(Some(Point { time, member: self.member, value, beside }));
        }
        Ok(None)
    }
}

/// The values beside a point of a series at one time.
pub(super) fn beside_at(
    context: Context<'_, '_>,
    of: &Stored,
    series: &Series,
    beside: &[(String, Cast)],
    time: i64,
) -> Fallible<Beside> {
    let range = Range { start: time, end: time };
    let open = |(name, kind): &(String, Cast)| {
        Aside::open(context, of, series, (name, *kind), range, false)?.at(time)
    };
    beside.iter().map(open).collect()
}
