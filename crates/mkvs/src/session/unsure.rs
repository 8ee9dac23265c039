//! What members of a group cannot show of what they had, while they are reconciled.

use crate::membership::lost_ranges::just;
use crate::shape::position::Devices;
use coreplane_engine::KeyRange;

/// What members cannot show, and which of them.
#[derive(Default)]
pub(super) struct Unsure {
    pub(super) ranges: Vec<(Devices, KeyRange)>,
}

impl Unsure {
    pub(super) fn add(&mut self, device: u8, range: KeyRange) {
        self.ranges.push((1 << device, range));
    }

    /// Those that may lack what they had of a key.
    pub(super) fn of_key(&self, key: &[u8]) -> Devices {
        self.overlapping(&just(key))
    }

    /// Those that may lack what they had of some key of a range.
    pub(super) fn overlapping(&self, KeyRange { start, end }: &KeyRange) -> Devices {
        let ends_before =
            |end: &Option<Vec<u8>>, start: &Vec<u8>| end.as_ref().is_some_and(|end| end <= start);
        let overlaps = |it: &&(Devices, KeyRange)| {
            !ends_before(&it.1.end, start) && !ends_before(end, &it.1.start)
        };
        self.ranges.iter().filter(overlaps).fold(0, |set, (device, _)| set | device)
    }
}
