//! The last sealed points of series that were asked for: the last-value cache.
//!
//! # The problem
//!
//! Dashboards ask for the last value of each series, again and again. The points of heads are at hand. For sealed
//! points each segment of a shard must be searched, and the answer is wrong if one of them is forgotten.
//!
//! # The picture
//!
//! ```text
//!   segments of a shard, by age   [ 2 ][ 5 ][ 6 ] ▏ [ 9 ]          heads
//!                                  cached: (t, v) ▏ searched        asked by each reader
//!                                   through age 6
//! ```
//!
//! # What holds
//!
//! - A cached point covers segments alone. So a write does not touch the cache, and nothing that a cut may take is
//!   in it.
//! - It is valid through an age. The last point of a shard's segments up to that age never changes: a segment that
//!   is sealed later has a greater age, and a merged segment has the age of the youngest of its parts, which follow
//!   each other. So the cache need not be told of a sealing or of a merge. A merged segment with parts on both
//!   sides of that age is searched as a whole. At equal times it wins, since no cached point from another segment
//!   is younger than any of its parts.
//! - A reader whose view is older than a cached point neither sees nor replaces that point.
//! - The numbers of a shard, a series and a field are never reused. Dropped ones are never asked for again.
//! - Readers fill the cache, and it is bounded: once it is full it begins anew. It is in DRAM, and empty after an
//!   opening.

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

/// The cached point of a field of a series in a shard.
#[derive(Debug, Clone)]
struct Known {
    key: LastKey,
    /// The age through which segments are covered.
    through: u32,
    /// The last point; none if the segments have no point.
    point: Option<LastPoint>,
}

/// Bytes of an entry in a table that has just grown, which is half empty: the entry and a byte for each place.
const COST: usize = (size_of::<Known>() + 1) * 16 / 7;
/// Bytes of a text beside its characters.
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
    /// An empty cache of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (table, hasher) = (RwLock::default(), DefaultHashBuilder::default());
        Self { table, hasher, bytes_max }
    }

    /// The cached point and the age through which it is valid; none if that is greater than `newest`.
    fn get(&self, key: LastKey, newest: u32) -> Option<(u32, Option<LastPoint>)> {
        let table = spin::read(&self.table);
        let known = table.all.find(self.hasher.hash_one(key), |it| it.key == key)?;
        (known.through <= newest).then(|| (known.through, known.point.clone()))
    }

    /// Caches a point, unless the cached one covers as many segments or more.
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

    /// The number of cached points, and the bytes that they take.
    pub(super) fn count_and_bytes(&self) -> (u64, u64) {
        let table = spin::read(&self.table);
        let bytes = table.all.allocation_size() + table.texts;
        (table.all.len() as u64, bytes as u64)
    }
}

/// The later of two points; that of the younger source if their times are equal.
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
    /// The last point of a field of a series in the segments of a shard in this view, whose time is not after
    /// `end`.
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
            // The cached point is later than `end`: search for one before it.
            Some((time, _)) if time > end && !mutant!("tsdb.last.bound") => {
                self.search((segments, 0), guard, key, end, nears)
            }
            last => Ok(last),
        }
    }

    /// The same, in these segments from index `from` on.
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
        // The youngest first: it mostly has the last point, and wins at equal times.
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
        // A point at a later time, with a longer text, takes the place of the cached one.
        lasts.put(known(9_999, 2, Value::String("x".repeat(100).into())));
        lasts.put(known(1, 1, Value::String("x".repeat(1 << 20).into())));
        assert_eq!(lasts.get((1, 1, 1), 1), None, "a text that has no room");
        let nothing = Lasts::new(0);
        nothing.put(known(1, 1, Value::Float(1.0)));
        assert_eq!(nothing.count_and_bytes(), (0, 0));
    }
}
