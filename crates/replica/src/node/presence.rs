//! Signs of life of a node beside its messages.
//!
//! A message with a long entry may be on its way for longer than an election timeout, and heartbeats wait behind it.
//! The parts of it that arrive show the receiver that the leader is there, and the parts that are taken show the
//! leader that the receiver is. Without them each long entry would end the leadership under which it was proposed.
//!
//! Nothing that was promised depends on these signs: a follower does not stand for election, and ignores other
//! candidates, as after a heartbeat; a leader does not give up for want of a majority. Votes, acknowledgements and the
//! confirmation of reads are messages.

use super::{Node, State};
use crate::members::NodeId;
use coreplane_pmem::mutant;
use raft::StateRole;

impl Node {
    /// A part of a long message of a node has arrived here.
    pub fn hear_part(&mut self, from: NodeId) {
        match &mut self.state {
            State::Running(raw)
                if raw.raft.state == StateRole::Follower
                    && raw.raft.leader_id == from
                    && !mutant!("replica.part.unheard") =>
            {
                raw.raft.election_elapsed = 0;
            }
            State::Installing(Some(install)) if install.from == from => self.silent_ticks = 0,
            _ => {}
        }
    }

    /// A node has taken a part of a long message of this one.
    pub fn note_part_taken(&mut self, to: NodeId) {
        if let State::Running(raw) = &mut self.state
            && raw.raft.state == StateRole::Leader
            && let Some(progress) = raw.raft.mut_prs().get_mut(to)
            && !mutant!("replica.part.untaken")
        {
            progress.recent_active = true;
            if let Some(ticks) = self.silence.get_mut(&to) {
                *ticks = 0;
            }
            // The page of a snapshot may have a long record.
            if let Some(transfer) = self.transfers.get_mut(&to) {
                transfer.note_taken();
            }
        }
    }
}
