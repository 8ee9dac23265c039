//! The points of a field of a series in a shard, of all that has some: segments, and heads.
//!
//! ```text
//!   segments, by time   [ chunk ]   [ chunk ][ chunk ]      [ chunk ]
//!                            [ chunk ]
//!   heads, as one        ·   ····  ·        ·    ·  ·  ·
//!                       └─ stretch ───┘└ stretch ┘└ another ┘└ another ┘
//! ```
//!
//! Chunks that overlap are read together, and what heads have between their first and their last time; all else is read as it
//! is. A chunk that nothing overlaps need not be decoded to know what it comes to.

use crate::catalogue::{FieldId, SeriesId};
use crate::error::Result;
use crate::merge::merged;
use crate::pages::Pages;
use crate::rows::ShardId;
use crate::segment::{Entry, Segment};
use crate::set::View;
use crate::value::Block;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, spin};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Points that are read together.
#[derive(Debug)]
pub(super) struct Stretch {
    /// Chunks, with the numbers of their segments: the oldest first.
    chunks: Vec<(usize, Entry)>,
    /// What heads have.
    head: Option<Block>,
}

/// The stretches of a field of a series in a shard, ascending.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    segments: Vec<Arc<Segment>>,
    pub(super) all: Vec<Stretch>,
}

impl Stretches {
    /// Those that have points in a range of time.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage).
    pub(super) fn of(
        (view, pages, guard): (&View, &Pages, &Guard),
        (shard, series, field): (ShardId, SeriesId, FieldId),
        range: &RangeInclusive<i64>,
    ) -> Result<Self> {
        let segments = view.segments.get(&shard).cloned().unwrap_or_default();
        let mut chunks: Vec<(usize, Entry)> = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            let found = &mut |entry| chunks.push((number, entry));
            segment.entries((pages, guard), (series, field), range, found)?;
        }
        // What was frozen came before what is active.
        let frozen = view.frozen.iter().map(|(head, _)| head);
        let heads = frozen.chain([&view.active]);
        let head = heads.filter_map(|head| spin::read(head).read((shard, series, field), range));
        let head = merged(head.collect::<Vec<Block>>());
        chunks.sort_by_key(|(number, entry)| (entry.from, *number));
        Ok(Self { segments, all: stretches_of(&chunks, head) })
    }

    /// The points of a stretch, those in the range alone. None if it has none.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage).
    pub(super) fn read(
        &self,
        (pages, guard): (&Pages, &Guard),
        stretch: Stretch,
        range: &RangeInclusive<i64>,
    ) -> Result<Option<Block>> {
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

impl Stretch {
    /// The one chunk that it is.
    pub(super) fn single(&self) -> Option<&Entry> {
        match (&*self.chunks, &self.head) {
            ([(_, entry)], None) => Some(entry),
            _ => None,
        }
    }
}

/// Stretches chunks, which ascend by their first time, and the points of heads.
fn stretches_of(chunks: &[(usize, Entry)], head: Option<Block>) -> Vec<Stretch> {
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
        let (mut to, mut count) = (first.to, 1);
        while let Some((_, next)) = rest.get(count).filter(|(_, next)| next.from <= to) {
            to = to.max(next.to);
            count += 1;
        }
        let (cluster, behind) = rest.split_at(count);
        rest = behind;
        let from = times.partition_point(|time| *time < first.from);
        if let Some(before) = part(taken..from) {
            all.push(Stretch { chunks: Vec::new(), head: Some(before) });
        }
        taken = times.partition_point(|time| *time <= to);
        let mut chunks = cluster.to_vec();
        if !mutant!("tsdb.read.order") {
            chunks.sort_by_key(|(number, entry)| (*number, entry.from));
        }
        all.push(Stretch { chunks, head: part(from..taken) });
    }
    if let Some(behind) = part(taken..times.len()) {
        all.push(Stretch { chunks: Vec::new(), head: Some(behind) });
    }
    all
}
