//! The members: voters and learners, and the earlier voters as long as a change is under way.
//!
//! The members are a part of the map's control record. They name the entry that made them, so that an entry that is
//! applied again after a crash, because its control record was lost, changes them only once. Beside them are the
//! notes of a node about itself ([`Notes`]).

use crate::entry::Reader;
use coreplane_engine::{Error, Result};
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};
use std::collections::BTreeSet;

/// The number of a node in its cluster; never 0.
pub type NodeId = u64;

/// Nodes of a cluster at most: the control record has 512 bytes for all.
pub(crate) const NODES_MAX: usize = 7;

/// The term and the index of an entry: of two logs, the one whose last entry is greater has all committed entries, if
/// either has.
pub(crate) type Last = (u64, u64);

/// The members of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// They elect, and a majority of them makes an entry committed.
    pub voters: Vec<NodeId>,
    /// They are sent all entries, and are not counted.
    pub learners: Vec<NodeId>,
    /// The earlier voters, while a change is under way: a majority of them is needed, too.
    pub voters_outgoing: Vec<NodeId>,
    /// Earlier voters that become learners when the change ends.
    pub learners_next: Vec<NodeId>,
    /// Learners that become voters as soon as they have nearly all entries.
    pub joining: Vec<NodeId>,
    /// The leader ends the change by itself.
    pub auto_leave: bool,
    /// The entry that made them.
    pub index: u64,
}

impl Members {
    /// The first members of a cluster.
    pub(crate) fn first(voters: &[NodeId]) -> Self {
        Self { voters: voters.to_vec(), index: 1, ..Self::default() }
    }

    /// All nodes.
    pub fn all(&self) -> BTreeSet<NodeId> {
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        lists.into_iter().flatten().copied().collect()
    }

    /// True if the node is a member.
    pub fn has(&self, node: NodeId) -> bool {
        self.all().contains(&node)
    }

    /// True if the node is a voter, or was one before the change under way.
    pub fn elects(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.voters_outgoing.contains(&node)
    }

    /// The number of nodes, including those that these changes would add.
    pub(crate) fn count_with(&self, changes: &[MemberChange]) -> usize {
        let added = changes.iter().filter_map(|change| match change {
            MemberChange::Remove(_) => None,
            change => Some(change.node()),
        });
        self.all().into_iter().chain(added).collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn of_state(state: &ConfState, index: u64) -> Self {
        // Consensus has them in no order; they are to be the same on each node.
        let sorted = |nodes: &[NodeId]| {
            let mut nodes = nodes.to_vec();
            nodes.sort_unstable();
            nodes
        };
        Self {
            voters: sorted(state.get_voters()),
            learners: sorted(state.get_learners()),
            voters_outgoing: sorted(state.get_voters_outgoing()),
            learners_next: sorted(state.get_learners_next()),
            auto_leave: state.auto_leave,
            joining: Vec::new(),
            index,
        }
    }

    /// The joining nodes after these changes, among the learners after them.
    pub(crate) fn joining_after(
        &self,
        changes: &[MemberChange],
        learners: &[NodeId],
    ) -> Vec<NodeId> {
        let joins = changes.iter().filter_map(|change| match change {
            MemberChange::Join(node) => Some(*node),
            _ => None,
        });
        let ends = |node: &NodeId| changes.iter().any(|it| it.node() == *node);
        let before = self.joining.iter().copied().filter(|node| !ends(node));
        let mut all: Vec<NodeId> = before.chain(joins).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|node| learners.contains(node));
        all
    }

    pub(crate) fn to_state(&self) -> ConfState {
        let mut state = ConfState::default();
        state.set_voters(self.voters.clone());
        state.set_learners(self.learners.clone());
        state.set_voters_outgoing(self.voters_outgoing.clone());
        state.set_learners_next(self.learners_next.clone());
        state.auto_leave = self.auto_leave;
        state
    }

    fn encode(&self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.push(u8::from(self.auto_leave));
        bytes.extend_from_slice(&self.index.to_le_bytes());
        let Self { voters, learners, voters_outgoing, learners_next, joining, .. } = self;
        for list in [voters, learners, voters_outgoing, learners_next, joining] {
            if list.len() > NODES_MAX {
                let (what, given) = ("members of a kind", list.len() as u64);
                return Err(Error::OutOfRange { what, given, from: 0, to: NODES_MAX as u64 });
            }
            bytes.push(list.len() as u8);
            list.iter().for_each(|node| bytes.extend_from_slice(&node.to_le_bytes()));
        }
        Ok(())
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let auto_leave = reader.byte()? != 0;
        let index = reader.word()?;
        let mut list = || {
            let count = usize::from(reader.byte()?);
            (0..count).map(|_| reader.word()).collect::<Option<Vec<NodeId>>>()
        };
        let (voters, learners, voters_outgoing, learners_next, joining) =
            (list()?, list()?, list()?, list()?, list()?);
        Some(Self { voters, learners, voters_outgoing, learners_next, joining, auto_leave, index })
    }
}

/// The notes about a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    /// The identity of its pool.
    pub(crate) identity: u64,
    /// Its newest known start, and the life of that start.
    pub(crate) start: u64,
    pub(crate) life: u64,
}

/// The notes of a node in its control record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    pub(crate) members: Members,
    /// The identity of its own pool.
    pub(crate) identity: u64,
    /// The number of the cluster, given by its first leader; 0 before.
    pub(crate) cluster: u64,
    /// It belongs to a cluster, and knows the pools of all members.
    pub(crate) is_bound: bool,
    /// It belonged to a cluster, or is to join one: its contents count for nothing.
    pub(crate) is_blank: bool,
    pub(crate) peers: Vec<Peer>,
    /// The last entry of a log that was given up for a snapshot, or is damaged: it was acknowledged.
    pub(crate) last: Last,
    /// How often the node was started.
    pub(crate) start: u64,
    /// The latest time that any caller was told has passed, in milliseconds since 1970.
    pub(crate) passed: u64,
}

impl Notes {
    /// # Errors
    /// [`Error::OutOfRange`] of too many nodes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let Self { last, start, passed, identity, cluster, .. } = *self;
        for word in [last.0, last.1, start, passed, identity, cluster] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.push(u8::from(self.is_bound) | u8::from(self.is_blank) << 1);
        bytes.push(self.peers.len() as u8);
        for Peer { node, identity, start, life } in &self.peers {
            for word in [node, identity, start, life] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        self.members.encode(&mut bytes)?;
        Ok(bytes)
    }

    /// None if the bytes are not notes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let last = (reader.word()?, reader.word()?);
        let (start, passed) = (reader.word()?, reader.word()?);
        let (identity, cluster) = (reader.word()?, reader.word()?);
        let (flags, count) = (reader.byte()?, reader.byte()?);
        let peers = (0..count).map(|_| {
            let (node, identity) = (reader.word()?, reader.word()?);
            Some(Peer { node, identity, start: reader.word()?, life: reader.word()? })
        });
        let peers = peers.collect::<Option<_>>()?;
        let members = Members::decode(&mut reader)?;
        let (is_bound, is_blank) = (flags & 1 != 0, flags & 2 != 0);
        let notes =
            Self { members, last, start, passed, identity, cluster, is_bound, is_blank, peers };
        reader.0.is_empty().then_some(notes)
    }

    /// True if the node is of a cluster, and its contents count.
    pub(crate) fn takes_part(&self) -> bool {
        self.is_bound && !self.is_blank
    }

    /// True if the node has not met its peers yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.is_bound && !self.is_blank
    }

    /// The notes about a member.
    pub(crate) fn peer(&self, node: NodeId) -> Option<Peer> {
        self.peers.iter().copied().find(|peer| peer.node == node)
    }

    /// Notes starts of pools that are noted here with an earlier start, or with none.
    pub(crate) fn note_starts(&mut self, heard: &[Peer]) {
        for peer in &mut self.peers {
            let is_later = |it: &&Peer| {
                (it.node, it.identity) == (peer.node, peer.identity) && it.start > peer.start
            };
            if let Some(later) = heard.iter().find(is_later) {
                *peer = *later;
            }
        }
    }

    /// Notes other members: their pools, where these are given, and nothing of nodes that are not members.
    pub(crate) fn note_members(&mut self, members: Members, changes: &[(MemberChange, u64)]) {
        for (change, identity) in changes.iter().filter(|(_, identity)| *identity != 0) {
            let node = change.node();
            if self.peer(node).is_none_or(|peer| peer.identity != *identity) {
                self.peers.retain(|peer| peer.node != node);
                self.peers.push(Peer { node, identity: *identity, start: 0, life: 0 });
            }
        }
        self.peers.retain(|peer| members.has(peer.node));
        self.peers.sort_unstable_by_key(|peer| peer.node);
        self.members = members;
    }
}

/// A change of the role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// It votes, and is counted.
    Voter(NodeId),
    /// It is sent all entries.
    Learner(NodeId),
    /// It is sent all entries, and becomes a voter as soon as it has nearly all. A node with another pool than before
    /// is filled anew.
    Join(NodeId),
    /// It takes no further part.
    Remove(NodeId),
}

impl MemberChange {
    /// The node that it changes.
    pub fn node(self) -> NodeId {
        match self {
            Self::Voter(node) | Self::Learner(node) | Self::Join(node) | Self::Remove(node) => node,
        }
    }

    /// True if this node is not a voter any more.
    pub(crate) fn ends(self, voter: NodeId) -> bool {
        self.node() == voter && !matches!(self, Self::Voter(_))
    }
}

/// Bytes of a change in a context.
pub(crate) const CHANGE: usize = 17;

/// A change of members as the context of an entry, each with the identity of the node's pool, or 0 if that is known;
/// an empty list ends a change that is under way.
pub(crate) fn encode_change(changes: &[(MemberChange, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (change, identity) in changes {
        let (op, node) = match change {
            MemberChange::Voter(node) => (1, node),
            MemberChange::Learner(node) => (2, node),
            MemberChange::Remove(node) => (3, node),
            MemberChange::Join(node) => (4, node),
        };
        bytes.push(op);
        bytes.extend_from_slice(&node.to_le_bytes());
        bytes.extend_from_slice(&identity.to_le_bytes());
    }
    bytes
}

/// The reverse of [`encode_change`]; none if the bytes are not such a context.
pub(crate) fn decode_change(bytes: &[u8]) -> Option<Vec<(MemberChange, u64)>> {
    let (mut changes, mut reader) = (Vec::new(), Reader(bytes));
    while !reader.0.is_empty() {
        let (op, node, identity) = (reader.byte()?, reader.word()?, reader.word()?);
        let change = match op {
            1 => MemberChange::Voter(node),
            2 => MemberChange::Learner(node),
            3 => MemberChange::Remove(node),
            4 => MemberChange::Join(node),
            _ => return None,
        };
        changes.push((change, identity));
    }
    Some(changes)
}

/// The change in the form of consensus.
pub(crate) fn to_conf_change(changes: &[(MemberChange, u64)]) -> ConfChangeV2 {
    let mut conf = ConfChangeV2::default();
    conf.set_transition(ConfChangeTransition::Auto);
    let singles = changes.iter().map(|(change, _)| {
        let (kind, node) = match change {
            MemberChange::Voter(node) => (ConfChangeType::AddNode, node),
            MemberChange::Learner(node) | MemberChange::Join(node) => {
                (ConfChangeType::AddLearnerNode, node)
            }
            MemberChange::Remove(node) => (ConfChangeType::RemoveNode, node),
        };
        let mut single = ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = *node;
        single
    });
    conf.set_changes(singles.collect::<Vec<_>>().into());
    conf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_what_they_were() {
        let members = Members {
            voters: vec![1, 2, u64::MAX],
            learners: vec![4],
            voters_outgoing: vec![],
            learners_next: vec![9],
            joining: vec![4],
            auto_leave: true,
            index: 77,
        };
        let peers = vec![Peer { node: 1, identity: 2, start: 3, life: 4 }; 7];
        let notes = Notes {
            members: members.clone(),
            last: (3, 4),
            start: 9,
            passed: 5,
            identity: 6,
            cluster: 8,
            is_bound: true,
            is_blank: false,
            peers,
        };
        let bytes = notes.encode().unwrap();
        assert_eq!(Notes::decode(&bytes), Some(notes.clone()));
        (0..bytes.len()).for_each(|cut| assert_eq!(Notes::decode(&bytes[..cut]), None));
        let again = Members::of_state(&members.to_state(), 77);
        assert_eq!(Members { joining: vec![4], ..again }, members);
        let all: Vec<NodeId> = (1..=NODES_MAX as u64).collect();
        let most = Members {
            voters: all.clone(),
            voters_outgoing: all.clone(),
            joining: all,
            ..Members::default()
        };
        let most = Notes { members: most, peers: vec![Peer::default(); NODES_MAX], ..notes };
        assert!(most.encode().unwrap().len() <= coreplane_mvcc::MEMBERS_MAX);
        let many = Members { voters: (0..13).collect(), ..Members::default() };
        assert!(Notes { members: many, ..Notes::default() }.encode().is_err());
    }

    #[test]
    fn a_later_start_of_the_same_pool_is_noted() {
        let peer = |node, identity, start, life| Peer { node, identity, start, life };
        let peers = vec![peer(1, 7, 3, 30), peer(2, 8, 3, 30), peer(3, 9, 3, 30), peer(4, 5, 0, 0)];
        let mut notes = Notes { peers, ..Notes::default() };
        notes.note_starts(&[
            peer(1, 7, 4, 40),
            // An earlier start, another pool, another node.
            peer(2, 8, 2, 20),
            peer(3, 1, 9, 90),
            peer(6, 5, 9, 90),
        ]);
        let noted = [peer(1, 7, 4, 40), peer(2, 8, 3, 30), peer(3, 9, 3, 30), peer(4, 5, 0, 0)];
        assert_eq!(notes.peers, noted);
    }

    #[test]
    fn a_change_is_what_it_was() {
        let changes = [
            (MemberChange::Voter(3), 7),
            (MemberChange::Learner(4), 0),
            (MemberChange::Remove(5), 0),
            (MemberChange::Join(6), 9),
        ];
        let bytes = encode_change(&changes);
        assert_eq!(decode_change(&bytes), Some(changes.to_vec()));
        assert_eq!(to_conf_change(&changes).get_changes().len(), 4);
        assert_eq!(bytes.len(), 4 * CHANGE);
        assert_eq!(decode_change(&bytes[1..]), None);
    }
}
