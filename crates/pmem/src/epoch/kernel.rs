//! The few memory accesses on which epochs depend, generic over the atomic type, so that a model
//! checker runs the same code as readers do.

use super::barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// The place of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Between a reader's slot and the state that it reads.
    Pin,
    /// Between making a page unreachable and the stamp.
    Stamp,
    /// Between the stamp and the slots.
    Look,
}

/// An atomic word.
pub(super) trait Atomic {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fence(place: Place);
}

impl Atomic for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn fence(place: Place) {
        match place {
            Place::Pin => barrier::light(),
            Place::Stamp => std::sync::atomic::fence(Ordering::SeqCst),
            Place::Look => barrier::heavy(),
        }
    }
}

#[inline]
pub(super) fn pin<A: Atomic>(slot: &A, epoch: &A) {
    // A retirer that loads this epoch, and not the 0 before it, has to see that the reads before that 0 have ended, too.
    slot.store(epoch.load(Ordering::Acquire), Ordering::Release);
    // No later read moves before the store.
    A::fence(Place::Pin);
}

#[inline]
pub(super) fn unpin<A: Atomic>(slot: &A) {
    slot.store(0, Ordering::Release);
}

pub(super) fn stamp<A: Atomic>(epoch: &A) -> u64 {
    A::fence(Place::Stamp);
    epoch.fetch_add(1, Ordering::SeqCst)
}

/// The oldest of the slots that are pinned; `u64::MAX` if none is. The slots are listed after
/// the fence.
pub(super) fn oldest<'a, A, Slots>(slots: impl FnOnce() -> Slots) -> u64
where
    A: Atomic + 'a,
    Slots: Iterator<Item = &'a A>,
{
    A::fence(Place::Look);
    slots()
        .map(|slot| slot.load(Ordering::Acquire))
        .filter(|pinned| *pinned != 0)
        .min()
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    //! Every interleaving, and every value that a load may see, of a reader and a retirer: loom.

    use super::{Atomic, Place, oldest, pin, stamp, unpin};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::Ordering;

    const LIVE: u64 = 1;
    const RETIRED: u64 = 2;

    const PIN: u8 = 1;
    const STAMP: u8 = 2;
    const LOOK: u8 = 4;
    /// The store of a pin does not release.
    const RELEASE: u8 = 8;

    /// loom's atomic, without what is in `DROPPED`.
    #[derive(Debug)]
    struct Model<const DROPPED: u8>(loom::sync::atomic::AtomicU64);

    impl<const DROPPED: u8> Model<DROPPED> {
        fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }
    }

    impl<const DROPPED: u8> Atomic for Model<DROPPED> {
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            let is_weak = value != 0 && DROPPED & RELEASE != 0;
            self.0.store(value, if is_weak { Ordering::Relaxed } else { order });
        }

        fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, order)
        }

        fn fence(place: Place) {
            let bit = match place {
                Place::Pin => PIN,
                Place::Stamp => STAMP,
                Place::Look => LOOK,
            };
            if DROPPED & bit == 0 {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        }
    }

    /// A page: its role, and bytes that loom watches for a reader and a writer at once.
    struct World<const DROPPED: u8> {
        epoch: Model<DROPPED>,
        slots: Vec<Model<DROPPED>>,
        role: loom::sync::atomic::AtomicU64,
        bytes: UnsafeCell<u64>,
    }

    impl<const DROPPED: u8> World<DROPPED> {
        /// Reads the page as often as said, each time pinned anew.
        fn read(&self, slot: usize, times: usize) {
            (0..times).for_each(|_| self.read_once(slot));
        }

        fn read_once(&self, slot: usize) {
            pin(&self.slots[slot], &self.epoch);
            if self.role.load(Ordering::Acquire) == LIVE {
                // SAFETY: no thread writes meanwhile; loom is asked to refute this.
                let first = self.bytes.with(|bytes| unsafe { *bytes });
                loom::thread::yield_now();
                // SAFETY: as above.
                let second = self.bytes.with(|bytes| unsafe { *bytes });
                assert_eq!(first, second, "the page was used again under a reader");
            }
            unpin(&self.slots[slot]);
        }

        /// Retires the page and uses it again if no reader can be reading it: true if so.
        fn reuse(&self) -> bool {
            let retired =
                self.role.compare_exchange(LIVE, RETIRED, Ordering::SeqCst, Ordering::Relaxed);
            assert!(retired.is_ok());
            let drawn = stamp(&self.epoch);
            if drawn >= oldest(|| self.slots.iter()) {
                return false;
            }
            // SAFETY: no thread reads meanwhile; loom is asked to refute this.
            self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
            self.role.store(LIVE, Ordering::Release);
            true
        }
    }

    /// Runs all interleavings of so many readers, which read so often; returns how many used the page again and how
    /// many had to wait.
    fn explore<const DROPPED: u8>(readers: usize, times: usize) -> (usize, usize) {
        use std::sync::atomic::AtomicUsize;
        let reused = std::sync::Arc::new(AtomicUsize::new(0));
        let waited = std::sync::Arc::new(AtomicUsize::new(0));
        let counts = (reused.clone(), waited.clone());
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let world = Arc::new(World::<DROPPED> {
                epoch: Model::new(1),
                slots: (0..readers).map(|_| Model::new(0)).collect(),
                role: loom::sync::atomic::AtomicU64::new(LIVE),
                bytes: UnsafeCell::new(0),
            });
            let threads: Vec<_> = (0..readers)
                .map(|slot| {
                    let world = world.clone();
                    loom::thread::spawn(move || world.read(slot, times))
                })
                .collect();
            let count = if world.reuse() { &counts.0 } else { &counts.1 };
            count.fetch_add(1, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        (reused.load(Ordering::Relaxed), waited.load(Ordering::Relaxed))
    }

    fn is_caught<const DROPPED: u8>(times: usize) -> bool {
        catch_unwind(AssertUnwindSafe(|| explore::<DROPPED>(1, times))).is_err()
    }

    #[test]
    fn a_retired_page_is_never_used_again_under_a_reader() {
        // A reader that pins again has unpinned before: the new epoch stands for the end of the first read.
        for (readers, times) in [(1, 1), (2, 1), (1, 2)] {
            let (reused, waited) = explore::<0>(readers, times);
            assert!(reused > 0 && waited > 0, "{reused} {waited}");
        }
    }

    #[test]
    fn without_the_readers_fence_it_is() {
        assert!(is_caught::<PIN>(1));
    }

    /// The epoch of the second pin hides the 0 that has ended the first read.
    #[test]
    fn without_a_release_of_the_second_pin_it_is() {
        assert!(is_caught::<RELEASE>(2) && !is_caught::<RELEASE>(1));
    }

    #[test]
    fn without_the_retirers_fences_it_is() {
        assert!(is_caught::<{ STAMP | LOOK }>(1));
    }

    /// The stamp and the look are both between the retired page and the slots.
    #[test]
    fn either_of_the_retirers_fences_is_enough_for_this() {
        assert!(!is_caught::<STAMP>(1));
        assert!(!is_caught::<LOOK>(1));
    }
}
