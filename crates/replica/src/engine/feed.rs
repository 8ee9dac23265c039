//! The change feed: entries that are applied, in their order, as one watches them.
//!
//! ```text
//!   snapshot at index i, once ─▶ entries behind i ─▶ … as they are applied, on any node
//!                                     └─ gone (a node that was started anew, or a reader that is slow): a snapshot again
//! ```
//!
//! What is shown is durable with a majority, and no entry is left out: one who watches another node from the last index that
//! was shown goes on where that was. A node has as much of the history as its ring in DRAM
//! ([`Settings::ring_bytes`](crate::Settings)); of what is older it says that it is gone.

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
    /// The last entry that was looked at.
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
    /// Entries that are applied here, those behind this index in their order, of so many bytes, or one. Those of the
    /// cluster's own are among them, without changes. None if nothing newer is applied here.
    ///
    /// # Errors
    /// [`Error::HistoryGone`] if not all of them are in DRAM any more: a [snapshot](Replica::snapshot) has what they have
    /// made. [`Error::Closed`]; if the node has stopped.
    pub fn changes_since(&self, index: u64, bytes_max: usize) -> Result<Vec<AppliedEntry>> {
        let core = self.core.lock();
        let entries = match core.is_closed {
            true => Err(Error::Closed),
            false => core.node.applied_since(index, bytes_max),
        };
        drop(core);
        Ok(entries?.iter().map(applied).collect())
    }

    /// The entry that was applied last here.
    pub fn applied(&self) -> u64 {
        self.core.lock().node.applied()
    }

    /// Registers who is called, from any thread, whenever more is applied here.
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
    /// The last entry that was shown, or had no changes: where to begin again, on this node or another.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The next entry with changes; none if none is applied within this time.
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
