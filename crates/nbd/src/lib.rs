//! A server of network block devices (NBD) over any [`Disk`].
//!
//! ```text
//!  clients ──► listener ──► thread of a connection ──► intake ──► turn ──► dyn Disk
//!                                    ▲                             │ one batch
//!                                    └─────── one write ◄──────────┘
//! ```
//!
//! Each connection has a thread (`connection`), which reads the bytes that have arrived. The complete requests
//! among them (`intake`), up to 64 or 4 MiB, are one batch for the disk, and their replies are one write
//! (`turn`): requests that are sent together are executed together, and a single request waits for no other.
//! Between the calls of the socket and those of the disk, written bytes are copied once, and read bytes not at
//! all. A connection without its socket is a [`Conversation`], which tests and fuzzers feed.
//!
//! # Guarantees for clients
//!
//! - **Protocol.** Fixed newstyle, with or without structured replies; `EXPORT_NAME`, `GO`, `INFO`, `LIST`, `ABORT`,
//!   the context `base:allocation`. `READ` (one chunk, so that `DF` changes nothing), `WRITE`, `FLUSH`, `TRIM`,
//!   `CACHE`, `WRITE_ZEROES`, `BLOCK_STATUS`, with `FUA` on all commands that change the disk.
//! - **Sectors.** The minimum block size is announced as 4 KiB, which the disk writes atomically. Requests with other
//!   lengths and offsets are served, too.
//! - **Durability.** The reply to a request with `FUA` is sent when it is durable. The reply to a `FLUSH` is sent
//!   when all writes acknowledged before, to any client, are durable: several connections see one disk
//!   (`CAN_MULTI_CONN`). Requests behind a `FLUSH` go on meanwhile (`flush`).
//! - **Order.** Overlapping requests of a connection are executed in their order. Replies may come in any order.
//! - **Identity.** The export's name carries a device and an interval ([`Export`]); a connection takes the place of a
//!   process ([`Source`]).
//! - **End.** When a client disconnects, or the server ends, requests that were begun are finished and answered.
//!
//! # Hostile clients
//!
//! A hostile client can only take connections, whose number is bounded, away from others. Memory is allocated for
//! bytes that have arrived, not for announced lengths, and for at most one request of 32 MiB beside a batch; options
//! are limited in length and number, the handshake in time. Bytes that are not a request end the connection; an
//! invalid request is answered with an error. A panic of the disk ends the connection for which it happened.
//!
//! There is no TLS yet: listen on a Unix socket, or where no one else can connect.

mod config;
mod connection;
mod conversation;
mod disk;
mod export;
mod flush;
mod handshake;
mod intake;
mod listener;
mod protocol;
mod reply;
mod request;
mod server;
mod stream;
mod turn;
mod wake;

pub use config::Config;
pub use conversation::Conversation;
pub use disk::{Disk, Errno, Extent, FlushDone, Op, Request, SECTOR, Source};
pub use export::Export;
pub use server::{Error, Handle, Result, Server, Sockets};
