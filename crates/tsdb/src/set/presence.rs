//! Which series have a point.

use super::Set;
use super::merge::Breath;
use crate::catalogue::SeriesId;
use crate::error::{Error, Result};
use crate::head::Head;
use crate::rows::ShardId;
use crate::segment::Segment;
use coreplane_pmem::spin;
use hashbrown::HashSet;
use parking_lot::RwLock;

/// The number of series that are looked up without a break.
const PART: usize = 1024;

impl Set {
    /// Those of the series, ascending, that have no point in a live shard. None of them where damage hides which
    /// series a segment has.
    ///
    /// # Errors
    /// The error of `breath`.
    pub(crate) fn without_points(
        &self,
        series: Vec<SeriesId>,
        is_shard_live: &dyn Fn(ShardId) -> bool,
        breath: Breath<'_>,
    ) -> Result<Vec<SeriesId>> {
        let mut left = series;
        // Points move from the head to segments, never back: one view has all of them.
        let view = self.view();
        for head in view.frozen.iter().map(|(head, _)| head).chain([&view.active]) {
            let is_many = spin::read(head).is_many_beside(left.len());
            left = if is_many {
                looked_up(head, left, is_shard_live, breath)?
            } else {
                let there = series_of(head, is_shard_live, breath)?;
                left.into_iter().filter(|id| !there.contains(id)).collect()
            };
        }
        // Most series are in the latest segments.
        for (shard, segments) in view.segments.iter().rev().filter(|(it, _)| is_shard_live(**it)) {
            for segment in segments.iter().rev() {
                if left.is_empty() {
                    return Ok(left);
                }
                left = match self.absent(segment, &left, breath) {
                    Ok(absent) => absent,
                    Err(Error::Damage(_)) => return Ok(Vec::new()),
                    Err(error) => return Err(error),
                };
                debug_assert_eq!(segment.info.shard, *shard);
            }
        }
        Ok(left)
    }

    /// Those of the series, ascending, that a segment does not have.
    fn absent(
        &self,
        segment: &Segment,
        series: &[SeriesId],
        breath: Breath<'_>,
    ) -> Result<Vec<SeriesId>> {
        let (mut absent, mut near) = (Vec::new(), 0);
        for part in series.chunks(PART) {
            breath()?;
            let guard = self.pages.space().pin();
            for id in part {
                if !segment.has_series((&self.pages, &guard), *id, &mut near)? {
                    absent.push(*id);
                }
            }
        }
        Ok(absent)
    }
}

/// Those of the series that have no points in live shards of a head. Writers wait for a part of the search at most.
fn looked_up(
    head: &RwLock<Head>,
    series: Vec<SeriesId>,
    is_shard_live: &dyn Fn(ShardId) -> bool,
    breath: Breath<'_>,
) -> Result<Vec<SeriesId>> {
    let mut absent = Vec::new();
    for part in series.chunks(PART) {
        breath()?;
        let shards = spin::read(head).all_shards();
        let live: Vec<ShardId> = shards.into_iter().filter(|it| is_shard_live(*it)).collect();
        let head = spin::read(head);
        absent.extend(part.iter().filter(|id| !head.has_series(**id, &live)));
    }
    Ok(absent)
}

/// The series of a head that have points in live shards. Writers wait for a part of the search at most.
fn series_of(
    head: &RwLock<Head>,
    is_shard_live: &dyn Fn(ShardId) -> bool,
    breath: Breath<'_>,
) -> Result<HashSet<SeriesId>> {
    let (mut there, mut at) = (HashSet::new(), 0);
    loop {
        breath()?;
        let part: Vec<(ShardId, SeriesId)> = spin::read(head).series_from(at).take(PART).collect();
        if part.is_empty() {
            return Ok(there);
        }
        at += part.len();
        there.extend(part.iter().filter(|(shard, _)| is_shard_live(*shard)).map(|(_, id)| *id));
    }
}
