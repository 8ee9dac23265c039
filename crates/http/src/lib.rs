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
//! The server runs on threads of its own, each with a tokio runtime for it alone. Calls of the store block, and
//! these threads must not block for long. So the thread of a connection executes a write only if it is small and
//! the medium fences at once, which takes microseconds, and a query only for half a millisecond; otherwise each
//! runs on a thread of a bounded set.
//!
//! # Guarantees to clients
//!
//! - **Durability.** After `204` to a write its points are durable, and so is each point that a partial error does
//!   not count as dropped.
//! - **Answers.** They are those of InfluxDB 1.6.7, byte for byte where its clients depend on it; `influx` has the
//!   departures.
//! - **Shutdown.** A server that stops finishes the requests that it has begun, within [`Options::stop_within`].
//!
//! # Limits for hostile clients
//!
//! A hostile client can take one of [`Options::connections_max`] connections and its share of
//! [`Options::memory_max`], but no thread: there are time limits for a head, a body, an idle connection and an
//! answer that is not taken. A body is bounded before and after it is decoded. At most [`Options::queries_max`]
//! queries run at a time, each with a bound of time, rows and memory, and wait for each other a bounded time.
//! Beyond those bounds the answer is 503, and the connection stays open.
//!
//! There is no TLS: listen on a loop-back address, or behind a proxy that terminates TLS.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `limits` | options, and the budget of memory |
//! | `metrics` | counters, in Prometheus's text format |
//! | `parameters` | parameters of a URL or of a form |
//! | `auth` | authentication |
//! | `host` | the state that all connections share; calls of the store outside their threads |
//! | `figures` | figures of the server and its store |
//! | `body` | bodies: collection, gzip, bounds |
//! | `remainder` | the unread rest of a body after an answer |
//! | `influx` | InfluxDB's endpoints |
//! | `opentsdb` | OpenTSDB's endpoints, and its lines |
//! | `service` | the router; the common part of all answers |
//! | `pace` | the time limits of a connection |
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
