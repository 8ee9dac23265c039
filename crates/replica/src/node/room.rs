//! Room for what a leader sends.
//!
//! ```text
//!   leader    room here? ─▶ propose ─▶ [e₇ e₈ e₉] ──▶ follower   room here? ─▶ takes e₇, and says so
//!                                                                              e₈ e₉: as if they were lost on the way
//! ```
//!
//! A leader asks its own map before it proposes. A follower's may have less room: the pool is smaller, less of it is clean,
//! or readers hold pages. It takes the entries that it has room for. The others are sent again, as all that is lost is:
//! until what is applied meanwhile has given pages back, or until the node lags so far that it is sent a snapshot. So what is
//! acknowledged has its pages, and a node without room lags, and does not stop.

use super::Node;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use raft::eraftpb::{Message as RaftMessage, MessageType};

impl Node {
    /// Leaves out of a message the entries that there is no room for.
    pub(super) fn leave_out(&mut self, message: &mut RaftMessage) -> Result<()> {
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        if !is_append || message.entries.is_empty() || mutant!("replica.room.follower") {
            return Ok(());
        }
        let fits = self.view().room_for(&message.entries)?;
        if let Some(fits) = fits {
            self.left_out += (message.entries.len() - fits) as u64;
            message.entries.truncate(fits);
        }
        Ok(())
    }

    /// Entries that were sent to it, and that it had no room for, since it was opened; each as often as it was sent.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}
