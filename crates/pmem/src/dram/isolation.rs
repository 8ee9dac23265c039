//! Tells whether a batch was published during a read of several keys.
//!
//! The publisher of a batch counts its beginning and its end in two counters. A reader of several
//! keys first checks that all batches that began have ended, then reads, and then checks whether
//! another batch has begun. If so, it may have seen a part of that batch, and reads again.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Tells reads of several keys whether a batch was published in between.
#[derive(Debug, Default)]
pub struct Isolation {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A batch is being published until this is dropped.
#[derive(Debug)]
#[must_use = "it lasts until it is dropped"]
pub struct Publishing<'a>(&'a Isolation);

impl Isolation {
    /// The number of batches so far, if none is being published.
    pub fn quiet(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == ended).then_some(ended)
    }

    /// True if no publication has begun since.
    pub fn is_quiet_since(&self, quiet: u64) -> bool {
        // Earlier loads are not moved behind the load of the number.
        fence(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed) == quiet
    }

    /// Announces that a batch is about to be published.
    pub fn begin(&self) -> Publishing<'_> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        // A reader that sees any of its changes also sees that it has begun.
        fence(Ordering::Release);
        Publishing(self)
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_meanwhile_is_seen() {
        let isolation = Isolation::default();
        let quiet = isolation.quiet().unwrap();
        assert!(isolation.is_quiet_since(quiet));
        let (first, second) = (isolation.begin(), isolation.begin());
        assert!(isolation.quiet().is_none() && !isolation.is_quiet_since(quiet));
        drop(first);
        assert!(isolation.quiet().is_none(), "one of two has not ended");
        drop(second);
        let later = isolation.quiet().unwrap();
        assert!(later != quiet && isolation.is_quiet_since(later));
    }
}
