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
//! Nodes may have a password ([`Settings::secret`]). Then both sides of a connection prove it before the hello, and
//! each frame is sealed, so that frames cannot be inserted, repeated or reordered on the way. Without one, a process
//! that reaches the address for peers is taken for a node, and that address belongs on a network of the nodes alone.
//! Nothing is encrypted in either case.
//!
//! # Rooms
//!
//! | module | contents |
//! |---|---|
//! | `frame` | messages on a connection, and the hello |
//! | `secret` | the password: proofs of it, and seals of frames |
//! | `refusal` | peers that were refused |
//! | `handshake` | both sides of the beginning of a connection, if there is a password |
//! | `link` | the connection to a peer, for sending |
//! | `receiver` | the connection of a peer, for receiving |
//! | `backup` | pinned states for backups |
//! | `directory` | the leader and the addresses, for the loops of the server |
//! | `service` | the sockets in the loop's poll, the clock |

mod backup;
mod directory;
mod frame;
mod handshake;
mod link;
mod receiver;
mod refusal;
mod secret;
mod service;

pub use directory::Directory;
pub use secret::Secret;
pub use service::{Notice, PeerSocket, Service, Settings};
