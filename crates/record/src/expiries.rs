//! The time at which a background sweep of expired records is due.

use coreplane_engine::UnixMillis;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often to check whether a record has expired.
const LOOK: Duration = Duration::from_millis(100);
/// Within a round a sweep rests this many times as long as it has worked.
const REST: u32 = 7;
/// Between rounds it rests this many times as long as the last round has worked: if much is to expire, every round
/// finds a little of it.
const REST_AFTER: u32 = 20;
const REST_AFTER_MIN: Duration = Duration::from_secs(1);

/// A sweep works about this long at a time.
pub const SWEEP_SLICE: Duration = Duration::from_micros(500);

/// How long a sweep rests.
#[derive(Debug, Clone, Copy)]
pub enum SweepRest {
    /// Nothing has expired.
    Idle,
    /// It has worked so long at a part of a round.
    Part(Duration),
    /// It has worked so long at a round.
    Round(Duration),
    /// It has failed.
    Failure,
}

impl From<SweepRest> for Duration {
    fn from(rest: SweepRest) -> Self {
        match rest {
            SweepRest::Idle => LOOK,
            SweepRest::Part(worked) => worked * REST,
            SweepRest::Round(worked) => (worked * REST_AFTER).max(REST_AFTER_MIN),
            SweepRest::Failure => Self::from_secs(10),
        }
    }
}

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
