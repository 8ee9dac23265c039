//! Retires a current device: one that is failing but still answers.
//!
//! A device that answers stays a member, however often its records are damaged. An operator who no longer
//! trusts it retires it: from then on it is absent, as if it had failed, and a fresh device can take its
//! place. The matrix releases it ([`device`](crate::device)), so that its disk can be taken out.

use crate::matrix::Matrix;
use crate::shape::Position;
use coreplane_engine::{Backing, Error, Result};
use std::sync::Arc;

impl Matrix {
    /// Takes a current device out of the membership: durably on all others, when it returns.
    ///
    /// # Errors
    /// [`Error::Unusable`] if the place is not one of the matrix, its device is not current or the last
    /// current one of its group, or something is being filled; if it cannot be made durable.
    pub fn retire(&self, place: Position) -> Result<()> {
        let _alone = self.rebuild.fill_alone()?;
        let group = self.keyspace.groups.get(usize::from(place.group));
        let group = group.ok_or_else(|| no_device(place))?;
        let device = Arc::clone(group.device(place.device).map_err(|_| no_device(place))?);
        let members = group.members();
        if members & 1 << place.device == 0 {
            return Err(no_device(place));
        }
        if members.count_ones() < 2 {
            return Err(Error::Unusable(format!(
                "{place} is the last current device of its group, and what it has no other has: fill \
                 another first"
            )));
        }
        // A thread that makes another change does not wait for this device meanwhile.
        let failing = device.fail();
        let why = Error::Unusable("it was retired".to_owned());
        self.failover.end_membership(&device, Some(&why))?;
        drop(failing);
        device.leave(None);
        Ok(())
    }

    /// The files of the devices as they are now. No file is read.
    pub fn backings(&self) -> Vec<(Position, Backing)> {
        let groups = self.keyspace.groups.iter();
        let there = groups.flat_map(|group| group.devices()).filter(|device| !device.has_gone());
        there.map(|device| (device.at, device.engine.tell(|it| it.backing()))).collect()
    }
}

fn no_device(place: Position) -> Error {
    Error::Unusable(format!("{place} is not a current device"))
}
