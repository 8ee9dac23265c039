//! The configuration of a server.

use crate::administration::Administered;
use crate::cluster::ClusterInfo;
use crate::time_series::TimeSeries;
use coreplane_engine::Durability;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Limits of a client's pending output, above which the client is disconnected. An answer counts while it is being
/// made, even if the client has received a part of it by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputLimit {
    /// Disconnected at once above so many bytes; 0: never.
    pub hard_bytes: u64,
    /// Disconnected when above so many bytes for all of `soft_time`; 0: never.
    pub soft_bytes: u64,
    /// See `soft_bytes`.
    pub soft_time: Duration,
}

/// The configuration of a server. `Config::default()` listens on 127.0.0.1:6379.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on.
    pub bind: Vec<String>,
    /// The TCP port: 0 for any free one, none for no TCP at all.
    pub port: Option<u16>,
    /// The path of a Unix socket to listen on.
    pub unix_socket: Option<PathBuf>,
    /// The mode of the Unix socket's file; none: by the umask.
    pub unix_socket_mode: Option<u32>,
    /// Event loops; 0: one for each core but one, at least one.
    pub threads: usize,
    /// Connections at a time; further ones are refused with an error. Fewer, if the limit of open files has no room for
    /// them: it is raised as far as the system lets the process.
    pub max_clients: u32,
    /// A client that was idle for so long is disconnected; zero: never.
    pub idle_timeout: Duration,
    /// Time between TCP keep-alive probes; zero: none.
    pub tcp_keepalive: Duration,
    /// The password that clients must give; none or an empty one: no password.
    pub password: Option<String>,
    /// Without a password, refuse clients from other machines.
    pub protected_mode: bool,
    /// The longest bulk string that a client may send, in bytes.
    pub bulk_len_max: u64,
    /// A client whose unfinished command is longer than so many bytes is disconnected.
    pub query_buffer_max: u64,
    /// Above so many bytes of pending output the server reads no more from a client, until half is sent.
    pub output_pause_bytes: u64,
    /// Limits of the pending output of a client; by default there is no limit, as in Redis.
    pub output_limit: OutputLimit,
    /// The durability that the store was opened with. With [`Durability::Relaxed`] answers do not wait.
    pub durability: Durability,
    /// The medium of the data, for a person: `dax`, `file`, `emulated:none`…
    pub medium: String,
    /// The data that a power cut loses, for a person: `nothing`, `everything`, …
    pub power_cut_loses: String,
    /// A power cut loses no acknowledged write (or, when relaxed, none older than its window).
    pub power_safe: bool,
    /// `address:port` of a Prometheus endpoint (`GET /metrics`); none: no endpoint.
    pub metrics: Option<String>,
    /// The store of the engine, for `STORE`, `MATRIX` and `INFO Matrix`; none: it is not administered by the server.
    pub store: Option<Arc<Administered>>,
    /// The cluster that the server is a node of; none: no cluster.
    pub cluster: Option<Arc<dyn ClusterInfo>>,
    /// The store of time series beside the records, for `INFO Timeseries`; none: no such store.
    pub time_series: Option<Arc<dyn TimeSeries>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: vec!["127.0.0.1".to_owned()],
            port: Some(6379),
            unix_socket: None,
            unix_socket_mode: None,
            threads: 0,
            max_clients: 10_000,
            idle_timeout: Duration::ZERO,
            tcp_keepalive: Duration::from_secs(300),
            password: None,
            protected_mode: true,
            bulk_len_max: 512 << 20,
            query_buffer_max: 1 << 30,
            output_pause_bytes: 256 << 20,
            output_limit: OutputLimit::default(),
            durability: Durability::Strict,
            medium: "unknown".to_owned(),
            power_cut_loses: "unknown".to_owned(),
            power_safe: false,
            metrics: None,
            store: None,
            cluster: None,
            time_series: None,
        }
    }
}

impl Config {
    /// The name of the durability level, as on the command line.
    pub(crate) fn durability_name(&self) -> &'static str {
        match self.durability {
            Durability::Strict => "strict",
            Durability::Group { .. } => "group",
            Durability::Relaxed { .. } => "relaxed",
        }
    }

    /// True if an answer must not leave before the writes that it depends on are durable.
    pub(crate) fn withholds(&self) -> bool {
        !matches!(self.durability, Durability::Relaxed { .. })
    }
}
