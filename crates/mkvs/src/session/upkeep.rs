//! Maintenance of an open matrix, while readers and writers continue: devices replaced, groups added, damage
//! healed.

use crate::device::is_damage;
use crate::group::Group;
use crate::keyspace::Keyspace;
use crate::matrix::Matrix;
use crate::membership::{MemberState, Rack};
use crate::rebuild::{Copied, CopyOptions, DamageSummary, Scrubbed, no_such};
use crate::shape::Position;
use coreplane_engine::{Error, Progress, Result};
use std::sync::atomic::Ordering;

impl Matrix {
    /// Fills the device at `place` from its peers and makes it a current member.
    ///
    /// That is the device that was there, brought up to date, or a new one if there is none. Returns when the
    /// membership is durable; reads and writes continue meanwhile. After a failure or a restart another call
    /// continues.
    ///
    /// # Errors
    /// [`Unusable`](coreplane_engine::Error::Unusable) if the place is not one of the matrix, its device is
    /// current, the device there is foreign or another is being filled; as the devices.
    pub fn replace(
        &self,
        rack: &dyn Rack,
        place: Position,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        let _alone = self.rebuild.fill_alone()?;
        let group = self.keyspace.groups.get(usize::from(place.group));
        let group = group.ok_or_else(|| no_such(place))?;
        let engine = self.rebuild.announce(rack, group, place, options)?;
        self.rebuild.fill_member(group, place, engine, options, progress)
    }

    /// Adds a group of as many new devices as the others have, and moves its share of the keys to it. Returns
    /// when all have moved; reads and writes continue meanwhile.
    ///
    /// # Errors
    /// [`Unusable`](coreplane_engine::Error::Unusable) if there are too many groups, or something is being
    /// filled; as the devices. Slots that have not moved then move when [`Matrix::finish_moves`] is called.
    pub fn add_group(
        &self,
        rack: &dyn Rack,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        let _alone = self.rebuild.fill_alone()?;
        self.rebuild.run_moves(options, progress)?;
        self.rebuild.make_group(rack)?;
        self.rebuild.run_moves(options, progress)
    }

    /// Continues moves that were interrupted; does nothing if there are none.
    ///
    /// # Errors
    /// As [`Matrix::add_group`].
    pub fn finish_moves(
        &self,
        options: &CopyOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Copied> {
        let _alone = self.rebuild.fill_alone()?;
        self.rebuild.run_moves(options, progress)
    }

    /// True if slots are moving, or were moving when something interrupted that.
    pub fn is_moving(&self) -> bool {
        self.keyspace.has_guests.load(Ordering::Acquire)
    }

    /// The number of slots that each group owns, and the number that are still to move.
    pub fn slots(&self) -> (Vec<usize>, usize) {
        let record = self.failover.membership.now();
        let mut owned = vec![0; record.members.len()];
        for owner in &record.owners {
            owned[usize::from(*owner)] += 1;
        }
        (owned, record.moving.len())
    }

    /// Checks every record of every current device against its checksums, and writes damaged ones anew from a
    /// peer, while readers and writers continue. Durable when it returns.
    ///
    /// # Errors
    /// As the devices, except for damage, which is in the result.
    pub fn scrub(&self, progress: &dyn Fn(Progress)) -> Result<Scrubbed> {
        self.scrub_of(None, progress)
    }

    /// As [`Matrix::scrub`], for all records that one device has or should have, as its peers know them; so
    /// only its group is read.
    ///
    /// # Errors
    /// As [`Matrix::scrub`]; [`Unusable`](coreplane_engine::Error::Unusable) if there is no such device, or
    /// it is not current.
    pub fn scrub_of(
        &self,
        device: Option<Position>,
        progress: &dyn Fn(Progress),
    ) -> Result<Scrubbed> {
        if let Some(place) = device {
            self.check_current(place)?;
        }
        let is_asked = |group: &Group| device.is_none_or(|place| place.group == group.number);
        let mut scrubbed = self.rebuild.begin_scrub()?;
        for group in self.keyspace.groups.iter().filter(|group| is_asked(group)) {
            self.rebuild.scrub_group(group, &mut scrubbed, progress)?;
        }
        Ok(scrubbed)
    }

    /// # Errors
    /// If there is no such device, or it is not a current member.
    fn check_current(&self, place: Position) -> Result<()> {
        let state = self.failover.membership.now().member(place).map(|member| member.state);
        match state {
            Some(MemberState::Current) => Ok(()),
            Some(_) => Err(Error::Unusable(format!("{place} is not current: replace fills it"))),
            None => Err(no_such(place)),
        }
    }

    /// The keys that are in doubt, and the ranges; no devices.
    pub fn indeterminate_keys(&self) -> DamageSummary {
        let Keyspace { in_flight, lost_ranges, .. } = &*self.keyspace;
        let (keys, ranges) = (in_flight.indeterminate().len(), lost_ranges.ranges().len());
        DamageSummary { devices: Vec::new(), keys, ranges }
    }

    /// The current devices that have lost records, and the number of key ranges: one at least of a device that
    /// cannot tell for damage. Asks all of them.
    pub fn devices_with_lost_ranges(&self) -> Vec<(Position, usize)> {
        let mut devices = Vec::new();
        for group in self.keyspace.groups.iter() {
            for device in group.of(group.members()) {
                let doubts = match device.engine.call(|it| it.lost_ranges()) {
                    Ok(doubts) => doubts.len(),
                    Err(error) => usize::from(is_damage(&error)),
                };
                if doubts > 0 {
                    devices.push((device.at, doubts));
                }
            }
        }
        devices
    }
}
