//! How a node is, how it stands, and what it has to say.

use crate::codec::Envelope;
use crate::members::{Members, NodeId};
use coreplane_engine::{Batch, Ticket};

/// How a node is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its own number.
    pub id: NodeId,
    /// Who forms the cluster, if there is none yet: the same on each of them. Empty of a node that is to be added to one.
    pub peers: Vec<NodeId>,
    /// Whom a node greets that is to be added to a cluster.
    pub contacts: Vec<NodeId>,
    /// Drawn at random: the identity of its pool, if that has none yet. Never 0.
    pub identity: u64,
    /// Drawn at random at each start. Never 0.
    pub life: u64,
    /// Ticks without a word of a leader before an election, at least; at most twice that.
    pub election_ticks: usize,
    /// Ticks between two heartbeats.
    pub heartbeat_ticks: usize,
    /// Where chance comes from.
    pub seed: u64,
    /// Bytes of entries in a message.
    pub message_bytes: u64,
    /// Messages with entries that a follower has not answered yet.
    pub in_flight: usize,
    /// Bytes of entries that are not committed yet, beyond which proposals are refused.
    pub uncommitted_bytes: u64,
    /// Bytes of entries that are kept in DRAM for followers.
    pub ring_bytes: usize,
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
            page_bytes: 64 << 10,
        }
    }
}

/// What a node is in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It takes proposals and reads.
    Leader,
    /// It follows one, or waits for one.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It is sent a snapshot, and has nothing before.
    Installing,
}

/// What was proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// By which the output calls it.
    pub number: u64,
    /// Where its entry is, unless another leader puts another one there.
    pub index: u64,
}

/// An entry that is applied.
#[derive(Debug, Clone)]
pub struct AppliedEntry {
    /// Its index, which is the sequence of the records that it has made.
    pub index: u64,
    /// What it has changed; nothing, if it is one of the cluster's own.
    pub changes: Batch,
}

/// How far a node has come, as its leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberProgress {
    /// The node.
    pub node: NodeId,
    /// The index up to which it has all entries.
    pub matched: u64,
    /// It was heard of late.
    pub is_active: bool,
}

/// How a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What it is.
    pub role: Role,
    /// The newest term that it knows.
    pub term: u64,
    /// Who leads, if it knows.
    pub leader: Option<NodeId>,
    /// The newest entry that it has.
    pub newest: u64,
    /// The newest entry that it knows to be committed.
    pub committed: u64,
    /// The newest entry that its readers see.
    pub applied: u64,
    /// Who the members are, as far as it has applied.
    pub members: Members,
}

/// What a node wants done, and has to tell.
#[derive(Debug, Default)]
pub struct Output {
    /// To be sent; any may be lost.
    pub envelopes: Vec<Envelope>,
    /// Proposals that are committed and applied here, and the indices of their entries.
    pub settled: Vec<(u64, u64)>,
    /// Proposals of which nobody here knows what becomes of them: the leadership has ended.
    pub lost: Vec<u64>,
    /// Reads that may be answered from the map now.
    pub reads: Vec<u64>,
    /// What was asked of the leader ([`Node::ask`](super::Node::ask)): all that was acknowledged before that is applied here.
    pub fresh: Vec<u64>,
    /// Reads that are to be asked again, of the leader.
    pub reads_lost: Vec<u64>,
    /// Call [`Node::persisted`](super::Node::persisted) when this is durable.
    pub ticket: Option<Ticket>,
}
