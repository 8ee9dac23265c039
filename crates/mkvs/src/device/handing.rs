//! Handing a device's processor a write of one key that was decided elsewhere, or is about to be.

use super::Device;
use super::resting::{AWAKE, NAPPING};
use crate::group::Group;
use crate::ring::{Decision, Reserved, Room};
use coreplane_pmem::epoch::{Calls, Guard, barrier, pin_in};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A place in a device's ring for a write that is about to be made elsewhere. If it is dropped there is
/// nothing to make there, and the processor is woken as for a write: what lies behind waits for it.
#[derive(Debug)]
#[must_use = "the processor waits until it is handed over or dropped"]
pub(crate) struct Place<'a> {
    device: &'a Device,
    reserved: Option<Reserved<'a>>,
}

impl Place<'_> {
    /// Where the processor is past it.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.reserved.as_ref().map_or(0, Reserved::end)
    }

    /// The write was made: hands it to the device's processor.
    #[inline]
    pub(crate) fn hand_over(mut self) {
        if let Some(reserved) = self.reserved.take() {
            self.device.rouse(reserved.publish());
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
    pub(crate) fn prepare(&self) {
        if let Some(rings) = self.rings(&pin_in()) {
            rings.decisions.prefetch();
        }
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
        let guard = pin_in();
        let Some(rings) = self.rings(&guard).filter(|_| self.has_processor(group)) else {
            return Room::None;
        };
        let room = rings.decisions.push(decision, is_told);
        self.rouse(room);
        room
    }

    /// Takes a place for a write of one key that is about to be made elsewhere; none if there is no room.
    #[inline]
    pub(crate) fn reserve<'a>(
        self: &'a Arc<Self>,
        group: &Arc<Group>,
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

#[cfg(test)]
mod tests {
    use super::super::pair::pair;
    use super::super::resting::ASLEEP;
    use super::*;
    use crate::bloom::hash_of;
    use crate::pending::Pending;
    use coreplane_bptree::Bptree;
    use coreplane_engine::around::{Around, Call, Surrounded};
    use coreplane_engine::{Engine, Error, Result, WriteOptions};
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// Refuses puts once it is full.
    #[derive(Default)]
    struct Fills(AtomicBool);

    impl Around for Fills {
        type Held<'a> = ();

        fn begin(&self, call: Call<'_>) -> Result<()> {
            let is_refused = matches!(call, Call::Put(_)) && self.0.load(Ordering::SeqCst);
            let full = Error::NoSpace { needed: 1, reclaimable: 0 };
            if is_refused { Err(full) } else { Ok(()) }
        }
    }

    /// Two devices, of which the second is waited for and the first follows.
    fn group(directory: &tempfile::TempDir, around: &Arc<Fills>) -> Arc<Group> {
        let engine = |number: u8| -> Arc<dyn Engine> {
            let (path, options) = (directory.path().join(number.to_string()), Default::default());
            let media = coreplane_pmem::MediaChoice::Auto;
            Arc::new(Bptree::create(&path, 1 << 20, 8192, media, &options).expect("create"))
        };
        let around = Arc::clone(around);
        let filled = Arc::new(Surrounded { engine: engine(1), around });
        pair([engine(0), filled], &Arc::new(Pending::new()), Box::new(|_, _| Ok(())))
    }

    /// Else it looks by itself a tenth of a second later, and holds up what lies behind the place.
    #[test]
    fn a_processor_that_sleeps_is_woken_for_a_place_that_is_dropped() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let around = Arc::default();
        let group = group(&directory, &around);
        let follower = group.device(0).expect("it is there");
        let (options, begun) = (WriteOptions::default(), Instant::now());
        let put = |key: &[u8]| group.put_plainly(hash_of(key), (key, b"value"), &options);
        for round in 0..20_u64 {
            let [made, refused] = [2 * round, 2 * round + 1].map(u64::to_le_bytes);
            assert!(put(&made).is_some());
            let is_asleep = || follower.rest.load(Ordering::SeqCst) == ASLEEP;
            while follower.queued() > 0 || !is_asleep() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it has nothing to do");
                std::thread::yield_now();
            }
            let submitted = follower.lines_submitted();
            around.0.store(true, Ordering::SeqCst);
            assert!(put(&refused).is_none());
            around.0.store(false, Ordering::SeqCst);
            assert!(follower.lines_submitted() > submitted, "it had a place");
            assert!(!is_asleep() || follower.queued() == 0, "round {round}: it sleeps");
        }
        group.devices().for_each(|device| device.stop());
    }
}
