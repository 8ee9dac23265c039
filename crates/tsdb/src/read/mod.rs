//! What a query reads.

mod source;

use crate::catalogue::{Field, Series, TagFilter};
use crate::error::Result;
use crate::names::Names;
use crate::rows::ShardId;
use crate::set::{Set, View};
use crate::summary::{Buckets, Summary, Sums};
use crate::value::Block;
use coreplane_pmem::SpaceGuard;
use source::{Stretch, Stretches};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A queue set as a query sees it.
#[derive(Debug)]
struct Part<'s> {
    set: &'s Set,
    view: Arc<View>,
    /// Pinned before the view was taken: its pages stay.
    guard: SpaceGuard<'s>,
}

/// A shard, and the time that it has: from, and before.
pub(crate) type Window = (ShardId, i64, i64);

/// A database as a query sees it: each point that was acknowledged before the reader was made, and maybe later ones.
#[derive(Debug)]
pub struct Reader<'s> {
    names: &'s Names,
    database: u32,
    parts: Vec<Part<'s>>,
    /// The shards of its policy, ascending.
    shards: Vec<Window>,
}

impl<'s> Reader<'s> {
    pub(crate) fn new(
        sets: &'s [Set],
        (names, database): (&'s Names, u32),
        shards: Vec<Window>,
    ) -> Self {
        let part = |set: &'s Set| {
            let guard = set.pages.space().pin();
            Part { set, view: set.view(), guard }
        };
        Self { names, database, parts: sets.iter().map(part).collect(), shards }
    }

    /// The names of measurements, ascending.
    #[must_use]
    pub fn measurements(&self) -> Vec<Arc<str>> {
        let names = self.names.read();
        names.measurements(self.database).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// The fields of a measurement, ascending by name.
    #[must_use]
    pub fn fields(&self, measurement: &str) -> Vec<Field> {
        let names = self.names.read();
        let measurement = names.measurement(self.database, measurement);
        let found = measurement.and_then(|id| names.measurement_by_id(id));
        let mut fields: Vec<Field> = found.map_or(&[][..], |it| it.fields()).to_vec();
        fields.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        fields
    }

    /// The series of a measurement that the filter lets through, ascending by key.
    #[must_use]
    pub fn series(&self, measurement: &str, filter: &TagFilter) -> Vec<Arc<Series>> {
        let names = self.names.read();
        let measurement = names.measurement(self.database, measurement);
        measurement.map_or_else(Vec::new, |id| names.series_that(id, filter))
    }

    /// The keys of tags of the series of a measurement, ascending.
    #[must_use]
    pub fn tag_keys(&self, measurement: &str) -> Vec<Arc<str>> {
        let names = self.names.read();
        let id = names.measurement(self.database, measurement);
        id.and_then(|id| names.measurement_by_id(id)).map_or_else(Vec::new, |it| it.tag_keys())
    }

    /// The values of a tag of the series of a measurement, ascending.
    #[must_use]
    pub fn tag_values(&self, measurement: &str, key: &str) -> Vec<Arc<str>> {
        let names = self.names.read();
        let id = names.measurement(self.database, measurement);
        id.and_then(|id| names.measurement_by_id(id)).map_or_else(Vec::new, |it| it.tag_values(key))
    }

    /// How many series the database has.
    #[must_use]
    pub fn series_count(&self) -> usize {
        self.names.read().series_count_of(self.database)
    }

    fn part(&self, series: &Series) -> Option<&Part<'s>> {
        self.parts.get(series.set as usize)
    }

    /// The shards that have time of the range.
    fn shards_of(&self, range: &RangeInclusive<i64>) -> impl Iterator<Item = ShardId> + use<> {
        let is_in = |(_, from, to): &&Window| from <= range.end() && to > range.start();
        let found: Vec<ShardId> = self.shards.iter().filter(is_in).map(|it| it.0).collect();
        found.into_iter()
    }

    /// The points of a field of a series whose times are in the range (nanoseconds), in blocks: blocks ascend, or descend if
    /// `is_descending`; the times within a block always ascend.
    pub fn points<'r>(
        &'r self,
        series: &Series,
        field: &Field,
        range: RangeInclusive<i64>,
        is_descending: bool,
    ) -> Points<'r, 's> {
        let mut shards: Vec<ShardId> = self.shards_of(&range).collect();
        if !is_descending {
            shards.reverse();
        }
        let part = self.part(series);
        let (series, field) = (series.id, field.id);
        Points {
            part,
            shards,
            series,
            field,
            range,
            is_descending,
            stretches: Stretches::default(),
        }
    }

    /// What the points of a field of a series whose times are in the range come to, for each bucket that has any, ascending:
    /// the start of the bucket, and its summary. Chunks that lie in one bucket as a whole are not decoded. None as buckets: all
    /// are one, which begins at the start of the range.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage).
    pub fn summaries(
        &self,
        series: &Series,
        field: &Field,
        range: RangeInclusive<i64>,
        buckets: Option<Buckets>,
    ) -> Result<Vec<(i64, Summary)>> {
        let mut sums = Sums::new(buckets, *range.start());
        let Some(Part { set, view, guard }) = self.part(series) else { return Ok(sums.all) };
        for shard in self.shards_of(&range) {
            let key = (shard, series.id, field.id);
            let mut stretches = Stretches::of((view, &set.pages, guard), key, &range)?;
            for stretch in std::mem::take(&mut stretches.all) {
                let whole = stretch.single().filter(|entry| {
                    let is_inside = entry.from >= *range.start() && entry.to <= *range.end();
                    is_inside && sums.is_one(entry.from, entry.to)
                });
                if let Some(summary) = whole.and_then(|entry| entry.summary()) {
                    sums.add(summary);
                } else if let Some(block) = stretches.read((&set.pages, guard), stretch, &range)? {
                    sums.add_block(&block);
                }
            }
        }
        Ok(sums.all)
    }
}

/// The points of a field of a series, block by block.
#[derive(Debug)]
pub struct Points<'r, 's> {
    part: Option<&'r Part<'s>>,
    /// The next one is the last.
    shards: Vec<ShardId>,
    series: u32,
    field: u32,
    range: RangeInclusive<i64>,
    is_descending: bool,
    /// Those of a shard; the next one is the last.
    stretches: Stretches,
}

impl Points<'_, '_> {
    fn next_stretch(&mut self) -> Result<Option<Stretch>> {
        let Some(Part { set, view, guard }) = self.part else { return Ok(None) };
        loop {
            if let Some(stretch) = self.stretches.all.pop() {
                return Ok(Some(stretch));
            }
            let Some(shard) = self.shards.pop() else { return Ok(None) };
            let key = (shard, self.series, self.field);
            self.stretches = Stretches::of((view, &set.pages, guard), key, &self.range)?;
            if !self.is_descending {
                self.stretches.all.reverse();
            }
        }
    }

    fn next_block(&mut self) -> Result<Option<Block>> {
        let Some(Part { set, guard, .. }) = self.part else { return Ok(None) };
        while let Some(stretch) = self.next_stretch()? {
            let block = self.stretches.read((&set.pages, guard), stretch, &self.range)?;
            if block.is_some() {
                return Ok(block);
            }
        }
        Ok(None)
    }
}

impl Iterator for Points<'_, '_> {
    type Item = Result<Block>;

    fn next(&mut self) -> Option<Result<Block>> {
        let next = self.next_block();
        if next.is_err() {
            // There is nothing behind that.
            self.part = None;
        }
        next.transpose()
    }
}
