//! How many bytes wait for a device's processor.
//!
//! The ring of decisions has a fixed size. A batch, or a value that is too long for that ring, waits outside it: a
//! thousand values of a MiB would pin a GiB for one slow device. So the waiting requests are also bounded by their
//! bytes. A writer that meets that bound acts as on the bound by count: it waits while the processor is in a call,
//! and then makes its write on the device itself.

use super::Device;
use crate::device::ring::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of keys and values that wait.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: AtomicU64,
    /// How often a writer met a bound.
    refusals: AtomicU64,
}

impl Backlog {
    /// Adds so many bytes if the sum is at most `max`, or if no bytes wait: so a request that is larger than the
    /// bound is not kept out for ever.
    pub(super) fn add(&self, bytes: u64, max: u64) -> bool {
        let add = |waiting: u64| {
            let sum = waiting.saturating_add(bytes);
            (waiting == 0 || sum <= max).then_some(sum)
        };
        self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    /// So many bytes wait no more.
    pub(super) fn remove(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// A writer met a bound.
    #[cold]
    pub(super) fn note_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub(super) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }
}

impl Device {
    /// Bytes that wait for the device, and how often a writer had to wait since there were too many.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        let lines = self.lines_submitted().saturating_sub(self.track.past());
        (self.backlog.bytes() + lines * LINE_BYTES, self.backlog.refusals())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_but_for_one_that_is_alone() {
        let backlog = Backlog::default();
        assert!(backlog.add(60, 100) && backlog.add(40, 100));
        assert!(!backlog.add(1, 100));
        backlog.remove(60);
        assert!(!backlog.add(61, 100) && backlog.add(60, 100));
        backlog.remove(100);
        assert!(backlog.add(500, 100) && !backlog.add(1, 100));
        assert_eq!(backlog.bytes(), 500);
    }
}
