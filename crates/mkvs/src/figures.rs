//! What a matrix tells of its devices.

use crate::Prototype;
use crate::engine::Matrix;
use crate::label::Position;
use crate::matrix::Shared;
use coreplane_engine::{DeviceStats, Stats};
use coreplane_pmem::spin;

/// Figures of which the sum over all devices says something too.
const SUMS: [(&str, &str); 5] = [
    ("ring_reads", "matrix_ring_reads"),
    ("race_wins", "matrix_race_wins"),
    ("race_losses", "matrix_race_losses"),
    ("race_cancelled", "matrix_race_cancelled"),
    ("hedges", "matrix_hedges"),
];

impl Matrix {
    /// Which of the paper's prototypes it is.
    pub fn prototype(&self) -> Prototype {
        spin::lock(&self.shared.label).prototype
    }
}

impl Shared {
    /// Adds the figures of each device, and what they come to.
    pub(crate) fn add_devices(&self, stats: &mut Stats) {
        for group in self.groups.iter() {
            for device in group.devices() {
                let position = Position { group: group.number, device: device.number };
                let is_current = group.members() & 1 << device.number != 0;
                let mut figures =
                    vec![("current", u64::from(is_current)), ("queue", device.queued())];
                figures.extend(device.pace.figures());
                stats.devices.push(DeviceStats { name: position.to_string(), figures });
            }
        }
        for (of_one, of_all) in SUMS {
            let figures = stats.devices.iter().flat_map(|device| &device.figures);
            let sum = figures.filter(|(name, _)| *name == of_one).map(|(_, figure)| figure).sum();
            stats.more.push((of_all, sum));
        }
    }
}
