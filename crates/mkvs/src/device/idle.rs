//! What a device's processor does when there is nothing to do.
//!
//! To wake a thread takes its waker longer than to write to the device itself. So a processor that
//! has run out of writes *naps*: it looks again by itself a moment later, and nobody wakes it for a
//! write unless the ring fills up. When nothing has come for a while it sleeps, and the next write
//! wakes it. Somebody waits for a read: that wakes it always. So after a read, behind which no more writes
//! are to be expected, it does not nap, which would be five thousand wake-ups a second and device; nor
//! does it sleep at once, which takes a barrier on all processors: it *dozes*. A write wakes it then, but
//! for one that comes in the moment in which it lies down, and waits for the end of the doze.

use super::Device;
use coreplane_pmem::epoch::barrier;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How long a nap is, and how many without work make it doze.
const NAP: Duration = Duration::from_micros(200);
pub(super) const NAPS: u32 = 8;

/// How long a doze is, after which it sleeps, and how long it sleeps until it looks by itself.
const DOZE: Duration = Duration::from_millis(10);
const SLEEP: Duration = Duration::from_millis(100);

/// What a processor does when there is nothing to do.
pub(super) const AWAKE: u32 = 0;
pub(super) const NAPPING: u32 = 1;
pub(super) const ASLEEP: u32 = 2;

impl Device {
    /// True while its processor sleeps.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.rest.load(Ordering::SeqCst) == ASLEEP
    }

    /// Rests for the next time without work.
    pub(super) fn rest(&self, rests: u32) {
        let (state, time) = match rests {
            ..NAPS => (NAPPING, NAP),
            NAPS => (ASLEEP, DOZE),
            _ => (ASLEEP, SLEEP),
        };
        self.rest.store(state, Ordering::SeqCst);
        // What was put into a ring before it was said is seen now; who comes later sees it, but for
        // who writes while it naps, who need not, or begins to doze.
        if rests <= NAPS {
            fence(Ordering::SeqCst)
        } else {
            barrier::heavy()
        }
        if self.is_idle() && !self.is_closed.load(Ordering::SeqCst) {
            std::thread::park_timeout(time);
        }
        self.rest.store(AWAKE, Ordering::SeqCst);
    }
}
