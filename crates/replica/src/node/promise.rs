//! Entries that a node has acknowledged and does not have any more.
//!
//! ```text
//!   log        … a₇ b₈ c₉ ✂ damaged            last = 9, durable from here on
//!   snapshot   ═════════ 7                     older than that: a leader that was started anew has applied no more
//!   appended   ═════════ 7  b₈                 votes for no candidate below 9, and does not lead
//!   appended   ═════════ 7  b₈ c₉ d₁₀          has all again
//! ```
//!
//! Entry `c₉` may be committed because this node acknowledged it. So when the end of a log is lost
//! ([`damage`](super::start)) or given up ([`transfer`](super::transfer)), that end is noted, and the note stays when
//! a snapshot is installed, which may end before it. Until its log has come so far again, the node votes only for
//! candidates whose log has, and does not stand for election itself.
//!
//! The note is not removed when the log has come so far. It is above the log again only while a leader of a later
//! term shortens the log. It may then cost an election that plain Raft would hold, but never a write.

use super::{Node, State};
use crate::log_view::LogView;
use coreplane_pmem::mutant;
use raft::eraftpb::{Message, MessageType};

impl Node {
    /// False if this node must not stand for election: its log ends before the last entry that it has acknowledged,
    /// or it is the only voter and its writes are not durable yet. Requests for votes wait for these. The only voter
    /// makes no request: it would lead at once.
    pub(super) fn may_stand(&self) -> bool {
        let State::Running(raw) = &self.state else { return false };
        let log = &raw.raft.raft_log;
        let last = self.view().notes().last;
        // Most nodes have never lost anything.
        let has_all = last == (0, 0)
            || (log.last_term(), log.last_index()) >= last
            || mutant!("replica.promise.election");
        let waits = !self.unpersisted.is_empty() && raw.raft.prs().is_singleton();
        has_all && (!waits || mutant!("replica.stand.unwritten"))
    }
}

/// Makes consensus refuse a vote request whose candidate lacks entries that this node has acknowledged.
pub(super) fn refuse_less(view: &LogView, message: &mut Message) {
    let is_vote = matches!(
        message.get_msg_type(),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
    );
    let has_less = (message.log_term, message.index) < view.notes().last;
    if is_vote && has_less && !mutant!("replica.promise.vote") {
        // Consensus refuses a candidate without entries, and takes note of its term.
        (message.log_term, message.index) = (0, 0);
    }
}
