//! One clock for all devices, which never goes back.
//!
//! A device that has reported a record as expired does not show it again, even if the clock goes back. Its peers
//! were not asked, and must not show it either: so all devices ask this clock, which returns no time before one
//! that it has returned, nor before one that a device has stored earlier.

use coreplane_engine::{TimeSource, UnixMillis};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Clock {
    source: TimeSource,
    told: AtomicU64,
}

impl Clock {
    pub(crate) fn new(source: TimeSource) -> Self {
        Self { source, told: AtomicU64::new(0) }
    }

    /// Makes the clock return no time before this one.
    pub(crate) fn raise(&self, to: UnixMillis) {
        self.told.fetch_max(to.0, Ordering::AcqRel);
    }

    pub(crate) fn now(&self) -> UnixMillis {
        let now = (self.source)();
        let told = self.told.load(Ordering::Acquire);
        // Mostly this time was returned a moment ago.
        if now.0 <= told {
            return UnixMillis(told);
        }
        UnixMillis(self.told.fetch_max(now.0, Ordering::AcqRel).max(now.0))
    }

    /// As a time source for devices.
    pub(crate) fn source(self: &Arc<Self>) -> TimeSource {
        let clock = Arc::clone(self);
        Arc::new(move || clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::model::ManualClock;

    #[test]
    fn it_never_goes_back() {
        let manual = ManualClock::starting_at(UnixMillis(1000));
        let clock = Arc::new(Clock::new(manual.as_clock()));
        assert_eq!(clock.now(), UnixMillis(1000));
        manual.set(UnixMillis(500));
        assert_eq!((clock.source())(), UnixMillis(1000));
        clock.raise(UnixMillis(2000));
        manual.set(UnixMillis(1500));
        assert_eq!(clock.now(), UnixMillis(2000));
        manual.set(UnixMillis(2500));
        assert_eq!(clock.now(), UnixMillis(2500));
    }
}
