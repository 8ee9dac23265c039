//! What is believed of what others say.
//!
//! Consensus takes it that nobody says what cannot be, and stops the whole process where somebody does: a leader that
//! speaks of entries as committed which this node does not have, though it once had them; a follower that has more than
//! its leader. A peer that was put back to an older state says such things, and so does one that is broken. They are not
//! heard.

use crate::log_view::{LogView, SharedView};
use raft::eraftpb::{Message, MessageType};
use raft::{RawNode, StateRole};

/// True if the message can be taken without a contradiction to what this node has, up to the `newest` entry.
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
        // Nobody but this node proposes here, and reads are asked of the leader.
        MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow => true,
        _ => false,
    }
}

/// Entries without a gap, whose terms do not fall. No entry is of term 0, and behind none stands the first.
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

/// No entry is in the place of another that is committed.
fn keeps_committed(view: &LogView, committed: u64, message: &Message) -> bool {
    let below = message.get_entries().iter().filter(|entry| entry.index <= committed);
    below.into_iter().all(|entry| view.term_at(entry.index).is_none_or(|term| term == entry.term))
}
