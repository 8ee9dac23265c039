//! The last point of fields of a series.
//!
//! Shards do not overlap, so they are asked from the latest to the earliest, and the first one that has a point has
//! the last one. In a shard it is the latest of the points in heads and of the sealed points. Heads are asked each
//! time; the sealed point is cached, or found by a search of entries ([`Set::last_sealed`]). No chunk is decoded,
//! except chunks of strings and chunks that the end of the range cuts.

use super::scope::Scope;
use super::source::ENTRY_COST;
use crate::catalogue::{FieldId, Series};
use crate::error::Result;
use crate::pace::{Ends, Pace};
use crate::segment::Nears;
use crate::set::{LastKey, LastPoint, Set, View, later};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::spin;
use smallvec::SmallVec;
use std::ops::RangeInclusive;

impl Scope<'_> {
    /// The last point of each of these fields of a series in a range of time; none for a field without a point
    /// there. Ascending fields are found sooner.
    ///
    /// # Errors
    /// [`Error::Damage`](crate::Error::Damage), [`Error::Ended`](crate::Error::Ended).
    pub(crate) fn lasts(
        &self,
        ends: Option<&dyn Ends>,
        series: &Series,
        fields: &[FieldId],
        range: &RangeInclusive<i64>,
    ) -> Result<Vec<Option<LastPoint>>> {
        let mut found = vec![None; fields.len()];
        let Some((set, view)) = self.sets.get(series.set as usize) else { return Ok(found) };
        let mut pace = Pace::new(ends);
        let mut places: SmallVec<[usize; 16]> = (0..fields.len()).collect();
        for shard in self.shards_of(range).rev() {
            let guard = set.pages.space().pin();
            // A field is looked for in heads, and in each segment.
            let segments = view.segments.get(&shard).map_or(0, Vec::len);
            let mut nears = Nears::default();
            let mut left = SmallVec::new();
            for place in places {
                let (Some(field), Some(found)) = (fields.get(place), found.get_mut(place)) else {
                    continue;
                };
                pace.spend(ENTRY_COST * (1 + segments))?;
                let key = (shard, series.id, *field);
                match last((set, view, &guard), key, *range.end(), &mut nears)? {
                    // Earlier shards have no later point.
                    Some(point) => *found = Some(point).filter(|it| it.0 >= *range.start()),
                    None => left.push(place),
                }
            }
            places = left;
            if places.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}

/// The last point in a shard whose time is not after `end`.
fn last(
    (set, view, guard): (&Set, &View, &Guard),
    key: LastKey,
    end: i64,
    nears: &mut Nears,
) -> Result<Option<LastPoint>> {
    let mut last = set.last_sealed((view, guard), key, end, nears)?;
    // The frozen head is older than the active one.
    for head in view.frozen.iter().map(|(head, _)| head).chain([&view.active]) {
        last = later(spin::read(head).last(key, end), last);
    }
    Ok(last)
}
