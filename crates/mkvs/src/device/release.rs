//! A device that is no member any more and is not to come back as it is: another takes its place, or it is
//! retired.
//!
//! ```text
//!   no member, durably ─▶ processor ended ─▶ rings and engine taken away ─▶ nobody is in them: freed
//! ```
//!
//! A thread of its own does it: an engine that is dropped unmaps its pool, and ends threads of its own, which
//! may hang as the device does. Whoever has it done waits for it for a while, so that the space of the file
//! is free again when there is to be a new one, but not for a device that was given up.
//!
//! A call that hangs, in whichever device, keeps all that leave after it has begun: they are freed when it
//! returns.

use super::Device;
use coreplane_pmem::epoch::{Published, pin_in};
use coreplane_pmem::spin::{self, Backoff};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long somebody waits for a device to be gone whose calls return.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at whether a call is still in it.
const LOOK: Duration = Duration::from_millis(20);

/// Looks before they are so far apart.
const FIRST_LOOKS: u32 = 100;

impl Device {
    /// Frees what it has, when no caller is in it any more; its engine stays if the device `in_its_place` has
    /// the same. It is no member any more, and will not be one.
    pub(crate) fn leave(self: &Arc<Self>, in_its_place: Option<&Self>) {
        self.stop_within(PATIENCE);
        let shares = |other: &Self| Arc::ptr_eq(&self.fault_guard, &other.fault_guard);
        let keeps_engine = in_its_place.is_some_and(shares);
        let device = Arc::clone(self);
        let free = move || device.free(keeps_engine);
        let builder = std::thread::Builder::new().name("coreplane-leave".to_owned());
        // Where the system gives none what is not in use by now goes when this does.
        let Ok(handle) = builder.spawn(free) else { return self.take_away(keeps_engine) };
        let until = Instant::now() + PATIENCE;
        let mut backoff = Backoff::new();
        while !handle.is_finished() && !self.is_given_up() && Instant::now() < until {
            backoff.wait();
        }
        join_if_over(handle);
    }

    /// Ends the processor; it is given up if that takes too long.
    fn stop_within(&self, time: Duration) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake();
        let (until, mut backoff) = (Instant::now() + time, Backoff::new());
        let is_ended = || spin::lock(&self.processor).as_ref().is_none_or(JoinHandle::is_finished);
        while !is_ended() && !self.is_given_up() {
            if Instant::now() >= until {
                self.give_up();
            }
            backoff.wait();
        }
        self.stop();
    }

    /// True once it has gone: its engine cannot be had any more.
    pub(crate) fn has_gone(&self) -> bool {
        self.fault_guard.has_gone()
    }

    fn take_away(&self, keeps_engine: bool) {
        if self.rings(&pin_in()).is_some() {
            self.rings.replace(None);
        }
        if !keeps_engine {
            self.fault_guard.take_away();
        }
    }

    fn free(&self, keeps_engine: bool) {
        self.take_away(keeps_engine);
        let is_free = || {
            Published::reclaim(&self.rings) == 0 && (keeps_engine || self.fault_guard.is_dropped())
        };
        let (mut backoff, mut looks) = (Backoff::new(), 0);
        while !is_free() {
            looks += 1;
            if looks < FIRST_LOOKS {
                backoff.wait();
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Ends a thread that has nothing left to do; one that has is left where it is.
fn join_if_over(handle: JoinHandle<()>) {
    if handle.is_finished() {
        // A panic there has been reported by its thread.
        let _ended = handle.join().is_ok();
    }
}
