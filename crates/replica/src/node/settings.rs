//! The settings of a node, its status, and its output.

use crate::codec::Envelope;
use crate::members::{Members, NodeId};
use coreplane_engine::{Batch, Ticket};

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its own number.
    pub id: NodeId,
    /// The nodes that form the cluster, if there is none yet: the same on each of them. Empty for a node that is to
    /// be added to one.
    pub peers: Vec<NodeId>,
    /// The nodes that a node greets when it is to be added to a cluster.
    pub contacts: Vec<NodeId>,
    /// Drawn at random: the identity of its pool, if that has none yet. Never 0.
    pub identity: u64,
    /// Drawn at random at each start. Never 0.
    pub life: u64,
    /// Ticks without a message of a leader before an election: at least this number, at most twice.
    pub election_ticks: usize,
    /// Ticks between two heartbeats.
    pub heartbeat_ticks: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// Bytes of entries in a message.
    pub message_bytes: u64,
    /// Messages with entries that a follower has not answered yet.
    pub in_flight: usize,
    /// Bytes of entries that are not committed yet, beyond which proposals are refused.
    pub uncommitted_bytes: u64,
    /// Bytes of entries that are kept in DRAM for followers.
    pub ring_bytes: usize,
    /// The same while a node is being filled, which goes on with the entries behind its snapshot.
    pub held_bytes: usize,
    /// Bytes of records in a page of a snapshot.
    pub page_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            id: 1,
            peers: Vec::new(),
            contacts: Vec::new(),
            identity: 1,
            life: 1,
            election_ticks: 10,
            heartbeat_ticks: 2,
            seed: 0,
            message_bytes: 1 << 20,
            in_flight: 256,
            uncommitted_bytes: 64 << 20,
            ring_bytes: 16 << 20,
            held_bytes: 512 << 20,
            page_bytes: 64 << 10,
        }
    }
}

/// What a node is in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It takes proposals and reads.
    Leader,
    /// It follows a leader, or waits for one.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It is being sent a snapshot, and has no log before that.
    Installing,
}

/// A proposal that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// The number by which the output calls it.
    pub number: u64,
    /// The index of its entry, unless another leader puts another entry there.
    pub index: u64,
}

/// An entry that is applied.
#[derive(Debug, Clone)]
pub struct AppliedEntry {
    /// Its index, which is the sequence of the records that it has written.
    pub index: u64,
    /// Its changes; empty if it is one of the cluster's own entries.
    pub changes: Batch,
}

/// How far a node has come, as its leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberProgress {
    /// The node.
    pub node: NodeId,
    /// The index up to which it has all entries.
    pub matched: u64,
    /// It was heard from recently.
    pub is_active: bool,
}

/// The status of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its role.
    pub role: Role,
    /// The newest term that it knows.
    pub term: u64,
    /// The leader, if it is known.
    pub leader: Option<NodeId>,
    /// The newest entry that it has.
    pub newest: u64,
    /// The newest entry that it knows to be committed.
    pub committed: u64,
    /// The newest entry that its readers see.
    pub applied: u64,
    /// The members, according to the applied entries.
    pub members: Members,
}

/// Messages that a node wants sent, and results that it reports.
#[derive(Debug, Default)]
pub struct Output {
    /// To be sent; any may be lost.
    pub envelopes: Vec<Envelope>,
    /// Proposals that are committed and applied here, and the indices of their entries.
    pub settled: Vec<(u64, u64)>,
    /// Proposals whose result is unknown here, because the leadership has ended.
    pub lost: Vec<u64>,
    /// Reads that may be answered from the map now.
    pub reads: Vec<u64>,
    /// Answered questions to the leader ([`Node::ask`](super::Node::ask)): everything acknowledged before the
    /// question is applied here.
    pub fresh: Vec<u64>,
    /// Reads that have to be asked again, at the leader.
    pub reads_lost: Vec<u64>,
    /// Call [`Node::flush`](super::Node::flush) when this is durable.
    pub ticket: Option<Ticket>,
}
