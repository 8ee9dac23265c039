//! Decides which sync covers a flush: the numbering of rounds, without the device and the waiting.
//!
//! ```text
//!   flush ──▶ draw: generation 3 ─▶ request ─▶ round 3 begins ─▶ it ends: all up to 3 is durable
//!             begins no round       wanted     takes all that    or it fails: nothing
//!                                              is dirty then     from 3 on becomes durable
//! ```
//!
//! A flush is covered by the next round that begins, or, if the last round that began covers it
//! (nothing is dirty since), by that one, which may be under way. [`sync`](super::sync) runs the
//! rounds on a device; the crash simulator uses the same numbering with its own device.

use super::SyncError;
use crate::mutant;

/// The rounds of one medium.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    /// The last round that began.
    begun: u64,
    running: bool,
    /// The last round that succeeded.
    ended: u64,
    /// The rounds up to this one are requested.
    wanted: u64,
    error: Option<SyncError>,
}

impl Rounds {
    /// The generation of the round that covers everything flushed so far; `dirty`: there were
    /// flushes since the last one began.
    pub(crate) fn covering(&self, dirty: bool) -> u64 {
        self.begun + u64::from(dirty && !mutant!("pmem.sync.covers"))
    }

    /// Requests the rounds up to `generation`; false if that changes nothing.
    pub(crate) fn want(&mut self, generation: u64) -> bool {
        let changes = generation > self.wanted.max(self.ended) && self.error.is_none();
        if changes {
            self.wanted = generation;
        }
        changes
    }

    /// True if the round of `generation` was requested.
    pub(crate) fn is_wanted(&self, generation: u64) -> bool {
        generation <= self.wanted
    }

    /// True if a round is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// True if a requested round has not begun, and none is under way.
    pub(crate) fn is_due(&self) -> bool {
        !self.running && self.wanted > self.ended && self.error.is_none()
    }

    /// Begins a round, when none is under way; returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.running = true;
        self.begun
    }

    /// Ends the round under way; true if it made its flushes durable. After the first failure no
    /// round counts.
    pub(crate) fn end(&mut self, result: Result<(), SyncError>) -> bool {
        self.running = false;
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
        if self.error.is_none() || mutant!("pmem.sync.failure") {
            self.ended = self.begun;
        }
        self.error.is_none()
    }

    /// True once the round of `generation` has succeeded.
    ///
    /// # Errors
    /// If it can never succeed.
    pub(crate) fn is_done(&self, generation: u64) -> Result<bool, SyncError> {
        match &self.error {
            _ if self.ended >= generation => Ok(true),
            Some(error) => Err(error.clone()),
            None => Ok(false),
        }
    }

    /// The rounds of the next process on the medium: it knows of no flush and of no round before it.
    pub(crate) fn of_next_process(&self) -> Self {
        let begun = self.begun;
        Self { begun, running: false, ended: begun, wanted: begun, error: None }
    }

    /// The error of the round that failed.
    pub(crate) fn error(&self) -> Option<&SyncError> {
        self.error.as_ref()
    }
}
