//! Groups: the series, and the groups of sub-queries, that have equal tags by GROUP BY.

use super::ast::{Expr, Window};
use super::budget::Fallible;
use super::condition::{Settled, postings, settle};
use super::cursor::{SeriesPoints, Wanted, beside_at};
use super::inputs::{Input, Stored};
use super::plan::Plan;
use super::rows::{Answered, RowPoints, beside_in};
use super::stream::{Beside, Context, Stream};
use super::tally::Winner;
use crate::catalogue::{Series, TagFilter};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A member of a group.
pub(super) enum Member<'a> {
    /// A series of a measurement, with the condition on its points.
    Stored(&'a Stored, Arc<Series>, Option<Arc<Expr>>),
    /// A group of a sub-query.
    Inner(&'a Plan, Answered),
}

/// Series, and groups of a sub-query, with equal tags.
pub(super) struct Group<'a> {
    /// The measurement.
    pub(super) name: Arc<str>,
    /// The values of the dimensions of the plan; empty for a tag that the series do not have.
    pub(super) tags: Vec<Arc<str>>,
    /// Ascending by name.
    pub(super) members: Vec<Member<'a>>,
}

/// Bytes of a member, and of a group beside its tags, about.
const HELD: usize = 96;
const GROUP_HELD: usize = 128;
/// Bytes of a text that is shared, beside its own.
const TEXT_HELD: usize = 16;

type Key = (Arc<str>, Vec<Arc<str>>);

/// The groups of a SELECT, in their order.
pub(super) fn groups<'a>(
    plan: &'a Plan,
    context: Context<'a, '_>,
    answer: &dyn Fn(&'a Plan) -> Fallible<Vec<Answered>>,
) -> Fallible<Vec<Group<'a>>> {
    let mut all: BTreeMap<Key, Vec<Member<'a>>> = BTreeMap::new();
    for input in &plan.inputs {
        let found = match input {
            Input::Stored(it) => stored(plan, it, context)?,
            Input::Inner(inner) => of_rows(plan, inner, answer(inner)?, context)?,
        };
        let window = plan.series;
        let limit = if window.limit == 0 { usize::MAX } else { window.limit };
        // A sub-query has already applied it.
        let window = match input {
            Input::Stored(_) => Window { limit, ..window },
            Input::Inner(_) => Window { limit: usize::MAX, offset: 0 },
        };
        let mut found: Vec<_> = found.into_iter().collect();
        if plan.series != Window::default() {
            found.sort_by_cached_key(|(key, _)| limit_key(&plan.dimensions, key));
        }
        for (key, members) in found.into_iter().skip(window.offset).take(window.limit) {
            all.entry(key).or_default().extend(members);
        }
    }
    let mut groups: Vec<Group<'a>> =
        all.into_iter().map(|((name, tags), members)| Group { name, tags, members }).collect();
    if plan.is_descending {
        groups.reverse();
        groups.iter_mut().for_each(|it| it.members.reverse());
    }
    Ok(groups)
}

/// The order in which SLIMIT counts groups: by the keys for which they have a tag, then by the tags.
fn limit_key(dimensions: &[String], (_, values): &Key) -> String {
    let has = || dimensions.iter().zip(values).filter(|(_, value)| !value.is_empty());
    let keys = has().map(|(key, _)| key.as_str());
    keys.chain(has().map(|(_, value)| &**value)).collect::<Vec<_>>().join("|")
}

/// The groups of the series of a measurement.
fn stored<'a>(
    plan: &'a Plan,
    of: &'a Stored,
    context: Context<'a, '_>,
) -> Fallible<BTreeMap<Key, Vec<Member<'a>>>> {
    let mut found: BTreeMap<Key, Vec<Member<'a>>> = BTreeMap::new();
    let Some(reader) = context.inputs.reader(of.reader) else { return Ok(found) };
    let (filter, is_all) = match &plan.condition {
        None => (TagFilter::All, true),
        Some(condition) => postings(condition),
    };
    let empty: Arc<str> = "".into();
    // The filter of the series before: mostly that of all series.
    let mut before: Option<Arc<Expr>> = None;
    let may = |work| context.budget.may_group(work);
    for series in reader.series_within(&of.name, &filter, &may)? {
        context.budget.tick()?;
        let filter = match &plan.condition {
            Some(condition) if !is_all => {
                match settle(condition, &|name| series.tag(name), context.budget)? {
                    Settled::Never => continue,
                    Settled::Always => None,
                    Settled::If(filter) => {
                        let known = before.take().filter(|known| **known == filter);
                        before = Some(match known {
                            Some(known) => known,
                            None => {
                                context.budget.hold(filter.bytes())?;
                                Arc::new(filter)
                            }
                        });
                        before.clone()
                    }
                }
            }
            _ => None,
        };
        context.budget.hold(HELD)?;
        let value = |key: &String| match series.tag(key) {
            "" => Arc::clone(&empty),
            value => Arc::from(value),
        };
        let key = (Arc::clone(&of.name), plan.dimensions.iter().map(value).collect());
        let members = match found.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                context.budget.hold(bytes_of(&entry.key().1))?;
                entry.insert(Vec::new())
            }
        };
        members.push(Member::Stored(of, series, filter));
    }
    Ok(found)
}

/// Bytes of a group with these tags, without its members.
fn bytes_of(tags: &[Arc<str>]) -> usize {
    let texts: usize = tags.iter().filter(|it| !it.is_empty()).map(|it| TEXT_HELD + it.len()).sum();
    GROUP_HELD + size_of_val(tags) + texts
}

/// Groups the groups of a sub-query.
fn of_rows<'a>(
    plan: &'a Plan,
    inner: &'a Plan,
    mut answered: Vec<Answered>,
    context: Context<'a, '_>,
) -> Fallible<BTreeMap<Key, Vec<Member<'a>>>> {
    let mut found: BTreeMap<Key, Vec<Member<'a>>> = BTreeMap::new();
    if plan.is_descending {
        answered.reverse();
    }
    for table in answered {
        context.budget.hold(HELD)?;
        let key: Vec<_> = plan.dimensions.iter().map(|it| table.tag(inner, it)).collect();
        context.budget.hold(size_of_val(&*key))?;
        let key = (Arc::clone(&table.name), key);
        found.entry(key).or_default().push(Member::Inner(inner, table));
    }
    Ok(found)
}

impl<'a> Member<'a> {
    /// Its points.
    pub(super) fn points<'s: 'a>(
        &'a self,
        context: Context<'a, 's>,
        at: usize,
        plan: &'a Plan,
        wanted: Wanted<'_>,
    ) -> Fallible<Option<Stream<'a>>> {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        match self {
            Self::Stored(of, series, filter) => {
                let points =
                    SeriesPoints::open(context, of, series, filter.as_deref(), at, wanted)?;
                Ok(points.map(|it| Box::new(it) as Stream<'a>))
            }
            Self::Inner(..) => {
                Ok(self.rows(context, at, plan, wanted).map(|it| Box::new(it) as Stream<'a>))
            }
        }
    }

    /// Its rows, if it is the answer to a sub-query.
    pub(super) fn rows(
        &'a self,
        context: Context<'a, '_>,
        at: u32,
        plan: &'a Plan,
        wanted: Wanted<'_>,
    ) -> Option<RowPoints<'a>> {
        let Self::Inner(inner, table) = self else { return None };
        let condition = plan.condition.as_ref();
        let Wanted { driver, beside, range, .. } = wanted;
        let rows = RowPoints::open(context.budget, (inner, table), condition, at, driver, beside);
        rows.map(|it| it.without(plan.range_of_others(inner, range)))
    }

    /// The values beside a chosen point.
    pub(super) fn beside(
        &self,
        context: Context<'_, '_>,
        plan: &Plan,
        chosen: &Winner,
    ) -> Fallible<Beside> {
        let beside = &plan.columns.references;
        match self {
            Self::Stored(of, series, _) => beside_at(context, of, series, beside, chosen.time),
            Self::Inner(inner, table) => Ok(beside_in((inner, table), beside, chosen.row)),
        }
    }

    /// A tag.
    pub(super) fn tag(&self, key: &str) -> Arc<str> {
        match self {
            Self::Stored(_, series, _) => series.tag(key).into(),
            Self::Inner(inner, table) => table.tag(inner, key),
        }
    }
}
