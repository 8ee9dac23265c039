//! The head of a queue set: points that are durable in its log, in DRAM as columns.
//!
//! Points are appended to the column of their field, in the order of the log; a column remembers whether its times
//! ascend. Readers sort points that are out of order. Published points are never changed: of equal times the last
//! point wins.

use crate::catalogue::{FieldId, SeriesId};
use crate::error::Result;
use crate::merge::ascending;
use crate::pace::Pace;
use crate::rows::{RowValue, Rows, ShardId};
use crate::summary::{Most, Sums};
use crate::value::{Block, Column, Value};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Points of a field of a series in a shard.
#[derive(Debug)]
struct Points {
    field: FieldId,
    block: Block,
    is_ascending: bool,
}

/// Points of a series in a shard.
#[derive(Debug)]
struct Entry {
    shard: ShardId,
    series: SeriesId,
    /// Ascending by field, as far as they are settled.
    fields: SmallVec<[Points; 2]>,
    /// The number of those that are settled: all of them, once a record is taken in.
    settled: u32,
    /// How often they were put in order.
    #[cfg(test)]
    sorts: usize,
}

/// Points that are not sealed.
#[derive(Debug, Default)]
pub(crate) struct Head {
    entries: Vec<Entry>,
    places: HashMap<(ShardId, SeriesId), u32>,
    shards: HashSet<ShardId>,
    /// Bytes of the records taken in.
    pub(crate) bytes: u64,
    /// Fields of series in shards.
    columns: u64,
    /// Values in the head.
    pub(crate) points: u64,
}

/// Bytes that a column takes beside its values: its entry and the beginning of its chunk once it is sealed, and about as
/// many of DRAM.
pub(crate) const COLUMN: u64 = 152;

impl Points {
    #[inline]
    fn push(&mut self, time: i64, value: RowValue<'_>) -> bool {
        let is_pushed = match (&mut self.block.values, value) {
            (Column::Float(values), RowValue::Float(value)) => {
                values.push(value);
                true
            }
            (Column::Integer(values), RowValue::Integer(value)) => {
                values.push(value);
                true
            }
            (Column::Unsigned(values), RowValue::Unsigned(value)) => {
                values.push(value);
                true
            }
            (Column::Boolean(values), RowValue::Boolean(value)) => {
                values.push(value);
                true
            }
            (Column::String(values), RowValue::String(value)) => {
                values.push(Arc::from(value));
                true
            }
            _ => false,
        };
        if is_pushed {
            self.is_ascending &= self.block.times.last().is_none_or(|last| *last < time);
            self.block.times.push(time);
        }
        is_pushed
    }

    /// Appends the points of the same field that came later.
    fn append(&mut self, later: &Self) {
        let (last, first) = (self.block.times.last(), later.block.times.first());
        self.is_ascending &= later.is_ascending && last < first;
        self.block.extend(&later.block, 0..later.block.len());
    }

    /// The number of points that a read of this range looks at.
    fn cost(&self, range: &RangeInclusive<i64>) -> usize {
        if self.is_ascending { self.block.places(range).len() } else { self.block.len() }
    }

    /// The last point whose time is not after `end`.
    fn last(&self, end: i64) -> Option<(i64, Value)> {
        let times = &self.block.times;
        let at = if self.is_ascending {
            times.partition_point(|time| *time <= end).checked_sub(1)?
        } else {
            // Of equal times the last point wins.
            let there = times.iter().enumerate().filter(|(_, time)| **time <= end);
            there.max_by_key(|(_, time)| **time)?.0
        };
        Some((*times.get(at)?, self.block.values.get(at)?))
    }

    fn read(&self, range: &RangeInclusive<i64>) -> Block {
        let mut found = Block::new(self.block.values.field_type());
        if self.is_ascending {
            found.extend(&self.block, self.block.places(range));
            return found;
        }
        for (at, time) in self.block.times.iter().enumerate() {
            if range.contains(time) {
                found.extend(&self.block, at..at + 1);
            }
        }
        ascending(found)
    }
}

impl Head {
    /// Takes in the rows of a record whose shard and series are live.
    pub(crate) fn take_in(&mut self, record: &[u8], is_live: impl Fn(ShardId, SeriesId) -> bool) {
        self.bytes += record.len() as u64;
        let mut rows = Rows::new(record);
        // Entries with few new columns beside many others: these are moved once for all rows.
        let mut grown: SmallVec<[u32; 8]> = SmallVec::new();
        while let Some(place) = rows.next_row() {
            let (shard, series) = (place.shard, place.series);
            if !is_live(shard, series) {
                continue;
            }
            let next = self.entries.len() as u32;
            let at = *self.places.entry((shard, series)).or_insert(next);
            if at == next {
                self.shards.insert(shard);
                self.entries.push(Entry::new(shard, series));
            }
            let Some(entry) = self.entries.get_mut(at as usize) else { break };
            let was_settled = entry.is_settled();
            let mut hint = 0;
            while let Some((field, value)) = rows.next_value() {
                if let Some(points) = entry.points(field, &mut hint, value) {
                    self.points += u64::from(points.push(place.time, value));
                }
            }
            if entry.is_mostly_new() {
                self.columns += entry.settle();
            } else if was_settled && !entry.is_settled() {
                grown.push(at);
            }
        }
        for at in grown {
            self.columns += self.entries.get_mut(at as usize).map_or(0, Entry::settle);
        }
    }

    /// Bytes that its points take at most when they are sealed, beside the ends of pages.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        self.bytes + self.columns * COLUMN
    }

    /// The number of its columns: fields of series in shards.
    pub(crate) fn columns(&self) -> u64 {
        self.columns
    }

    /// The number of shards of which it has points.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// True if it has points of a shard.
    pub(crate) fn has_shard(&self, shard: ShardId) -> bool {
        self.shards.contains(&shard)
    }

    /// The shards of its points.
    pub(crate) fn all_shards(&self) -> Vec<ShardId> {
        self.shards.iter().copied().collect()
    }

    /// True if the series has points in one of these shards.
    pub(crate) fn has_series(&self, series: SeriesId, shards: &[ShardId]) -> bool {
        shards.iter().any(|it| self.places.contains_key(&(*it, series)))
    }

    /// True if it is quicker to look up so many series than to go through all.
    pub(crate) fn is_many_beside(&self, series: usize) -> bool {
        series.saturating_mul(self.shards.len()) < self.entries.len()
    }

    /// Shards and series of the entries from this one on, in the order in which they came.
    pub(crate) fn series_from(&self, at: usize) -> impl Iterator<Item = (ShardId, SeriesId)> {
        self.entries.iter().skip(at).map(|entry| (entry.shard, entry.series))
    }

    fn points(&self, (shard, series, field): (ShardId, SeriesId, FieldId)) -> Option<&Points> {
        let entry = self.entries.get(*self.places.get(&(shard, series))? as usize)?;
        let at = entry.fields.binary_search_by_key(&field, |points| points.field).ok()?;
        entry.fields.get(at)
    }

    /// The points of a field of a series in a shard, ascending.
    ///
    /// # Errors
    /// [`Error::Ended`](crate::Error::Ended), before any point is read.
    pub(crate) fn read(
        &self,
        of: (ShardId, SeriesId, FieldId),
        range: &RangeInclusive<i64>,
        pace: &mut Pace<'_>,
    ) -> Result<Option<Block>> {
        let Some(points) = self.points(of) else { return Ok(None) };
        pace.spend(points.cost(range))?;
        let found = points.read(range);
        Ok((!found.is_empty()).then_some(found))
    }

    /// The number of points that a read of a field of a series in a shard looks at.
    pub(crate) fn cost(
        &self,
        of: (ShardId, SeriesId, FieldId),
        range: &RangeInclusive<i64>,
    ) -> usize {
        self.points(of).map_or(0, |points| points.cost(range))
    }

    /// Adds the points of a field of a series in a shard, those in the range alone, to sums.
    ///
    /// # Errors
    /// [`Error::Ended`](crate::Error::Ended), before any point is read; an error if there are too many buckets.
    pub(crate) fn sum_up<'m>(
        &self,
        of: (ShardId, SeriesId, FieldId),
        range: &RangeInclusive<i64>,
        sums: &mut Sums,
        (pace, most): (&mut Pace<'m>, &mut Most<'m>),
    ) -> Result<()> {
        let Some(points) = self.points(of) else { return Ok(()) };
        pace.spend(points.cost(range))?;
        let Points { block, is_ascending, .. } = points;
        if *is_ascending {
            sums.add_points(&block.times, &block.values, block.places(range), most)
        } else {
            sums.add_block(&points.read(range), most)
        }
    }

    /// The last point of a field of a series in a shard whose time is not after `end`.
    pub(crate) fn last(&self, of: (ShardId, SeriesId, FieldId), end: i64) -> Option<(i64, Value)> {
        self.points(of)?.last(end)
    }

    /// Shows all points to `visit`, ascending by shard, series and field.
    ///
    /// # Errors
    /// The error of `visit`.
    pub(crate) fn each<E>(
        &self,
        mut visit: impl FnMut((ShardId, SeriesId, FieldId), Block) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let columns = self
            .entries
            .iter()
            .flat_map(|entry| entry.fields.iter().map(move |points| (entry, points)));
        let mut all: Vec<(&Entry, &Points)> = columns.collect();
        all.sort_unstable_by_key(|(entry, points)| (entry.shard, entry.series, points.field));
        let everything = i64::MIN..=i64::MAX;
        all.into_iter().try_for_each(|(entry, points)| {
            visit((entry.shard, entry.series, points.field), points.read(&everything))
        })
    }
}

impl Entry {
    fn new(shard: ShardId, series: SeriesId) -> Self {
        Self {
            shard,
            series,
            fields: SmallVec::new(),
            settled: 0,
            #[cfg(test)]
            sorts: 0,
        }
    }

    /// True if each field has one column, and they ascend.
    fn is_settled(&self) -> bool {
        self.settled as usize == self.fields.len()
    }

    /// True if a good part of the columns is not settled.
    fn is_mostly_new(&self) -> bool {
        (self.fields.len() - self.settled as usize) * 8 > self.settled as usize
    }

    /// Puts new columns in their places, all at once; returns their number.
    fn settle(&mut self) -> u64 {
        let before = self.settled;
        let new = self.fields.get((before as usize).saturating_sub(1)..).unwrap_or_default();
        if !new.is_sorted_by(|one, next| one.field < next.field) {
            #[cfg(test)]
            {
                self.sorts += 1;
            }
            // Stable: of several columns of a field the first one stays first.
            self.fields.sort_by_key(|points| points.field);
            self.fields.dedup_by(|later, points| {
                let is_same = later.field == points.field;
                if is_same {
                    points.append(later);
                }
                is_same
            });
        }
        self.settled = self.fields.len() as u32;
        u64::from(self.settled - before)
    }

    /// The points of a field. `hint` is the field behind the one that was asked for last, which mostly is the next
    /// one. A field without a settled column gets another one for each value until they are settled.
    #[inline]
    fn points(
        &mut self,
        field: FieldId,
        hint: &mut usize,
        value: RowValue<'_>,
    ) -> Option<&mut Points> {
        let settled = self.fields.get(..self.settled as usize).unwrap_or_default();
        if settled.get(*hint).is_none_or(|points| points.field != field) {
            let found = settled.binary_search_by_key(&field, |points| points.field);
            *hint = found.unwrap_or(self.fields.len());
            if found.is_err() {
                let block = Block::new(value.field_type());
                self.fields.push(Points { field, block, is_ascending: true });
            }
        }
        *hint += 1;
        self.fields.get_mut(*hint - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::FieldValue;
    use crate::rows::{Batch, Place};
    use crate::summary::Buckets;
    use crate::value::FieldType;
    use proptest::prelude::*;

    proptest! {
        /// In any order, and some of them twice.
        #[test]
        fn what_is_summed_up_in_place_is_what_is_read(
            rows in proptest::collection::vec((0_i64..60, any::<i32>()), 0..80),
            is_sorted in any::<bool>(),
            width in 1_i64..30,
            (from, len) in (0_i64..60, 0_i64..60),
        ) {
            let mut rows = rows;
            if is_sorted {
                rows.sort_by_key(|row| row.0);
                rows.dedup_by_key(|row| row.0);
            }
            let block = Block::new(FieldType::Integer);
            let mut points = Points { field: 3, block, is_ascending: true };
            for (time, value) in rows {
                prop_assert!(points.push(time, RowValue::Integer(value.into())));
            }
            let mut head = Head::default();
            let (key, range) = ((1, 2, 3), from..=from + len);
            head.entries.push(Entry { fields: SmallVec::from_iter([points]), settled: 1, ..Entry::new(1, 2) });
            head.places.insert((1, 2), 0);
            let sums = || Sums::new(Some(Buckets { width, origin: 7 }), from);
            let (mut in_place, mut of_block) = (sums(), sums());
            let (pace, most) = (&mut Pace::new(None), &mut Most::new(&|_, _| Ok(())));
            head.sum_up(key, &range, &mut in_place, (&mut *pace, &mut *most)).expect("sums");
            if let Some(block) = head.read(key, &range, pace).expect("a block") {
                of_block.add_block(&block, most).expect("sums");
            }
            prop_assert_eq!(&in_place.all, &of_block.all);
            // There is no such field.
            head.sum_up((1, 2, 4), &range, &mut in_place, (pace, most)).expect("nothing");
            prop_assert_eq!(in_place.all, of_block.all);
        }
    }

    /// Adds points of a series: the fields of each, and the value of each field.
    fn take_in(head: &mut Head, series: SeriesId, points: &[Vec<(FieldId, i64)>]) {
        let mut batch = Batch::default();
        for (time, fields) in (0..).zip(points) {
            let values: Vec<(FieldId, FieldValue<'_>)> =
                fields.iter().map(|(field, value)| (*field, FieldValue::Integer(*value))).collect();
            let place = Place { series, shard: 0, time };
            assert!(batch.push(place, values.iter().map(|(field, it)| (*field, it)), 1 << 20));
        }
        batch.records().for_each(|record| head.take_in(record, |_, _| true));
        assert!(head.entries.iter().all(Entry::is_settled));
        assert_eq!(head.columns, head.entries.iter().map(|it| it.fields.len() as u64).sum::<u64>());
    }

    /// All columns, as times and values.
    fn columns(head: &Head, series: SeriesId) -> Vec<(FieldId, Vec<i64>, Vec<i64>)> {
        let mut found = Vec::new();
        let visited = head.each(|(_, of, field), block| {
            let Column::Integer(values) = block.values else { return Err("the type") };
            if of == series {
                found.push((field, block.times, values));
            }
            Ok(())
        });
        visited.expect("integers");
        found
    }

    /// A row may list its fields in any order, and each of them is new to the series.
    #[test]
    fn the_fields_of_a_row_are_put_in_order_once() {
        let all = 0..65_535;
        let value = |field: FieldId| i64::from(field) * 3;
        let with = |it: FieldId| (it, value(it));
        let (odd, even) =
            (all.clone().filter(|it| it % 2 == 1), all.clone().filter(|it| it % 2 == 0));
        let orders = [
            vec![all.clone().map(with).collect()],
            vec![all.clone().rev().map(with).collect()],
            vec![odd.map(with).collect(), even.map(with).collect::<Vec<_>>()],
        ];
        let mut head = Head::default();
        for (series, rows) in (0..).zip(&orders) {
            take_in(&mut head, series, rows);
            let found = columns(&head, series);
            assert!(found.iter().map(|it| it.0).eq(all.clone()));
            assert!(
                found.iter().all(|(field, times, values)| {
                    times.len() == 1 && *values == [value(*field)]
                })
            );
            assert!(head.entries.iter().all(|it| it.sorts <= 1), "{series}");
        }
        assert_eq!(head.points, 3 * 65_535);
    }

    /// Of values of a field in one row the last one counts.
    #[test]
    fn a_field_that_a_row_has_twice_is_one_column() {
        let mut head = Head::default();
        let rows =
            [vec![(7, 1), (3, 2), (7, 3), (5, 4)], vec![(5, 6), (4, 7), (3, 8), (4, 9), (3, 10)]];
        take_in(&mut head, 1, &rows);
        let expected = [
            (3, vec![0, 1], vec![2, 10]),
            (4, vec![1], vec![9]),
            (5, vec![0, 1], vec![4, 6]),
            (7, vec![0], vec![3]),
        ];
        assert_eq!(columns(&head, 1), expected);
        // In the rows of one record, beside many others: of points of the same time the last one counts.
        let mut rows = vec![(100..200).map(|it| (it, 0)).collect()];
        rows.extend((1..5).map(|at| vec![(150, at), (50, at), (60, at)]));
        take_in(&mut head, 2, &rows);
        let expected =
            [(50, vec![1, 2, 3, 4], vec![1, 2, 3, 4]), (60, vec![1, 2, 3, 4], vec![1, 2, 3, 4])];
        assert_eq!(columns(&head, 2).get(..2), Some(&expected[..]));
        assert_eq!(
            columns(&head, 2).get(52),
            Some(&(150, vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]))
        );
        // Once for each row of the first series, once for the record of the second.
        assert_eq!(head.entries.iter().map(|it| it.sorts).sum::<usize>(), 3);
    }
}
