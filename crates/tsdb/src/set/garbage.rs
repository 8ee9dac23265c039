//! Gives back the points of dropped series.
//!
//! A shard ends up as one segment, which no merge takes up again. So each segment is looked at once after a drop of
//! series: if their points take a good part of its bytes, it is written anew without them. A segment without any other
//! point just goes, for which the manifest alone needs room.

use super::Set;
use super::merge::Breath;
use super::seal::IsLive;
use crate::error::{Error, Result};
use crate::segment::{ENTRY, Garbage, Segment};
use coreplane_pmem::spin;
use std::sync::Arc;

/// A segment is written anew once one of so many of its bytes is garbage: so the other points are rewritten for a share
/// of the room that they take.
const SHARE: u64 = 4;

/// The number of entries that are read without a break.
const PART: u32 = 1024;

impl Set {
    /// Writes a segment anew without the points of dropped series, if they have a good part of it. False if there is
    /// no such segment, or no room. A segment that was looked at since the last drop of series is not looked at again.
    ///
    /// # Errors
    /// The error of `breath`, after which nothing has changed; [`Error::Damage`], after which the shard stays as it
    /// is; [`Error::Sync`].
    pub(crate) fn collect_garbage(&self, is_live: IsLive<'_>, breath: Breath<'_>) -> Result<bool> {
        let drops = self.series_drops();
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
                Ok(false) => {}
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
        along: (IsLive<'_>, Breath<'_>),
    ) -> Result<bool> {
        let known = segment.garbage(drops);
        let mut garbage = known.map_or_else(|| self.count_garbage(segment, along), Ok)?;
        segment.note_garbage(drops, garbage);
        let all = garbage.bytes + garbage.live_bytes;
        if garbage.bytes == 0 || garbage.bytes.saturating_mul(SHARE) < all {
            return Ok(false);
        }
        // Pages that a reader keeps come back: a segment is not given up for want of them.
        let free = self.pages.ready_for_segments();
        if garbage.live_pages > 0 && (garbage.live_pages > free || garbage.too_few >= free) {
            return Ok(false);
        }
        let old = std::slice::from_ref(segment);
        let write = || self.write_merged(segment.info.shard, old, along);
        let fresh = (garbage.live_pages > 0).then(write).transpose();
        match fresh.and_then(|fresh| self.replace(old, fresh)) {
            Ok(()) => Ok(true),
            // It is tried again with more free pages than now: others may have taken some meanwhile.
            Err(Error::Full(_) | Error::Limit(_)) => {
                garbage.too_few = free.min(self.pages.free_for_segments());
                segment.note_garbage(drops, garbage);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// What the points of a segment take whose series are gone, and what the others need.
    fn count_garbage(
        &self,
        segment: &Segment,
        (is_live, breath): (IsLive<'_>, Breath<'_>),
    ) -> Result<Garbage> {
        let (mut found, mut last) = (Garbage::default(), None);
        let mut packing = Packing { page_len: u64::from(self.pages.page_len()), pages: 0, left: 0 };
        let (entries, mut live) = (segment.info.entries, 0_u64);
        for from in (0..entries).step_by(PART as usize) {
            breath()?;
            let guard = self.pages.space().pin();
            for at in from..entries.min(from.saturating_add(PART)) {
                let entry = segment.entry(&self.pages, &guard, at)?;
                let known = last.filter(|(series, _)| *series == entry.series);
                let is_its = || (entry.series, is_live(segment.info.shard, entry.series));
                let (series, is_live) = known.unwrap_or_else(is_its);
                last = Some((series, is_live));
                let bytes = u64::from(entry.len) + ENTRY as u64;
                if is_live {
                    (live, found.live_bytes) = (live + 1, found.live_bytes + bytes);
                    packing.put(u64::from(entry.len));
                } else {
                    found.bytes += bytes;
                }
            }
        }
        (0..live).for_each(|_| packing.put(ENTRY as u64));
        found.live_pages = packing.pages;
        Ok(found)
    }
}

/// The pages that a segment takes, to which chunks and entries are appended in one piece each.
struct Packing {
    page_len: u64,
    pages: u64,
    /// Bytes that are left in the last page.
    left: u64,
}

impl Packing {
    fn put(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(8);
        if self.left < bytes {
            (self.pages, self.left) = (self.pages + 1, self.page_len);
        }
        self.left = self.left.saturating_sub(bytes);
    }
}
