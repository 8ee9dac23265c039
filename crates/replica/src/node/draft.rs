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

use super::propose::RECORD;
use super::{Node, Open, Proposal, State};
use crate::entry::encode_last_changes;
use coreplane_engine::{Batch, Error, Result};
use coreplane_pmem::mutant;
use crc32c::crc32c;
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
    /// The CRC-32C of each key.
    keys: Vec<u32>,
    /// The part of the node's unwritten bytes that is the draft's.
    unwritten: u64,
    /// There was ample room for a full draft when it began: no change that joins it is asked for.
    has_ample_room: bool,
}

impl Draft {
    /// True if the draft's changes and these may be one entry.
    fn takes(&self, changes: &Batch) -> bool {
        // Another key with the same checksum ends the draft, too.
        let is_known = |key: &[u8]| self.keys.contains(&crc32c(key));
        let is_repeated = changes.changes().any(|change| is_known(change.key()));
        bytes_of(&self.changes) + bytes_of(changes) <= BYTES_MAX
            && self.changes.len() + changes.len() <= CHANGES_MAX
            && (!is_repeated || mutant!("replica.draft.twice"))
    }

    /// Adds changes, which have so many unwritten bytes.
    fn add(&mut self, changes: &Batch, unwritten: u64) {
        for change in changes.changes() {
            self.changes.push(change);
            self.keys.push(crc32c(change.key()));
        }
        self.unwritten += unwritten;
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
        if !self.draft.as_ref().is_some_and(|draft| draft.takes(changes)) {
            self.end_draft();
        }
        if !self.has_room_in_draft(changes) {
            // There may be room for these changes alone: deletes have pages that puts do not get.
            return self.propose(changes, None);
        }
        let mut draft = match self.draft.take() {
            Some(draft) => draft,
            None => self.begin_draft()?,
        };
        let before = self.unwritten;
        self.note_unwritten(changes);
        draft.add(changes, self.unwritten - before);
        let Draft { number, index, .. } = *self.draft.insert(draft);
        Ok(Proposal { number, index })
    }

    /// True if there is room for the draft with these changes.
    fn has_room_in_draft(&self, changes: &Batch) -> bool {
        let map = &self.view().map;
        let Some(draft) = &self.draft else {
            return map.check_room(changes, self.unwritten).is_ok();
        };
        if draft.has_ample_room {
            return true;
        }
        let mut joined = draft.changes.clone();
        for change in changes.changes() {
            joined.push(change);
        }
        map.check_room(&joined, self.unwritten - draft.unwritten).is_ok()
    }

    /// An empty draft, with the next number and index.
    fn begin_draft(&mut self) -> Result<Draft> {
        // Each unwritten change counts as an entry of its own.
        let count = CHANGES_MAX as u64 + self.unwritten / RECORD as u64;
        let most = (count, count, BYTES_MAX as u64 + self.unwritten);
        let has_ample_room = self.view().map.has_ample_room(most);
        let State::Running(raw) = &self.state else { return Err(Error::Installing) };
        let (term, number) = (raw.raft.term, self.next_number);
        let index = raw.raft.raft_log.last_index() + 1;
        self.next_number += 1;
        self.proposals.insert(number, Open { term, index: None });
        let changes = Batch::with_capacity(CHANGES_MAX, BYTES_MAX);
        let keys = Vec::with_capacity(CHANGES_MAX);
        Ok(Draft { term, number, index, changes, keys, unwritten: 0, has_ample_room })
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
