//! Records that members of a group had and cannot show, while they are reconciled.

use crate::membership::lost_ranges::just;
use crate::shape::position::{Devices, Position};
use coreplane_engine::{DamagedKey, KeyRange};

/// The ranges that members cannot show completely, and which members.
#[derive(Default)]
pub(super) struct Unsure {
    pub(super) ranges: Vec<(Devices, KeyRange)>,
    /// The damaged keys of members.
    pub(super) hurt: Vec<(Position, DamagedKey)>,
    /// A member that cannot even tell what it cannot show.
    pub(super) unreadable: Option<Position>,
}

impl Unsure {
    pub(super) fn add(&mut self, device: u8, range: KeyRange) {
        self.ranges.push((1 << device, range));
    }

    /// The members that may lack their record of a key.
    pub(super) fn of_key(&self, key: &[u8]) -> Devices {
        self.overlapping(&just(key))
    }

    /// The members that may lack their record of some key of a range.
    pub(super) fn overlapping(&self, KeyRange { start, end }: &KeyRange) -> Devices {
        let ranges = self.ranges.iter().filter(|(_, it)| it.overlaps(start, end.as_deref()));
        ranges.fold(0, |set, (device, _)| set | device)
    }
}
