//! The gate: readers wait at it while a batch is being published.

use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Keeps readers from seeing a batch in part: its count is odd while one is being published.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    count: AtomicU64,
    publishing: Mutex<()>,
}

impl Gate {
    /// Waits until no batch is being published; the count to compare with afterwards.
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

    /// Runs `publish` while readers wait.
    pub(crate) fn publish<R>(&self, publish: impl FnOnce() -> R) -> R {
        let _publishing = self.publishing.lock();
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
