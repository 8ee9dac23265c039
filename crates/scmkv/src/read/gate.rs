//! The gate: readers wait at it while a batch is being published.

use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::{self, Backoff};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Looks beside batches before the next batch has to wait.
const TRIES: usize = 8;

/// Keeps readers from seeing a batch in part: its count is odd while one is being published.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    count: AtomicU64,
    publishing: Mutex<()>,
}

impl Gate {
    /// Waits until no batch is being published; returns the count to compare with afterwards.
    #[inline]
    pub(crate) fn enter(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            let count = self.count.load(Ordering::Acquire);
            if count & 1 == 0 {
                return count;
            }
            backoff.wait();
        }
    }

    /// Odd while a batch is being published.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// True if no batch was published since [`Gate::enter`] gave `before`.
    #[inline]
    pub(crate) fn is_unchanged(&self, before: u64) -> bool {
        self.count.load(Ordering::Acquire) == before
    }

    /// Runs `look`, and repeats it if a batch was published meanwhile; the last time, none can be.
    #[inline]
    pub(crate) fn read<R>(&self, mut look: impl FnMut() -> Result<R>) -> Result<R> {
        for _ in 0..TRIES {
            let before = self.enter();
            let seen = look()?;
            if self.is_unchanged(before) {
                return Ok(seen);
            }
        }
        self.read_alone(&mut look)
    }

    /// Runs `look` while no batch can be published; `look` must not wait for a publisher.
    #[cold]
    fn read_alone<R>(&self, look: &mut dyn FnMut() -> Result<R>) -> Result<R> {
        let _publishing = spin::lock(&self.publishing);
        look()
    }

    /// Runs `publish` while readers wait.
    pub(crate) fn publish<R>(&self, publish: impl FnOnce() -> R) -> R {
        let _publishing = spin::lock(&self.publishing);
        if mutant!("scmkv.batch.gate") {
            return publish();
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        let result = publish();
        self.count.fetch_add(1, Ordering::SeqCst);
        // The publisher's own later reads come after its slots, as those of other writes do. On x86
        // the addition is the barrier.
        if cfg!(not(target_arch = "x86_64")) {
            fence(Ordering::SeqCst);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where batches come all the time, a look at many keys would meet one each time.
    #[test]
    fn a_look_is_not_repeated_without_end_beside_batches() {
        let gate = Gate::default();
        let mut looks = 0;
        let seen = gate.read(|| {
            looks += 1;
            let can_publish = gate.publishing.try_lock().is_some();
            if can_publish && looks < 1000 {
                gate.publish(|| ());
            }
            Ok(looks)
        });
        assert_eq!(seen.expect("a look"), TRIES + 1);
    }
}
