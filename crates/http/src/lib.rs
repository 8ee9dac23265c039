//! The HTTP server of the time-series store: the interfaces of InfluxDB 1.x and of OpenTSDB on one port.
//!
//! ```text
//!  clients ──► listener ──► first byte ──┬─ a small letter ──► telnet (OpenTSDB's lines)
//!                                        └─ else ──► hyper ──► service ──► axum's router
//!                                                                 │
//!              limits: connections, head, idle, bodies, memory    ├─► influx    ─┐
//!              auth: one password, as the Redis side has it       └─► opentsdb  ─┴─► coreplane_tsdb::Store
//! ```
//!
//! It runs on threads of its own, each with a tokio runtime that nobody else sees; calls of the store block, and these
//! threads must not for long. So a write is done in the connection's thread only if it is small and the medium fences at
//! once, which takes microseconds, and a query only for half a millisecond; else each has a thread of a bounded set.
//!
//! # What a client may rely on
//!
//! - **Durability.** `204` to a write, and each point that a partial error does not count as dropped, is durable.
//! - **Answers.** Those of InfluxDB 1.6.7, byte for byte where its clients look; `influx` has the departures.
//! - **An end.** A server that stops finishes what it has begun, within [`Options::stop_within`].
//!
//! # What a hostile client can do
//!
//! It takes one of [`Options::connections_max`] connections and its share of [`Options::memory_max`], and no thread: a
//! head, a body, an idle connection and an answer that is not taken have their times. A body is bounded before and
//! after it is decoded. Queries run [`Options::queries_max`] at a time, each with a bound of time, rows and memory, and
//! wait for each other a bounded time. Beyond those bounds the answer is 503, and the connection stays.
//!
//! There is no TLS: listen on a loop-back address, or behind a proxy that has it.
//!
//! # Rooms
//!
//! | room | what it is |
//! |---|---|
//! | `limits` | options, and the budget of memory |
//! | `metrics` | counters, in Prometheus's text |
//! | `parameters` | parameters of a URL or of a form |
//! | `auth` | who may ask |
//! | `host` | what all connections share; calls of the store off their threads |
//! | `figures` | figures of the server and its store |
//! | `body` | bodies: collection, gzip, bounds |
//! | `remainder` | what an answer leaves of a body |
//! | `influx` | InfluxDB's endpoints |
//! | `opentsdb` | OpenTSDB's endpoints, and its lines |
//! | `service` | the router; what every answer has |
//! | `pace` | the times that a connection has |
//! | `listener` | connections |
//! | `server` | threads, and their end |

mod auth;
mod body;
mod figures;
mod host;
mod influx;
mod limits;
mod listener;
mod metrics;
mod opentsdb;
mod pace;
mod parameters;
mod remainder;
mod server;
mod service;

pub use figures::Figures;
pub use influx::write_answers;
pub use limits::Options;
pub use server::{Error, Result, Server, listen};
