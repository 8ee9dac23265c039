//! A turn: writes what consensus wants written, then sends the messages that may be sent.
//!
//! ```text
//!   ready ─▶ apply committed entries ─▶ append, vote ─▶ one commit ─▶ messages with entries: at once
//!                                                           └─ durable ─▶ acknowledgements, votes
//! ```
//!
//! A leader sends entries before they are durable here, so that the disks of all nodes work at the same time. No
//! message of a term is sent before that term is durable.
//!
//! Heartbeats wait for nothing, so a leader whose medium has stalled would lead without a result: it gives the
//! leadership up after a while.

use super::{Node, State, Unpersisted};
use crate::codec::{Body, Envelope};
use crate::members::NodeId;
use coreplane_engine::{Result, Ticket};
use coreplane_pmem::mutant;
use raft::StateRole;
use raft::eraftpb::{EntryType, Message as RaftMessage, MessageType};

/// Election timeouts in which the oldest write that is not durable does not become so, after which the medium has
/// stalled: enough for the sync of a long entry on a slow disk.
const PATIENCE: usize = 20;

impl Node {
    /// A tick has passed. A leader whose medium has stalled leads no more, if the other voters can elect a leader
    /// without this node.
    pub(super) fn tick_writes(&mut self) -> Result<()> {
        self.say_persisted()?;
        let patience = PATIENCE * self.settings.election_ticks;
        let Some(first) = self.unpersisted.front_mut() else { return Ok(()) };
        first.ticks += 1;
        let has_stalled = first.ticks > patience && !mutant!("replica.stall.leads");
        let State::Running(raw) = &mut self.state else { return Ok(()) };
        if !has_stalled || raw.raft.state != StateRole::Leader {
            return Ok(());
        }
        let (own, progress) = (raw.raft.id, raw.raft.prs());
        let others = progress.iter().filter(|(id, it)| **id != own && it.recent_active);
        if progress.has_quorum(&others.map(|(id, _)| *id).collect()) {
            let term = raw.raft.term;
            raw.raft.become_follower(term, raft::INVALID_ID);
        }
        Ok(())
    }

    /// One turn: writes what consensus wants written, with one commit, and sends the messages that may be sent.
    pub(super) fn turn(&mut self) -> Result<()> {
        loop {
            self.say_persisted()?;
            self.begin_reads();
            let State::Running(raw) = &mut self.state else { return Ok(()) };
            if !raw.has_ready() {
                break;
            }
            let mut ready = raw.ready();
            let messages = ready.take_messages();
            let read_states = ready.take_read_states();
            let (committed, entries) = (ready.take_committed_entries(), ready.take_entries());
            let state = ready.hs().map(|state| (state.term, state.vote));
            let vote = state.filter(|state| *state != self.known_vote());
            let later = ready.take_persisted_messages();
            let applied = committed.last().map(|entry| entry.index);
            // The applied index becomes durable with later entries; applied changes need no more than that. A change
            // of members does: a node stands for election among the members that it has applied.
            let has_members =
                committed.iter().any(|it| it.get_entry_type() != EntryType::EntryNormal);
            let is_durable = entries.is_empty()
                && vote.is_none()
                && (!has_members || mutant!("replica.members.lazy"));
            // The applied index is durable with the next fence, before anything depends on a later entry: a node that
            // has begun a change of members does not stand for election as if there were none.
            let (committed, late) = match mutant!("replica.apply.late") {
                true => (Vec::new(), committed),
                false => (committed, Vec::new()),
            };
            self.apply(committed)?;
            let ticket = {
                let mut view = self.view.0.lock();
                view.append(entries)?;
                if let Some((term, vote)) = vote.filter(|_| !mutant!("replica.vote.forgotten")) {
                    view.set_vote(term, vote)?;
                }
                if is_durable || mutant!("replica.ack.early") {
                    Ticket::DURABLE
                } else {
                    view.commit()?
                }
            };
            self.apply(late)?;
            self.unwritten = 0;
            let number = ready.number();
            if let State::Running(raw) = &mut self.state {
                raw.advance_append_async(ready);
                // After that call, since the end of a change of members appends an entry.
                applied.into_iter().for_each(|applied| raw.advance_apply_to(applied));
            }
            // A leader may send entries that it has not written yet, but not in a term that it has not written.
            let is_term = vote.is_some();
            let waits = is_term || self.unpersisted.iter().any(|it| it.is_term);
            let (at_once, messages) = match waits && !mutant!("replica.term.early") {
                true => (Vec::new(), [messages, later].concat()),
                false => (messages, later),
            };
            let (ready, ticks) = (number, 0);
            self.unpersisted.push_back(Unpersisted { ready, ticket, messages, is_term, ticks });
            self.send_all(at_once)?;
            for state in read_states {
                self.confirm_read(&state.request_ctx, state.index);
            }
        }
        self.end_leadership();
        self.answer_reads();
        self.settle_asks();
        let mut tickets = self.unpersisted.iter().rev().map(|it| it.ticket);
        self.output.ticket = tickets.find(|ticket| !ticket.is_durable());
        Ok(())
    }

    /// The newest noted term, and the vote in it.
    fn known_vote(&self) -> (u64, NodeId) {
        let view = self.view();
        (view.control().term, view.control().vote)
    }

    /// Tells consensus which writes are durable by now, and sends their messages.
    fn say_persisted(&mut self) -> Result<()> {
        while let Some(first) = self.unpersisted.front() {
            let is_durable =
                first.ticket.is_durable() || self.view().map.is_durable(first.ticket)?;
            if !is_durable {
                break;
            }
            let Some(Unpersisted { ready, messages, .. }) = self.unpersisted.pop_front() else {
                break;
            };
            if let State::Running(raw) = &mut self.state {
                raw.on_persist_ready(ready);
            }
            self.send_all(messages)?;
        }
        Ok(())
    }

    fn send_all(&mut self, messages: Vec<RaftMessage>) -> Result<()> {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.begin_transfer(message.to)?;
            } else {
                self.send(message.to, Body::Raft(message));
            }
        }
        Ok(())
    }

    pub(super) fn send(&mut self, to: NodeId, body: Body) {
        let (start, life, from) = (self.start, self.life, self.settings.id);
        let (identity, cluster) = {
            let view = self.view();
            (view.notes().identity, view.notes().cluster)
        };
        self.output.envelopes.push(Envelope { cluster, identity, start, life, from, to, body });
    }
}
