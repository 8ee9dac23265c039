//! Proposals: of changes, and of members.

use super::{Node, Open, Proposal, State};
use crate::entry::{CONTEXT_MAX, ENTRY_BYTES_MAX, encode_last_changes};
use crate::log_view::SharedView;
use crate::members::{CHANGE, MemberChange, NODES_MAX, encode_change, to_conf_change};
use coreplane_engine::{Batch, Error, Result, UnixMillis};
use coreplane_pmem::mutant;
use raft::{RawNode, StateRole};

/// Approximate bytes of a record beside its key and value.
pub(super) const RECORD: usize = 64;

impl Node {
    /// True if so much was proposed that it should be written before more is proposed.
    pub fn is_turn_due(&self) -> bool {
        self.unwritten >= self.view().map.room_at_once() && !mutant!("replica.turn.late")
    }

    /// Proposes changes that are made together. They may depend on a time that has `passed`: once they are applied,
    /// no node's clock is before it ([`Node::passed`]).
    ///
    /// # Errors
    /// [`Error::NotLeader`]; [`Error::Busy`] if too much is under way; [`Error::NoSpace`]; [`Error::KeyTooLong`],
    /// [`Error::ValueTooLong`], [`Error::BatchTooLarge`], [`Error::BatchTooLong`] if it is longer than
    /// [`ENTRY_BYTES_MAX`]; if the node has stopped.
    pub fn propose(&mut self, changes: &Batch, passed: Option<UnixMillis>) -> Result<Proposal> {
        let context = self.context(self.next_number, passed);
        let bytes = changes.bytes_len();
        if bytes > ENTRY_BYTES_MAX {
            return Err(Error::BatchTooLong { bytes, max: ENTRY_BYTES_MAX });
        }
        let beside = if mutant!("replica.room.alone") { 0 } else { self.unwritten };
        self.view().map.check_room(changes, beside)?;
        let data = encode_last_changes(changes);
        let proposal = self.propose_with(|raw| raw.propose(context, data))?;
        self.note_unwritten(changes);
        Ok(proposal)
    }

    /// The context of an entry of changes.
    pub(super) fn context(&self, number: u64, passed: Option<UnixMillis>) -> Vec<u8> {
        let words = [self.settings.id, self.start, number, passed.map_or(0, |at| at.0)];
        let count = if passed.is_some() { words.len() } else { words.len() - 1 };
        words.into_iter().take(count).flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn note_unwritten(&mut self, changes: &Batch) {
        self.unwritten += (changes.bytes_len() + changes.len() * RECORD) as u64;
    }

    /// Proposes a name for the cluster. The first such entry counts.
    pub(super) fn propose_name(&mut self, cluster: u64) -> Result<Proposal> {
        let words = [self.settings.id, self.start, self.next_number, 0, cluster];
        let context = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let data = encode_last_changes(&Batch::new());
        self.propose_with(|raw| raw.propose(context, data))
    }

    /// Proposes a change of members.
    ///
    /// # Errors
    /// As [`Node::propose`]; [`Error::NotLeader`] also if the leader itself is to stop being a voter: it then hands
    /// the leadership to another node, to which the same change is to be proposed. [`Error::Unusable`] if it is the
    /// only voter, and no other node is about to be one. [`Error::OutOfRange`] if there is no change, too many at
    /// once, or too many nodes. [`Error::Busy`] also if a node has not said hello yet, or another change is under
    /// way.
    pub fn propose_members(&mut self, changes: &[MemberChange]) -> Result<Proposal> {
        self.end_draft();
        let (what, given) = ("changes of members", changes.len() as u64);
        let to = (CONTEXT_MAX / CHANGE) as u64;
        if given > to || changes.is_empty() {
            return Err(Error::OutOfRange { what, given, from: 1, to });
        }
        if let State::Running(raw) = &self.state
            && raw.raft.state == StateRole::Leader
            && (raw.raft.has_pending_conf()
                || !raw.raft.prs().conf().to_conf_state().voters_outgoing.is_empty())
        {
            // Consensus would silently put an empty entry in its place, and what is not possible may be afterwards.
            return Err(Error::Busy);
        }
        let nodes = self.view().members().count_with(changes) as u64;
        if nodes > NODES_MAX as u64 {
            let (what, to) = ("nodes of a cluster", NODES_MAX as u64);
            return Err(Error::OutOfRange { what, given: nodes, from: 1, to });
        }
        // A node that has not stated its identity cannot be a member yet.
        let with_identity = |change: &MemberChange| Some((*change, self.identity_for(*change)?));
        let identified: Option<Vec<_>> = changes.iter().map(with_identity).collect();
        let identified = identified.ok_or(Error::Busy)?;
        let (context, conf) = (encode_change(&identified), to_conf_change(&identified));
        let has_joining = !self.view().members().joining.is_empty();
        if let State::Running(raw) = &mut self.state
            && raw.raft.state == StateRole::Leader
            && changes.iter().any(|it| it.ends(self.settings.id))
        {
            // A removed leader would go on as leader. Another node has to lead first.
            let others = raw.raft.prs().iter().filter(|(id, _)| **id != self.settings.id);
            let voters = raw.raft.prs().conf().voters();
            let next = others.filter(|(id, _)| voters.contains(**id));
            // One that answers, if there is one.
            let next = next.max_by_key(|(_, it)| (it.recent_active, it.matched));
            let next = next.map(|(id, _)| *id).ok_or_else(|| match has_joining {
                true => Error::Busy,
                false => Error::Unusable("the only voter stays one".to_owned()),
            })?;
            raw.transfer_leader(next);
            return Err(Error::NotLeader { leader: None });
        }
        let proposal = self.propose_with(|raw| raw.propose_conf_change(context, conf))?;
        if let Some(open) = self.proposals.get_mut(&proposal.number) {
            open.index = Some(proposal.index);
        }
        Ok(proposal)
    }

    fn propose_with(
        &mut self,
        propose: impl FnOnce(&mut RawNode<SharedView>) -> raft::Result<()>,
    ) -> Result<Proposal> {
        self.check_running()?;
        self.end_draft();
        let leader = self.leader();
        let State::Running(raw) = &mut self.state else { return Err(Error::Installing) };
        if raw.raft.state != StateRole::Leader {
            return Err(Error::NotLeader { leader });
        }
        match propose(raw) {
            Ok(()) => {}
            Err(raft::Error::ProposalDropped) => return Err(Error::Busy),
            Err(error) => return Err(Error::Unusable(error.to_string())),
        }
        let (term, number) = (raw.raft.term, self.next_number);
        let index = raw.raft.raft_log.last_index();
        self.next_number += 1;
        self.proposals.insert(number, Open { term, index: None });
        Ok(Proposal { number, index })
    }
}
