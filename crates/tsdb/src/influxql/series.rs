//! The tallies of the fields of one series, from what its chunks come to.
//!
//! All fields of a call are read at once: their chunks mostly have the same times.

use super::Limits;
use super::ast::Cast;
use super::budget::Fallible;
use super::function::Function;
use super::group::Member;
use super::inputs::Stored;
use super::interval::Interval;
use super::plan::{Plan, Range};
use super::tally::{Tally, Winner};
use crate::catalogue::{FieldId, Series};
use crate::error::Error;
use crate::pace::Ends;
use crate::read::Scope;
use crate::summary::Most;
use smallvec::SmallVec;

/// The tallies of a field: each bucket that has any, ascending.
pub(super) type Tallies = Vec<(i64, Tally)>;

/// Fields, and the types that they are read as.
pub(super) type Fields<'f> = [(&'f str, Cast)];

/// Bytes of a tally.
pub(super) const HELD: usize = size_of::<(i64, Tally)>();

/// The fields of which tallies are wanted for a range: those of all calls that have it.
pub(super) fn fields_of(plan: &Plan, range: Range) -> Vec<(&str, Cast)> {
    let mut found = Vec::with_capacity(plan.calls().len());
    for call in plan.calls() {
        let of = match &call.function {
            Function::Simple(_) => call,
            Function::StepOf(_, inner) if matches!(inner.function, Function::Simple(_)) => inner,
            _ => continue,
        };
        let field = (of.field.as_str(), of.kind);
        if plan.range_before(call.buckets_before()) == range && !found.contains(&field) {
            found.push(field);
        }
    }
    found
}

/// What is read, and which times.
#[derive(Clone, Copy)]
pub(super) struct Reading<'r, 's> {
    /// The scope.
    pub(super) scope: &'r Scope<'s>,
    /// The times; the start is not behind the end.
    pub(super) range: Range,
    /// The buckets.
    pub(super) interval: Option<Interval>,
    /// Nothing but the last point of each field is wanted, and there are no buckets.
    pub(super) is_last: bool,
    /// When it has to end.
    pub(super) limits: &'r Limits,
}

/// A series whose points are all wanted, and the numbers of fields; those that the measurement does not have are none.
pub(super) struct Direct<'m> {
    /// The measurement.
    pub(super) of: &'m Stored,
    series: &'m Series,
    fields: Vec<Option<FieldId>>,
}

/// A member of a group as such a series. None if points must be looked at one by one: there is a filter, or a field is read as
/// another type, or it is no series.
pub(super) fn direct<'m>(member: &'m Member<'_>, fields: &Fields<'_>) -> Option<Direct<'m>> {
    let Member::Stored(of, series, None) = member else { return None };
    let number = |(name, kind): &(&str, Cast)| match of.fields.get(*name) {
        None => Some(None),
        Some(field) => (*kind == Cast::Type(field.field_type)).then_some(Some(field.id)),
    };
    let fields = fields.iter().map(number).collect::<Option<Vec<_>>>()?;
    Some(Direct { of, series, fields })
}

impl Direct<'_> {
    /// Its tallies, by fields. `most` is asked while they are made whether there may be so many buckets of all fields.
    ///
    /// # Errors
    /// Those of `most`, and what the reader says.
    pub(super) fn tallies(
        &self,
        reading: Reading<'_, '_>,
        member: u32,
        most: &dyn Fn(usize) -> Fallible<()>,
    ) -> Fallible<Vec<Tallies>> {
        let Reading { scope, range, interval, is_last, limits } = reading;
        if is_last {
            return self.lasts(reading, member);
        }
        let there: Vec<FieldId> = self.fields.iter().copied().flatten().collect();
        let may = |count| most(count).map_err(Error::Limit);
        let along = (Some(limits as &dyn Ends), &mut Most::new(&may));
        let (range, buckets) = (range.start..=range.end, interval.map(Interval::buckets));
        let found = scope.summaries(along, self.series, &there, &range, buckets);
        let mut found = found.map_err(|it| it.to_string())?.into_iter();
        let tallies = |field: &Option<FieldId>| {
            let found = field.and_then(|_| found.next()).unwrap_or_default();
            found.into_iter().map(|(start, it)| (start, Tally::from(it, member))).collect()
        };
        Ok(self.fields.iter().map(tallies).collect())
    }

    /// The same, of the last points alone.
    fn lasts(&self, reading: Reading<'_, '_>, member: u32) -> Fallible<Vec<Tallies>> {
        let Reading { scope, range, .. } = reading;
        let there: SmallVec<[FieldId; 16]> = self.fields.iter().copied().flatten().collect();
        let found = scope.lasts(self.series, &there, &(range.start..=range.end));
        let mut found = found.map_err(|it| it.to_string())?.into_iter();
        let tallies = |field: &Option<FieldId>| {
            let last = field.and_then(|_| found.next()).flatten();
            let tally = |(time, value)| Tally::of(Winner { time, value, member, row: 0 });
            last.map(|it| (range.start, tally(it))).into_iter().collect()
        };
        Ok(self.fields.iter().map(tallies).collect())
    }
}
