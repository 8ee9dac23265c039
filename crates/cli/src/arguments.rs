//! The command line.

mod cluster;
mod matrix;
mod nbd;
mod pool;
mod ts;

pub(crate) use cluster::{
    AskedCluster, Cluster, ClusterBackup, ClusterChange, ClusterNode, ClusterRestore,
    ReplicaMapKind,
};
pub(crate) use matrix::{AddGroup, Looked, Matrix, Replace, Retire, Tended};
pub(crate) use nbd::{Nbd, NbdGrow, NbdPool, NbdServe, NbdVerify};
pub(crate) use pool::{Behind, Pool, PoolPlace};
pub(crate) use ts::{
    Http, SeriesBeside, Ts, TsAsked, TsExport, TsGrow, TsImport, TsPool, TsQuery, TsServe,
};

use crate::geometry::Geometry;
use crate::terms;
use clap::{Args, Parser, Subcommand, value_parser};
use coreplane::{Ack, Durability, EngineChoice, MatrixShape, Placement, Prototype, ReadPath};
use coreplane_bench::{Jitter, MapWork, Plan, Refill, Sweep};
use std::path::PathBuf;
use std::time::Duration;

// Headings of groups of options in a help.
const MATRIX: &str = "Matrix";
pub(crate) const NEW_POOL: &str = "Pool that is created";
const SOCKETS: &str = "Sockets";
const CLIENTS: &str = "Clients";
const SERVED: &str = "Store that is served";
const ONE_WORKLOAD: &str = "Single workloads";

/// Key-value stores on persistent memory: serve them to Redis clients, look into them, measure
/// them.
///
/// A store lies in a pool: one file, or a directory with a file for each device of a matrix, on persistent memory (DAX), in a memory file system such as
/// /dev/shm that stands in for it, or on an ordinary disk. Which of them it is, is found out;
/// `coreplane info` says so, and what a power cut would lose there.
///
/// Try:
///   coreplane serve                          then: redis-cli set greeting hello
///   coreplane create --pool /dev/shm/my.pool --size 4GiB
///   coreplane put --pool /dev/shm/my.pool greeting hello
///   coreplane get --pool /dev/shm/my.pool greeting
///   coreplane bench --pool /dev/shm/bench.pool --workload a
///   coreplane ts serve --pool /dev/shm/my.ts       then: influx -execute 'CREATE DATABASE d'
///
/// A pool is open once at a time. While a server has it, its clients have the records, and info, stats,
/// verify, dump, scan, grow and matrix ask the server if they are told --server HOST:PORT.
#[derive(Debug, Parser)]
#[command(name = "coreplane", version, verbatim_doc_comment, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes:
  0   done
  1   verify or matrix scrub found damage, or repaired it; matrix replace or ts export left out what is damaged; get
      or del found no such key; put did not write, as it was told; bench --workload resync lost something
  2   the pool cannot be used: it is not there, is no pool, is locked, or cannot be opened
  3   what was asked for cannot be: over a limit, not in this engine
  4   no space: delete records, grow the pool (of a matrix all devices, or add a group), or free the file system
  5   the system or the medium failed, or nobody read what was to be told
  64  wrong usage of the command
  70  a page of the pool could not be read (SIGBUS)";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a pool to Redis clients.
    Serve(Serve),
    /// Create a pool.
    Create(Create),
    /// Say what a pool is, what it rests on, and what a power cut would lose.
    Info(Tended),
    /// Write the value of a key to the standard output.
    Get(Get),
    /// Write a record.
    Put(Put),
    /// Delete records.
    Del(Del),
    /// List records: in the order of their keys, if the engine has one.
    Scan(Scan),
    /// Write records from JSON lines, as `dump` makes them.
    Load(Load),
    /// Write all records as JSON lines.
    ///
    /// A line is {"key": …, "value": …} and "`expires_at_ms`" (milliseconds since 1970) if the
    /// record expires. What is no UTF-8 is in "`key_hex`" or "`value_hex`" instead.
    ///
    /// With --server the records are not of one moment, since clients go on meanwhile: what is written or deleted
    /// meanwhile may be there or not, and a batch in part. A key may come twice: the later line is the newer one,
    /// which `load` keeps.
    Dump(Dump),
    /// Check everything in a pool: exit code 0 sound, 1 damaged, 2 unusable.
    ///
    /// Each damage is told once, with the keys that it is of, as far as they can be named. A single pool need not be
    /// writable for it, and no byte of it changes; a matrix heals what it can from a peer as it is opened, unless it may
    /// not be written. With --server a store that is served is read, and its clients go on meanwhile.
    ///
    /// With --repair, what is damaged in a pool is repaired: exit code 0 if nothing was, 1 if something was
    /// damaged and is repaired now, 2 if it cannot be. What was lost is told before anything is
    /// given up: page, offset, bytes, and the keys as far as they can be named. A lost key is
    /// absent afterwards; where keys cannot be named, those that were last written there are
    /// absent, or hold what they held before. To keep what there is for others to look at, copy
    /// the file first. A file that was cut short is given its length again, and a damaged copy of the root is restored
    /// from the other one, before that is told; what was cut off is lost. A pool of list or cow-tree is repaired in
    /// no other case. Of a matrix `matrix scrub` writes what is damaged anew from a peer; a device that is not to
    /// be trusted any more is taken out by `matrix retire`, and `matrix replace --fresh` makes another. A single device is
    /// repaired only with --accept-loss: what is given up is deleted on its peers, too.
    Verify(Verify),
    /// Show the counters of a pool.
    Stats(Tended),
    /// Make a pool larger, or each device of a matrix; one that is as large already is left as it is.
    Grow(Grow),
    /// Look after a matrix.
    #[command(subcommand)]
    Matrix(Matrix),
    /// Look after a cluster.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Serve a disk of persistent memory to clients of network block devices (NBD), and look after it.
    #[command(subcommand)]
    Nbd(Nbd),
    /// Serve a time-series store to clients of InfluxDB and OpenTSDB, and look after it.
    #[command(subcommand)]
    Ts(Ts),
    /// Measure: YCSB workloads, and the floors that physics sets.
    Bench(Bench),
    /// Print a script that completes this command's arguments in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them to a directory.
    Man {
        /// Where to write one page a subcommand.
        directory: Option<PathBuf>,
    },
}

/// What a pool is made with.
#[derive(Debug, Args)]
pub(crate) struct NewPool {
    /// Bytes of a pool that is created, for example 4GiB. All of it is allocated then, so that
    /// nothing can run out later.
    #[arg(long, default_value = "1GiB", value_parser = terms::size, help_heading = NEW_POOL)]
    pub(crate) size: u64,
    /// Create a matrix, in a directory: 2x2 is two groups of two devices, a pool of --size bytes
    /// each. Keys are spread over the groups; devices of a group have the same. A link in the directory,
    /// g0d1 say, that leads to nothing yet puts that device where it leads, on another disk.
    #[arg(long, value_name = "GROUPSxDEVICES", help_heading = MATRIX)]
    pub(crate) matrix: Option<MatrixShape>,
    /// How many copies a write to a matrix that is created waits for: first, majority, all. One that exists
    /// must have been made so [default: all].
    #[arg(long, help_heading = MATRIX)]
    pub(crate) ack: Option<Ack>,
    /// Which of the paper's prototypes a matrix is that is created: mkvs (a read that one device is
    /// late with goes to another too), mkvs-gekv (one device of a group serves its reads), mkvs-ekv
    /// (one device, and no filter, whatever --matrix says). One that exists must have been made so
    /// [default: mkvs].
    #[arg(long, help_heading = MATRIX)]
    pub(crate) prototype: Option<Prototype>,
    /// The engine of a pool that is created: scmkv (a hash, for point reads and writes), bptree
    /// (a B+-tree, which scans in the order of keys), list or cow-tree (NVM-Raft's: ordered, with snapshots). One
    /// that exists must have been made so
    /// [default: scmkv; in a matrix bptree].
    #[arg(long, help_heading = NEW_POOL)]
    pub(crate) engine: Option<EngineChoice>,
    #[command(flatten)]
    pub(crate) geometry: Geometry,
    /// Where the index of a pool of scmkv that is created lies, for good: in the pool (pmem: opens at once,
    /// however large) or in DRAM (dram: fewer lines written a put); auto chooses.
    #[arg(long, default_value = "auto", value_parser = terms::placement, help_heading = NEW_POOL)]
    pub(crate) index: Placement,
}

/// Which way reads take to the devices of a matrix.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// Which way reads take to a device of a matrix: inline (the caller's thread), rings (the device's
    /// own thread), auto (inline until its reads meet stalls).
    #[arg(long, default_value = "auto", value_name = "PATH", help_heading = MATRIX)]
    pub(crate) reads: ReadPath,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// Give up what is damaged, so that the rest can be used, and say what is lost: of a pool of scmkv or bptree that
    /// nobody has open, and of one of list or cow-tree whose file was cut short, or of whose root one copy is damaged.
    #[arg(long, conflicts_with = "server")]
    pub(crate) repair: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) pool: PoolPlace,
    #[command(flatten)]
    pub(crate) new: NewPool,
    #[command(flatten)]
    pub(crate) paths: Paths,
    /// Addresses to listen on.
    #[arg(long, default_value = "127.0.0.1", value_delimiter = ',', help_heading = SOCKETS)]
    pub(crate) bind: Vec<String>,
    /// The TCP port; 0 for any free one.
    #[arg(long, default_value_t = 6379, help_heading = SOCKETS)]
    pub(crate) port: u16,
    /// The path of a Unix socket to listen on as well.
    #[arg(long, value_name = "PATH", help_heading = SOCKETS)]
    pub(crate) unixsocket: Option<PathBuf>,
    /// The mode of the Unix socket's file, in octal.
    #[arg(long, value_name = "MODE", value_parser = terms::octal, help_heading = SOCKETS)]
    pub(crate) unixsocketperm: Option<u32>,
    /// When a write is answered: strict and group: once it is durable; relaxed: at once, durable
    /// within 10 ms.
    #[arg(long, default_value = "strict", value_parser = terms::durability)]
    pub(crate) durability: Durability,
    /// Show records without a look at their checksums: some nanoseconds a read less, and damage at
    /// rest may be shown as a value until it is found (scmkv, bptree: by the scrub).
    #[arg(long)]
    pub(crate) no_check_reads: bool,
    /// Event loops; 0: one for each core but one, at least one.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// Connections at a time; fewer if the limit of open files has no room for them. It is raised as far as permitted.
    #[arg(
        long,
        default_value_t = 10_000,
        value_parser = value_parser!(u32).range(1..),
        help_heading = CLIENTS
    )]
    pub(crate) maxclients: u32,
    /// Drop a client that was idle for so long [default: never].
    #[arg(long, value_parser = terms::duration, help_heading = CLIENTS)]
    pub(crate) timeout: Option<Duration>,
    /// The file that holds the password which clients must give [default: no password].
    #[arg(long, value_name = "PATH", help_heading = CLIENTS)]
    pub(crate) requirepass_file: Option<PathBuf>,
    /// Serve clients from other machines although there is no password.
    #[arg(long, help_heading = CLIENTS)]
    pub(crate) no_protected_mode: bool,
    /// `address:port` of a Prometheus endpoint.
    #[arg(long, value_name = "ADDRESS", help_heading = SOCKETS)]
    pub(crate) metrics: Option<String>,
    #[command(flatten, next_help_heading = "Node of a cluster")]
    pub(crate) cluster: ClusterNode,
    #[command(flatten, next_help_heading = "Time series beside the records")]
    pub(crate) series: Box<SeriesBeside>,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) pool: Pool,
    #[command(flatten)]
    pub(crate) new: NewPool,
}

/// How keys are written.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Notation {
    /// Keys are given, and shown, in hexadecimal: 00ff. For those that are no text.
    #[arg(long)]
    pub(crate) key_hex: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) pool: Pool,
    /// The key.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) notation: Notation,
    /// Write the value as it is, without a line's end.
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    #[command(flatten)]
    pub(crate) pool: Pool,
    /// The key.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) notation: Notation,
    /// The value [default: all of the standard input].
    pub(crate) value: Option<String>,
    /// After how long the record ceases to exist, for example 10s, 1500ms, 7d; 0 is refused: such a record would
    /// be gone at once.
    #[arg(long, value_parser = terms::lifetime)]
    pub(crate) ttl: Option<Duration>,
    /// Write only if the key is absent.
    #[arg(long, conflicts_with = "if_present")]
    pub(crate) if_absent: bool,
    /// Write only if the key is there.
    #[arg(long)]
    pub(crate) if_present: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Del {
    #[command(flatten)]
    pub(crate) pool: Pool,
    /// The keys.
    #[arg(required = true)]
    pub(crate) keys: Vec<String>,
    #[command(flatten)]
    pub(crate) notation: Notation,
}

/// List records: in the order of their keys, if the engine has one (all but scmkv, and a matrix of any of them).
///
/// Where there is no order (scmkv) they come as the engine finds them; a prefix is looked for among all
/// of them then, and bounds are refused. With --server it is an ordered store that is asked, and may be
/// written meanwhile.
#[derive(Debug, Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// Only keys that begin so.
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// Only this key and those above it.
    #[arg(long, value_name = "KEY")]
    pub(crate) start: Option<String>,
    /// Only keys below this one.
    #[arg(long, value_name = "KEY")]
    pub(crate) end: Option<String>,
    /// From the last key down.
    #[arg(long)]
    pub(crate) reverse: bool,
    #[command(flatten)]
    pub(crate) notation: Notation,
    /// At most so many records: the first ones.
    #[arg(long)]
    pub(crate) limit: Option<u64>,
    /// Keys alone.
    #[arg(long)]
    pub(crate) keys_only: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) pool: Pool,
    /// The JSON lines [default: the standard input].
    pub(crate) input: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// Where to write; a file is made or replaced when all is written [default: the standard output].
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Grow {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// Bytes that the pool, or each device of the matrix, shall have at least: nothing is ever made smaller.
    #[arg(long, value_parser = terms::size)]
    pub(crate) size: u64,
}

/// Measure: YCSB workloads, and the floors that physics sets.
///
/// Every value that is read is checked against its key. Records are loaded first where the pool
/// lacks the first or the last of them, or has fewer than --records; a pool that is not there is created,
/// large enough, and left behind. One that has records of others is refused, unless --beside-others is said.
///
///   load       every record once; `load:1000` is the next thousand of those that are missing
///   fill       nine records in ten, so that a load after it puts the last tenth
///   a b c      50, 95, 100 % gets, the rest overwrites
///   d          95 % gets of the latest records, 5 % inserts
///   e          95 % scans in key order, 5 % inserts (ordered engines only); see --scan
///   f          half gets, half reads followed by a write
///   mget       gets in batches of 16; an operation is one key, a latency one batch
///   overwrite  overwrites alone
///   open       how long until a loaded pool is open, one record read, one written; then --then-ms
///   floor      what the medium allows: see `floor-…` in the output
///   filter     the filter of a matrix's group alone, with room for --records: what it costs, how
///              often it is wrong, and that it denies no key, in --operations
///   competition  gets of matrices whose devices stall, due at times that do not depend on each
///              other; without and with competition, in turn
///   occupancy  overwrites in pools of --size (1 GiB) that have a share of what they can take (--shares)
///   commits    inserts, reads and deletes, of which --group writes share a commit
///   turnover   every record written over --times times: bytes in use, DRAM, bytes flushed
///   interference  puts alone, and beside the cleaner and snapshots that are read
///   resync     a matrix under load of which a device is pulled out, and a new one filled, twice: at
///              full speed, and throttled
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) pool: Pool,
    #[command(flatten)]
    pub(crate) paths: Paths,
    /// What to do, one after the other: load, fill, a, b, c, d, e, f, mget, overwrite, open, floor,
    /// filter, competition, occupancy, commits, turnover, interference, resync; `c@uniform:2t:1000` chooses records so, on two threads, in so many
    /// operations, whatever the other options say.
    #[arg(long, default_value = "a", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// strict, group, relaxed (on files; elsewhere it is strict).
    #[arg(long, default_value = "strict", value_parser = terms::durability)]
    pub(crate) durability: Durability,
    /// Show records without a look at their checksums, as `serve` with this option.
    #[arg(long)]
    pub(crate) no_check_reads: bool,
    /// Measure in a pool although it has records that bench has not written: they stay.
    #[arg(long)]
    pub(crate) beside_others: bool,
    #[command(flatten, next_help_heading = "Workload")]
    pub(crate) plan: Plan,
    #[command(flatten, next_help_heading = ONE_WORKLOAD)]
    pub(crate) jitter: Jitter,
    #[command(flatten, next_help_heading = ONE_WORKLOAD)]
    pub(crate) refill: Refill,
    #[command(flatten, next_help_heading = ONE_WORKLOAD)]
    pub(crate) sweep: Sweep,
    #[command(flatten, next_help_heading = ONE_WORKLOAD)]
    pub(crate) map_work: MapWork,
    /// open: milliseconds of overwrites after the first write, of which the longest is told.
    #[arg(long, default_value_t = 0, help_heading = ONE_WORKLOAD)]
    pub(crate) then_ms: u64,
    /// scmkv, bptree, list or cow-tree [default: what is in the pool, else scmkv].
    #[arg(long, help_heading = NEW_POOL)]
    pub(crate) engine: Option<EngineChoice>,
    #[command(flatten)]
    pub(crate) geometry: Geometry,
    /// Where the index of a pool that is created lies: auto, pmem, dram (floor: auto is both).
    #[arg(long, default_value = "auto", value_parser = terms::placement, help_heading = NEW_POOL)]
    pub(crate) index: Placement,
    /// Bytes of a pool that is created [default: enough for the records and the workload].
    #[arg(long, value_parser = terms::size, help_heading = NEW_POOL)]
    pub(crate) size: Option<u64>,
}
