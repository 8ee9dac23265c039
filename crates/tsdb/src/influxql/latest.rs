//! The latest row of a series, if no other row is asked for: `ORDER BY time DESC LIMIT 1`, without functions.
//!
//! Its time is the latest at which any field has a value, and it has the values of all fields at that time. So the
//! last points of the fields are sufficient.

use super::ast::{Cast, Window};
use super::budget::Fallible;
use super::cursor::tag;
use super::group::Member;
use super::plan::Plan;
use super::stream::{Context, Point, Ready};
use crate::catalogue::FieldId;
use smallvec::SmallVec;

/// True if a SELECT shows only the latest row of each group.
pub(super) fn is_latest(plan: &Plan) -> bool {
    plan.calls().is_empty()
        && plan.is_descending
        && plan.rows == Window { limit: 1, offset: 0 }
        && plan.range.start <= plan.range.end
}

/// The latest row of a member, if it has any. None if its points must be looked at: they have a filter, a field is
/// read as another type, or the member is not a series.
pub(super) fn latest(
    context: Context<'_, '_>,
    member: &Member<'_>,
    number: usize,
    plan: &Plan,
) -> Fallible<Option<Ready>> {
    let Member::Stored(of, series, None) = member else { return Ok(None) };
    let Some(reader) = context.inputs.reader(of.reader) else { return Ok(None) };
    let references = &plan.columns.references;
    let mut fields: SmallVec<[FieldId; 16]> = SmallVec::new();
    for (name, kind) in references {
        if let (Cast::Type(kind), Some(field)) = (kind, of.fields.get(name.as_str())) {
            if *kind != field.field_type {
                return Ok(None);
            }
            fields.push(field.id);
        }
    }
    let (scope, limits) = (reader.scope(), context.budget.limits());
    // A field may be looked for in each shard.
    context.budget.tick_by(fields.len() * scope.shard_count())?;
    let range = plan.range.start..=plan.range.end;
    let lasts = scope.lasts(Some(limits), series, &fields, &range);
    let lasts = lasts.map_err(|it| it.to_string())?;
    let time = lasts.iter().flatten().map(|it| it.0).max();
    let mut lasts = lasts.into_iter();
    let mut value = |(name, kind): &(String, Cast)| match kind {
        Cast::Tag | Cast::None => tag(series, name),
        Cast::Type(_) if of.fields.contains_key(name.as_str()) => {
            let last = lasts.next().flatten().filter(|it| Some(it.0) == time);
            last.map(|it| it.1)
        }
        Cast::Type(_) | Cast::Field => None,
    };
    let member = u32::try_from(number).unwrap_or(u32::MAX);
    let point = time.map(|time| {
        let beside = references.iter().map(&mut value).collect();
        Point { time, member, value: None, beside }
    });
    Ok(Some(Ready(Vec::from_iter(point).into_iter())))
}
