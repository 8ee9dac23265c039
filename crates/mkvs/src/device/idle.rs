//! How a device's processor rests when it has no work.
//!
//! Waking a thread takes longer than writing to the device. So a processor that has run out of writes *naps*: it
//! looks again by itself a moment later, and no writer wakes it unless the ring fills up. When no work has come for
//! a while it sleeps, and the next write wakes it. A read always wakes it, since a caller waits for the answer.
//! After a read without recent writes it does not nap, which would be five thousand wake-ups a second and device;
//! nor does it sleep at once, since that takes a barrier on all processors: it *dozes*. A write wakes it then,
//! except a write that comes in the moment in which the doze begins: that one waits for the end of the doze.
//!
//! As it wakes up it may interrupt other threads for callers that wait for its answers, and need not for writes that
//! follow ([`background`]).

use super::Device;
use coreplane_pmem::background;
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

/// Turns without an answer after which no caller is expected.
const QUIET: u32 = 256;

/// The urgency of a processor, whose thread was started in the background.
#[derive(Debug, Default)]
pub(super) struct Urgency {
    /// Turns that it may interrupt others for, unless it answers another caller.
    left: u32,
}

impl Urgency {
    /// The processor has done some work, and has answered callers or not: gives its thread the policy for that.
    pub(super) fn note(&mut self, has_answered: bool) {
        if let Some(is_batch) = self.change(has_answered) {
            background::set_batch(is_batch);
        }
    }

    /// True if the thread should have the batch policy from now on, false if it should not; none if that stays.
    fn change(&mut self, has_answered: bool) -> Option<bool> {
        let before = self.left;
        self.left = if has_answered { QUIET } else { before.saturating_sub(1) };
        ((before == 0) != (self.left == 0)).then_some(self.left == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_urgent_from_the_first_answer_until_long_after_the_last() {
        let mut urgency = Urgency::default();
        assert_eq!([false, true, true].map(|it| urgency.change(it)), [None, Some(false), None]);
        for _ in 0..3 {
            assert!((1..QUIET).all(|_| urgency.change(false).is_none()));
            assert_eq!(urgency.change(true), None, "another answer");
        }
        assert!((1..QUIET).all(|_| urgency.change(false).is_none()));
        assert_eq!(
            [false, false, true].map(|it| urgency.change(it)),
            [Some(true), None, Some(false)]
        );
    }
}
