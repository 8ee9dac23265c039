//! The durable fence of `file` media: one sync of the dirty ranges, shared by all who wait.
//!
//! A flush notes its range. A fence makes sure that a sync which *started* after that has ended:
//! the first thread to arrive leads, takes all ranges noted so far and syncs them; whoever
//! arrives meanwhile waits for the next round, which one of them leads. So a round covers every
//! writer that came during the one before.
//!
//! A sync that fails may have dropped the dirty pages for good (the kernel marks them clean), so
//! that no later sync can be believed: the first failure stops all.

use super::map::Mapping;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};

/// A sync of the medium failed: what was not yet durable may be lost.
#[derive(Debug, Clone, thiserror::Error)]
#[error("sync failed: {0}")]
pub struct SyncError(pub String);

#[derive(Debug)]
pub(super) struct Syncer {
    state: Mutex<State>,
    round_ended: Condvar,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Ranges noted and not yet taken by a round: start, end; merged where they touch.
    dirty: Vec<(u64, u64)>,
    /// Rounds started and ended; `started == ended` when nobody syncs.
    started: u64,
    ended: u64,
    error: Option<SyncError>,
}

/// Noted ranges closer than this are synced as one.
const MERGE_GAP: u64 = 64 << 10;

impl Syncer {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State::default()),
            round_ended: Condvar::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// Notes a range as dirty.
    pub(super) fn dirty(&self, offset: u64, len: u64) {
        let (start, end) = (offset, offset + len);
        let mut state = self.state.lock();
        for range in state.dirty.iter_mut().rev().take(8) {
            if start <= range.1 + MERGE_GAP && range.0 <= end + MERGE_GAP {
                *range = (range.0.min(start), range.1.max(end));
                return;
            }
        }
        state.dirty.push((start, end));
    }

    /// Returns once all that was noted before the call is durable.
    pub(super) fn sync(&self, mapping: &Mapping) -> Result<(), SyncError> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.ended >= wanted {
                return Ok(());
            }
            if state.started == state.ended {
                break;
            }
            self.round_ended.wait(&mut state);
        }
        state.started += 1;
        let ranges = std::mem::take(&mut state.dirty);
        drop(state);
        let result =
            ranges.iter().try_for_each(|(start, end)| mapping.sync_range(*start, end - start));
        let mut state = self.state.lock();
        state.ended += 1;
        let outcome = result.map_err(|error| SyncError(error.to_string()));
        if let Err(error) = &outcome {
            self.failed.store(true, Ordering::Release);
            state.error = Some(error.clone());
        }
        drop(state);
        self.round_ended.notify_all();
        outcome
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), SyncError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let error = self.state.lock().error.clone();
        Err(error.unwrap_or_else(|| SyncError("unknown".to_owned())))
    }
}
