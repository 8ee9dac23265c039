//! Frees a device that is not a member any more and will not return as it is: another takes its place, or it is
//! retired.
//!
//! ```text
//!   no member, durably ─▶ processor ended ─▶ rings and engine taken away ─▶ no caller is in them: freed
//! ```
//!
//! A thread of its own does this: dropping an engine unmaps its pool and ends the engine's threads, which may hang
//! as the device does. The thread that requested it waits for a while, so that the space of the file is free again
//! before a new file is made, but it does not wait for a device that was given up.
//!
//! A call that hangs, in any device, delays the freeing of all devices that leave after the call has begun: they
//! are freed when it returns.

use super::Device;
use coreplane_pmem::background;
use coreplane_pmem::epoch::{Published, pin_in};
use coreplane_pmem::spin::{self, Backoff, Patience};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a thread waits for a device to be gone whose calls return.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two looks at whether a call is still in it, after the first looks.
const LOOK: Duration = Duration::from_millis(20);

impl Device {
    /// Frees its resources when no caller is in them any more; its engine stays if the device `in_its_place` has
    /// the same. The device is no member any more, and will not be one.
    pub(crate) fn leave(self: &Arc<Self>, in_its_place: Option<&Self>) {
        self.stop_within(PATIENCE);
        let shares = |other: &Self| Arc::ptr_eq(&self.engine, &other.engine);
        let keeps_engine = in_its_place.is_some_and(shares);
        let device = Arc::clone(self);
        let free = move || device.free(keeps_engine);
        // If the system gives no thread, resources that are not in use are freed at once, the others with the
        // device.
        let Ok(handle) = background::spawn_in_time("coreplane-leave", free) else {
            return self.take_away(keeps_engine);
        };
        let mut patience = Patience::new(PATIENCE);
        while !handle.is_finished() && !self.is_given_up() && patience.wait() {}
        join_if_over(handle);
    }

    /// Ends the processor; it is given up if that takes too long.
    fn stop_within(&self, time: Duration) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake();
        let (mut patience, mut backoff) = (Patience::new(time), Backoff::new());
        let is_ended = || spin::lock(&self.processor).as_ref().is_none_or(JoinHandle::is_finished);
        while !is_ended() && !self.is_given_up() {
            if !patience.goes_on() {
                self.give_up();
            }
            backoff.wait();
        }
        self.stop();
    }

    /// True once it has gone: its engine is not available any more.
    pub(crate) fn has_gone(&self) -> bool {
        self.engine.has_gone()
    }

    fn take_away(&self, keeps_engine: bool) {
        if self.rings(&pin_in()).is_some() {
            self.rings.replace(None);
        }
        if !keeps_engine {
            self.engine.take_away();
        }
    }

    fn free(&self, keeps_engine: bool) {
        self.take_away(keeps_engine);
        let is_free =
            || Published::reclaim(&self.rings) == 0 && (keeps_engine || self.engine.is_dropped());
        let mut backoff = Backoff::new();
        while !is_free() {
            backoff.wait();
            if backoff.is_long() {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Joins a thread that has ended; one that still runs is left behind.
fn join_if_over(handle: JoinHandle<()>) {
    if handle.is_finished() {
        // A panic there has been reported by its thread.
        let _ended = handle.join().is_ok();
    }
}
