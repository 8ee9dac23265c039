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

use crate::log_view::{LogView, SharedView};
use coreplane_pmem::mutant;
use raft::RawNode;
use raft::eraftpb::{Message, MessageType};

/// True if the log ends before the last entry that this node has acknowledged.
pub(super) fn lacks(raw: &RawNode<SharedView>, view: &SharedView) -> bool {
    let last = view.0.lock().notes().last;
    // Most nodes have never lost anything.
    last > (0, 0)
        && (raw.raft.raft_log.last_term(), raw.raft.raft_log.last_index()) < last
        && !mutant!("replica.promise.election")
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
