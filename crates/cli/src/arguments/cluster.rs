//! The arguments of clusters.

use super::Behind;
use crate::terms;
use clap::{Args, Subcommand};
use coreplane_mvcc::MapKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The node of a cluster that a server is.
#[derive(Debug, Args)]
pub(crate) struct ClusterNode {
    /// Serve as the node with this number, from 1 on, of a cluster of --cluster-peers. A node takes none of --engine,
    /// --index, --matrix, --ack, --prototype, --reads, --accept-loss and --http-port, of --durability only
    /// strict, and of --threads at most 1.
    #[arg(long, value_name = "NODE", requires = "cluster_peers")]
    pub(crate) cluster_id: Option<u64>,
    /// The nodes of the cluster, this one included, and where they reach each other. Nodes whose pools are new form
    /// the cluster, all with the same list. Without --cluster-password-file anybody who can connect there is believed
    /// to be a node: then the addresses are to be in a network of nodes alone.
    #[arg(
        long,
        value_name = "NODE=HOST:PORT,…",
        value_delimiter = ',',
        value_parser = peer,
        requires = "cluster_id"
    )]
    pub(crate) cluster_peers: Vec<(u64, SocketAddr)>,
    /// The file that holds the password of the cluster, the same for all its nodes: nodes with another one, or none,
    /// are refused. Messages between nodes are authenticated, and not encrypted [default: no password].
    #[arg(long, value_name = "PATH", requires = "cluster_id")]
    pub(crate) cluster_password_file: Option<PathBuf>,
    /// A new pool is that of a node which is to be added to a cluster that there is (`coreplane cluster add`).
    #[arg(long, requires = "cluster_id")]
    pub(crate) cluster_join: bool,
    /// The map of a pool that is created. With `wal` the pool is a directory with a write-ahead log, and the map in DRAM:
    /// the thesis's baseline, to compare with. With `wal-pool` that log is in a pool, of the same medium as other pools.
    #[arg(
        long,
        value_name = "list|cow-tree|wal|wal-pool",
        default_value = "list",
        value_parser = map_kind,
        requires = "cluster_id"
    )]
    pub(crate) replica_map: ReplicaMapKind,
    /// Tell clients where the leader is (`MOVED`, for clients of a Redis cluster) instead of passing their commands on.
    #[arg(long, requires = "cluster_id")]
    pub(crate) redirect: bool,
    /// Clients that say READONLY are shown what a follower has, unless that may be older: then the leader answers.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        value_parser = terms::duration,
        requires = "cluster_id"
    )]
    pub(crate) follower_age_max: Duration,
    /// A tenth of the time after which a node that hears no leader stands for election, at least.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "25ms",
        value_parser = terms::duration,
        requires = "cluster_id"
    )]
    pub(crate) cluster_tick: Duration,
}

fn peer(text: &str) -> Result<(u64, SocketAddr), String> {
    let wrong = || format!("`{text}` is no peer; 1=10.0.0.1:7000 is one");
    let (node, address) = text.split_once('=').ok_or_else(wrong)?;
    let node = node.parse().ok().filter(|node| *node > 0).ok_or_else(wrong)?;
    let mut addresses = address.to_socket_addrs().map_err(|error| format!("{text}: {error}"))?;
    addresses.next().map(|address| (node, address)).ok_or_else(wrong)
}

/// The kind of the map of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaMapKind {
    /// A map that is its own log, in a pool.
    Map(MapKind),
    /// A log in a directory, and a map in DRAM.
    Wal,
    /// A log in a pool, and a map in DRAM.
    WalPool,
}

fn map_kind(text: &str) -> Result<ReplicaMapKind, String> {
    match text {
        "wal" => return Ok(ReplicaMapKind::Wal),
        "wal-pool" => return Ok(ReplicaMapKind::WalPool),
        _ => {}
    }
    let kind = MapKind::ALL.into_iter().find(|kind| kind.name() == text);
    let kind = kind.map(ReplicaMapKind::Map);
    kind.ok_or_else(|| format!("`{text}` is none of list, cow-tree, wal, wal-pool"))
}

/// What to do with a cluster, by way of any of its servers.
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Say who leads, who follows, and how far.
    Status(AskedCluster),
    /// Add a node, whose server runs with `--cluster-join`: it is sent all there is, and elects from then on.
    Add(ClusterChange),
    /// Remove a node: it takes no part any more, and can be stopped.
    Remove(ClusterChange),
    /// Give the leadership to a node.
    Transfer(ClusterChange),
    /// Write all records of one moment as JSON lines; commands go on meanwhile.
    Backup(ClusterBackup),
    /// Write the records of a backup to a cluster in which there is nothing.
    Restore(ClusterRestore),
}

/// Where a backup goes.
#[derive(Debug, Args)]
pub(crate) struct ClusterBackup {
    #[command(flatten)]
    pub(crate) behind: Behind,
    /// Where to write; a file is made or replaced when all is written [default: the standard output].
    pub(crate) output: Option<PathBuf>,
}

/// Where a backup is.
#[derive(Debug, Args)]
pub(crate) struct ClusterRestore {
    #[command(flatten)]
    pub(crate) behind: Behind,
    /// The JSON lines [default: the standard input].
    pub(crate) input: Option<PathBuf>,
}

/// A server of the cluster.
#[derive(Debug, Args)]
pub(crate) struct AskedCluster {
    #[command(flatten)]
    pub(crate) behind: Behind,
}

/// What becomes of a node.
#[derive(Debug, Args)]
pub(crate) struct ClusterChange {
    #[command(flatten)]
    pub(crate) behind: Behind,
    /// The node's number.
    pub(crate) node: u64,
}
