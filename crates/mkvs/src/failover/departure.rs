//! Devices that went while the matrix was open: when, and why.

use crate::device::Device;
use crate::failover::Failover;
use crate::shape::position::Position;
use coreplane_engine::UnixMillis;

/// A device that is a member no more since something failed on it, or could not be told to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// Which.
    pub device: Position,
    /// Since when.
    pub at: UnixMillis,
    /// The last error of it.
    pub why: String,
}

impl Failover {
    /// A device is a member no more.
    pub(crate) fn note_departure(&self, position: Position, device: Option<&Device>) {
        let why = device.and_then(Device::why);
        let why = why.unwrap_or("it cannot have what the others have").to_owned();
        let mut departures = self.departures.lock();
        departures.retain(|known| known.device != position);
        departures.push(Departure { device: position, at: self.keyspace.clock.now(), why });
    }

    /// A device is a member again, or another in its place.
    pub(crate) fn forget_departure(&self, position: Position) {
        self.departures.lock().retain(|known| known.device != position);
    }
}
