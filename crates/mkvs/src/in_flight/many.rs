//! For threads that go through many keys at once: waiting for writers, and noticing that they must look again.

use super::{InFlight, KeyLock, STRIPES};
use coreplane_pmem::isolation::Isolation;
use std::sync::atomic::{Ordering, fence};

impl InFlight {
    /// Waits until all writers that began before the call have ended. Not for a thread that has a key lock.
    pub(crate) fn wait_for_key_locks(&self) {
        (0..STRIPES).for_each(|stripe| drop(self.lock_key(stripe)));
    }

    /// How many writes have been taken back: if the number has grown meanwhile, a thread that goes through many
    /// keys may have seen such a write.
    pub(crate) fn taken_back(&self) -> u64 {
        self.taken_back.load(Ordering::Acquire)
    }

    /// True if no write was taken back since, and none will be that may have been seen by then. Not for a thread
    /// that has a key lock.
    pub(crate) fn is_as_before(&self, taken_back: u64, batches: &Isolation) -> bool {
        // Earlier loads are not moved behind it.
        fence(Ordering::Acquire);
        if batches.quiet().is_none() {
            // A key that a batch has deleted was not seen, and the delete may be taken back: so wait for the batch.
            self.wait_for_key_locks();
        }
        self.taken_back() == taken_back
    }

    /// All key locks: no thread writes until they are dropped.
    pub(crate) fn all_turns(&self) -> Vec<KeyLock<'_>> {
        (0..STRIPES).map(|stripe| self.lock_key(stripe)).collect()
    }

    /// All devices are empty. The caller has all key locks.
    pub(crate) fn forget(&self) {
        for number in 0..STRIPES {
            let mut entries = self.entries(number);
            entries.clear();
            self.count(number, 0, 1);
        }
        self.doubt.store(u64::MAX, Ordering::Release);
    }

    /// Approximately the tombstones that devices keep.
    pub(crate) fn tombstones(&self) -> u64 {
        self.tombstones.load(Ordering::Acquire)
    }

    /// Devices are given more tombstones.
    #[inline]
    pub(crate) fn keep_tombstones(&self, count: u64) {
        if count > 0 {
            self.tombstones.fetch_add(count, Ordering::AcqRel);
        }
    }

    /// Devices need not keep so many tombstones any more.
    pub(crate) fn let_tombstones_go(&self, count: u64) {
        self.tombstones.fetch_sub(count, Ordering::AcqRel);
    }

    /// A write has been taken back on all devices, and its entries are still there.
    pub(crate) fn count_taken_back(&self) {
        self.taken_back.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_is_taken_back_while_a_batch_is_waited_for_is_looked_at_again() {
        let (in_flight, batches) = (InFlight::new(), Isolation::default());
        let before = in_flight.taken_back();
        assert!(in_flight.is_as_before(before, &batches));
        let is_refused = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (turn, publishing) = (in_flight.lock_key(3), batches.begin());
            let looks = scope.spawn(|| {
                let is_as_before = in_flight.is_as_before(before, &batches);
                (is_refused.load(Ordering::SeqCst), is_as_before)
            });
            // It waits, although it has found nothing.
            while !looks.is_finished() && !is_refused.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(20));
                is_refused.store(true, Ordering::SeqCst);
            }
            in_flight.count_taken_back();
            drop((publishing, turn));
            assert_eq!(looks.join().expect("no panic"), (true, false));
        });
        assert!(in_flight.is_as_before(in_flight.taken_back(), &batches));
    }
}
