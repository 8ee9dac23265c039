//! A server as a node of a cluster: the sockets between nodes, and the state of the cluster for clients.
//!
//! ```text
//!   clients ─▶ server, event loop 0 ─▶ Replica ◀─ Service ─▶ links to peers
//!                    │                    ▲          ▲
//!                    └── ClusterInfo ───┴ Directory ┘
//! ```
//!
//! Each node has one connection to each peer, on which it only sends; it receives on the connections that peers have
//! made. The first frame of a connection is a *hello*: the sender, the addresses for its clients and its peers, and
//! the other nodes that it knows. So a node that is added tells all nodes its address.
//!
//! All of this happens in the turns of the first event loop ([`coreplane_server::PolledService`]): a client's write
//! is appended, sent to the peers and made durable in one turn, and answered in the turn in which a majority has
//! confirmed it.
//!
//! There is no password between nodes: a process that reaches the address for peers is taken for a node. That address
//! belongs on a network of the nodes alone.
//!
//! # Rooms
//!
//! | module | contents |
//! |---|---|
//! | `frame` | messages on a connection, and the hello |
//! | `link` | the connection to a peer |
//! | `backup` | pinned states for backups |
//! | `directory` | the leader and the addresses, for the loops of the server |
//! | `service` | the sockets in the loop's poll, the clock |

mod backup;
mod directory;
mod frame;
mod link;
mod service;

pub use directory::Directory;
pub use service::{PeerSocket, Service, Settings};
