//! Gives back the points of dropped series.
//!
//! A shard ends up as one segment, which no merge takes up again. So each segment is looked at once after a drop of
//! series: if they had a good part of its points, it is written anew without them. A segment without any other point
//! just goes, for which the manifest alone needs room.

use super::Set;
use super::merge::Breath;
use super::seal::IsLive;
use crate::error::{Error, Result};
use crate::segment::Segment;
use coreplane_pmem::spin;
use std::sync::Arc;

/// A segment is written anew once one of so many of its points is garbage: so the other points are rewritten for a
/// share of the room that they take.
const SHARE: u64 = 4;

/// The number of entries that are read without a break.
const PART: u32 = 1024;

impl Set {
    /// Writes a segment anew without the points of dropped series, if they have a good part of it. False if there is
    /// no such segment, or no room. `drops` is the number of drops of series: a segment that was looked at since the
    /// last one is not looked at again.
    ///
    /// # Errors
    /// The error of `breath`, after which nothing has changed; [`Error::Damage`], after which the shard stays as it
    /// is; [`Error::Sync`].
    pub(crate) fn collect_garbage(
        &self,
        drops: u64,
        is_live: IsLive<'_>,
        breath: Breath<'_>,
    ) -> Result<bool> {
        if drops == 0 {
            return Ok(false);
        }
        let _alone = spin::lock(&self.merging);
        self.pages.space().check_sync()?;
        let segments = self.view().segments.clone();
        for segment in segments.values().flatten() {
            let shard = segment.info.shard;
            if spin::lock(&self.damaged).contains(&shard) {
                continue;
            }
            match self.clear_segment(segment, drops, (is_live, breath)) {
                // A later round tries it again.
                Ok(false) | Err(Error::Full(_)) => {}
                Err(error) => {
                    if matches!(error, Error::Damage(_)) {
                        spin::lock(&self.damaged).insert(shard);
                    }
                    return Err(error);
                }
                Ok(true) => return Ok(true),
            }
        }
        Ok(false)
    }

    fn clear_segment(
        &self,
        segment: &Arc<Segment>,
        drops: u64,
        (is_live, breath): (IsLive<'_>, Breath<'_>),
    ) -> Result<bool> {
        let known = segment.garbage(drops);
        let garbage = known.map_or_else(|| self.count_garbage(segment, (is_live, breath)), Ok)?;
        segment.note_garbage(drops, garbage);
        let info = &segment.info;
        let left = info.points.saturating_sub(garbage);
        if garbage == 0 || garbage.saturating_mul(SHARE) < info.points {
            return Ok(false);
        }
        let need = u64::from(info.pages).saturating_mul(left).div_ceil(info.points.max(1));
        if left > 0 && need >= self.pages.free_count() as u64 {
            return Ok(false);
        }
        let old = std::slice::from_ref(segment);
        let fresh = self.write_merged(info.shard, old, (is_live, breath))?;
        self.replace(old, fresh)?;
        Ok(true)
    }

    /// The number of points of a segment whose series are gone.
    fn count_garbage(
        &self,
        segment: &Segment,
        (is_live, breath): (IsLive<'_>, Breath<'_>),
    ) -> Result<u64> {
        let (mut count, mut last) = (0, None);
        let entries = segment.info.entries;
        for from in (0..entries).step_by(PART as usize) {
            breath()?;
            let guard = self.pages.space().pin();
            for at in from..entries.min(from.saturating_add(PART)) {
                let entry = segment.entry(&self.pages, &guard, at)?;
                let known = last.filter(|(series, _)| *series == entry.series);
                let is_its = || (entry.series, is_live(segment.info.shard, entry.series));
                let (series, is_live) = known.unwrap_or_else(is_its);
                last = Some((series, is_live));
                count += if is_live { 0 } else { u64::from(entry.count) };
            }
        }
        Ok(count)
    }
}
