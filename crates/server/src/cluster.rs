//! The cluster that a server is a node of, as far as clients are told of it.

use coreplane_engine::{Batch, Deferred, DurableListener, Result as EngineResult, UnixMillis};
use std::fmt::Debug;
use std::net::SocketAddr;

/// Where commands that need the records are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Here.
    Leads,
    /// By the leader, whose clients' address this is.
    Follows(SocketAddr),
    /// Nobody knows yet.
    Unknown,
}

/// A member of a cluster, as clients are told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its number.
    pub node: u64,
    /// Where clients reach it; none: where they reach this server.
    pub address: Option<SocketAddr>,
    /// It leads.
    pub leads: bool,
    /// The index up to which it has all, as far as this node knows.
    pub index: u64,
    /// It was heard lately, as far as this node knows.
    pub is_online: bool,
}

/// Records of a state that was pinned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// Keys, values, and when they expire.
    pub records: Vec<(Vec<u8>, Vec<u8>, Option<UnixMillis>)>,
    /// The key with which the next page begins; none: this is the last one.
    pub next: Option<Vec<u8>>,
}

/// An entry that a node has applied.
#[derive(Debug, Clone)]
pub struct AppliedEntry {
    /// Its index.
    pub index: u64,
    /// What it has changed; nothing, if it is one of the cluster's own.
    pub changes: Batch,
}

/// What a node knows of its cluster.
pub trait ClusterInfo: Send + Sync + Debug {
    /// Where commands are run. Asked for each of them: it must be quick.
    fn standing(&self) -> Standing;

    /// Nodes that follow this one, which leads: their clients' addresses, and the index up to which they have all.
    fn followers(&self) -> Vec<(SocketAddr, u64)>;

    /// The index up to which all is applied here.
    fn applied(&self) -> u64;

    /// Nodes, this one included, that have all that is acknowledged by now; what `WAIT` tells is one less.
    fn copies(&self) -> usize;

    /// Does what the words of a `CLUSTER` command say; what the client is told.
    ///
    /// # Errors
    /// Why it cannot be done, as it is sent: from the code of the error on.
    fn run(&self, words: &[&str]) -> Result<String, String>;

    /// How the node and its peers are, for `INFO`: names of letters, digits and underscores, and values. Those that are
    /// whole numbers are metrics too.
    fn figures(&self) -> Vec<(String, String)>;

    /// The members whose addresses are known, the one that leads first.
    fn members(&self) -> Vec<MemberInfo>;

    /// Pins what is applied by this node, which takes itself for the leader, for a backup: a number, and the index. Whoever is
    /// told of it waits for the confirmation that a read waits for. It is let go of when nobody has asked for a page of it for a
    /// minute.
    ///
    /// # Errors
    /// Why it cannot be done, as it is sent.
    fn pin(&self) -> Result<(u64, u64), String>;

    /// A page of what was pinned by this number.
    ///
    /// # Errors
    /// Why it cannot be shown, as it is sent.
    fn page(&self, pin: u64, start: &[u8]) -> Result<SnapshotPage, String>;

    /// Lets go of what was pinned by this number.
    fn unpin(&self, pin: u64);

    /// Entries that are applied here, those behind this index in their order, of so many bytes, or one; none if nothing
    /// newer is applied here.
    ///
    /// # Errors
    /// [`HistoryGone`](coreplane_engine::Error::HistoryGone) if the node does not have all of them any more.
    fn changes_since(&self, index: u64, bytes_max: usize) -> EngineResult<Vec<AppliedEntry>>;

    /// Registers who is called, from any thread, whenever more is applied here.
    fn on_applied(&self, listener: DurableListener);

    /// What this node has applied, to be read though another one leads; none if it may be older than the server allows,
    /// or nobody knows how old it is: then this node finds out.
    fn follower_reads(&self) -> Option<&dyn Deferred>;

    /// True if clients are told where the leader is (`MOVED`) instead of being served by way of it.
    fn redirects(&self) -> bool;
}
