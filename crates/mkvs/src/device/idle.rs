//! How a device's processor rests when it has no work.
//!
//! Waking a thread takes longer than writing to the device. So a processor that has run out of writes *naps*: it
//! looks again by itself a moment later, and no writer wakes it unless the ring fills up. When no work has come for
//! a while it sleeps, and the next write wakes it. A read always wakes it, since a caller waits for the answer.
//! After a read without recent writes it does not nap, which would be five thousand wake-ups a second and device;
//! nor does it sleep at once, since that takes a barrier on all processors: it *dozes*. A write wakes it then,
//! except a write that comes in the moment in which the doze begins: that one waits for the end of the doze.

use super::Device;
use coreplane_pmem::epoch::barrier;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How long a nap is, and after how many without work it dozes.
const NAP: Duration = Duration::from_micros(200);
pub(super) const NAPS: u32 = 8;

/// How long a doze is, after which it sleeps, and how long it sleeps until it looks by itself.
const DOZE: Duration = Duration::from_millis(10);
const SLEEP: Duration = Duration::from_millis(100);

/// The states of a processor.
pub(super) const AWAKE: u32 = 0;
pub(super) const NAPPING: u32 = 1;
pub(super) const ASLEEP: u32 = 2;

impl Device {
    /// True while its processor sleeps.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.rest.load(Ordering::SeqCst) == ASLEEP
    }

    /// Rests; `rests` selects a nap, a doze or a sleep.
    pub(super) fn rest(&self, rests: u32) {
        let (state, time) = match rests {
            ..NAPS => (NAPPING, NAP),
            NAPS => (ASLEEP, DOZE),
            _ => (ASLEEP, SLEEP),
        };
        self.rest.store(state, Ordering::SeqCst);
        // A request that was put into a ring before the state was stored is seen now. A later submitter sees the
        // state. Only a writer may miss it: during a nap, when it need not see it, or as a doze begins.
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
