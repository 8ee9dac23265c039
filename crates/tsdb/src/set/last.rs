//! The last sealed points of series that were asked for: the last-value cache.
//!
//! # The problem
//!
//! Dashboards ask for the last value of each series, again and again. What heads have is at hand; in segments it takes a search
//! in each segment of a shard, and a wrong answer if one of them is forgotten.
//!
//! # The picture
//!
//! ```text
//!   segments of a shard, by age   [ 2 ][ 5 ][ 6 ] ▏ [ 9 ]          heads
//!                                   known: (t, v) ▏ looked into     asked by whoever reads
//!                                   through age 6
//! ```
//!
//! # What holds
//!
//! - What is known is of segments alone. So a write does not meet it, and nothing that a cut may take is in it.
//! - It is known through an age, and what a shard's segments come to that are no older than that never changes: whatever is
//!   sealed later has a greater age, and a merged segment has that of the youngest of its parts, which follow each other. So
//!   nobody has to be told of a sealing or of a merge. A merged segment with parts on both sides is looked into as a whole; at
//!   equal times it wins, for nothing that is known and not of it is younger than a part of it.
//! - Whoever has an older view than what is known does not see it, and does not replace it.
//! - A shard, a series and a field have their numbers for ever. What was dropped is never asked for again.
//! - It is filled by those who ask, and bounded: once it is full it begins anew. It is in DRAM, and not there after an opening.

use super::{Set, View};
use crate::catalogue::{FieldId, SeriesId};
use crate::error::Result;
use crate::rows::ShardId;
use crate::segment::{Nears, Segment};
use crate::value::Value;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, spin};
use hashbrown::{DefaultHashBuilder, HashTable};
use parking_lot::RwLock;
use std::hash::BuildHasher;
use std::sync::Arc;

/// A field of a series in a shard.
pub(crate) type LastKey = (ShardId, SeriesId, FieldId);

/// A time, and the value that a field has then.
pub(crate) type LastPoint = (i64, Value);

/// What is known of a field of a series in a shard.
#[derive(Debug, Clone)]
struct Known {
    key: LastKey,
    /// Through this age.
    through: u32,
    /// The last point; none if there is no point.
    point: Option<LastPoint>,
}

/// What one of them takes in a table that has just grown, which is half empty: itself and a byte for each place.
const COST: usize = (size_of::<Known>() + 1) * 16 / 7;
/// What a text takes beside its bytes.
const TEXT_COST: usize = 32;

#[derive(Debug, Default)]
struct Table {
    all: HashTable<Known>,
    /// Bytes of texts.
    texts: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lasts {
    table: RwLock<Table>,
    hasher: DefaultHashBuilder,
    bytes_max: usize,
}

/// Bytes of a value that are not in the table.
fn text_of(point: Option<&LastPoint>) -> usize {
    match point {
        Some((_, Value::String(text))) => TEXT_COST + text.len(),
        _ => 0,
    }
}

impl Lasts {
    /// Nothing is known. It takes so many bytes at most.
    pub(super) fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (table, hasher) = (RwLock::default(), DefaultHashBuilder::default());
        Self { table, hasher, bytes_max }
    }

    /// What is known by segments that are no younger than the newest one: through which age, and the point.
    fn get(&self, key: LastKey, newest: u32) -> Option<(u32, Option<LastPoint>)> {
        let table = spin::read(&self.table);
        let known = table.all.find(self.hasher.hash_one(key), |it| it.key == key)?;
        (known.through <= newest).then(|| (known.through, known.point.clone()))
    }

    /// Keeps what is known now, unless more is known already.
    fn put(&self, known: Known) {
        let hash = self.hasher.hash_one(known.key);
        let text = text_of(known.point.as_ref());
        let mut held = spin::write(&self.table);
        let table = &mut *held;
        if let Ok(old) = table.all.find_entry(hash, |it| it.key == known.key) {
            if old.get().through >= known.through {
                return;
            }
            let (old, _) = old.remove();
            table.texts -= text_of(old.point.as_ref());
        }
        let bytes = (table.all.len() + 1).saturating_mul(COST);
        if bytes.saturating_add(table.texts + text) > self.bytes_max {
            *table = Table::default();
            if COST + text > self.bytes_max {
                return;
            }
        }
        table.texts += text;
        let hasher = &self.hasher;
        table.all.insert_unique(hash, known, |it| hasher.hash_one(it.key));
    }

    /// How many are known, and the bytes that they take.
    pub(super) fn count_and_bytes(&self) -> (u64, u64) {
        let table = spin::read(&self.table);
        let bytes = table.all.allocation_size() + table.texts;
        (table.all.len() as u64, bytes as u64)
    }
}

/// The later of two points, that of the younger source if their times are equal.
pub(crate) fn later(younger: Option<LastPoint>, older: Option<LastPoint>) -> Option<LastPoint> {
    let is_older = match (&younger, &older) {
        (Some(younger), Some(older)) if mutant!("tsdb.last.equal") => older.0 >= younger.0,
        (Some(younger), Some(older)) => older.0 > younger.0,
        (None, _) => true,
        (_, None) => false,
    };
    if is_older { older } else { younger }
}

impl Set {
    /// The last point of a field of a series that is not behind this time, of those that segments of a shard have in this view.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage).
    pub(crate) fn last_sealed(
        &self,
        (view, guard): (&View, &Guard),
        key: LastKey,
        end: i64,
        nears: &mut Nears,
    ) -> Result<Option<LastPoint>> {
        let segments = view.segments.get(&key.0).map_or(&[][..], Vec::as_slice);
        let Some(newest) = segments.last().map(|it| it.info.age) else { return Ok(None) };
        let newest = u32::try_from(newest).ok();
        let known = newest.and_then(|newest| self.lasts.get(key, newest));
        let looked_into = known.as_ref().map_or(0, |(through, _)| {
            let through = if mutant!("tsdb.last.stale") { u32::MAX } else { *through };
            segments.partition_point(|it| it.info.age <= u64::from(through))
        });
        let mut last = known.and_then(|(_, point)| point);
        if looked_into < segments.len() {
            let found = self.search((segments, looked_into), guard, key, i64::MAX, nears)?;
            last = later(found, last);
            if let Some(through) = newest {
                self.lasts.put(Known { key, through, point: last.clone() });
            }
        }
        match last {
            // What is later than that is cut off.
            Some((time, _)) if time > end && !mutant!("tsdb.last.bound") => {
                self.search((segments, 0), guard, key, end, nears)
            }
            last => Ok(last),
        }
    }

    /// The same, of these segments from one on.
    fn search(
        &self,
        (segments, from): (&[Arc<Segment>], usize),
        guard: &Guard,
        (_, series, field): LastKey,
        end: i64,
        nears: &mut Nears,
    ) -> Result<Option<LastPoint>> {
        let place = (&*self.pages, guard);
        let mut last: Option<LastPoint> = None;
        // The youngest first: it mostly has the last one, and has it at equal times.
        for (at, segment) in segments.iter().enumerate().skip(from).rev() {
            let near = nears.of(at);
            let Some(entry) = segment.last_entry(place, (series, field), end, near)? else {
                continue;
            };
            let is_later = |time: i64| last.as_ref().is_none_or(|it| time > it.0);
            if is_later(entry.to.min(end)) {
                last = later(last, segment.last_point(place, &entry, end)?);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(series: SeriesId, through: u32, value: Value) -> Known {
        Known { key: (1, series, 1), through, point: Some((i64::from(through), value)) }
    }

    #[test]
    fn what_is_known_is_seen_by_those_whose_view_has_it_and_only_grows() {
        let lasts = Lasts::new(1 << 20);
        lasts.put(known(1, 5, Value::Integer(5)));
        lasts.put(known(1, 3, Value::Integer(3)));
        assert_eq!(lasts.get((1, 1, 1), 4), None, "of a segment that the view does not have");
        for newest in [5, 9] {
            assert_eq!(lasts.get((1, 1, 1), newest), Some((5, Some((5, Value::Integer(5))))));
        }
        lasts.put(known(1, 7, Value::Integer(7)));
        assert_eq!(lasts.get((1, 1, 1), 7), Some((7, Some((7, Value::Integer(7))))));
        lasts.put(Known { key: (2, 1, 1), through: 8, point: None });
        assert_eq!(lasts.get((2, 1, 1), 8), Some((8, None)));
    }

    #[test]
    fn it_takes_no_more_than_it_may_and_begins_anew() {
        let max = 64 << 10;
        let lasts = Lasts::new(max);
        let mut greatest = 0;
        for series in 0..10_000 {
            let text = "x".repeat(series as usize % 200).into();
            lasts.put(known(series, 1, Value::String(text)));
            let (count, bytes) = lasts.count_and_bytes();
            assert!(bytes <= max, "{count} take {bytes}");
            greatest = greatest.max(count);
            assert!(lasts.get((1, series, 1), 1).is_some());
        }
        assert!(greatest > 200, "{greatest}");
        // A text that is longer at another time takes its place.
        lasts.put(known(9_999, 2, Value::String("x".repeat(100).into())));
        lasts.put(known(1, 1, Value::String("x".repeat(1 << 20).into())));
        assert_eq!(lasts.get((1, 1, 1), 1), None, "a text that has no room");
        let nothing = Lasts::new(0);
        nothing.put(known(1, 1, Value::Float(1.0)));
        assert_eq!(nothing.count_and_bytes(), (0, 0));
    }
}
