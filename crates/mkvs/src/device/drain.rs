//! Waiting for the requests of a device's processor, and devices that are about to be left out meanwhile.

use super::{Device, MOMENTS};
use coreplane_engine::Error;
use coreplane_pmem::spin::{Backoff, Patience};
use std::io::ErrorKind;
use std::sync::atomic::Ordering;

/// A device that is about to be left out.
pub(crate) struct Failing<'d>(&'d Device);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.failures_over.fetch_add(1, Ordering::SeqCst);
    }
}

/// How far a device has come with the requests that were on their way to it.
pub(crate) enum Drained {
    All,
    /// The device is about to be left out itself.
    Failing,
    Late,
}

impl Device {
    /// The device is about to be left out, until the returned value is dropped.
    pub(crate) fn fail(&self) -> Failing<'_> {
        self.failures.fetch_add(1, Ordering::SeqCst);
        Failing(self)
    }

    /// Notes if a device has not written a membership record in time.
    pub(crate) fn note_timeout(&self, error: &Error) {
        let is_late =
            matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::TimedOut);
        self.timed_out.fetch_or(is_late, Ordering::SeqCst);
    }

    /// True if it has not: its thread does not return, so no other thread may call the device.
    pub(crate) fn has_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::SeqCst)
    }

    /// True if it is about to be left out.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures_over.load(Ordering::SeqCst) < self.failures()
    }

    /// How often it was about to be left out so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// True if the device still has submitted requests after a moment.
    pub(crate) fn is_behind(&self) -> bool {
        let mut backoff = Backoff::new();
        (0..MOMENTS).all(|_| {
            backoff.wait();
            self.queued() > 0
        })
    }

    /// Waits until all requests that were submitted before the call are made.
    pub(crate) fn drain(&self) {
        let (lines, jobs) = (self.lines_submitted(), self.submitted.load(Ordering::Acquire));
        // A job that did not fit into the ring is counted for a moment.
        let goal = || jobs.min(self.submitted.load(Ordering::Acquire));
        let is_behind =
            || self.track.past() < lines || self.completed.load(Ordering::Acquire) < goal();
        let mut backoff = Backoff::new();
        while is_behind() && !self.is_closed() {
            self.wake();
            backoff.wait();
        }
    }

    /// Waits until all requests that were submitted before the call are made; but not for a device that is about to
    /// be left out, since its processor may wait itself.
    pub(crate) fn drain_within(&self, mut patience: Option<&mut Patience>) -> Drained {
        let (lines, jobs) = (self.lines_submitted(), self.submitted.load(Ordering::Acquire));
        // A job that did not fit into the ring is counted for a moment.
        let goal = || jobs.min(self.submitted.load(Ordering::Acquire));
        let mut backoff = Backoff::new();
        loop {
            // A place that is only reserved is not waited for, since its caller may hang. Its writer looks at the
            // states again after it has published.
            let past = self.track.past();
            let is_past = past >= lines || !self.has_published(past);
            if is_past && self.completed.load(Ordering::Acquire) >= goal() {
                return Drained::All;
            }
            if self.is_failing() || self.is_closed() {
                return Drained::Failing;
            }
            if patience.as_mut().is_some_and(|patience| !patience.goes_on()) {
                return Drained::Late;
            }
            self.wake();
            backoff.wait();
        }
    }
}
