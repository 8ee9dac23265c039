//! The data that a query reads.

mod last;
mod scope;
mod source;

use crate::catalogue::{Field, Permission, Series, SeriesId, Shard, TagFilter, Work, select};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::pace::{Ends, Pace};
use crate::rows::ShardId;
use crate::segment::Nears;
use crate::set::{Set, View};
use crate::summary::{Buckets, Most, Summary};
use crate::value::{Block, Value};
use hashbrown::HashSet;
pub(crate) use scope::{Scope, Window};
use source::{Stretch, Stretches};
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Series that are listed in one step.
const LISTED_TOGETHER: usize = 4096;

/// A database as a query sees it: every point that was acknowledged before the reader was made, and maybe later
/// ones.
#[derive(Debug)]
pub struct Reader<'s> {
    scope: Scope<'s>,
}

/// A queue set and its view, for a thread of a query.
#[derive(Debug, Clone, Copy)]
struct Part<'r> {
    set: &'r Set,
    view: &'r View,
}

impl<'s> Reader<'s> {
    pub(crate) fn new(
        sets: &'s [Set],
        (names, database): (&'s Names, u32),
        shards: Vec<Window>,
    ) -> Self {
        let sets = sets.iter().map(|set| (set, set.view())).collect();
        Self { scope: Scope { names, database, sets, shards } }
    }

    /// The part that other threads can read as well, while this reader lives.
    pub(crate) fn scope(&self) -> &Scope<'s> {
        &self.scope
    }

    /// The names of measurements, ascending.
    #[must_use]
    pub fn measurements(&self) -> Vec<Arc<str>> {
        let names = self.scope.names.read();
        names.measurements(self.scope.database).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// The fields of a measurement, ascending by name.
    #[must_use]
    pub fn fields(&self, measurement: &str) -> Vec<Field> {
        let names = self.scope.names.read();
        let measurement = names.measurement(self.scope.database, measurement);
        let found = measurement.and_then(|id| names.measurement_by_id(id));
        let mut fields: Vec<Field> = found.map_or(&[][..], |it| it.fields()).to_vec();
        fields.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        fields
    }

    /// True if a measurement has a field of this name.
    pub(crate) fn has_field(&self, measurement: &str, name: &str) -> bool {
        let names = self.scope.names.read();
        let measurement = names.measurement(self.scope.database, measurement);
        let found = measurement.and_then(|id| names.measurement_by_id(id));
        found.is_some_and(|it| it.field(name, usize::MAX).is_some())
    }

    /// The series of a measurement that the filter lets through, ascending by key.
    #[must_use]
    pub fn series(&self, measurement: &str, filter: &TagFilter) -> Vec<Arc<Series>> {
        let Ok(found) = self.series_within::<Infallible>(measurement, filter, &|_| Ok(()));
        found
    }

    /// The same; `may` decides before each step of the search. Threads that make names wait for a step of the
    /// search at most.
    ///
    /// # Errors
    /// That of `may`.
    pub fn series_within<E>(
        &self,
        measurement: &str,
        filter: &TagFilter,
        may: Permission<'_, E>,
    ) -> std::result::Result<Vec<Arc<Series>>, E> {
        let ids = self.series_ids(measurement, filter, may)?;
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(LISTED_TOGETHER) {
            let names = self.scope.names.read();
            found.extend(ids.iter().filter_map(|id| names.series(*id).cloned()));
        }
        found.sort_unstable_by(|left, right| left.key.cmp(&right.key));
        Ok(found)
    }

    /// True if the filter lets a series of a measurement through; `may` decides before each step of the search.
    pub(crate) fn has_series<E>(
        &self,
        measurement: &str,
        filter: &TagFilter,
        may: Permission<'_, E>,
    ) -> std::result::Result<bool, E> {
        Ok(!self.series_ids(measurement, filter, may)?.is_empty())
    }

    fn series_ids<E>(
        &self,
        measurement: &str,
        filter: &TagFilter,
        may: Permission<'_, E>,
    ) -> std::result::Result<Vec<SeriesId>, E> {
        let names = self.scope.names;
        let id = names.read().measurement(self.scope.database, measurement);
        id.map_or(Ok(Vec::new()), |id| select(|| names.read(), (id, filter), may))
    }

    /// Those of some series of the database that have a point in a shard, of any policy, that overlaps the range.
    ///
    /// # Errors
    /// Those of `ends`.
    pub(crate) fn with_points(
        &self,
        mut series: Vec<Arc<Series>>,
        range: &RangeInclusive<i64>,
        ends: &dyn Ends,
    ) -> Result<Vec<Arc<Series>>> {
        let names = self.scope.names.read();
        let policies = names.policies(self.scope.database);
        let shards = policies.flat_map(|(id, _)| names.shards(id));
        let is_in = |it: &&Shard| it.start <= *range.end() && it.end > *range.start();
        let shards: HashSet<ShardId> = shards.filter(is_in).map(|it| it.id).collect();
        drop(names);
        for (number, (set, _)) in self.scope.sets.iter().enumerate() {
            let of_set = series.iter().filter(|it| it.set as usize == number).map(|it| it.id);
            let mut ids: Vec<SeriesId> = of_set.collect();
            if ids.is_empty() {
                continue;
            }
            ids.sort_unstable();
            let is_live = |shard| shards.contains(&shard);
            let absent = set.without_points(ids, &is_live, &|| ends.look(0))?;
            series.retain(|it| it.set as usize != number || absent.binary_search(&it.id).is_err());
        }
        Ok(series)
    }

    /// The tag keys of the series of a measurement, ascending.
    #[must_use]
    pub fn tag_keys(&self, measurement: &str) -> Vec<Arc<str>> {
        let names = self.scope.names.read();
        let id = names.measurement(self.scope.database, measurement);
        id.and_then(|id| names.measurement_by_id(id)).map_or_else(Vec::new, |it| it.tag_keys())
    }

    /// The values of a tag of the series of a measurement, ascending.
    #[must_use]
    pub fn tag_values(&self, measurement: &str, key: &str) -> Vec<Arc<str>> {
        let Ok(values) = self.tag_values_within::<Infallible>(measurement, key, &|_| Ok(()));
        values
    }

    /// The same; `may` decides before the values are listed.
    ///
    /// # Errors
    /// That of `may`.
    pub(crate) fn tag_values_within<E>(
        &self,
        measurement: &str,
        key: &str,
        may: Permission<'_, E>,
    ) -> std::result::Result<Vec<Arc<str>>, E> {
        let names = self.scope.names.read();
        let id = names.measurement(self.scope.database, measurement);
        let Some(found) = id.and_then(|id| names.measurement_by_id(id)) else {
            return Ok(Vec::new());
        };
        may(Work::List(found.tag_values_len(key)))?;
        let mut values = found.tag_values(key);
        drop(names);
        values.sort_unstable();
        Ok(values)
    }

    /// The number of series of the database.
    #[must_use]
    pub fn series_count(&self) -> usize {
        self.scope.names.read().series_count_of(self.scope.database)
    }

    fn part(&self, series: &Series) -> Option<Part<'_>> {
        let (set, view) = self.scope.sets.get(series.set as usize)?;
        Some(Part { set, view })
    }

    /// The points of a field of a series whose times are in the range (nanoseconds), in blocks: blocks ascend, or
    /// descend if `is_descending`; the times within a block always ascend.
    pub fn points(
        &self,
        series: &Series,
        field: &Field,
        range: RangeInclusive<i64>,
        is_descending: bool,
    ) -> Points<'_> {
        let mut shards: Vec<ShardId> = self.scope.shards_of(&range).collect();
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
            rest: range.clone(),
            range,
            is_descending,
            stretches: Stretches::default(),
            listed: 0,
            listed_max: LISTED_MIN,
            pace: Pace::new(None),
        }
    }

    /// The summaries of the points of a field of a series whose times are in the range: for each bucket that has
    /// points, ascending, the start of the bucket and its summary. Chunks that lie in one bucket as a whole are not
    /// decoded. Without `buckets` all points are in one, which begins at the start of the range.
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
        self.summaries_within(series, field, range, buckets, &|_| Ok(()))
    }

    /// The same; `may` decides, while buckets are made, whether there may be so many.
    ///
    /// # Errors
    /// As [`Reader::summaries`]; the error of `may`.
    pub fn summaries_within(
        &self,
        series: &Series,
        field: &Field,
        range: RangeInclusive<i64>,
        buckets: Option<Buckets>,
        may: &dyn Fn(usize) -> Result<()>,
    ) -> Result<Vec<(i64, Summary)>> {
        let may = |count, _: usize| may(count);
        let most = &mut Most::new(&may);
        let all = self.scope.summaries((None, most), series, &[field.id], &range, buckets)?;
        Ok(all.into_iter().next().unwrap_or_default())
    }

    /// The last point of a field of a series whose time is in the range (nanoseconds); none if there is no point
    /// there. The last sealed point is read once, and then cached.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage).
    pub fn last(
        &self,
        series: &Series,
        field: &Field,
        range: RangeInclusive<i64>,
    ) -> Result<Option<(i64, Value)>> {
        let all = self.scope.lasts(None, series, &[field.id], &range)?;
        Ok(all.into_iter().next().flatten())
    }
}

/// Stretches that are listed at a time, at first.
const LISTED_MIN: usize = 8;

/// How many times as many are listed next: a listing looks through the shard again.
const LISTED_GROWTH: usize = 8;

/// The points of a field of a series, block by block. A query may have a reader for each of many fields and series
/// at a time, and need few points of each: so few stretches are listed at first, and then more each time.
///
/// Behind [`Error::Damage`] the points follow that can be read without what is damaged. Nothing follows another error.
#[derive(Debug)]
pub struct Points<'r> {
    part: Option<Part<'r>>,
    /// The last of them is read next.
    shards: Vec<ShardId>,
    series: u32,
    field: u32,
    range: RangeInclusive<i64>,
    /// The part of the range whose stretches are not listed yet.
    rest: RangeInclusive<i64>,
    is_descending: bool,
    /// Stretches of a shard; the last of them is read next.
    stretches: Stretches<'r>,
    /// Bytes of these stretches.
    listed: usize,
    listed_max: usize,
    pace: Pace<'r>,
}

impl<'r> Points<'r> {
    /// The same points, ended early if `ends` decides so.
    pub(crate) fn ended_by(mut self, ends: &'r dyn Ends) -> Self {
        self.pace = Pace::new(Some(ends));
        self
    }

    /// Bytes that it holds beside its blocks, about.
    pub(crate) fn held_bytes(&self) -> usize {
        self.listed.saturating_add(self.shards.capacity() * size_of::<ShardId>())
    }

    /// Keeps the stretches to be read first, and lists the others later.
    fn shorten(&mut self, shard: ShardId) {
        let all = &mut self.stretches.all;
        let Some(left) = all.len().checked_sub(self.listed_max).filter(|left| *left > 0) else {
            return;
        };
        let next = all.drain(..left).next_back();
        all.shrink_to_fit();
        let Some((from, to)) = next.and_then(|it| it.times()) else { return };
        self.rest = match self.is_descending {
            true => *self.rest.start()..=to,
            false => from..=*self.rest.end(),
        };
        self.shards.push(shard);
        self.listed_max = self.listed_max.saturating_mul(LISTED_GROWTH);
    }

    fn next_stretch(&mut self) -> Result<Option<Stretch>> {
        let Some(Part { set, view }) = self.part else { return Ok(None) };
        loop {
            if let Some(stretch) = self.stretches.all.pop() {
                self.listed = self.listed.saturating_sub(stretch.bytes());
                return Ok(Some(stretch));
            }
            let Some(shard) = self.shards.pop() else { return Ok(None) };
            let key = (shard, self.series, self.field);
            let along = (&mut Nears::default(), &mut self.pace);
            let guard = set.pages.space().pin();
            self.stretches = Stretches::of((view, &set.pages, &guard), key, &self.rest, along)?;
            if !self.is_descending {
                self.stretches.all.reverse();
            }
            drop(guard);
            self.shorten(shard);
            self.listed = self.stretches.all.iter().map(Stretch::bytes).sum();
        }
    }

    fn next_block(&mut self) -> Result<Option<Block>> {
        let Some(Part { set, .. }) = self.part else { return Ok(None) };
        while let Some(stretch) = self.next_stretch()? {
            let guard = set.pages.space().pin();
            let place = (&*set.pages, &*guard);
            let block = self.stretches.read(place, stretch, &self.range, &mut self.pace)?;
            if block.is_some() {
                return Ok(block);
            }
        }
        Ok(None)
    }
}

impl Iterator for Points<'_> {
    type Item = Result<Block>;

    fn next(&mut self) -> Option<Result<Block>> {
        let next = self.next_block();
        if next.as_ref().is_err_and(|error| !matches!(error, Error::Damage(_))) {
            self.part = None;
        }
        next.transpose()
    }
}
