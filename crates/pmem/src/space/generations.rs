//! Durability without waiting: the generation of a sync that covers a write, for an event loop.
//!
//! The rounds that generations number are in [`sync`](super::sync).

use super::sync::{Listener, Syncer, lost};
use super::{Space, SyncError};
use crate::media::Behaviour;

impl Space {
    /// The generation of the sync that covers all flushes of this thread; this call begins no sync.
    /// Where a fence is an instruction it is made at once.
    pub fn sync_generation(&self) -> u64 {
        match (&self.behaviour, &self.syncer) {
            (Behaviour::File, Some(syncer)) => syncer.draw(),
            (Behaviour::Traced(trace), _) if !trace.fences_at_once() => trace.sync_generation(),
            _ => {
                // An instruction does not fail.
                let _always = self.fence().is_ok();
                0
            }
        }
    }

    /// Requests all syncs up to `generation`, without waiting for a device: [`Space::sync_is_done`]
    /// tells when they are done.
    pub fn sync_request(&self, generation: u64) {
        match (&self.behaviour, &self.syncer) {
            (Behaviour::File, Some(syncer)) => {
                self.count_fence();
                syncer.request(generation);
            }
            (Behaviour::Traced(trace), _) if !trace.fences_at_once() => {
                self.count_fence();
                trace.sync_request(generation);
            }
            _ => {}
        }
    }

    /// True once everything that `generation` covers is durable.
    ///
    /// # Errors
    /// [`SyncError`] if it can no longer become durable.
    #[inline]
    pub fn sync_is_done(&self, generation: u64) -> Result<bool, SyncError> {
        match (&self.behaviour, &self.syncer) {
            (Behaviour::File, Some(syncer)) => {
                let is_done = syncer.is_done(generation)?;
                self.check_lost().map_err(lost)?;
                Ok(is_done)
            }
            (Behaviour::Traced(trace), _) if !trace.fences_at_once() => {
                trace.sync_is_done(generation)
            }
            _ => self.check_sync().map(|()| true),
        }
    }

    /// Returns once everything that `generation` covers is durable.
    ///
    /// # Errors
    /// [`SyncError`] if it can no longer become durable.
    pub fn sync_wait(&self, generation: u64) -> Result<(), SyncError> {
        match (&self.behaviour, &self.syncer) {
            (Behaviour::File, Some(syncer)) => {
                self.count_fence();
                syncer.sync_to(generation)?;
                self.check_lost().map_err(lost)
            }
            (Behaviour::Traced(trace), _) if !trace.fences_at_once() => {
                if trace.sync_is_done(generation)? { Ok(()) } else { self.fence() }
            }
            _ => self.check_sync(),
        }
    }

    /// Calls `listener` after every sync, also a failed one, in the thread that made it. It must
    /// be quick and must not call back into the space. Never called where a fence is an
    /// instruction.
    pub fn on_synced(&self, listener: Listener) {
        if let Some(syncer) = &self.syncer {
            syncer.listen(listener);
        }
    }

    /// Calls `call` when a sync fails, before anybody else hears of it; a second call of this has no effect.
    pub(crate) fn on_sync_failure(&self, call: Box<dyn Fn() + Send + Sync>) {
        if let Some(syncer) = &self.syncer {
            syncer.on_failure(call);
        }
    }

    /// The number of successful syncs of the file; 0 where a fence is an instruction. Many fences
    /// share one sync.
    pub fn syncs(&self) -> u64 {
        self.syncer.as_ref().map_or(0, Syncer::ended)
    }

    /// For tests: every sync from now on fails.
    #[doc(hidden)]
    pub fn fail_syncs(&self) {
        if let Some(syncer) = &self.syncer {
            syncer.fail();
        }
    }
}
