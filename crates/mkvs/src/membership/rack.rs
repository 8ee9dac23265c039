//! Where the devices of a matrix are, and a device that was found there.

use super::record::MembershipRecord;
use crate::device::fault_guard::FaultGuard;
use crate::shape::position::Position;
use coreplane_engine::{Result, StorageEngine, TimeSource};
use std::sync::Arc;

/// Where devices are put: makes and opens the engine of each.
pub trait Rack: Send + Sync {
    /// The places where there is a device, in any order. Where a device belongs it knows itself.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn present(&self) -> Result<Vec<Position>>;

    /// Makes the engine of a new device at `place`, which asks this clock.
    ///
    /// # Errors
    /// As the engine's creation.
    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>>;

    /// Opens the engine of the device at `place`.
    ///
    /// # Errors
    /// As the engine's opening.
    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>>;

    /// Removes what is at `place`, if anything: what was to become a device there and did not.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove(&self, place: Position) -> Result<()>;
}

/// A device that was found.
pub(crate) struct Found {
    pub(crate) engine: Arc<dyn StorageEngine>,
    /// What is around it.
    pub(crate) fault_guard: Arc<FaultGuard>,
    pub(crate) record: MembershipRecord,
}

/// A new identity, drawn at random.
pub(crate) fn drawn() -> String {
    format!("{:032x}", rand::random::<u128>())
}
