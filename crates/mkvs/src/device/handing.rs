//! Handing a device's processor a write of one key that was decided elsewhere, or is about to be.

use super::Device;
use super::resting::{AWAKE, NAPPING};
use crate::group::Group;
use crate::ring::{Decision, Reserved, Room};
use coreplane_pmem::epoch::barrier;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Device {
    /// A write of one key will be handed to the processor.
    #[inline]
    pub(crate) fn prepare(&self) {
        self.decisions.prefetch();
    }

    /// Hands a write of one key to the device's processor, which tells of it when it is made if it
    /// `is_told`; says whether there was room.
    #[inline]
    pub(crate) fn follow(
        self: &Arc<Self>,
        group: &Arc<Group>,
        decision: &Decision<'_>,
        is_told: bool,
    ) -> Room {
        if !self.has_processor(group) {
            return Room::None;
        }
        let room = self.decisions.push(decision, is_told);
        self.rouse(room);
        room
    }

    /// Takes a place for a write of one key that is about to be made elsewhere; none if there is no room.
    #[inline]
    pub(crate) fn reserve(
        self: &Arc<Self>,
        group: &Arc<Group>,
        decision: &Decision<'_>,
    ) -> Option<Reserved<'_>> {
        if self.has_processor(group) { self.decisions.reserve(decision) } else { None }
    }

    /// Hands it to the device's processor.
    #[inline]
    pub(crate) fn follow_reserved(&self, reserved: Reserved<'_>) {
        self.rouse(reserved.publish());
    }

    /// Something was put into the ring: wakes the processor where that must be.
    #[inline]
    fn rouse(&self, room: Room) {
        // Either the processor sees what is in the ring before it sleeps, or that it sleeps is seen
        // here; where it naps it looks again by itself.
        barrier::light();
        match self.rest.load(Ordering::Relaxed) {
            AWAKE => {}
            NAPPING if !matches!(room, Room::Scarce(_)) => {}
            _ => self.wake(),
        }
    }
}
