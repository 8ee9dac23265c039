//! The services of a group that the processor of one of its devices uses.

use super::ring::Decision;
use super::{Device, Job};
use crate::in_flight::Hashed;
use coreplane_engine::{Horizon, Result};
use std::sync::Arc;

/// The group of a device, as the device's processor sees it.
pub(crate) trait Host: Send + Sync + 'static {
    /// Bytes that may wait for a device.
    fn queue_bytes_max(&self) -> u64;

    /// A processor has started: from here on the group watches whether it answers.
    fn watch_processors(self: &Arc<Self>);

    /// The group goes on without a device; that is durable when it returns.
    ///
    /// # Errors
    /// If that cannot be made durable, or the device was the last one.
    fn leave_out(&self, device: &Device) -> Result<()>;

    /// Makes a write on a device of the group, joining devices included, that the other devices have already; true if
    /// the device has it then. Reports it to the in-flight table if it `is_told`.
    fn catch_up(&self, device: &Device, decision: &Decision<'_>, is_told: bool) -> bool;

    /// As [`Self::catch_up`], for one of several writes: it counts when [`Self::make_durable`] succeeds, and adds
    /// to `waits_for` what that has to wait for. It is not reported. False if it is not made.
    fn catch_up_early(
        &self,
        device: &Device,
        decision: &Decision<'_>,
        waits_for: &mut Horizon,
    ) -> bool;

    /// Makes durable on a device the writes that were made there; true if the device has all of them. Otherwise it
    /// has none.
    fn make_durable<'d>(
        &self,
        device: &Device,
        made: impl Iterator<Item = Decision<'d>>,
        horizon: &Horizon,
    ) -> bool;

    /// As [`Self::catch_up`], for a batch.
    fn catch_up_all(&self, device: &Device, job: &Job);

    /// A device has not made a write that it was given, could not be left out, and will never make it.
    fn give_up_write(&self, device: &Device, decision: &Decision<'_>);

    /// Reports that a device has made a write of a key.
    fn tell(&self, device: &Device, sequence: Option<u64>, key: Hashed<'_>);
}
