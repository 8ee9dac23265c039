//! Sending a snapshot, and installing one.
//!
//! ```text
//!   leader     pins the applied state ─▶ page 0 ─▶ page 1 ─▶ … ─▶ last page ─▶ goes on with entries
//!   follower                begin_install ─▶ install … ─▶ end_install ─▶ consensus begins anew
//! ```
//!
//! A follower that lacks entries which no node has any more is sent the applied state, in pages, each of which is
//! answered. A lost page is sent again, and the follower asks for the page that it wants. The entries behind the
//! snapshot are held meanwhile ([`hold`](super::hold)). The follower's pool has room for one state: so it gives up
//! its own with the first page, and is not counted until it has the last one. Consensus has no part in this. It
//! begins anew over the installed state, and the leader's goes on from there.
//!
//! A node with damaged entries does the same: it keeps the applied state until a leader sends it a snapshot
//! ([`damage`](super::start)).
//!
//! The state that is given up was not needed. The pages are of committed entries. The follower lacks the entry at
//! which they end, or it would say so ([`Received::All`]). So it has nothing behind that entry that a majority counts
//! on. A node with damaged entries may have had more, and so may a node that is sent another, older snapshot before
//! it had the whole of this one: the end of the log stays noted ([`promise`](super::promise)).
//!
//! The follower takes no snapshot that ends before the state that it has given up. If its leader is gone, a candidate
//! with all entries may have applied less. So the follower's answer to each candidate states the entry up to which it
//! had applied: that entry is committed, and the candidate applies it, too. A node that was named leader has asked
//! for no pre-vote, and one that was elected before this answer came does not take note of it: then its snapshots are
//! refused until it has applied more, which may need a third node, or until another election.

use super::{Node, Role, State, consensus};
use crate::codec::{Body, Page, Receipt, Received};
use crate::entry::Header;
use crate::map::{MapSnapshot, StatePage};
use crate::members::{NodeId, Notes, Peer};
use bytes::Bytes;
use coreplane_engine::{Error, Result};
use coreplane_mvcc::SnapshotRecord;
use coreplane_pmem::mutant;
use raft::eraftpb::{Message as RaftMessage, MessageType};
use raft::{ProgressState, SnapshotStatus};

/// Election timeouts without an answer of the follower, after which its transfer is given up.
pub(super) const PATIENCE: usize = 20;

/// The same once it has been sent the last page: a follower whose log is beside its map answers that when it has written
/// the whole state to its medium, and is silent meanwhile. Another snapshot would end in the same way.
const LAST_PATIENCE: usize = 12 * PATIENCE;

/// A snapshot that is being sent.
pub(super) struct Transfer {
    snapshot: Box<dyn MapSnapshot>,
    term: u64,
    /// Live bytes of the sender.
    bytes: u64,
    /// The page that was sent last.
    page: Page,
    /// The first key of each sent page and of the next one, so that the follower may ask for any of them.
    starts: Vec<Vec<u8>>,
    /// Ticks since that page was sent.
    ticks: usize,
    /// Ticks since the last answer.
    silent_ticks: usize,
}

/// A snapshot that is being installed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Install {
    pub(super) from: NodeId,
    term: u64,
    index: u64,
    /// The page that is wanted next.
    next: u64,
}

impl Transfer {
    /// The follower is taking the page.
    pub(super) fn note_taken(&mut self) {
        (self.ticks, self.silent_ticks) = (0, 0);
    }

    /// Makes the page with this number, which begins at its key of `starts`.
    fn make_page(&mut self, number: u64, bytes_max: usize) -> Result<()> {
        let start = self.starts.get(number as usize).map_or(&[][..], Vec::as_slice);
        // A page that was sent before ends at the same key again.
        let end = self.starts.get(number as usize + 1).map(Vec::as_slice);
        // Cut by records alone: a follower that has pages of an earlier transfer of this state goes on by number.
        let StatePage { records, next } = self.snapshot.page(start, end, bytes_max, None)?;
        let is_last = next.is_none();
        if self.starts.len() as u64 == number + 1 {
            self.starts.extend(next);
        }
        self.page = Page {
            term: self.term,
            index: self.snapshot.timestamp(),
            number,
            is_last,
            bytes: self.bytes,
            header: Bytes::copy_from_slice(self.snapshot.header()),
            members: Bytes::copy_from_slice(self.snapshot.members()),
            records,
        };
        Ok(())
    }
}

impl Node {
    /// Sends the applied state to a follower that needs it.
    pub(super) fn begin_transfer(&mut self, to: NodeId) -> Result<()> {
        if self.transfers.contains_key(&to) {
            return Ok(());
        }
        if self.unfit.contains_key(&to) {
            // Consensus asks again with the next message of the follower.
            self.end_transfer(to, SnapshotStatus::Failure);
            return Ok(());
        }
        let snapshot = self.snapshot()?;
        let State::Running(raw) = &mut self.state else { return Ok(()) };
        let (term, end) = (raw.raft.term, snapshot.timestamp());
        if let Some(progress) = raw.raft.mut_prs().get_mut(to)
            && progress.state == ProgressState::Snapshot
        {
            // Entries were applied since consensus has asked for a snapshot: it goes on behind them.
            progress.pending_snapshot = end;
        }
        let (starts, bytes) = (vec![Vec::new()], self.view().map.stats().live_bytes);
        let page = Page::default();
        let transfer = Transfer { snapshot, term, bytes, page, starts, ticks: 0, silent_ticks: 0 };
        self.transfers.insert(to, transfer);
        self.begin_hold(to, end)?;
        self.send_page(to, 0)
    }

    /// Sends the page with this number: any that was sent, or the next. A follower that has pages of an earlier
    /// transfer of the same state wants a later one: it is sent the next, and asks again, until the key is known at
    /// which the wanted page begins.
    fn send_page(&mut self, to: NodeId, number: u64) -> Result<()> {
        let Some(transfer) = self.transfers.get_mut(&to) else { return Ok(()) };
        let next = (transfer.starts.len() as u64).saturating_sub(1);
        if number > next && mutant!("replica.snapshot.halted") {
            return Ok(());
        }
        transfer.make_page(number.min(next), self.settings.page_bytes)?;
        transfer.ticks = 0;
        let page = transfer.page.clone();
        self.send(to, Body::Page(page));
        Ok(())
    }

    pub(super) fn tick_transfers(&mut self) -> Result<()> {
        let election = self.settings.election_ticks;
        let (mut again, mut over) = (Vec::new(), Vec::new());
        self.unfit.retain(|_, ticks| {
            *ticks = ticks.saturating_sub(1);
            *ticks > 0
        });
        for (to, transfer) in &mut self.transfers {
            transfer.ticks += 1;
            transfer.silent_ticks += 1;
            let patience = if transfer.page.is_last { LAST_PATIENCE } else { PATIENCE };
            if transfer.silent_ticks > election * patience {
                over.push(*to);
            } else if transfer.ticks >= election {
                transfer.ticks = 0;
                again.push((*to, transfer.page.clone()));
            }
        }
        for to in over {
            self.end_transfer(to, SnapshotStatus::Failure);
        }
        for (to, page) in again {
            self.send(to, Body::Page(page));
        }
        self.tend_holds()
    }

    fn end_transfer(&mut self, to: NodeId, status: SnapshotStatus) {
        self.transfers.remove(&to);
        if status == SnapshotStatus::Failure {
            self.holds.remove(&to);
        }
        if let State::Running(raw) = &mut self.state {
            raw.report_snapshot(to, status);
        }
    }

    /// The answer to a page.
    pub(super) fn take_receipt(&mut self, from: NodeId, receipt: Receipt) -> Result<()> {
        let Some(transfer) = self.transfers.get_mut(&from) else { return Ok(()) };
        if (receipt.term, receipt.index) != (transfer.term, transfer.page.index) {
            return Ok(());
        }
        transfer.silent_ticks = 0;
        match receipt.state {
            Received::All => {
                self.end_transfer(from, SnapshotStatus::Finish);
                Ok(())
            }
            // A leader that was just elected has not applied the whole snapshot again.
            Received::Older => {
                self.end_transfer(from, SnapshotStatus::Failure);
                Ok(())
            }
            // The state will hardly shrink soon: no snapshot is pinned for this follower before the wait is over.
            Received::Unfit => {
                self.unfit.insert(from, self.settings.election_ticks);
                self.end_transfer(from, SnapshotStatus::Failure);
                Ok(())
            }
            // This page was sent just now: answering every duplicate receipt would repeat it without end.
            Received::Wants(number) if number == transfer.page.number && transfer.ticks == 0 => {
                Ok(())
            }
            Received::Wants(number) => self.send_page(from, number),
        }
    }

    /// A part of a snapshot.
    pub(super) fn take_page(&mut self, sender: Peer, page: Page) -> Result<()> {
        let Some(state) = self.receive(sender, &page)? else { return Ok(()) };
        let receipt = Receipt { term: page.term, index: page.index, state };
        self.send(sender.node, Body::Receipt(receipt));
        Ok(())
    }

    /// Takes a page; the answer, if any.
    fn receive(&mut self, sender: Peer, page: &Page) -> Result<Option<Received>> {
        let from = sender.node;
        let Some(header) = Header::decode(&page.header) else { return Ok(None) };
        let Some(sent) = Notes::decode(&page.members) else { return Ok(None) };
        {
            let view = self.view();
            let (notes, known) = (view.notes(), sent.peer(self.settings.id));
            let is_known = known.is_some_and(|peer| peer.identity == notes.identity);
            if notes.is_blank && !is_known {
                // The page was sent before the sender knew of this pool.
                return Ok(None);
            }
        }
        self.silent_ticks = 0;
        if !self.follow(from, page.term)? {
            return Ok(None);
        }
        if let State::Running(raw) = &mut self.state {
            let is_there = page.index <= raw.raft.raft_log.committed
                || self.view.0.lock().term_at(page.index) == Some(header.term);
            if is_there && !mutant!("replica.snapshot.older") {
                return Ok(Some(Received::All));
            }
        }
        // There is room for one state: the node keeps its own.
        if page.number == 0 && self.refuses_snapshot(page.bytes) {
            return Ok(Some(Received::Unfit));
        }
        let begun = match &self.state {
            State::Installing(begun) => {
                begun.filter(|it| (it.from, it.term, it.index) == (from, page.term, page.index))
            }
            State::Running(_) => None,
        };
        let next = match begun {
            Some(it) => it.next,
            // Another snapshot is wanted from its beginning.
            None if page.number > 0 => 0,
            None if self.lacks_room_beside_pins(page.bytes) => return Ok(Some(Received::Unfit)),
            None => match self.begin_install(from, page) {
                Err(Error::OutOfRange { .. }) => return Ok(Some(Received::Older)),
                begun => begun.map(|()| 0)?,
            },
        };
        if page.number != next {
            return Ok(Some(Received::Wants(next)));
        }
        self.install(page)?;
        if !page.is_last {
            if let State::Installing(Some(it)) = &mut self.state {
                it.next += 1;
            }
            return Ok(Some(Received::Wants(next + 1)));
        }
        self.end_install(sender, page)?;
        Ok(Some(Received::All))
    }

    /// Follows the sender of pages; false if its term is not the newest.
    fn follow(&mut self, from: NodeId, term: u64) -> Result<bool> {
        match &mut self.state {
            State::Running(raw) => {
                if term < raw.raft.term || self.settings.id == from {
                    return Ok(false);
                }
                let mut heartbeat = RaftMessage::default();
                heartbeat.set_msg_type(MessageType::MsgHeartbeat);
                (heartbeat.from, heartbeat.to, heartbeat.term) = (from, self.settings.id, term);
                if raw.raft.term == term && raw.raft.state == raft::StateRole::Leader {
                    return Ok(false);
                }
                let _refused = raw.step(heartbeat).is_err();
                self.draw_timeout();
                // A leader sends pages to a node that has answered it in this term, so the term is durable already.
                self.turn()?;
                Ok(self.role() != Role::Leader)
            }
            State::Installing(_) => self.note_term(term),
        }
    }

    /// Notes a term without a log; false if there is a newer one.
    fn note_term(&mut self, term: u64) -> Result<bool> {
        let mut view = self.view.0.lock();
        let known = view.control().term;
        if term > known {
            view.set_vote(term, 0)?;
            let ticket = view.commit()?;
            view.map.wait_durable(ticket)?;
        }
        Ok(term >= known)
    }

    fn begin_install(&mut self, from: NodeId, page: &Page) -> Result<()> {
        {
            let last = match &self.state {
                State::Running(raw) => {
                    (raw.raft.raft_log.last_term(), raw.raft.raft_log.last_index())
                }
                State::Installing(_) => (0, 0),
            };
            let mut view = self.view.0.lock();
            if !mutant!("replica.install.forgotten") {
                view.change_notes(|notes| notes.last = notes.last.max(last))?;
            }
            view.map.begin_install(page.index)?;
        }
        self.silent_ticks = 0;
        let install = Install { from, term: page.term, index: page.index, next: 0 };
        self.state = State::Installing(Some(install));
        self.unpersisted.clear();
        self.transfers.clear();
        // Reads and proposals that were begun here do not end here.
        self.end_leadership();
        Ok(())
    }

    fn install(&mut self, page: &Page) -> Result<()> {
        let mut records = page.records.iter().map(|record| SnapshotRecord {
            key: &record.key,
            value: &record.value,
            timestamp: record.timestamp,
            expires_at: record.expires_at,
        });
        self.view.0.lock().map.install(&mut records)
    }

    fn end_install(&mut self, sender: Peer, page: &Page) -> Result<()> {
        {
            let mut view = self.view.0.lock();
            let mut sent = Notes::decode(&page.members).ok_or_else(no_members)?;
            // The sender may have heard less of the other nodes than this one, and does not note its own starts.
            if !mutant!("replica.install.starts") {
                sent.note_starts(&view.notes().peers);
            }
            if !mutant!("replica.install.sender") {
                sent.note_starts(&[sender]);
            }
            let Notes { identity, mut last, .. } = *view.notes();
            if mutant!("replica.promise.dropped") {
                last = (0, 0);
            }
            let (is_bound, is_blank) = (true, false);
            let start = self.start;
            let notes = Notes { last, start, identity, is_bound, is_blank, ..sent };
            view.map.end_install(&page.header, &notes.encode()?)?;
            view.begin_again()?;
        }
        self.state = State::Running(Box::new(consensus(&self.view, &self.settings)?));
        self.draw_timeout();
        self.installed += 1;
        self.shortage.end();
        Ok(())
    }

    /// Answers of a node without a log, in place of consensus: that it has nothing, so that it is sent a snapshot;
    /// and its vote. It knows where its log ended, which is all that a vote depends on: a candidate that has as much
    /// has everything for which this node was counted.
    pub(super) fn answer_without_log(&mut self, message: &RaftMessage) -> Result<()> {
        let kind = match message.get_msg_type() {
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => {
                return self.vote_without_log(message);
            }
            MessageType::MsgAppend => MessageType::MsgAppendResponse,
            MessageType::MsgHeartbeat => MessageType::MsgHeartbeatResponse,
            _ => return Ok(()),
        };
        if !self.note_term(message.term)? {
            // Tells a leader of an earlier term about the newer one.
            let mut answer = RaftMessage::default();
            answer.set_msg_type(MessageType::MsgAppendResponse);
            (answer.from, answer.to) = (self.settings.id, message.from);
            answer.term = self.view().control().term;
            self.send(message.from, Body::Raft(answer));
            return Ok(());
        }
        self.silent_ticks = 0;
        let mut answer = RaftMessage::default();
        answer.set_msg_type(kind);
        (answer.from, answer.to, answer.term) = (self.settings.id, message.from, message.term);
        if kind == MessageType::MsgAppendResponse {
            (answer.reject, answer.index) = (true, message.index);
            if mutant!("replica.install.counts") {
                let last = message.index + message.entries.len() as u64;
                (answer.reject, answer.index) = (false, last);
            }
        }
        self.send(message.from, Body::Raft(answer));
        Ok(())
    }

    fn vote_without_log(&mut self, message: &RaftMessage) -> Result<()> {
        let is_led = self.silent_ticks < self.settings.election_ticks;
        let is_transfer = !message.context.is_empty();
        let (last, term, vote, applied) = {
            let view = self.view.0.lock();
            let control = view.control();
            let applied = (control.applied, view.applied_term());
            (view.notes().last, control.term, control.vote, applied)
        };
        let is_pre = message.get_msg_type() == MessageType::MsgRequestPreVote;
        // A candidate of an older term learns the newer one from the answer to its pre-vote; otherwise it would never
        // ask for votes in the newer term.
        if is_led && !is_transfer || message.term < term && !is_pre {
            return Ok(());
        }
        let has_all = (message.log_term, message.index) >= last;
        let is_free = message.term > term || vote == 0 || vote == message.from;
        let grants = has_all && is_free && message.term >= term;
        if !is_pre && (message.term > term || grants) && !mutant!("replica.install.vote") {
            let mut view = self.view.0.lock();
            let kept = if message.term > term { 0 } else { vote };
            view.set_vote(message.term, if grants { message.from } else { kept })?;
            let ticket = view.commit()?;
            view.map.wait_durable(ticket)?;
        }
        let mut answer = RaftMessage::default();
        answer.set_msg_type(match is_pre {
            true => MessageType::MsgRequestPreVoteResponse,
            false => MessageType::MsgRequestVoteResponse,
        });
        (answer.from, answer.to, answer.reject) = (self.settings.id, message.from, !grants);
        // A refused pre-vote states the newest term; any other answer, the term of the request.
        answer.term = if is_pre && !grants { term } else { message.term };
        if !mutant!("replica.install.untold") {
            (answer.commit, answer.commit_term) = applied;
        }
        self.send(message.from, Body::Raft(answer));
        Ok(())
    }
}

fn no_members() -> Error {
    Error::Corrupt { offset: 0, what: "no members are in a snapshot".to_owned() }
}
