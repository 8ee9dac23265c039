//! All points of a field of a series in a shard: in segments, and in heads.
//!
//! ```text
//!   segments, by time   [ chunk ]   [ chunk ][ chunk ]      [ chunk ]
//!                            [ chunk ]
//!   heads, as one        ·   ····  ·        ·    ·  ·  ·
//!                       └─ stretch ───┘└ stretch ┘└ another ┘└ another ┘
//! ```
//!
//! Overlapping chunks are read together with the points that heads have between their first and their last time;
//! everything else is read by itself. A chunk that overlaps nothing need not be decoded for its summary.

use crate::catalogue::{FieldId, SeriesId};
use crate::codec::Times;
use crate::error::Result;
use crate::merge::merged;
use crate::pace::Pace;
use crate::pages::Pages;
use crate::rows::ShardId;
use crate::segment::{Entry, Nears, Segment, overlapping};
use crate::set::View;
use crate::summary::{Most, Sums};
use crate::value::{Block, places};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, spin};
use smallvec::SmallVec;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The cost of an entry, in points: reading it takes about as long as this many points.
pub(super) const ENTRY_COST: usize = 16;

/// Points that are read together.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// Chunks, with the numbers of their segments: the oldest first.
    chunks: SmallVec<[(usize, Entry); 1]>,
    /// The points of heads.
    head: Option<Block>,
}

/// The stretches of a field of a series in a shard, ascending.
#[derive(Debug, Default)]
pub(super) struct Stretches<'v> {
    segments: &'v [Arc<Segment>],
    pub(super) all: Vec<Stretch>,
}

impl<'v> Stretches<'v> {
    /// The stretches that have points in a range of time.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage), [`Error::Ended`](crate::Error::Ended).
    pub(super) fn of(
        (view, pages, guard): (&'v View, &Pages, &Guard),
        (shard, series, field): (ShardId, SeriesId, FieldId),
        range: &RangeInclusive<i64>,
        (nears, pace): (&mut Nears, &mut Pace<'_>),
    ) -> Result<Self> {
        let segments = view.segments.get(&shard).map_or(&[][..], Vec::as_slice);
        let mut chunks: Vec<(usize, Entry)> = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            let near = nears.of(number);
            let before = chunks.len();
            let found = &mut |entry| chunks.push((number, entry));
            segment.entries((pages, guard), (series, field), range, near, found)?;
            pace.spend((chunks.len() - before) * ENTRY_COST)?;
        }
        // The frozen head is older than the active one.
        let frozen = view.frozen.iter().map(|(head, _)| head);
        let heads = frozen.chain([&view.active]);
        let mut blocks: SmallVec<[Block; 2]> = SmallVec::new();
        for head in heads {
            blocks.extend(spin::read(head).read((shard, series, field), range, pace)?);
        }
        let head = merged(blocks);
        chunks.sort_by_key(|(number, entry)| (entry.from, *number));
        Ok(Self { segments, all: stretches_of(&chunks, head) })
    }

    /// The points of a stretch that are in the range; none if there is none.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage), [`Error::Ended`](crate::Error::Ended).
    pub(super) fn read(
        &self,
        (pages, guard): (&Pages, &Guard),
        stretch: Stretch,
        range: &RangeInclusive<i64>,
        pace: &mut Pace<'_>,
    ) -> Result<Option<Block>> {
        // All points are counted at once: they are held together, and may be too many for that.
        pace.spend(stretch.chunks.iter().map(|(_, entry)| entry.count as usize).sum())?;
        let mut blocks = Vec::with_capacity(stretch.chunks.len() + 1);
        for (number, entry) in &stretch.chunks {
            if let Some(segment) = self.segments.get(*number) {
                blocks.push(segment.chunk(pages, guard, entry)?);
            }
        }
        let found = merged(blocks.into_iter().chain(stretch.head)).map(|block| block.within(range));
        Ok(found.filter(|block| !block.is_empty()))
    }
}

/// The times that were decoded last, the sums to add to, the pace, and the limit of buckets.
pub(super) type Along<'t, 'g, 'p> =
    (&'t mut Times<'g>, &'t mut Sums, &'t mut Pace<'p>, &'t mut Most<'p>);

impl Stretches<'_> {
    /// Adds the points of a stretch, those in the range alone, to sums.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage), [`Error::Ended`](crate::Error::Ended); an error if there are too
    /// many buckets.
    pub(super) fn sum_up<'g>(
        &mut self,
        (pages, guard): (&'g Pages, &'g Guard),
        at: usize,
        range: &RangeInclusive<i64>,
        (times, sums, pace, most): Along<'_, 'g, '_>,
    ) -> Result<()> {
        let Some(stretch) = self.all.get_mut(at) else { return Ok(()) };
        if let Some((number, entry)) = stretch.single() {
            let is_inside = entry.from >= *range.start() && entry.to <= *range.end();
            if is_inside
                && sums.is_one(entry.from, entry.to)
                && let Some(summary) = entry.summary()
            {
                pace.spend(ENTRY_COST)?;
                sums.add(summary, most)?;
            } else if let Some(segment) = self.segments.get(*number) {
                pace.spend(entry.count as usize)?;
                let (times, values) = segment.columns((pages, guard), entry, times)?;
                sums.add_points(times, &values, places(times, range), most)?;
            }
            return Ok(());
        }
        let stretch = std::mem::take(stretch);
        if let Some(block) = self.read((pages, guard), stretch, range, pace)? {
            sums.add_block(&block, most)?;
        }
        Ok(())
    }
}

impl Stretch {
    /// The first time and the last one; none if it has no points.
    pub(super) fn times(&self) -> Option<(i64, i64)> {
        let head = self.head.as_ref().map_or(&[][..], |head| &head.times);
        let chunks = || self.chunks.iter().map(|(_, it)| (it.from, it.to));
        let from = chunks().map(|it| it.0).chain(head.first().copied()).min()?;
        let to = chunks().map(|it| it.1).chain(head.last().copied()).max()?;
        Some((from, to))
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let head = self.head.as_ref().map_or(0, |it| 16 * it.len() + it.values.text_bytes());
        let chunks = if self.chunks.spilled() { size_of_val(&*self.chunks) } else { 0 };
        size_of::<Self>() + chunks + head
    }

    /// The only chunk, if the stretch has nothing else.
    fn single(&self) -> Option<&(usize, Entry)> {
        match (&*self.chunks, &self.head) {
            ([chunk], None) => Some(chunk),
            _ => None,
        }
    }
}

/// Groups chunks, which ascend by their first time, and the points of heads into stretches.
fn stretches_of(chunks: &[(usize, Entry)], head: Option<Block>) -> Vec<Stretch> {
    if chunks.is_empty() {
        let all = head.map(|head| Stretch { chunks: SmallVec::new(), head: Some(head) });
        return all.into_iter().collect();
    }
    let mut all = Vec::new();
    let mut taken = 0;
    let part = |range: std::ops::Range<usize>| {
        let head = head.as_ref().filter(|_| !range.is_empty())?;
        let mut part = Block::new(head.values.field_type());
        part.extend(head, range);
        Some(part)
    };
    let times = head.as_ref().map_or(&[][..], |head| &head.times);
    let mut rest = chunks;
    while let Some((_, first)) = rest.first() {
        let (cluster, to);
        (cluster, rest, to) = overlapping(rest);
        let from = times.partition_point(|time| *time < first.from);
        if let Some(before) = part(taken..from) {
            all.push(Stretch { chunks: SmallVec::new(), head: Some(before) });
        }
        taken = times.partition_point(|time| *time <= to);
        let mut chunks: SmallVec<[(usize, Entry); 1]> = SmallVec::from_slice(cluster);
        if !mutant!("tsdb.read.order") {
            chunks.sort_by_key(|(number, entry)| (*number, entry.from));
        }
        all.push(Stretch { chunks, head: part(from..taken) });
    }
    if let Some(behind) = part(taken..times.len()) {
        all.push(Stretch { chunks: SmallVec::new(), head: Some(behind) });
    }
    all
}
