//! The cluster that a server is a node of, as its clients see it.

use coreplane_engine::{Batch, Deferred, DurableListener, Result as EngineResult, UnixMillis};
use std::fmt::Debug;
use std::net::SocketAddr;

/// Where commands that need the records are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Here.
    Leads,
    /// At the leader, whose address for clients this is.
    Follows(SocketAddr),
    /// Not known yet.
    Unknown,
}

/// A member of a cluster, as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its number.
    pub node: u64,
    /// Where clients reach it; none: where they reach this server.
    pub address: Option<SocketAddr>,
    /// It is the leader.
    pub leads: bool,
    /// The index up to which it has all entries, as far as this node knows.
    pub index: u64,
    /// This node has heard from it lately.
    pub is_online: bool,
}

/// Records of a pinned state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// Keys, values and expiries.
    pub records: Vec<(Vec<u8>, Vec<u8>, Option<UnixMillis>)>,
    /// The first key of the next page; none after the last page.
    pub next: Option<Vec<u8>>,
}

/// An entry that a node has applied.
#[derive(Debug, Clone)]
pub struct AppliedEntry {
    /// Its index.
    pub index: u64,
    /// Its changes; none, if it is one of the cluster's own entries.
    pub changes: Batch,
}

/// The knowledge of a node about its cluster.
pub trait ClusterInfo: Send + Sync + Debug {
    /// Where commands are run. It is called for each command, so it must be quick.
    fn standing(&self) -> Standing;

    /// The followers of this node, which leads: their addresses for clients, and the index up to which they have all
    /// entries.
    fn followers(&self) -> Vec<(SocketAddr, u64)>;

    /// The index up to which all entries are applied here.
    fn applied(&self) -> u64;

    /// The number of nodes, including this one, that have everything acknowledged by now; `WAIT` answers one less.
    fn copies(&self) -> usize;

    /// Executes the words of a `CLUSTER` command; the answer to the client.
    ///
    /// # Errors
    /// Why it cannot be done, as the client receives it: from the code of the error on.
    fn run(&self, words: &[&str]) -> Result<String, String>;

    /// The state of the node and its peers, for `INFO`: names of letters, digits and underscores, and values. Whole
    /// numbers become metrics, too.
    fn figures(&self) -> Vec<(String, String)>;

    /// The members whose addresses are known, the leader first.
    fn members(&self) -> Vec<MemberInfo>;

    /// Pins the state that this node has applied, for a backup: a number, and the index. The node believes itself the
    /// leader; so the answer to the client waits for the same confirmation as a read. The pin is released after a
    /// minute without a request for one of its pages.
    ///
    /// # Errors
    /// Why it cannot be done, as the client receives it.
    fn pin(&self) -> Result<(u64, u64), String>;

    /// A page of the state pinned under this number.
    ///
    /// # Errors
    /// Why it cannot be shown, as the client receives it.
    fn page(&self, pin: u64, start: &[u8]) -> Result<SnapshotPage, String>;

    /// Releases the state pinned under this number.
    fn unpin(&self, pin: u64);

    /// Entries applied here behind this index, in order, up to so many bytes but at least one; none if nothing newer
    /// is applied here.
    ///
    /// # Errors
    /// [`HistoryGone`](coreplane_engine::Error::HistoryGone) if the node does not have all of them any more.
    fn changes_since(&self, index: u64, bytes_max: usize) -> EngineResult<Vec<AppliedEntry>>;

    /// Registers a listener that is called, from any thread, whenever an entry is applied here.
    fn on_applied(&self, listener: DurableListener);

    /// The state applied by this node, for reads while another node leads. None if it may be older than the server
    /// allows, or if its age is unknown: then this node finds it out.
    fn follower_reads(&self) -> Option<&dyn Deferred>;

    /// True if clients are told the address of the leader (`MOVED`) instead of being forwarded to it.
    fn redirects(&self) -> bool;
}
