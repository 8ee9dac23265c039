//! Merges segments, and gives back those of shards that are gone.
//!
//! Each sealing leaves one segment for each shard that has points in the head, with chunks as long as the time
//! between two sealings. Segments of a shard that follow each other by age and are of about the same size are
//! merged into one. So the number of times that a point is rewritten is logarithmic in the size of the shard.
//! Chunks that are long enough and overlap no other are copied as they are.

use super::Set;
use super::seal::IsLive;
use crate::catalogue::{FieldId, SeriesId};
use crate::error::{Error, Result};
use crate::manifest::Edit;
use crate::merge::merged;
use crate::pages::Pages;
use crate::rows::ShardId;
use crate::segment::window::{DENSE, windows};
use crate::segment::{Entry, Fresh, Info, PAGES_MAX, POINTS_MAX, Segment, SegmentWriter};
use crate::summary::Buckets;
use crate::value::Block;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, spin};
use std::ops::Range;
use std::sync::Arc;

/// The number of segments of a size that become one.
const FAN_IN: usize = 4;

/// The largest segment of a cold shard has at most so many times the points of the others when all become one.
const COLD_SHARE: u64 = 4;

/// So many segments behind each other become one where their tiers never come together, if the others have a share of
/// the points of the first. Segments of one size make no such run: at most three of each tier are left of them, of ten
/// tiers up to a thousand million points.
const LONG: usize = 8 * FAN_IN;

/// Segments with more chunks in all are not merged: a merge has the entries of all new chunks in memory. So many take
/// 0.4 GiB. There may be more of them: points that are denser when they are joined have chunks of shorter windows.
const ENTRIES_MAX: u64 = 4 << 20;

/// The size class of a segment: the logarithm of its points.
fn tier(points: u64) -> u32 {
    (points / 1024).checked_ilog(FAN_IN as u64).map_or(0, |tier| tier + 1)
}

/// The segments of a shard that a merge joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Those of about the same size.
    Tier,
    /// All of them, unless one is much larger than the others: the shard gets late points alone, and each sealing of
    /// these would cause a copy of the whole shard.
    Cold,
    /// All of them.
    All,
}

/// Chooses the segments of a shard to merge, given by their numbers of points: [`FAN_IN`] of a tier, with those of
/// lower tiers that follow; a run of [`LONG`]; or all of them. Those that do not fit are not chosen. Empty if there are
/// none.
fn choose(points: &[u64], extent: Extent, fits: impl Fn(Range<usize>) -> bool) -> Range<usize> {
    let (all, largest) = (0..points.len(), points.iter().copied().max().unwrap_or(0));
    let others = points.iter().sum::<u64>() - largest;
    let is_one = match extent {
        Extent::Tier => false,
        Extent::Cold => others.saturating_mul(COLD_SHARE) >= largest,
        Extent::All => true,
    };
    if is_one && points.len() > 1 && fits(all.clone()) {
        return all;
    }
    for (from, first) in points.iter().enumerate() {
        let rest = points.get(from..).unwrap_or_default();
        let run = rest.iter().take_while(|it| tier(**it) <= tier(*first));
        let its = run.clone().filter(|it| tier(**it) == tier(*first)).count();
        let behind: u64 = run.clone().skip(1).sum();
        let found = from..from + run.count();
        let is_long = found.len() >= LONG && behind.saturating_mul(COLD_SHARE) >= *first;
        if (its >= FAN_IN || is_long) && fits(found.clone()) {
            return found;
        }
    }
    0..0
}

/// True if segments with so many pages and chunks may become one where so many pages are free.
fn fits(pages: u64, entries: u64, room: u64) -> bool {
    pages <= room && entries <= ENTRIES_MAX
}

/// Points that are gathered before complete chunks of them are written, if chunks overlap each other in a row: a late
/// point may lie far from the one before it in its chunk, and all chunks between them overlap that one.
const GATHERED: usize = 4 * POINTS_MAX;

/// True if a chunk that overlaps no other is kept as it is: it is long, or has all points of its window of time. `next`
/// is the time of the point behind it.
fn is_whole(entry: &Entry, next: Option<i64>) -> bool {
    let count = entry.count as usize;
    let is_all = |windows: Buckets| {
        let window = windows.start(entry.from);
        let is_its = |time: i64| windows.start(time) == window;
        is_its(entry.to) && next.is_some_and(|next| !is_its(next))
    };
    let windows = windows(count, entry.from, entry.to);
    count > POINTS_MAX * 3 / 4 || (count >= DENSE && windows.is_some_and(is_all))
}

/// The number of points at the beginning of a block that form complete chunks, whatever points come behind. The chunks
/// of a window with very many points are complete before the window is.
fn whole_len(block: &Block) -> usize {
    let (Some(first), Some(last)) = (block.times.first(), block.times.last()) else { return 0 };
    match windows(block.len(), *first, *last) {
        Some(windows) => {
            let window = windows.start(*last);
            let before = block.times.partition_point(|time| *time < window);
            block.len() - (block.len() - before) % POINTS_MAX
        }
        None => block.len() - block.len() % POINTS_MAX,
    }
}

/// Called between the parts of a merge, which may take long; an error ends the merge. It may seal points.
pub(crate) type Breath<'b> = &'b dyn Fn() -> Result<()>;

/// The field of a series that a chunk has.
fn key_of(entry: &Entry) -> (SeriesId, FieldId) {
    (entry.series, entry.field)
}

/// The chunks of a field of a series in a segment, which ascend and do not overlap.
struct Source<'s> {
    segment: &'s Segment,
    /// Those with points that are not taken yet.
    chunks: &'s [Entry],
    /// The points of the first one, if it is decoded, and the number of those that are taken.
    current: Option<(Block, usize)>,
}

impl Source<'_> {
    /// The first time that is not taken yet, and the last one of its chunk.
    fn times(&self) -> Option<(i64, i64)> {
        let entry = self.chunks.first()?;
        let next = self.current.as_ref().and_then(|(block, at)| block.times.get(*at));
        Some((next.copied().unwrap_or(entry.from), entry.to))
    }

    /// The first chunk, if none of its points is taken, and the time of the point behind it.
    fn chunk(&self) -> Option<(&Entry, Option<i64>)> {
        let entry = self.chunks.first().filter(|_| self.current.is_none())?;
        Some((entry, self.chunks.get(1).map(|it| it.from)))
    }

    /// Takes the points of the first chunk up to this time.
    fn take(&mut self, (pages, guard): (&Pages, &Guard), end: i64) -> Result<Option<Block>> {
        if self.times().is_none_or(|(from, _)| from > end) {
            return Ok(None);
        }
        let Some((entry, rest)) = self.chunks.split_first() else { return Ok(None) };
        let decode = || -> Result<_> { Ok((self.segment.chunk(pages, guard, entry)?, 0)) };
        let (block, at) = self.current.take().map_or_else(decode, Ok)?;
        if entry.to <= end {
            self.chunks = rest;
            return Ok(Some(if at == 0 { block } else { block.part(at..block.len()) }));
        }
        let behind = block.times.partition_point(|time| *time <= end).max(at);
        let taken = block.part(at..behind);
        self.current = Some((block, behind));
        Ok(Some(taken))
    }
}

/// Segments that were written as one.
#[derive(Debug)]
pub(super) struct Merged {
    /// None if no point is left.
    fresh: Option<Fresh>,
    /// The number of drops of series before it was written.
    drops: u64,
}

impl Set {
    /// Gives back the segments of shards that are gone, and merges those of one shard, if any has enough of them.
    /// False if there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Full`] and the error of `breath`, after which nothing has changed; [`Error::Damage`], after which
    /// the shard stays as it is; [`Error::Sync`].
    pub(crate) fn merge(
        &self,
        is_shard_live: &dyn Fn(ShardId) -> bool,
        extent: &dyn Fn(ShardId) -> Extent,
        is_live: IsLive<'_>,
        breath: Breath<'_>,
    ) -> Result<bool> {
        breath()?;
        let _alone = spin::lock(&self.merging);
        self.pages.space().check_sync()?;
        // The view is not kept: its heads are sealed meanwhile and would stay in memory.
        let segments = self.view().segments.clone();
        // First those that need no room.
        if let Some((_, gone)) = segments.iter().find(|(shard, _)| !is_shard_live(**shard)) {
            self.replace(gone, None)?;
            return Ok(true);
        }
        for (shard, segments) in &segments {
            if spin::lock(&self.damaged).contains(shard) {
                continue;
            }
            let points: Vec<u64> = segments.iter().map(|it| it.info.points).collect();
            let room = u64::from(PAGES_MAX).min(self.pages.free_for_segments());
            let chosen = choose(&points, extent(*shard), |range| {
                let infos = segments.get(range).unwrap_or_default().iter().map(|it| it.info);
                let sum = |of: fn(Info) -> u32| infos.clone().map(|it| u64::from(of(it))).sum();
                fits(sum(|it| it.pages), sum(|it| it.entries), room)
            });
            let chosen = segments.get(chosen).unwrap_or_default();
            if !chosen.is_empty() {
                let fresh = self.write_merged(*shard, chosen, (is_live, breath));
                if let Err(Error::Damage(_)) = fresh {
                    spin::lock(&self.damaged).insert(*shard);
                }
                self.replace(chosen, Some(fresh?))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces segments that follow each other by age by this one, if it has any point.
    pub(super) fn replace(&self, old: &[Arc<Segment>], fresh: Option<Merged>) -> Result<()> {
        let (fresh, drops) = fresh.map_or((None, 0), |it| (it.fresh, it.drops));
        if !mutant!("tsdb.merge.fence") {
            self.pages.space().fence()?;
        }
        let edit = Edit {
            log_from: 0,
            removed: old.iter().map(|it| it.info.number).collect(),
            added: fresh.iter().map(|it| it.info).collect(),
        };
        let (fresh, outcome) = self.commit(&edit, fresh.into_iter().collect());
        let mut fresh = fresh.into_iter().next().map(|fresh| self.segment_of(fresh, drops));
        // If the commit failed, some points are in two segments until the next opening.
        let edit = if outcome.is_ok() { edit } else { Edit::default() };
        self.set_view(|view| {
            let Some(shard) = old.first().map(|it| it.info.shard) else { return };
            let Some(segments) = view.segments.get_mut(&shard) else { return };
            let is_old = |it: &Arc<Segment>| edit.removed.contains(&it.info.number);
            let is_last = |it: &Arc<Segment>| old.last().is_some_and(|last| Arc::ptr_eq(it, last));
            let at = segments.iter().position(is_last).map_or(0, |at| at + 1);
            let at = at - segments.iter().take(at).filter(|it| is_old(it)).count();
            segments.retain(|it| !is_old(it));
            if let Some(fresh) = fresh.take() {
                segments.insert(at.min(segments.len()), fresh);
            }
            if segments.is_empty() {
                view.segments.remove(&shard);
            }
        });
        outcome?;
        old.iter().for_each(|it| it.note_replaced());
        Ok(())
    }

    /// Writes the points of these segments as one segment.
    pub(super) fn write_merged(
        &self,
        shard: ShardId,
        old: &[Arc<Segment>],
        along: (IsLive<'_>, Breath<'_>),
    ) -> Result<Merged> {
        let drops = self.series_drops();
        let mut writer = self.begin_segment(shard)?;
        writer.expect(old.iter().map(|it| it.info.entries as usize).sum());
        let age = match mutant!("tsdb.merge.age") {
            true => u64::MAX,
            false => old.last().map_or(0, |it| it.info.age),
        };
        match self.write_all(&mut writer, shard, old, along) {
            Ok(()) => Ok(Merged { fresh: writer.finish(age)?, drops }),
            Err(error) => {
                writer.abandon();
                Err(error)
            }
        }
    }

    fn write_all(
        &self,
        writer: &mut SegmentWriter<'_>,
        shard: ShardId,
        old: &[Arc<Segment>],
        (is_live, breath): (IsLive<'_>, Breath<'_>),
    ) -> Result<()> {
        // The number of the next entry of each segment, and the entry before it if it is not taken yet.
        let mut nexts: Vec<(u32, Option<Entry>)> = vec![(0, None); old.len()];
        // None at first: then only these entries are read.
        let mut key = None;
        loop {
            breath()?;
            // A guard also keeps the pages of the log from being reused, so each guard is held for a part of the merge.
            let guard = self.pages.space().pin();
            let mut chunks: Vec<Vec<Entry>> = Vec::with_capacity(old.len());
            for (segment, (at, next)) in old.iter().zip(&mut nexts) {
                let mut its = Vec::new();
                loop {
                    if next.is_none() && *at < segment.info.entries {
                        *next = Some(segment.entry(&self.pages, &guard, *at)?);
                        *at += 1;
                    }
                    let Some(entry) = next.take_if(|it| Some(key_of(it)) == key) else { break };
                    its.push(entry);
                }
                chunks.push(its);
            }
            drop(guard);
            if let Some(of) = key.filter(|(series, _)| is_live(shard, *series)) {
                let sources = old.iter().zip(&chunks);
                let sources =
                    sources.map(|(segment, chunks)| Source { segment, chunks, current: None });
                self.write_chunks(writer, of, sources.collect(), breath)?;
            }
            // The next field of a series is the least of those that follow.
            key = nexts.iter().filter_map(|(_, next)| next.as_ref().map(key_of)).min();
            if key.is_none() {
                return Ok(());
            }
        }
    }

    /// Writes the points of a field of a series, of which the oldest source comes first. Short and overlapping chunks are
    /// joined. At most one chunk of each source is decoded at a time.
    fn write_chunks(
        &self,
        writer: &mut SegmentWriter<'_>,
        (series, field): (SeriesId, FieldId),
        mut sources: Vec<Source<'_>>,
        breath: Breath<'_>,
    ) -> Result<()> {
        let mut waiting: Option<Block> = None;
        // Up to this time the current chunks have all points.
        while let Some(end) = sources.iter().filter_map(Source::times).map(|it| it.1).min() {
            breath()?;
            let guard = self.pages.space().pin();
            if waiting.is_none()
                && let Some(source) = alone(&mut sources, end)
                && let Some((entry, rest)) = source.chunks.split_first()
            {
                writer.push_encoded(*entry, source.segment.encoded(&self.pages, &guard, entry)?)?;
                source.chunks = rest;
                continue;
            }
            let mut blocks = Vec::with_capacity(sources.len());
            for source in &mut sources {
                blocks.extend(source.take((&*self.pages, &*guard), end)?);
            }
            let Some(taken) = merged(blocks) else { continue };
            let mut all = match waiting.take() {
                None => taken,
                Some(mut before) => {
                    before.extend(&taken, 0..taken.len());
                    before
                }
            };
            debug_assert!(all.len() <= GATHERED + sources.len() * POINTS_MAX, "{}", all.len());
            let is_between = sources.iter().all(|it| it.current.is_none());
            let whole = if is_between || all.len() >= GATHERED { whole_len(&all) } else { 0 };
            if whole > 0 {
                writer.push(series, field, &all.part(0..whole))?;
                all = all.part(whole..all.len());
            }
            waiting = (!all.is_empty()).then_some(all);
        }
        waiting.map_or(Ok(()), |block| writer.push(series, field, &block))
    }
}

/// The source whose chunk up to this time overlaps no other, if it is kept as it is.
fn alone<'a, 's>(sources: &'a mut [Source<'s>], end: i64) -> Option<&'a mut Source<'s>> {
    let begun = |it: &&Source<'_>| it.times().is_some_and(|(from, _)| from <= end);
    let (entry, mut next) = sources.iter().find(begun)?.chunk()?;
    if sources.iter().filter(begun).count() > 1 {
        return None;
    }
    let others = sources.iter().filter(|it| !begun(it)).filter_map(Source::times);
    next = others.map(|(from, _)| from).chain(next).min();
    if !is_whole(entry, next) {
        return None;
    }
    sources.iter_mut().find(|it| it.times().is_some_and(|(from, _)| from <= end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Column;

    /// Adds segments of 1,024 points, with a merge behind each; returns the number of points that were rewritten.
    fn rewritten(segments: &mut Vec<u64>, count: usize, extent: Extent) -> u64 {
        let mut rewritten = 0;
        for _ in 0..count {
            segments.push(1024);
            loop {
                let chosen = choose(segments, extent, |_| true);
                let Some(points) = segments.get(chosen.clone()).filter(|it| !it.is_empty()) else {
                    break;
                };
                let points = points.iter().sum();
                rewritten += points;
                segments.splice(chosen, [points]);
            }
        }
        rewritten
    }

    #[test]
    fn a_point_is_rewritten_once_for_each_tier() {
        let mut segments = Vec::new();
        assert_eq!(rewritten(&mut segments, 1024, Extent::Tier), 5 * 1024 * 1024);
        assert_eq!(segments, [1024 * 1024]);
        rewritten(&mut segments, 255, Extent::Tier);
        assert_eq!(segments.len(), 1 + 4 * 3, "three of each lower tier: {segments:?}");
        assert_eq!(choose(&segments, Extent::Tier, |_| true), 0..0);
        assert_eq!(choose(&segments, Extent::All, |_| true), 0..13);
        // Those of a lower tier before the others are merged with them.
        let mixed = [1024, 4096, 4096, 1024, 4096, 4096, 1024];
        assert_eq!(choose(&mixed, Extent::Tier, |_| true), 1..7);
        assert_eq!(choose(&mixed, Extent::All, |range| range.len() < 7), 1..7);
    }

    #[test]
    fn the_entries_of_a_merge_have_a_limit() {
        assert_eq!(ENTRIES_MAX * size_of::<Entry>() as u64, 416 << 20, "as the text says");
        assert!(fits(7, ENTRIES_MAX, 7) && !fits(8, 1, 7) && !fits(1, ENTRIES_MAX + 1, 7));
    }

    /// A year of seconds that were taken for nanoseconds lies within 32 ms.
    #[test]
    fn a_window_with_very_many_points_is_not_gathered_whole() {
        let block = |from: i64, count: i64| Block {
            times: (from..from + count).collect(),
            values: Column::Integer((0..count).collect()),
        };
        assert_eq!(whole_len(&block(0, 10_000)), 4 * POINTS_MAX);
        assert_eq!(whole_len(&block(0, 2_000)), 0, "more may come");
        let minute = 60_000_000_000;
        assert_eq!(whole_len(&block(minute - 1000, 1500)), 1000);
        assert_eq!(whole_len(&block(minute - 1000, 6000)), 1000 + 2 * POINTS_MAX);
    }

    /// Sizes whose tiers alternate: there are never four of one beside each other.
    #[test]
    fn segments_of_many_sizes_are_merged_too() {
        let mut segments = Vec::new();
        let mut written = 0;
        for round in 0_u32..1024 {
            segments.push(512 << (round.trailing_zeros() * 2).min(10));
            let chosen = choose(&segments, Extent::Tier, |_| true);
            if !chosen.is_empty() {
                let sum = segments[chosen.clone()].iter().sum();
                written += sum;
                segments.splice(chosen, [sum]);
            }
            assert!(segments.len() <= 2 * super::LONG, "{segments:?}");
        }
        let points: u64 = segments.iter().sum();
        assert!(written <= 12 * points, "{written} of {points}");
    }

    #[test]
    fn late_points_rewrite_a_cold_shard_once_they_are_many() {
        let mut segments = vec![1024 * 1024];
        let few = rewritten(&mut segments, 255, Extent::Cold);
        assert!(few <= 4 * 255 * 1024, "{few}");
        assert_eq!(segments.len(), 13);
        rewritten(&mut segments, 1, Extent::Cold);
        assert_eq!(segments, [1280 * 1024]);
    }
}
