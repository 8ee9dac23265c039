//! Identity of a sender: the pool of a node, and which of its lives.
//!
//! ```text
//!   formed ──hello to and from all peers, none of which is of a cluster yet──▶ bound ──▶ takes part
//!     │                                                                         │
//!     └─ a peer is, and knows another pool by this number ─▶ blank ◀────────────┘ a peer remembers a later life
//!                                                              └─ made a learner of this pool, filled ─▶ bound
//! ```
//!
//! A member is a number and a pool. A pool draws its *identity* when it is made. All members agree which identity
//! belongs to which member: in a new cluster by a hello, before any of them votes or counts entries, and from then on
//! by the entries that change members. Messages of another pool are refused: the votes and acknowledgements of a
//! wiped node are not counted. It says hello; the leader makes it a learner under its new identity, which is filled
//! and becomes a voter again ([`Members::joining`](crate::Members)).
//!
//! Each start of a node has a number, durable before it sends anything, and a *life* drawn at random. Peers note the
//! newest start that they have heard of, durably, before they act on its messages. A node with an older number, or
//! with the same number and another life, is a copy that was put back: it is told so, draws another identity and
//! comes back as a wiped node does.
//!
//! Pools of different clusters refuse each other's messages: a cluster has a number that its first leader draws, and
//! that number is an entry. So a node that is started with the peers of another cluster keeps its contents.
//!
//! One case cannot be detected: a copy of the newest life of a node, put back after that life has ended, is that node
//! with fewer entries than it has acknowledged, unless some peer has heard of a later start.

use super::{Node, State, mix};
use crate::codec::{Body, Envelope, Hello};
use crate::members::{MemberChange, NodeId, Peer};
use coreplane_engine::{Error, Result};
use coreplane_pmem::mutant;
use raft::eraftpb::MessageType;

/// Entries that a node may lack when it becomes a voter.
const LAG_MAX: u64 = 64;
/// The most nodes that are greeted because others have named them as the leader.
const TOLD_OF_MAX: usize = 16;

/// The identity of a pool that is given up in this life: another one each time, and never 0.
fn draw_identity(life: u64, before: u64) -> u64 {
    let mut drawn = (0..3).map(|it| mix(life ^ before ^ it));
    // Different numbers are mixed to different ones.
    drawn.find(|it| *it != 0 && *it != before).unwrap_or(life)
}

impl Node {
    /// True if the message is from the node that it names; notes a new start.
    pub(super) fn is_heard(&mut self, envelope: &Envelope) -> Result<bool> {
        let (from, own) = (envelope.from, self.cluster());
        let is_foreign = own != 0 && envelope.cluster != 0 && envelope.cluster != own;
        if is_foreign && !mutant!("replica.identity.foreign") {
            return Ok(false);
        }
        if let Body::Hello(hello) = &envelope.body {
            self.take_hello(envelope, hello)?;
            return Ok(false);
        }
        let (is_new, takes_part, known) = {
            let view = self.view();
            let notes = view.notes();
            (notes.is_new(), notes.takes_part(), notes.peer(from))
        };
        if !takes_part {
            // A blank node is filled by a member, and does not know the members itself.
            return Ok(!is_new);
        }
        if !self.greeted.contains(&from) && !mutant!("replica.identity.rash") {
            // The sender does not know of this start yet. If it knows of a later one, this node is a copy that was
            // put back, and its log differs from the log that the sender assumes.
            self.say_hello(from, true);
            return Ok(false);
        }
        // No entry applied here makes the sender a member, so its votes and acknowledgements are not counted.
        let Some(known) = known else { return Ok(true) };
        if mutant!("replica.identity.any") {
            return Ok(true);
        }
        let is_it = known.identity == envelope.identity;
        let life = (envelope.start, envelope.life);
        if !is_it && self.is_of_later_leader(envelope) {
            return Ok(true);
        }
        if !is_it || life != (known.start, known.life) && life.0 <= known.start {
            // The answer states which members the sender knows.
            self.say_hello(from, !is_it);
            return Ok(false);
        }
        if life.0 > known.start {
            self.note_life(from, life)?;
        }
        if let Some(ticks) = self.silence.get_mut(&from) {
            *ticks = 0;
        }
        // Replaces what was heard of another pool with this number: that pool must not take the member's place later.
        self.heard.insert(from, (envelope.identity, true));
        Ok(true)
    }

    /// True of what only a leader says, from a pool that is a member by entries which this node lacks: only that leader
    /// can send them. Votes and acknowledgements of the pool do not count before.
    fn is_of_later_leader(&self, envelope: &Envelope) -> bool {
        let is_of_leader = match &envelope.body {
            Body::Page(_) => true,
            Body::Raft(message) => {
                matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat)
            }
            _ => false,
        };
        let view = self.view();
        let notes = view.notes();
        let is_later = |it: &(u64, u64)| it.0 == envelope.identity && it.1 > notes.members.index;
        is_of_leader
            && notes.cluster != 0
            && notes.cluster == envelope.cluster
            && self.members_at.get(&envelope.from).is_some_and(is_later)
            && !mutant!("replica.identity.later")
    }

    fn note_life(&mut self, node: NodeId, (start, life): (u64, u64)) -> Result<()> {
        let mut view = self.view();
        view.change_notes(|notes| {
            if let Some(peer) = notes.peers.iter_mut().find(|peer| peer.node == node) {
                (peer.start, peer.life) = (start, life);
            }
        })?;
        if !mutant!("replica.life.early") {
            let ticket = view.commit()?;
            view.map.wait_durable(ticket)?;
        }
        drop(view);
        if let State::Running(raw) = &mut self.state {
            // The heartbeat of a leader makes the peer answer, which shows what it lacks.
            raw.ping();
        }
        Ok(())
    }

    /// Tells a node about this one, and what this one knows of that node.
    fn say_hello(&mut self, to: NodeId, asks: bool) {
        let leader = self.leader().unwrap_or(0);
        let hello = {
            let view = self.view();
            let notes = view.notes();
            let known = notes.peer(to).unwrap_or_default();
            let (is_bound, index) = (notes.takes_part(), notes.members.index);
            let key_len_max = view.map.key_len_max() as u64;
            Hello { is_bound, asks, leader, index, key_len_max, known }
        };
        self.send(to, Body::Hello(hello));
    }

    fn take_hello(&mut self, envelope: &Envelope, hello: &Hello) -> Result<()> {
        let Envelope { from, identity, .. } = *envelope;
        if !self.has_equal_key_limit(envelope, hello)? {
            return Ok(());
        }
        self.heard.insert(from, (identity, hello.is_bound));
        if hello.is_bound {
            self.members_at.insert(from, (identity, hello.index));
        }
        let known = (hello.known.start, hello.known.life);
        // A peer that knows nothing of this node, or only an earlier pool of it, knows no start of this pool.
        let knows_none = hello.known.node == 0
            || hello.known.identity != self.view().notes().identity
                && !mutant!("replica.identity.earlier");
        if knows_none || known == (self.start, self.life) {
            self.greeted.insert(from);
        }
        if hello.leader != 0 && self.told_of.len() < TOLD_OF_MAX {
            self.told_of.insert(hello.leader);
        }
        let known = self.view().notes().peer(from);
        if known.is_some_and(|it| it.identity == identity && it.start < envelope.start) {
            self.note_life(from, (envelope.start, envelope.life))?;
        }
        let (own, is_bound, is_blank, index) = {
            let view = self.view();
            let notes = view.notes();
            (notes.identity, notes.is_bound, notes.is_blank, notes.members.index)
        };
        if hello.is_bound && !is_blank {
            let Peer { node, identity: known, start: newest, life: newest_life } = hello.known;
            let is_known = node != 0;
            // A new node cannot form a cluster with a node that already belongs to one.
            let is_new = !is_bound && !is_known;
            // A peer that lags, or was put back, may know of an earlier pool of this node.
            let is_later = !is_bound || hello.index > index || mutant!("replica.identity.lag");
            let is_other = is_known && known != own && is_later;
            let is_older = is_known
                && known == own
                && (newest > self.start || newest == self.start && newest_life != self.life);
            if (is_new || is_other || is_older) && !mutant!("replica.identity.deaf") {
                self.become_blank(!is_bound)?;
            }
        }
        if hello.asks {
            self.say_hello(from, false);
        }
        self.bind()
    }

    /// False if the sender's map takes longer keys than this one, or only shorter ones, and it is no member: an entry
    /// with such a key would stop one of the two. The one that takes no part yet stops; of two new ones, the one with
    /// the greater number.
    fn has_equal_key_limit(&mut self, envelope: &Envelope, hello: &Hello) -> Result<bool> {
        let Envelope { from, identity, .. } = *envelope;
        let (own, is_member, is_new, takes_part) = {
            let view = self.view();
            let notes = view.notes();
            let is_member = notes.peer(from).is_some_and(|it| it.identity == identity);
            (view.map.key_len_max() as u64, is_member, notes.is_new(), notes.takes_part())
        };
        if own == hello.key_len_max || is_member || mutant!("replica.identity.keys") {
            return Ok(true);
        }
        if !takes_part && hello.is_bound || is_new && self.settings.id > from {
            return Err(Error::Unusable(format!(
                "keys have {own} bytes at most here, and {} in node {from}: all nodes of a cluster need the same kind \
                 of map, with pages of the same size",
                hello.key_len_max
            )));
        }
        if hello.asks {
            self.say_hello(from, false);
        }
        Ok(false)
    }

    /// Takes part from now on, if all peers of a new cluster have stated their identity and this node is neither
    /// bound nor blank.
    pub(super) fn bind(&mut self) -> Result<()> {
        if !self.is_waiting() {
            return Ok(());
        }
        let own = self.view().notes().identity;
        let mut peers = Vec::new();
        for node in self.settings.peers.iter().copied() {
            let identity = match self.heard.get(&node) {
                _ if node == self.settings.id => own,
                Some((identity, _)) => *identity,
                None => return Ok(()),
            };
            peers.push(Peer { node, identity, start: 0, life: 0 });
        }
        peers.sort_unstable_by_key(|peer| peer.node);
        peers.dedup_by_key(|peer| peer.node);
        let mut view = self.view();
        // Durable with its first term or vote. A node that has neither may come back as one that has not met its peers.
        view.change_notes(|notes| (notes.peers, notes.is_bound) = (peers, true))
    }

    /// Gives up the node's contents: it counts for nothing until it is filled. A node that belonged to the cluster
    /// gets another identity.
    fn become_blank(&mut self, keeps_identity: bool) -> Result<()> {
        let life = self.life;
        {
            let mut view = self.view();
            view.change_notes(|notes| {
                notes.is_blank = true;
                if !keeps_identity {
                    notes.identity = draw_identity(life, notes.identity);
                }
            })?;
            if !mutant!("replica.blank.early") {
                let ticket = view.commit()?;
                view.map.wait_durable(ticket)?;
            }
        }
        self.state = State::Installing(None);
        self.unpersisted.clear();
        self.transfers.clear();
        self.end_leadership();
        Ok(())
    }

    /// True if the node does not take part yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.view().notes().is_new()
    }

    /// Says hello from time to time: a node that takes no part yet to all nodes, and a started node to those that
    /// have not answered since, so that they know of this start.
    pub(super) fn tick_identity(&mut self) {
        self.hello_ticks += 1;
        let (is_quiet, members) = {
            let view = self.view();
            let notes = view.notes();
            (notes.takes_part(), notes.members.clone())
        };
        if self.hello_ticks < self.settings.heartbeat_ticks {
            return;
        }
        self.hello_ticks = 0;
        let settings = &self.settings;
        let mut all: Vec<NodeId> =
            settings.peers.iter().chain(&settings.contacts).copied().collect();
        all.extend(members.voters.iter().chain(&members.learners).chain(&self.told_of));
        all.sort_unstable();
        all.dedup();
        let is_due = |node: &NodeId| !is_quiet || !self.greeted.contains(node);
        all.retain(|node| *node != self.settings.id && is_due(node));
        all.into_iter().for_each(|node| self.say_hello(node, true));
    }

    /// Changes of members that a leader makes by itself: a member whose pool was replaced becomes a learner with the
    /// new pool, and a joining learner becomes a voter when it has nearly all entries.
    pub(super) fn tend_members(&mut self) {
        let Some(term) = self.leads_in() else { return self.silence.clear() };
        let (notes, applied) = {
            let view = self.view();
            (view.notes().clone(), view.control().applied)
        };
        if notes.cluster == 0
            && self.named_in != term
            && self.propose_name(mix(self.life).max(1)).is_ok()
        {
            self.named_in = term;
        }
        if self.silence.is_empty() && !mutant!("replica.identity.past") {
            // A leadership begins. Other pools that were heard of before may be gone; one that is there says so again.
            self.heard.retain(|node, _| !notes.members.has(*node));
        }
        notes.peers.iter().for_each(|peer| *self.silence.entry(peer.node).or_default() += 1);
        let patience = 2 * self.settings.election_ticks;
        // A member that is still heard is not replaced by another pool with its number.
        let is_silent = |node| {
            self.silence.get(&node).is_some_and(|ticks| *ticks > patience)
                || mutant!("replica.identity.stranger")
        };
        let is_other = |peer: &&Peer| {
            peer.node != self.settings.id
                && notes.members.has(peer.node)
                && is_silent(peer.node)
                && self
                    .heard
                    .get(&peer.node)
                    .is_some_and(|(identity, is_bound)| *identity != peer.identity && !is_bound)
        };
        let wiped = notes.peers.iter().find(is_other).map(|peer| peer.node);
        if let Some(node) = wiped {
            // If another change is under way, the next tick tries again.
            let _begun = self.propose_members(&[MemberChange::Join(node)]).is_ok();
            return;
        }
        let State::Running(raw) = &self.state else { return };
        let joined = notes.members.joining.iter().copied().find(|node| {
            let progress = raw.raft.prs().get(*node);
            // A node that has confirmed no entry is not filled, however young the cluster is.
            let is_filled = |it: &raft::Progress| it.matched > 0 && it.matched + LAG_MAX >= applied;
            progress.is_some_and(|it| it.recent_active && is_filled(it))
        });
        if let Some(node) = joined {
            let _begun = self.propose_members(&[MemberChange::Voter(node)]).is_ok();
        }
    }

    /// The identity with which a node becomes a member, or 0 if the noted one stays: the identity is noted for a node
    /// that is no member yet, and for one that is filled anew. None if it is not known.
    pub(super) fn identity_for(&self, change: MemberChange) -> Option<u64> {
        let node = change.node();
        let heard = self.heard.get(&node).map_or(0, |(identity, _)| *identity);
        let view = self.view();
        let known = view.notes().peer(node);
        match (change, known) {
            (MemberChange::Remove(_), _) => Some(0),
            (_, None) => Some(heard).filter(|identity| *identity != 0),
            (MemberChange::Voter(_), Some(_)) => Some(0),
            (_, Some(known)) if heard == known.identity => Some(0),
            (_, Some(_)) => Some(heard),
        }
    }
}
