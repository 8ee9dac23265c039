//! What a device's processor asks of the group that the device belongs to.

use super::ring::Decision;
use super::{Device, Job};
use coreplane_engine::{Horizon, Result};
use std::sync::Arc;

/// The group of a device, as the device's processor sees it.
pub(crate) trait Host: Send + Sync + 'static {
    /// Bytes that may wait for a device.
    fn queue_bytes_max(&self) -> u64;

    /// A processor has started: from here on somebody looks whether it answers.
    fn watch_processors(self: &Arc<Self>);

    /// The group goes on without a device: durably so, when it returns.
    ///
    /// # Errors
    /// If that cannot be made durable, or it was the last one.
    fn leave_out(&self, device: &Device) -> Result<()>;

    /// Makes on a device what the others have already, if it is a member; true if it has it then. Tells
    /// of it if it `is_told`.
    fn catch_up(&self, device: &Device, decision: &Decision<'_>, is_told: bool) -> bool;

    /// As [`Self::catch_up`], of one of several writes: it counts when [`Self::make_durable`] says so,
    /// which is told here what to wait for; nobody is told of it. False if it is not made.
    fn catch_up_early(
        &self,
        device: &Device,
        decision: &Decision<'_>,
        waits_for: &mut Horizon,
    ) -> bool;

    /// Makes durable on a device what was made there; true if it has all of it. Otherwise it has none.
    fn make_durable<'d>(
        &self,
        device: &Device,
        made: impl Iterator<Item = Decision<'d>>,
        horizon: &Horizon,
    ) -> bool;

    /// As [`Self::catch_up`], of a batch.
    fn catch_up_all(&self, device: &Device, job: &Job);

    /// A device has not made what it was given, could not be left out, and never will make it.
    fn give_up_write(&self, device: &Device, decision: &Decision<'_>);

    /// A device has made what it was given of a key.
    fn tell(&self, device: &Device, sequence: Option<u64>, hash: u64);
}
