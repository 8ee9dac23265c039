//! The tallies of the fields of one series, from the summaries of its chunks.
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
use hashbrown::HashSet;
use smallvec::SmallVec;

/// The tallies of a field: each bucket that has points, ascending.
pub(super) type Tallies = Vec<(i64, Tally)>;

/// Fields, and the types as which they are read.
pub(super) type Fields<'f> = [(&'f str, Cast)];

/// Bytes of a tally, without texts.
pub(super) const HELD: usize = size_of::<(i64, Tally)>();

/// Bytes of the tallies of a field.
pub(super) fn bytes_of(tallies: &[(i64, Tally)]) -> usize {
    // Of all or of none.
    let texts: usize = match tallies.first().is_some_and(|(_, it)| it.has_texts()) {
        true => tallies.iter().map(|(_, it)| it.text_bytes()).sum(),
        false => 0,
    };
    tallies.len().saturating_mul(HELD).saturating_add(texts)
}

/// The fields whose tallies are needed for a range: those of all calls that have it.
pub(super) fn fields_of(plan: &Plan, range: Range) -> Vec<(&str, Cast)> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    for call in plan.calls() {
        let of = match &call.function {
            Function::Simple(_) => call,
            Function::StepOf(_, inner) if matches!(inner.function, Function::Simple(_)) => inner,
            _ => continue,
        };
        let field = (of.field.as_str(), of.kind);
        if plan.range_before(call.buckets_before()) == range && known.insert(field) {
            found.push(field);
        }
    }
    found
}

/// The data to read, and the times.
#[derive(Clone, Copy)]
pub(super) struct Reading<'r, 's> {
    /// The scope.
    pub(super) scope: &'r Scope<'s>,
    /// The times; the start is not behind the end.
    pub(super) range: Range,
    /// The buckets.
    pub(super) interval: Option<Interval>,
    /// True if only the last point of each field is needed, and there are no buckets.
    pub(super) is_last: bool,
    /// True if only the number of points is needed.
    pub(super) is_count: bool,
    /// The limits at which reading has to end.
    pub(super) limits: &'r Limits,
}

/// A series all of whose points are needed, and the numbers of fields; none for a field that the measurement does
/// not have.
pub(super) struct Direct<'m> {
    /// The measurement.
    pub(super) of: &'m Stored,
    series: &'m Series,
    fields: Vec<Option<FieldId>>,
}

/// A member of a group as a series to be read directly. None if points must be looked at one by one: there is a
/// filter, a field is read as another type, or the member is not a series.
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
    /// The number of fields.
    pub(super) fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// The tallies of its fields. `most` decides, while they are made, whether there may be so many buckets of all
    /// fields, and so many bytes of texts in them.
    ///
    /// # Errors
    /// Those of `most`, and those of the reader.
    pub(super) fn tallies(
        &self,
        reading: Reading<'_, '_>,
        member: u32,
        most: &dyn Fn(usize, usize) -> Fallible<()>,
    ) -> Fallible<Vec<Tallies>> {
        let Reading { scope, range, interval, is_last, is_count, limits } = reading;
        if is_last {
            return self.lasts(reading, member);
        }
        let there: Vec<FieldId> = self.fields.iter().copied().flatten().collect();
        let may = |count, texts| most(count, texts).map_err(Error::Limit);
        let most = Most::new(&may);
        let most = &mut if is_count { most.without_texts() } else { most };
        let along = (Some(limits as &dyn Ends), most);
        let (range, buckets) = (range.start..=range.end, interval.map(Interval::buckets));
        let found = scope.summaries(along, self.series, &there, &range, buckets);
        let mut found = found.map_err(|it| it.to_string())?.into_iter();
        let tallies = |field: &Option<FieldId>| {
            let found = field.and_then(|_| found.next()).unwrap_or_default();
            found.into_iter().map(|(start, it)| (start, Tally::from(it, member))).collect()
        };
        Ok(self.fields.iter().map(tallies).collect())
    }

    /// The same, for the last points alone.
    fn lasts(&self, reading: Reading<'_, '_>, member: u32) -> Fallible<Vec<Tallies>> {
        let Reading { scope, range, limits, .. } = reading;
        let there: SmallVec<[FieldId; 16]> = self.fields.iter().copied().flatten().collect();
        let found = scope.lasts(Some(limits), self.series, &there, &(range.start..=range.end));
        let mut found = found.map_err(|it| it.to_string())?.into_iter();
        let tallies = |field: &Option<FieldId>| {
            let last = field.and_then(|_| found.next()).flatten();
            let tally = |(time, value)| Tally::of(Winner { time, value, member, row: 0 });
            last.map(|it| (range.start, tally(it))).into_iter().collect()
        };
        Ok(self.fields.iter().map(tallies).collect())
    }
}
