//! Entries that a leader holds in DRAM for the nodes that it fills.
//!
//! ```text
//!   transfer begins ── pages ── last page ── entries behind the snapshot ── entries that the ring has anyway
//!        └──────────────── the node's entries are held ────────────────────────┘
//! ```
//!
//! A snapshot is followed by the entries behind it. Applied entries are in the ring alone ([`ring`](crate::ring)),
//! which would drop them while the pages are sent. Held are the entries behind the oldest snapshot that is being
//! sent, or behind the last entry of a node that has got one and lags. More than
//! [`Settings::held_bytes`](super::Settings::held_bytes) are not held, and none for a node that is silent: that node
//! is sent another snapshot.

use super::transfer::PATIENCE;
use super::{Node, State};
use crate::members::NodeId;
use coreplane_engine::Result;
use raft::{ProgressState, StateRole};

impl Node {
    /// Holds the entries behind the snapshot that a node is sent, which ends here.
    pub(super) fn begin_hold(&mut self, node: NodeId, end: u64) -> Result<()> {
        self.holds.insert(node, end);
        self.tend_holds()
    }

    /// Ends the holds that are not needed any more, or in vain.
    pub(super) fn tend_holds(&mut self) -> Result<()> {
        let mut view = self.view.0.lock();
        let progress = match &self.state {
            State::Running(raw) if raw.raft.state == StateRole::Leader => Some(raw.raft.prs()),
            _ => None,
        };
        let patience = PATIENCE * self.settings.election_ticks;
        self.holds.retain(|node, behind| {
            let Some(progress) = progress.and_then(|all| all.get(*node)) else { return false };
            if progress.state == ProgressState::Replicate {
                // Before, what it has matched may be that of an earlier state of it.
                *behind = (*behind).max(progress.matched);
            }
            let is_silent = self.silence.get(node).is_some_and(|ticks| *ticks > patience);
            let lags = || !is_silent && !view.keeps_all_behind(*behind);
            view.has_all_behind(*behind) && (self.transfers.contains_key(node) || lags())
        });
        view.hold(self.holds.values().min().copied())
    }
}
