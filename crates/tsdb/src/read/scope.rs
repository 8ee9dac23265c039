//! The data that all threads of a query read: one view of each queue set.
//!
//! A view has its segments, and the pages of a segment are given back when its last user drops it: so they stay as
//! long as the scope does. A guard keeps writers from reusing any page that is given back meanwhile, log pages
//! included. So a guard is held for some chunks, and never for the whole of a query.

use super::source::Stretches;
use crate::catalogue::{FieldId, Series, SeriesId};
use crate::codec::Times;
use crate::error::Result;
use crate::names::Names;
use crate::pace::{Ends, Pace};
use crate::rows::ShardId;
use crate::segment::Nears;
use crate::set::{Set, View};
use crate::summary::{Buckets, Most, Summary, Sums};
use coreplane_pmem::spin;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A shard and its time: the start, and the end, which is not included.
pub(crate) type Window = (ShardId, i64, i64);

/// Stretches that are read under one guard.
const GUARDED: usize = 64;

/// Stretches from which on no other field of a series is listed beside those that are.
const LISTED_MAX: usize = if cfg!(test) { 4 } else { 16 << 10 };

/// The maximum number of points of a head that are summed up in place: writers wait meanwhile.
const IN_PLACE_MAX: usize = 4096;

/// The summaries of the points of a field, for each bucket that has any, ascending.
type Summaries = Vec<(i64, Summary)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Scope<'s> {
    pub(super) names: &'s Names,
    pub(super) database: u32,
    pub(super) sets: Vec<(&'s Set, Arc<View>)>,
    /// The shards of its policy, ascending.
    pub(super) shards: Vec<Window>,
}

impl Scope<'_> {
    /// The number of shards.
    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The shards whose time overlaps the range.
    pub(super) fn shards_of(
        &self,
        range: &RangeInclusive<i64>,
    ) -> impl DoubleEndedIterator<Item = ShardId> {
        let (start, end) = (*range.start(), *range.end());
        let is_in = move |(_, from, to): &&Window| *from <= end && *to > start;
        self.shards.iter().filter(is_in).map(|it| it.0)
    }

    /// The summaries of the points of each of these fields of a series:
    /// [`Reader::summaries`](super::Reader::summaries). Ascending fields are found sooner. If chunks of several
    /// fields have the same times these are decoded once.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage), [`Error::Ended`](crate::Error::Ended); the error of `most`, which
    /// is asked while buckets are made.
    pub(crate) fn summaries<'m>(
        &self,
        (ends, most): (Option<&'m dyn Ends>, &mut Most<'m>),
        series: &Series,
        fields: &[FieldId],
        range: &RangeInclusive<i64>,
        buckets: Option<Buckets>,
    ) -> Result<Vec<Summaries>> {
        let mut sums: Vec<Sums> =
            fields.iter().map(|_| Sums::new(buckets, *range.start())).collect();
        if let Some((set, view)) = self.sets.get(series.set as usize) {
            let mut pace = Pace::new(ends);
            for shard in self.shards_of(range) {
                if is_in_active_head(view, shard) {
                    for (field, sums) in fields.iter().zip(&mut sums) {
                        let key = (shard, series.id, *field);
                        let head = spin::read(&view.active);
                        if head.cost(key, range) <= IN_PLACE_MAX {
                            head.sum_up(key, range, sums, (&mut pace, &mut *most))?;
                            continue;
                        }
                        let block = head.read(key, range, &mut pace)?;
                        drop(head);
                        if let Some(block) = block {
                            sums.add_block(&block, &mut *most)?;
                        }
                    }
                    continue;
                }
                let along = (&mut pace, &mut *most);
                sum_up((set, view), (shard, series.id), fields, range, &mut sums, along)?;
            }
        }
        most.ask()?;
        Ok(sums.into_iter().map(|it| it.all).collect())
    }
}

/// Adds the points of each of these fields of a series in a shard to its sums.
fn sum_up<'m>(
    (set, view): (&Set, &View),
    (shard, series): (ShardId, SeriesId),
    mut fields: &[FieldId],
    range: &RangeInclusive<i64>,
    mut sums: &mut [Sums],
    (pace, most): (&mut Pace<'m>, &mut Most<'m>),
) -> Result<()> {
    let mut nears = Nears::default();
    while !fields.is_empty() {
        let (mut stretches, mut listed) = (Vec::new(), 0);
        let guard = set.pages.space().pin();
        for field in fields {
            if listed >= LISTED_MAX {
                break;
            }
            let along = (&mut nears, &mut *pace);
            let place = (view, &*set.pages, &*guard);
            let found = Stretches::of(place, (shard, series, *field), range, along)?;
            listed += found.all.len();
            stretches.push(found);
        }
        drop(guard);
        let (its, others) = std::mem::take(&mut sums).split_at_mut(stretches.len());
        let longest = stretches.iter().map(|it| it.all.len()).max().unwrap_or(0);
        for from in (0..longest).step_by(GUARDED) {
            let guard = set.pages.space().pin();
            let mut times = Times::default();
            // Field by field for each stretch, since chunks of the same time mostly have the same times.
            for at in from..longest.min(from + GUARDED) {
                for (of, sums) in stretches.iter_mut().zip(&mut *its) {
                    let along = (&mut times, sums, &mut *pace, &mut *most);
                    of.sum_up((&set.pages, &guard), at, range, along)?;
                }
            }
        }
        fields = fields.get(stretches.len()..).unwrap_or_default();
        sums = others;
    }
    Ok(())
}

/// True if all points of a shard are in the active head: they are summed up in place.
fn is_in_active_head(view: &View, shard: ShardId) -> bool {
    view.frozen.is_none() && view.segments.get(&shard).is_none_or(Vec::is_empty)
}
