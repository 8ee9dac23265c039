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
use hashbrown::HashMap;
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
    /// Ascending by field.
    fields: SmallVec<[Points; 2]>,
}

/// Points that are not sealed.
#[derive(Debug, Default)]
pub(crate) struct Head {
    entries: Vec<Entry>,
    places: HashMap<(ShardId, SeriesId), u32>,
    /// Bytes of the records taken in.
    pub(crate) bytes: u64,
    /// Values in the head.
    pub(crate) points: u64,
}

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
        while let Some(place) = rows.next_row() {
            let (shard, series) = (place.shard, place.series);
            if !is_live(shard, series) {
                continue;
            }
            let next = self.entries.len() as u32;
            let at = *self.places.entry((shard, series)).or_insert(next);
            if at == next {
                self.entries.push(Entry { shard, series, fields: SmallVec::new() });
            }
            let Some(entry) = self.entries.get_mut(at as usize) else { return };
            let mut hint = 0;
            while let Some((field, value)) = rows.next_value() {
                if let Some(points) = entry.points(field, &mut hint, value) {
                    self.points += u64::from(points.push(place.time, value));
                }
            }
        }
    }

    /// True if it has points of a shard.
    pub(crate) fn has_shard(&self, shard: ShardId) -> bool {
        self.entries.iter().any(|entry| entry.shard == shard)
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
    /// The points of a field. `hint` is the field behind the one that was asked for last, which mostly is the next
    /// one.
    #[inline]
    fn points(
        &mut self,
        field: FieldId,
        hint: &mut usize,
        value: RowValue<'_>,
    ) -> Option<&mut Points> {
        if self.fields.get(*hint).is_none_or(|points| points.field != field) {
            let found = self.fields.binary_search_by_key(&field, |points| points.field);
            *hint = found.unwrap_or_else(|place| place);
            if found.is_err() {
                let block = Block::new(value.field_type());
                self.fields.insert(*hint, Points { field, block, is_ascending: true });
            }
        }
        *hint += 1;
        self.fields.get_mut(*hint - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            head.entries.push(Entry { shard: 1, series: 2, fields: SmallVec::from_iter([points]) });
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
}
