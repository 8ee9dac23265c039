//! The draft: small proposals that become one entry of the log.
//!
//! ```text
//!   propose a ─▶ draft {a}     propose b ─▶ draft {a b}     turn ─▶ entry {a b} ─▶ consensus
//! ```
//!
//! An entry costs every node about as much as a small change: its header, the record that closes it, and its place in
//! messages. So the proposals that arrive between two turns share one, with its number and its index. An entry is
//! made as a whole or not at all, so its proposals have one result.
//!
//! Consensus does nothing between the first change of a draft and its end: every call that steps it ends the draft
//! first. So the draft's term and index are those that consensus gives to its entry, and nothing that was accepted is
//! refused later.
//!
//! A key is in a draft once: a later change of it has a later index, and watchers are shown both.

use super::{Node, Open, Proposal, State};
use crate::entry::encode_last_changes;
use coreplane_engine::{Batch, Error, Result};
use coreplane_pmem::mutant;
use raft::StateRole;

/// Bytes of a draft, and its changes, at most. The records of an entry of a list are a group, which begins a page unless
/// it fits the open one. A page of 4 KiB has 4,080 bytes for records, of which the one that closes an entry takes 296
/// at most (280 in a list): a full draft fits a page.
const BYTES_MAX: usize = 3_780;
const CHANGES_MAX: usize = 64;

/// Bytes that a change takes beside its key and value, at most: the header of its record and the padding, rounded up.
const BESIDE: usize = 40;

/// Bytes that changes take in a page, at most.
fn bytes_of(changes: &Batch) -> usize {
    changes.bytes_len() + BESIDE * changes.len()
}

/// An entry that consensus does not know yet.
#[derive(Debug)]
pub(super) struct Draft {
    term: u64,
    number: u64,
    index: u64,
    changes: Batch,
    /// The part of the node's unwritten bytes that is the draft's.
    unwritten: u64,
}

impl Draft {
    /// The draft's changes and these, if they may be one entry.
    fn join(&self, changes: &Batch) -> Option<Batch> {
        let is_same = |key: &[u8]| self.changes.changes().any(|change| change.key() == key);
        let is_repeated = changes.changes().any(|change| is_same(change.key()));
        let fits = bytes_of(&self.changes) + bytes_of(changes) <= BYTES_MAX
            && self.changes.len() + changes.len() <= CHANGES_MAX;
        (fits && (!is_repeated || mutant!("replica.draft.twice"))).then(|| {
            let mut joined = self.changes.clone();
            for change in changes.changes() {
                joined.push(change);
            }
            joined
        })
    }
}

impl Node {
    /// As [`Node::propose`]; but small changes may join an entry that consensus does not know yet, and share its
    /// number and index.
    ///
    /// # Errors
    /// As [`Node::propose`].
    pub(crate) fn propose_to_join(&mut self, changes: &Batch) -> Result<Proposal> {
        let is_small = bytes_of(changes) <= BYTES_MAX / 2 && changes.len() <= CHANGES_MAX;
        if !is_small || !self.may_draft() {
            return self.propose(changes, None);
        }
        let joined = self.draft.as_ref().and_then(|draft| draft.join(changes));
        if joined.is_none() {
            self.end_draft();
        }
        let of_draft = self.draft.as_ref().map_or(0, |draft| draft.unwritten);
        let (entry, beside) = (joined.as_ref().unwrap_or(changes), self.unwritten - of_draft);
        if self.view().map.check_room(entry, beside).is_err() {
            // There may be room for these changes alone: deletes have pages that puts do not get.
            return self.propose(changes, None);
        }
        let entry = entry.clone();
        let before = self.unwritten;
        self.note_unwritten(changes);
        let added = self.unwritten - before;
        if let Some(draft) = &mut self.draft {
            (draft.changes, draft.unwritten) = (entry, draft.unwritten + added);
            return Ok(Proposal { number: draft.number, index: draft.index });
        }
        let State::Running(raw) = &self.state else { return Err(Error::Installing) };
        let (term, number) = (raw.raft.term, self.next_number);
        let index = raw.raft.raft_log.last_index() + 1;
        self.next_number += 1;
        self.proposals.insert(number, Open { term, index: None });
        self.draft = Some(Draft { term, number, index, changes: entry, unwritten: added });
        Ok(Proposal { number, index })
    }

    /// True if consensus will certainly take an entry of this node.
    fn may_draft(&self) -> bool {
        let State::Running(raw) = &self.state else { return false };
        let uncommitted = raw.raft.uncommitted_size() as u64 + 2 * BYTES_MAX as u64;
        self.stopped.is_none()
            && raw.raft.state == StateRole::Leader
            && raw.raft.lead_transferee.is_none()
            && raw.raft.prs().get(self.settings.id).is_some()
            && uncommitted <= self.settings.uncommitted_bytes
    }

    /// Gives the draft to consensus.
    pub(crate) fn end_draft(&mut self) {
        let Some(Draft { term, number, index, changes, .. }) = self.draft.take() else { return };
        let (context, data) = (self.context(number, None), encode_last_changes(&changes));
        let State::Running(raw) = &mut self.state else { return };
        let is_leader = raw.raft.state == StateRole::Leader && raw.raft.term == term;
        let is_taken = is_leader
            && raw.propose(context, data).is_ok()
            && raw.raft.raft_log.last_index() == index;
        if is_leader && !is_taken {
            // The module docs say why this does not happen. Its proposals are lost with the leadership.
            raw.raft.become_follower(term, raft::INVALID_ID);
        }
    }
}
