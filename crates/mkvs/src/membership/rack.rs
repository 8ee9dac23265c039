//! The places of the devices of a matrix, and a device that was found at one.

use super::record::MembershipRecord;
use crate::device::Guarded;
use crate::shape::Position;
use coreplane_engine::{Result, StorageEngine, TimeSource};
use std::sync::Arc;

/// The places of devices: makes and opens the engine of each.
pub trait Rack: Send + Sync {
    /// The places that have a device, in any order. A device itself knows where it belongs.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn present(&self) -> Result<Vec<Position>>;

    /// Makes the engine of a new device at `place`, which reads this clock.
    ///
    /// # Errors
    /// As the engine's creation.
    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>>;

    /// Opens the engine of the device at `place`.
    ///
    /// # Errors
    /// As the engine's opening.
    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>>;

    /// Removes the device at `place`, if there is one: it was to join the matrix and did not.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove(&self, place: Position) -> Result<()>;
}

/// A device that was found.
pub(crate) struct Found {
    pub(crate) engine: Arc<Guarded>,
    pub(crate) record: MembershipRecord,
}

/// A new identity, drawn at random.
pub(crate) fn drawn() -> String {
    format!("{:032x}", rand::random::<u128>())
}
