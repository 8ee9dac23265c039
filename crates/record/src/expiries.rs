//! The time at which a background sweep of expired records is due.

use coreplane_engine::UnixMillis;
use std::sync::atomic::{AtomicU64, Ordering};

/// When the first record expires.
#[derive(Debug)]
pub struct Expiries {
    /// In milliseconds since 1970; no record in the store expires before.
    soonest: AtomicU64,
}

impl Expiries {
    /// Of a store without expiries.
    pub fn none() -> Self {
        Self { soonest: AtomicU64::new(u64::MAX) }
    }

    /// Of a store whose expiries are unknown.
    pub fn unknown() -> Self {
        Self { soonest: AtomicU64::new(0) }
    }

    /// Notes a record with this expiry; the record is found from now on, or is locked until it is.
    #[inline]
    pub fn note(&self, expires_at: Option<UnixMillis>) {
        if let Some(UnixMillis(at)) = expires_at
            && at < self.soonest.load(Ordering::Relaxed)
        {
            self.soonest.fetch_min(at, Ordering::AcqRel);
        }
    }

    /// True if a record may have expired.
    pub fn is_due(&self, now: UnixMillis) -> bool {
        let soonest = self.soonest.load(Ordering::Acquire);
        soonest <= now.0 && soonest != u64::MAX
    }

    /// A round through all records begins, which notes the least expiry that lies ahead. Later writes are noted by
    /// their writers.
    pub fn begin_round(&self) {
        self.soonest.swap(u64::MAX, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_due_before_the_first_expiry_that_was_noted() {
        let expiries = Expiries::none();
        assert!(!expiries.is_due(UnixMillis(u64::MAX)));
        expiries.note(None);
        assert!(!expiries.is_due(UnixMillis(u64::MAX)));
        for at in [30, 20, 40] {
            expiries.note(Some(UnixMillis(at)));
        }
        assert!(!expiries.is_due(UnixMillis(19)));
        assert!(expiries.is_due(UnixMillis(20)));
        assert!(Expiries::unknown().is_due(UnixMillis(0)));
    }
}
