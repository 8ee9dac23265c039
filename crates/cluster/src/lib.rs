//! A server as a node of a cluster: the sockets between nodes, and what clients are told.
//!
//! ```text
//!   clients ─▶ server, event loop 0 ─▶ Replica ◀─ Service ─▶ links to peers
//!                    │                    ▲          ▲
//!                    └── ClusterInfo ───┴ Directory ┘
//! ```
//!
//! Each node has one connection to each peer, through which it speaks and never listens; what it hears comes through
//! connections that peers have made. The first frame of a connection is a *hello*: who speaks, where its clients and its
//! peers reach it, and which other nodes it knows. So a node that is added tells all where it is.
//!
//! All of it is done in the first event loop's turns ([`coreplane_server::PolledService`]): a client's write is appended,
//! sent to the peers and made durable in one turn, and answered in the turn in which a majority has said that it has it.
//!
//! There is no password between nodes: a process that reaches the address for peers is taken for one. That address
//! belongs on a network of the nodes alone.
//!
//! # Rooms
//!
//! | room | what it is |
//! |---|---|
//! | `frame` | messages on a connection, and the hello |
//! | `link` | the connection to a peer |
//! | `backup` | states that are pinned for backups |
//! | `directory` | what the loops of the server ask: who leads, where |
//! | `service` | the sockets in the loop's poll, the clock |

mod backup;
mod directory;
mod frame;
mod link;
mod service;

pub use directory::Directory;
pub use service::{PeerSocket, Service, Settings};
