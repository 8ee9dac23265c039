//! The time, as a test sets it.

use coreplane_engine::UnixMillis;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The source of an engine's time.
pub type Clock = Arc<dyn Fn() -> UnixMillis + Send + Sync>;

/// A clock that stands still until it is set. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    millis: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn starting_at(now: UnixMillis) -> Self {
        Self { millis: Arc::new(AtomicU64::new(now.0)) }
    }

    /// The time that it shows.
    pub fn now(&self) -> UnixMillis {
        UnixMillis(self.millis.load(Ordering::SeqCst))
    }

    /// Sets it, forward or back.
    pub fn set(&self, now: UnixMillis) {
        self.millis.store(now.0, Ordering::SeqCst);
    }

    /// Puts it forward.
    pub fn advance(&self, millis: u64) {
        self.millis.fetch_add(millis, Ordering::SeqCst);
    }

    /// The same clock, for an engine.
    pub fn as_clock(&self) -> Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }
}
