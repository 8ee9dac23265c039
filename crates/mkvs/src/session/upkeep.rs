//! What is done for an open matrix while everybody goes on: devices replaced, groups added, damage healed.

use crate::keyspace::Keyspace;
use crate::matrix::Matrix;
use crate::membership::rack::Rack;
use crate::rebuild::copy::{Copied, CopyOptions};
use crate::rebuild::indeterminate::DamageSummary;
use crate::rebuild::scrub::Scrubbed;
use crate::shape::position::Position;
use coreplane_engine::{Progress, Result};
use std::sync::atomic::Ordering;

impl Matrix {
    /// Fills the device at `place` from its peers and makes it a current member: the one that was
    /// there, brought up to date, or a new one if there is none. Returns when it is durable that it
    /// is one; reads and writes go on meanwhile. Called again after a failure or a restart it goes on.
    ///
    /// # Errors
    /// [`Unusable`](coreplane_engine::Error::Unusable) if the place is not one of the matrix, its device is current, the device
    /// there is foreign or another is being filled; as the devices.
    pub fn replace(
        &self,
        rack: &dyn Rack,
        place: Position,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        self.rebuild.replace(rack, place, options, progress)
    }

    /// Adds a group of as many new devices as the others have, and moves its share of the keys to it.
    /// Returns when all have moved; reads and writes go on meanwhile.
    ///
    /// # Errors
    /// [`Unusable`](coreplane_engine::Error::Unusable) if there are too many groups, or something is being filled; as the
    /// devices. What has not moved then moves when [`Matrix::finish_moves`] is called.
    pub fn add_group(
        &self,
        rack: &dyn Rack,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        self.rebuild.add_group(rack, options, progress)
    }

    /// Goes on with moves that were cut off; does nothing if there are none.
    ///
    /// # Errors
    /// As [`Matrix::add_group`].
    pub fn finish_moves(
        &self,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        self.rebuild.finish_moves(options, progress)
    }

    /// True if slots are moving, or were when something cut that off.
    pub fn is_moving(&self) -> bool {
        self.keyspace.has_guests.load(Ordering::Acquire)
    }

    /// How many slots each group owns, and how many are still to move.
    pub fn slots(&self) -> (Vec<usize>, usize) {
        let record = self.failover.membership.now();
        let mut owned = vec![0; record.members.len()];
        for owner in &record.owners {
            owned[usize::from(*owner)] += 1;
        }
        (owned, record.moving.len())
    }

    /// Reads every record of every current device against its checksums, and writes what is damaged
    /// anew from a peer, while everybody goes on. Durable when it returns.
    ///
    /// # Errors
    /// As the devices, but for damage, which is in the answer.
    pub fn scrub(&self, progress: &dyn Fn(Progress)) -> Result<Scrubbed> {
        self.scrub_of(None, progress)
    }

    /// As [`Matrix::scrub`], of one device: of all records that it has or should have, which its peers
    /// name; so its group alone is gone through.
    ///
    /// # Errors
    /// As [`Matrix::scrub`]; [`Unusable`](coreplane_engine::Error::Unusable) if there is no such device, or it is not current.
    pub fn scrub_of(
        &self,
        device: Option<Position>,
        progress: &dyn Fn(Progress),
    ) -> Result<Scrubbed> {
        self.rebuild.scrub_of(device, progress)
    }

    /// The keys that are in doubt, and the ranges; no devices.
    pub fn indeterminate_keys(&self) -> DamageSummary {
        let Keyspace { in_flight, lost_ranges, .. } = &*self.keyspace;
        let (keys, ranges) = (in_flight.indeterminate().len(), lost_ranges.ranges().len());
        DamageSummary { devices: Vec::new(), keys, ranges }
    }

    /// The current devices that have lost records, and of how many ranges of keys. Looks at all of them.
    pub fn devices_with_lost_ranges(&self) -> Vec<(Position, usize)> {
        let mut devices = Vec::new();
        for group in self.keyspace.groups.iter() {
            for device in group.of(group.members()) {
                let doubts = device.engine.lost_ranges().map_or(0, |doubts| doubts.len());
                if doubts > 0 {
                    let place = Position { group: group.number, device: device.number };
                    devices.push((place, doubts));
                }
            }
        }
        devices
    }
}
