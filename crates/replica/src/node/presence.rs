//! Signs of life of a node beside its other messages.
//!
//! A message with a long entry may be on its way for longer than an election timeout, and heartbeats wait behind it.
//! The parts of it that arrive show the receiver that the leader is there, and the receiver's *keepalives*, which
//! answer them, show the leader that the receiver is. Without them each long entry would end the leadership under
//! which it was proposed. That a socket takes bytes is no sign: it has room for many MiB, and takes them for a process
//! that stands still, too.
//!
//! Nothing that was promised depends on these signs: a follower does not stand for election, and ignores other
//! candidates, as after a heartbeat; a leader does not give up for want of a majority. Votes, acknowledgements and the
//! confirmation of reads are messages of their own.

use super::{Node, State};
use crate::codec::Body;
use crate::members::NodeId;
use coreplane_pmem::mutant;
use raft::StateRole;

impl Node {
    /// A part of a long message of a node has arrived here: a keepalive answers it, if that node leads this one, or may
    /// be filling it.
    pub fn hear_part(&mut self, from: NodeId) {
        if self.stopped.is_some() && !mutant!("replica.part.stopped") {
            return;
        }
        match &mut self.state {
            State::Running(raw)
                if raw.raft.state == StateRole::Follower
                    && raw.raft.leader_id == from
                    && !mutant!("replica.part.unheard") =>
            {
                raw.raft.election_elapsed = 0;
            }
            State::Running(_) => return,
            State::Installing(Some(install)) if install.from == from => self.silent_ticks = 0,
            // It may be the first page of a snapshot.
            State::Installing(_) => {}
        }
        self.send(from, Body::Keepalive);
    }

    /// A node has received a part of a long message of this one.
    pub(super) fn take_keepalive(&mut self, from: NodeId) {
        if let State::Running(raw) = &mut self.state
            && raw.raft.state == StateRole::Leader
            && let Some(progress) = raw.raft.mut_prs().get_mut(from)
            && !mutant!("replica.part.unanswered")
        {
            progress.recent_active = true;
            if let Some(ticks) = self.silence.get_mut(&from) {
                *ticks = 0;
            }
            // The page of a snapshot may have a long record.
            if let Some(transfer) = self.transfers.get_mut(&from) {
                transfer.note_taken();
            }
        }
    }
}
