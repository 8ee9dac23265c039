//! Reads a segment.

use super::entry::{ENTRY, Entry, Key};
use super::{Info, chunk_seed, entry_place, seed_of};
use crate::catalogue::{FieldId, SeriesId};
use crate::codec::{self, Times};
use crate::error::{Error, Result};
use crate::pages::Pages;
use crate::value::{Block, Column, Value};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, spin};
use parking_lot::Mutex;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the points of dropped series take in a segment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Garbage {
    /// Bytes of their chunks and entries.
    pub(crate) bytes: u64,
    /// Bytes of those of the other points, and the pages that these need.
    pub(crate) live_bytes: u64,
    pub(crate) live_pages: u64,
    /// The number of free pages with which the segment could not be written anew.
    pub(crate) too_few: u64,
}

/// A segment that the manifest names.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) info: Info,
    /// Its pages, in their order.
    pub(crate) pages: Vec<u32>,
    seed: u32,
    pool: Arc<Pages>,
    /// True once no later view has the segment.
    is_replaced: AtomicBool,
    /// The number of drops of series at its last count of garbage, and that count.
    garbage: Mutex<(u64, Garbage)>,
}

/// When the last view that has the segment is dropped, its pages are given back.
impl Drop for Segment {
    fn drop(&mut self) {
        if self.is_replaced.load(Ordering::Acquire) {
            let there = self.pages.iter().copied().filter(|page| *page != LOST);
            self.pool.give_back(&there.collect::<Vec<u32>>());
        }
    }
}

/// A page of a segment that was not found again.
pub(crate) const LOST: u32 = u32::MAX;

impl Segment {
    pub(crate) fn new(pool: &Arc<Pages>, info: Info, list: Vec<u32>) -> Self {
        let seed = seed_of(pool, info.number);
        let (is_replaced, garbage) = (AtomicBool::new(false), Mutex::default());
        Self { info, pages: list, seed, pool: Arc::clone(pool), is_replaced, garbage }
    }

    /// The garbage, if it was counted since the last of so many drops of series.
    pub(crate) fn garbage(&self, drops: u64) -> Option<Garbage> {
        let (counted, garbage) = *spin::lock(&self.garbage);
        (counted >= drops).then_some(garbage)
    }

    /// Notes the garbage, counted after so many drops of series.
    pub(crate) fn note_garbage(&self, drops: u64, garbage: Garbage) {
        *spin::lock(&self.garbage) = (drops, garbage);
    }

    /// Notes that the manifest no longer names the segment, and that this is durable.
    pub(crate) fn note_replaced(&self) {
        self.is_replaced.store(true, Ordering::Release);
    }

    fn damage(&self, what: &str, page: u32, within: u32) -> Error {
        let (number, shard) = (self.info.number, self.info.shard);
        Error::Damage(format!(
            "{what} at byte {within} of page {page} of segment {number} of shard {shard}"
        ))
    }

    fn bytes<'g>(
        &self,
        pages: &'g Pages,
        guard: &'g Guard,
        (page, within, len): (u32, u32, u32),
    ) -> Option<&'g [u8]> {
        let start = pages.space().start_of(*self.pages.get(page as usize)?);
        pages.space().bytes(guard, start + u64::from(within), len.into())
    }

    /// One of its entries.
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn entry(&self, pages: &Pages, guard: &Guard, at: u32) -> Result<Entry> {
        let (page, within) = entry_place(&self.info, pages.page_len(), at);
        let bytes = self.bytes(pages, guard, (page, within, ENTRY as u32)).unwrap_or_default();
        Entry::decode(bytes, self.seed).ok_or_else(|| self.damage("an entry", page, within))
    }

    /// The number of the first entry whose key is not less than this one, or of a damaged one that may be it. `near` is
    /// where it may be, or a little before it; 0 if unknown.
    fn lower_bound(&self, pages: &Pages, guard: &Guard, key: Key, near: u32) -> u32 {
        // The place behind the first sound entry of these, if that is less than the key: those before it are, too.
        let less = |mut places: Range<u32>| {
            let sound = places.find_map(|at| Some((at, self.entry(pages, guard, at).ok()?)));
            sound.filter(|(_, entry)| entry.key() < key).map(|(at, _)| at + 1)
        };
        let (mut from, mut to) = (0, self.info.entries);
        // Steps grow as long as the entry there is less than the key. The first probe is one before `near`, which
        // is mostly less.
        let (mut at, mut step) = (near.checked_sub(1).unwrap_or(to), 1);
        while at < to {
            if let Some(behind) = less(at..to) {
                (from, at) = (behind, (behind - 1).saturating_add(step));
                step = step.saturating_mul(2);
            } else {
                to = at;
            }
        }
        while from < to {
            let middle = from + (to - from) / 2;
            match less(middle..to) {
                Some(behind) => from = behind,
                None => to = middle,
            }
        }
        from
    }

    /// True if it has a point of a series. `near` is as for [`Segment::entries`].
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn has_series(
        &self,
        (pages, guard): (&Pages, &Guard),
        series: SeriesId,
        near: &mut u32,
    ) -> Result<bool> {
        *near = self.lower_bound(pages, guard, (series, 0, i64::MIN), *near);
        Ok(*near < self.info.entries && self.entry(pages, guard, *near)?.series == series)
    }

    /// Shows the entries of a field of a series that have times in the range, ascending. `near` is where the
    /// entries of a previous field ended, or 0; it is set to where these end.
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn entries(
        &self,
        (pages, guard): (&Pages, &Guard),
        (series, field): (SeriesId, FieldId),
        range: &RangeInclusive<i64>,
        near: &mut u32,
        found: &mut impl FnMut(Entry),
    ) -> Result<()> {
        let mut at = self.lower_bound(pages, guard, (series, field, *range.start()), *near);
        // The entry before may reach into the range.
        if let Some(before) = at.checked_sub(1) {
            let entry = self.entry(pages, guard, before)?;
            if (entry.series, entry.field) == (series, field) && entry.to >= *range.start() {
                found(entry);
            }
        }
        while at < self.info.entries {
            let entry = self.entry(pages, guard, at)?;
            if (entry.series, entry.field) != (series, field) || entry.from > *range.end() {
                break;
            }
            found(entry);
            at += 1;
        }
        *near = at;
        Ok(())
    }

    /// The last entry of a field of a series that does not begin after `end`. `near` is as for
    /// [`Segment::entries`].
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn last_entry(
        &self,
        (pages, guard): (&Pages, &Guard),
        (series, field): (SeriesId, FieldId),
        end: i64,
        near: &mut u32,
    ) -> Result<Option<Entry>> {
        let key = (series, field, end.saturating_add(1));
        *near = self.lower_bound(pages, guard, key, *near);
        if *near < self.info.entries {
            // A damaged entry may be the one that is wanted.
            self.entry(pages, guard, *near)?;
        }
        let Some(before) = near.checked_sub(1) else { return Ok(None) };
        let entry = self.entry(pages, guard, before)?;
        Ok(((entry.series, entry.field) == (series, field)).then_some(entry))
    }

    /// The last point of a chunk whose time is not after `end`.
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn last_point(
        &self,
        (pages, guard): (&Pages, &Guard),
        entry: &Entry,
        end: i64,
    ) -> Result<Option<(i64, Value)>> {
        if entry.to <= end
            && let Some(summary) = entry.summary()
        {
            return Ok(Some(summary.last));
        }
        let block = self.chunk(pages, guard, entry)?;
        let at = block.times.partition_point(|time| *time <= end).checked_sub(1);
        Ok(at.and_then(|at| Some((*block.times.get(at)?, block.values.get(at)?))))
    }

    /// The bytes of a chunk.
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn encoded<'g>(
        &self,
        pages: &'g Pages,
        guard: &'g Guard,
        entry: &Entry,
    ) -> Result<&'g [u8]> {
        let bytes = self.bytes(pages, guard, (entry.page, entry.within, entry.len));
        let seed = chunk_seed(self.seed, entry.page, entry.within);
        let is_its = |bytes: &&[u8]| crc32c_append(seed, bytes) == entry.crc;
        let sound = bytes.filter(|bytes| is_its(bytes) || mutant!("tsdb.chunk.unchecked"));
        sound.ok_or_else(|| self.damage("a chunk", entry.page, entry.within))
    }

    /// The points of a chunk.
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn chunk(&self, pages: &Pages, guard: &Guard, entry: &Entry) -> Result<Block> {
        let bytes = self.encoded(pages, guard, entry)?;
        let block = codec::decode(bytes, entry.count as usize, entry.field_type);
        block.ok_or_else(|| self.damage("a chunk", entry.page, entry.within))
    }

    /// The points of a chunk. If it has the same times as the chunk before it they are not decoded again.
    ///
    /// # Errors
    /// [`Error::Damage`].
    pub(crate) fn columns<'g, 't>(
        &self,
        (pages, guard): (&'g Pages, &'g Guard),
        entry: &Entry,
        times: &'t mut Times<'g>,
    ) -> Result<(&'t [i64], Column)> {
        let bytes = self.encoded(pages, guard, entry)?;
        let found = times.decode(bytes, entry.count as usize, entry.field_type);
        found.ok_or_else(|| self.damage("a chunk", entry.page, entry.within))
    }
}
