//! Which messages of other nodes are accepted.
//!
//! Consensus assumes that no node sends impossible messages. It panics at one, which ends this node. Impossible is,
//! for example, a leader that calls entries committed which this node once had and lacks now, or a follower that has
//! more than its leader. A peer that was put back to an older state sends such messages, and so may a defective one.
//! They are dropped.
//!
//! Each election raises the term by one, so no cluster reaches the last term by itself. A node that took it from a
//! message would note it durably, and no node could be elected any more.

use crate::codec::Body;
use crate::log_view::{LogView, SharedView};
use coreplane_pmem::mutant;
use raft::eraftpb::{Message, MessageType};
use raft::{RawNode, StateRole};

/// Terms up to this one leave room for all elections.
const TERM_AMPLE: u64 = 1 << 62;

/// The most terms by which a message may be ahead of both that one and the term that a node knows.
const TERM_AHEAD: u64 = 1 << 32;

/// True if a node that knows the term `known` may take the term of a message. The bound moves with the known term:
/// nodes that have taken a term at the bound still take the terms of their next elections.
pub(super) fn has_possible_term(body: &Body, known: u64) -> bool {
    let term = match body {
        Body::Raft(message) => message.term,
        Body::Page(page) => page.term,
        Body::Receipt(_) | Body::Hello(_) | Body::Ask(_) | Body::Told(..) | Body::Keepalive => {
            return true;
        }
    };
    term <= known.max(TERM_AMPLE).saturating_add(TERM_AHEAD) || mutant!("replica.term.last")
}

/// True if the message does not contradict the state of this node, whose `newest` entry is given.
pub(super) fn is_possible(
    raw: &RawNode<SharedView>,
    newest: u64,
    view: &LogView,
    message: &Message,
) -> bool {
    if message.term == 0 {
        return false;
    }
    let committed = raw.raft.raft_log.committed;
    let leads = raw.raft.state == StateRole::Leader && raw.raft.term == message.term;
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            !leads && has_order(message) && keeps_committed(view, committed, message)
        }
        MessageType::MsgHeartbeat => !leads && message.commit <= newest,
        MessageType::MsgAppendResponse => message.reject || message.index <= newest,
        // Only this node proposes here, and reads are asked of the leader: other kinds are refused.
        MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow => true,
        _ => false,
    }
}

/// Entries without a gap, whose terms do not fall. No entry has term 0; term 0 stands only before the first entry.
fn has_order(message: &Message) -> bool {
    let mut last = (message.index, message.log_term);
    let is_first = message.index == 0;
    is_first == (message.log_term == 0)
        && message.get_entries().iter().all(|entry| {
            let follows = Some(entry.index) == u64::checked_add(last.0, 1)
                && entry.term >= last.1.max(1)
                && entry.term <= message.term;
            last = (entry.index, entry.term);
            follows
        })
}

/// No entry takes the place of another one that is committed.
fn keeps_committed(view: &LogView, committed: u64, message: &Message) -> bool {
    let below = message.get_entries().iter().filter(|entry| entry.index <= committed);
    below.into_iter().all(|entry| view.term_at(entry.index).is_none_or(|term| term == entry.term))
}
