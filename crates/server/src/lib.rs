//! The Redis-protocol server over any [`Engine`](coreplane_engine::Engine).
//!
//! ```text
//!  clients ──► listener ──► event loop 0 ─┐
//!                       └─► event loop 1 ─┼─► dyn Deferred ──► medium
//!                              …          ┘
//! ```
//!
//! Every core runs one event loop (`event_loop`); a connection stays with its loop (`intake`). Commands are parsed
//! where they lie in the read buffer (`resp`), found in one table and run inline (`command`), and their answers are
//! written straight into the connection's output (`output`).
//!
//! # Guarantees to clients
//!
//! - **Durability.** At `strict` and `group` no answer is sent before everything that it says or shows is durable. The
//!   writes of a turn share one fence or one sync (`event_loop`, step 3). At `relaxed` answers are sent at once; the
//!   window is the store's.
//! - **Order.** The answers of a connection are sent in the order of its commands.
//! - **Isolation.** Every command is atomic for all others, on whichever loop they run
//!   (`isolation`); `EXEC` too, also against a crash (`store`). But a `KEYS`, `SCAN` or `RANGE` that takes longer than
//!   a slice shows all keys that exist all the while, and some of those that are added or deleted meanwhile.
//! - **Long commands.** Commands that read very many records run in slices of at most about a millisecond, between
//!   which the loop serves others (`slice`, `continuation`), unless that would show a half-done change.
//! - **Failure.** When the medium fails to make something durable, the clients concerned get an error instead of the
//!   answers that were held, and their connections are closed.
//!
//! - **Clusters.** A server may be a node of a cluster ([`ClusterInfo`], [`PolledService`]): the leader runs commands
//!   that need the records; a follower forwards them to it (`upstream`) or redirects the client (`MOVED`).
//!
//! - **Ranges.** Where the engine has its keys in order, `RANGE` shows those between two bounds, some at
//!   a time, and the bound to go on with: `RANGE min max [PREFIX prefix] [LIMIT count] [REV]
//!   [WITHVALUES] [WITHEXPIRIES]`, bounds as for `ZRANGEBYLEX`. A key that exists all the while is shown exactly
//!   once.
//!
//! - **Administration.** `STORE` describes, verifies, grows and shows the store, and `MATRIX` administers its devices,
//!   if the server was given the store ([`administration`]). Long work blocks no client.
//!
//! - **Retries.** `ONCE client number command …` runs a command that writes once, however often it is sent with that
//!   number: its answer is remembered with its changes.
//!
//! Differences from Redis: there is one database; records are strings; times of access are not recorded
//! (`OBJECT IDLETIME` says so, as Redis does where it counts accesses instead); `WAIT` and `WAITAOF` do not wait for
//! replicas. `docs/redis-commands.md` lists the commands.

pub mod administration;
mod clients;
mod cluster;
mod command;
mod command_counters;
mod config;
mod connection;
mod continuation;
mod counters;
mod descriptors;
mod event_loop;
mod feed;
mod figures;
mod glob;
mod host;
mod intake;
mod isolation;
mod lifetime;
mod listener;
mod metrics;
mod monitor;
mod output;
mod overlay;
mod parameters;
mod pause;
mod relay;
mod resp;
mod server;
mod service;
mod session;
mod settings;
mod slice;
mod slow_log;
mod sockets;
mod stopwatch;
mod store;
mod summary;
mod time_series;
mod upstream;
mod watch;
mod withheld;

pub use cluster::{AppliedEntry, ClusterInfo, MemberInfo, SnapshotPage, Standing};
pub use command::engine_error_text;
pub use config::{Config, OutputLimit};
pub use descriptors::make_room;
pub use server::{Error, Handle, Result, Server};
pub use service::{PolledService, Wake};
pub use sockets::Sockets;
pub use summary::Summary;
pub use time_series::TimeSeries;
