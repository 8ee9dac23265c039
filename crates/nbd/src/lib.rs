//! A server of network block devices (NBD) over any [`Disk`].
//!
//! ```text
//!  clients ──► listener ──► thread of a connection ──► intake ──► turn ──► dyn Disk
//!                                    ▲                             │ one batch
//!                                    └─────── one write ◄──────────┘
//! ```
//!
//! A connection has a thread (`connection`), which reads what has arrived. As many requests as
//! are complete (`intake`), up to 64 of them or 4 MiB, are one batch for the disk, and their replies
//! are one write (`turn`): whoever sends many requests at once has them done at once, and who sends
//! one waits for no other. Between the socket's calls and the disk's, bytes that are written are copied once, and
//! bytes that are read not at all. What has no socket is a [`Conversation`], which tests and fuzzers feed.
//!
//! # What a client may rely on
//!
//! - **Protocol.** Fixed newstyle, with or without structured replies; `EXPORT_NAME`, `GO`, `INFO`, `LIST`, `ABORT`, the
//!   context `base:allocation`. `READ` (one chunk, so that `DF` changes nothing), `WRITE`, `FLUSH`, `TRIM`,
//!   `CACHE`, `WRITE_ZEROES`, `BLOCK_STATUS`, with `FUA` on all that changes something.
//! - **Sectors.** The least block is said to be 4 KiB, which is what the disk writes atomically. Requests of other lengths
//!   and at other places are served.
//! - **Durability.** A reply to a request with `FUA` is sent when it is durable, a reply to `FLUSH` when all is
//!   that was acknowledged before to whichever client: several connections are one disk (`CAN_MULTI_CONN`). What is behind
//!   a `FLUSH` goes on meanwhile (`flush`).
//! - **Order.** Requests of a connection that overlap are done in their order. Replies may come in any.
//! - **Who it is.** The export's name carries a device and an interval ([`Export`]); a connection stands in for a process
//!   ([`Source`]).
//! - **An end.** When a client disconnects, or the server ends, what was begun is finished and answered.
//!
//! # What a hostile client can do
//!
//! Nothing to others but take one of the connections, whose number is bounded. Memory is taken for bytes that came, not for
//! lengths that were said, and no more than for one request of 32 MiB beside a batch; options are short
//! and few, the handshake has its time. Nonsense ends the connection, a wrong request is
//! answered with an error. A panic of the disk ends the connection that it happened for.
//!
//! There is no TLS yet: listen on a Unix socket, or where nobody else is.

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
