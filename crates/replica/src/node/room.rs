//! Room for the entries and snapshots of a leader.
//!
//! ```text
//!   leader    room here? ─▶ propose ─▶ [e₇ e₈ e₉] ──▶ follower   room here? ─▶ takes e₇, and says so
//!                                                                              e₈ e₉: as if they were lost on the way
//! ```
//!
//! A leader checks the room in its own map before it proposes. The map of a follower may have less: its pool is
//! smaller, less of it is clean, or readers hold pages. The follower takes the entries that fit. The leader sends the
//! others again, as it does with lost messages, until entries applied meanwhile have given pages back, or until the
//! node lags so far that it is sent a snapshot. The node refuses a snapshot that is larger than its pool, or that may
//! not fit beside a pinned state. So every acknowledged entry has its pages, and a node without room lags. Entries
//! without changes are taken without a check. A cluster that cannot commit without such a node waits for it, and the
//! node reports the reason ([`Node::lacks_room`]).

use super::{Node, Role, State};
use crate::log_view::Room;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use raft::eraftpb::Message as RaftMessage;

/// Entries and snapshots for which a node had no room.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// The applied and the newest entry when room was last asked for in vain. It is asked again when one of them has
    /// changed, or a tick has passed.
    pub(super) asked_at: Option<(u64, u64)>,
    /// The last entries that were sent, or the last snapshot, did not fit.
    is_there: bool,
    entries: u64,
}

impl Shortage {
    /// The entries or the snapshot have found room.
    pub(super) fn end(&mut self) {
        (self.asked_at, self.is_there) = (None, false);
    }
}

impl Node {
    /// Steps a leader's message with the entries that fit. If there are more, and the message commits entries, these
    /// are applied first, which may give pages back, and the others are tried then.
    pub(super) fn step_append(&mut self, mut message: RaftMessage) -> Result<()> {
        let mut rest = self.leave_out(&mut message)?;
        let State::Running(raw) = &mut self.state else { return Ok(()) };
        let applies = message.commit > raw.raft.raft_log.committed;
        // A refusal of consensus needs no action.
        let _refused = raw.step(message).is_err();
        if let Some(mut second) = rest.take_if(|_| applies) {
            self.turn()?;
            rest = self.leave_out(&mut second)?;
            if let State::Running(raw) = &mut self.state
                && !second.entries.is_empty()
            {
                let _refused = raw.step(second).is_err();
            }
        }
        self.shortage.entries += rest.map_or(0, |rest| rest.entries.len() as u64);
        Ok(())
    }

    /// Removes from a message the entries that do not fit: a message of those, if there are any.
    fn leave_out(&mut self, message: &mut RaftMessage) -> Result<Option<RaftMessage>> {
        let State::Running(raw) = &self.state else { return Ok(None) };
        let is_heard =
            message.term >= raw.raft.term && message.index >= raw.raft.raft_log.committed;
        if message.entries.is_empty() || !is_heard || mutant!("replica.room.follower") {
            return Ok(None);
        }
        let (room, at) = {
            let view = self.view();
            let at = (view.control().applied, view.control().newest);
            let is_again = self.shortage.asked_at == Some(at);
            let place = (message.index, message.log_term);
            (view.room_for(place, &message.entries, is_again)?, at)
        };
        let fits = match room {
            Room::First(fits) => fits,
            Room::All => {
                self.shortage.end();
                return Ok(None);
            }
            Room::Unknown => return Ok(None),
        };
        let mut entries = message.take_entries().into_vec();
        let mut rest = message.clone();
        let left_out = entries.split_off(fits);
        if let Some(last) = entries.last() {
            (rest.index, rest.log_term) = (last.index, last.term);
        }
        (self.shortage.asked_at, self.shortage.is_there) = (Some(at), true);
        message.set_entries(entries.into());
        rest.set_entries(left_out.into());
        Ok(Some(rest))
    }

    /// True if a snapshot of so many bytes certainly does not fit: then the node keeps its state.
    pub(super) fn refuses_snapshot(&mut self, bytes: u64) -> bool {
        let is_running =
            matches!(self.state, State::Running(_)) && !mutant!("replica.snapshot.unfit");
        let refuses = is_running && !self.view().map.may_fit(bytes);
        self.shortage.is_there |= refuses;
        refuses
    }

    /// True if there may be no room for a snapshot of so many bytes beside the states that are pinned here, for a
    /// backup for example. Pages of a state that is given up come back only when it is not pinned any more: until then
    /// the node keeps it.
    pub(super) fn lacks_room_beside_pins(&mut self, bytes: u64) -> bool {
        let lacks = {
            let view = self.view();
            view.map.is_pinned() && !view.map.has_ample_room((1, 0, bytes))
        };
        let lacks = lacks && !mutant!("replica.snapshot.pinned");
        self.shortage.is_there |= lacks;
        lacks
    }

    /// True if the last entries that a leader has sent, or the last snapshot, did not fit into the pool.
    pub fn lacks_room(&self) -> bool {
        self.shortage.is_there && self.role() != Role::Leader
    }

    /// Entries that were sent to this node and did not fit, since it was opened; each as often as it was sent.
    pub fn left_out(&self) -> u64 {
        self.shortage.entries
    }
}
