//! The change feed: applied entries, in their order, for watchers.
//!
//! ```text
//!   snapshot at index i, once ─▶ entries behind i ─▶ … as they are applied, on any node
//!                                     └─ gone (the node was started anew, or the reader is slow): a snapshot again
//! ```
//!
//! Every entry that the feed shows is durable with a majority, and none is left out: a watcher that moves to another
//! node continues there behind the last index that it was shown. A node keeps as much of the history as its ring in
//! DRAM holds ([`Settings::ring_bytes`](crate::Settings)); for older entries it returns an error.

use super::Replica;
use crate::entry::decode_changes;
use crate::node::AppliedEntry;
use coreplane_engine::{Batch, DurableListener, Error, Result};
use raft::eraftpb::{Entry, EntryType};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of entries that a feed takes at once.
const AHEAD_BYTES: usize = 64 << 10;

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The entries that a node applies, one after the other.
#[derive(Debug)]
pub struct ChangeFeed {
    replica: Arc<Replica>,
    /// The last entry that was taken.
    index: u64,
    ahead: VecDeque<AppliedEntry>,
}

fn applied(entry: &Entry) -> AppliedEntry {
    let changes = match entry.get_entry_type() {
        EntryType::EntryNormal => decode_changes(&entry.data).unwrap_or_default(),
        _ => Batch::new(),
    };
    AppliedEntry { index: entry.index, changes }
}

impl Replica {
    /// Entries that are applied here, those behind this index in their order, up to so many bytes, but at least one.
    /// The cluster's own entries are among them, without changes. Empty if no newer entry is applied here.
    ///
    /// # Errors
    /// [`Error::HistoryGone`] if not all of them are in DRAM any more: a [snapshot](Replica::snapshot) contains their
    /// effects. [`Error::Closed`]; if the node has stopped.
    pub fn changes_since(&self, index: u64, bytes_max: usize) -> Result<Vec<AppliedEntry>> {
        let core = self.core.lock();
        let entries = match core.is_closed {
            true => Err(Error::Closed),
            false => core.node.applied_since(index, bytes_max),
        };
        drop(core);
        Ok(entries?.iter().map(applied).collect())
    }

    /// The last entry that is applied here.
    pub fn applied(&self) -> u64 {
        self.core.lock().node.applied()
    }

    /// Registers a listener that is called, from any thread, whenever more is applied here.
    pub fn on_applied(&self, listener: DurableListener) {
        self.listeners_applied.write().push(listener);
    }

    /// Watches the changes behind this index.
    #[must_use]
    pub fn watch(self: &Arc<Self>, index: u64) -> ChangeFeed {
        ChangeFeed { replica: Arc::clone(self), index, ahead: VecDeque::new() }
    }
}

impl ChangeFeed {
    /// The last entry that was shown, or had no changes: the place to begin again, on this node or another.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The next entry with changes; none if no such entry is applied within this time.
    ///
    /// # Errors
    /// As [`Replica::changes_since`].
    pub fn next_within(&mut self, wait: Duration) -> Result<Option<AppliedEntry>> {
        let deadline = Instant::now() + wait.min(WAIT_MAX);
        loop {
            while let Some(entry) = self.ahead.pop_front() {
                self.index = entry.index;
                if !entry.changes.is_empty() {
                    return Ok(Some(entry));
                }
            }
            let mut core = self.replica.core.lock();
            if core.is_closed {
                return Err(Error::Closed);
            }
            let entries = core.node.applied_since(self.index, AHEAD_BYTES)?;
            self.ahead.extend(entries.iter().map(applied));
            if self.ahead.is_empty()
                && self.replica.changed.wait_until(&mut core, deadline).timed_out()
            {
                return Ok(None);
            }
        }
    }
}
