//! Records that members of a group had and cannot show, while they are reconciled.

use crate::membership::just;
use crate::shape::{Devices, Position};
use coreplane_engine::{DamagedKey, KeyRange};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The ranges that members cannot show completely, and which members.
#[derive(Default)]
pub(super) struct Unsure {
    pub(super) ranges: Vec<(Position, KeyRange)>,
    /// Their ranges of one key each, of which there may be many.
    keys: BTreeMap<Vec<u8>, Devices>,
    /// The damaged keys of members.
    pub(super) hurt: Vec<(Position, DamagedKey)>,
    /// A member that cannot even tell what it cannot show.
    pub(super) unreadable: Option<Position>,
}

/// The keys of a range, in a map by keys.
pub(super) fn bounds_of(KeyRange { start, end }: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = end.as_deref().map(|end| end.max(start));
    (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded))
}

impl Unsure {
    pub(super) fn add(&mut self, at: Position, range: KeyRange) {
        match range.only_key() {
            Some(key) => *self.keys.entry(key.to_vec()).or_default() |= 1 << at.device,
            None => self.ranges.push((at, range)),
        }
    }

    /// The members that may lack their record of a key.
    pub(super) fn of_key(&self, key: &[u8]) -> Devices {
        self.overlapping(&just(key))
    }

    /// The members that may lack their record of some key of a range.
    pub(super) fn overlapping(&self, range: &KeyRange) -> Devices {
        let (start, end) = (&range.start, range.end.as_deref());
        let ranges = self.ranges.iter().filter(|(_, it)| it.overlaps(start, end));
        let of_keys = self.keys.range::<[u8], _>(bounds_of(range)).map(|(_, devices)| *devices);
        let of_ranges = ranges.map(|(at, _)| 1 << at.device);
        of_ranges.chain(of_keys).fold(0, |set, devices| set | devices)
    }
}
