//! `CLIENT PAUSE`: for a while commands wait, either all or those that write.
//!
//! Without a pause this costs a command one read of a word that is not written. A command that has to wait is
//! postponed, like a command for which the engine is not ready: its loop comes back to it.
//!
//! A pause begins while its loop is alone ([`isolation`](crate::isolation)). So each command of another loop has
//! ended, or has not been found to be free of a pause; or it waits to be alone itself, and then looks again. One that
//! the leader of a cluster is to run waits to be sent, and its loop looks again when it is (`upstream::delivery`).

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The commands that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Paused {
    /// Commands that write.
    Writes,
    /// All.
    All,
}

/// The pause, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    /// There may be a pause; saves the lock where there is none.
    is_set: AtomicBool,
    until: Mutex<Option<(Instant, Paused)>>,
}

impl Pause {
    /// Begins a pause, or extends the present one in length and in scope.
    pub(crate) fn begin(&self, until: Instant, what: Paused) {
        let mut now = self.until.lock();
        let (end, held) = now.unwrap_or((until, what));
        *now = Some((end.max(until), held.max(what)));
        self.is_set.store(true, Ordering::Release);
    }

    /// Ends the pause.
    pub(crate) fn end(&self) {
        *self.until.lock() = None;
        self.is_set.store(false, Ordering::Release);
    }

    /// The commands that wait now; none if none does.
    pub(crate) fn now(&self) -> Option<Paused> {
        if !self.is_set.load(Ordering::Acquire) {
            return None;
        }
        let mut until = self.until.lock();
        if until.is_some_and(|(end, _)| end <= Instant::now()) {
            *until = None;
            self.is_set.store(false, Ordering::Release);
        }
        until.map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_second_pause_only_adds() {
        let pause = Pause::default();
        assert_eq!(pause.now(), None);
        let hour = Instant::now() + Duration::from_secs(3600);
        pause.begin(hour, Paused::All);
        pause.begin(Instant::now(), Paused::Writes);
        assert_eq!(pause.now(), Some(Paused::All));
        pause.end();
        assert_eq!(pause.now(), None);
        pause.begin(Instant::now(), Paused::All);
        assert_eq!(pause.now(), None, "its time has passed");
    }
}
