//! Handing a device's processor a write of one key that was decided elsewhere, or is about to be.

use super::Device;
use super::Host;
use super::idle::{AWAKE, NAPPING};
use crate::device::ring::{Decision, Reserved, Room};
use coreplane_pmem::epoch::{Calls, Guard, barrier, pin_in};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A place in a device's ring for a write that is about to be made elsewhere. Dropping it publishes the place as
/// empty, and wakes the processor as for a write: the requests behind the place wait for it.
#[must_use = "the processor waits until it is handed over or dropped"]
pub(crate) struct Place<'a> {
    device: &'a Device,
    reserved: Option<Reserved<'a>>,
}

impl Place<'_> {
    /// The place in the ring at which the processor is past it.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.reserved.as_ref().map_or(0, Reserved::end)
    }

    /// The write for which it was reserved was made: hands it to the device's processor.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self, decision: &Decision<'_>) {
        if let Some(reserved) = &self.reserved {
            let room = reserved.publish(decision);
            self.reserved = None;
            self.device.rouse(room);
        }
    }
}

impl Drop for Place<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            self.device.hand_nothing(reserved);
        }
    }
}

impl Device {
    /// A write of one key will be handed to the processor.
    #[inline]
    pub(crate) fn prepare(&self, guard: &Guard<Calls>) {
        if let Some(rings) = self.rings(guard) {
            rings.decisions.prefetch();
        }
    }

    /// Hands a write of one key to the device's processor, which reports it when it is made if it `is_told`; says
    /// whether there was room.
    #[inline]
    pub(crate) fn follow(
        self: &Arc<Self>,
        group: &Arc<impl Host>,
        decision: &Decision<'_>,
        is_told: bool,
    ) -> Room {
        let guard = pin_in();
        let Some(rings) = self.rings(&guard).filter(|_| self.has_processor(group)) else {
            return Room::None;
        };
        let room = rings.decisions.push(decision, is_told);
        self.rouse(room);
        room
    }

    /// Takes a place for a write of one key that is about to be made elsewhere; none if there is no room.
    #[inline(always)]
    pub(crate) fn reserve<'a>(
        self: &'a Arc<Self>,
        group: &Arc<impl Host>,
        decision: &Decision<'_>,
        guard: &'a Guard<Calls>,
    ) -> Option<Place<'a>> {
        let rings = self.rings(guard).filter(|_| self.has_processor(group))?;
        let reserved = rings.decisions.reserve(decision)?;
        Some(Place { device: self, reserved: Some(reserved) })
    }

    #[cold]
    fn hand_nothing(&self, reserved: Reserved<'_>) {
        self.rouse(reserved.give_up());
    }

    /// A request was put into the ring: wakes the processor if necessary.
    #[inline]
    fn rouse(&self, room: Room) {
        // Either the processor sees the request in the ring before it sleeps, or this thread sees that it sleeps. A
        // processor that naps looks again by itself.
        barrier::light();
        match self.rest.load(Ordering::Relaxed) {
            AWAKE => {}
            NAPPING if !matches!(room, Room::Scarce(_)) => {}
            _ => self.wake(),
        }
    }
}
