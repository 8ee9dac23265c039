//! Which sync covers a flush: the numbers of the rounds, without the device and the waiting.
//!
//! ```text
//!   flush ──▶ draw: generation 3 ──▶ ask ──▶ round 3 begins ──▶ it ends: all up to 3 is durable
//!             nothing is begun      wanted   takes all that     or it fails: nothing
//!             for it                         is dirty by then   from 3 on ever is
//! ```
//!
//! A flush is covered by the next round that begins, or, if the last that began took it along
//! (nothing is dirty since), by that one, which may be under way. [`sync`](super::sync) runs the
//! rounds over a device; the crash simulator runs the same numbers over its own.

use super::SyncError;
use crate::mutant;

/// The rounds of one medium.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    /// The last round that began.
    begun: u64,
    running: bool,
    /// The last round that ended well.
    ended: u64,
    /// Somebody asked for the rounds up to this one.
    wanted: u64,
    error: Option<SyncError>,
}

impl Rounds {
    /// The generation of the round that covers everything flushed so far; `dirty`: something was
    /// flushed since the last one began.
    pub(crate) fn covering(&self, dirty: bool) -> u64 {
        self.begun + u64::from(dirty && !mutant!("pmem.sync.covers"))
    }

    /// Asks for the rounds up to `generation`; false if that changes nothing.
    pub(crate) fn want(&mut self, generation: u64) -> bool {
        let changes = generation > self.wanted.max(self.ended) && self.error.is_none();
        if changes {
            self.wanted = generation;
        }
        changes
    }

    /// True if somebody asked for the round of `generation`.
    pub(crate) fn is_wanted(&self, generation: u64) -> bool {
        generation <= self.wanted
    }

    /// True if a round is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// True if a round has been asked for that has not begun, and none is in its way.
    pub(crate) fn is_due(&self) -> bool {
        !self.running && self.wanted > self.ended && self.error.is_none()
    }

    /// Begins a round, when none is under way; its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.running = true;
        self.begun
    }

    /// Ends the round under way; true if it made durable what it covers. The first that fails is
    /// the last that counts.
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

    /// True once the round of `generation` has ended well.
    ///
    /// # Errors
    /// If it never will.
    pub(crate) fn is_done(&self, generation: u64) -> Result<bool, SyncError> {
        match &self.error {
            _ if self.ended >= generation => Ok(true),
            Some(error) => Err(error.clone()),
            None => Ok(false),
        }
    }

    /// The error of the round that failed.
    pub(crate) fn error(&self) -> Option<&SyncError> {
        self.error.as_ref()
    }
}
