//! Devices that left while the matrix was open: when, and why.

use crate::device::Device;
use crate::failover::Failover;
use crate::shape::Position;
use coreplane_engine::UnixMillis;

/// A device that is no longer a member, because it failed or could not write the membership record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The device.
    pub device: Position,
    /// The time at which it left.
    pub at: UnixMillis,
    /// The first error that was noted for it.
    pub why: String,
}

impl Failover {
    /// Notes that a device is no longer a member.
    pub(crate) fn note_departure(&self, position: Position, device: Option<&Device>) {
        let why = device.and_then(Device::why);
        let why = why.unwrap_or("it cannot have what the others have").to_owned();
        let mut departures = self.departures.lock();
        departures.retain(|known| known.device != position);
        departures.push(Departure { device: position, at: self.keyspace.clock.now(), why });
    }

    /// Forgets a departure: the device is a member again, or has been replaced.
    pub(crate) fn forget_departure(&self, position: Position) {
        self.departures.lock().retain(|known| known.device != position);
    }
}
