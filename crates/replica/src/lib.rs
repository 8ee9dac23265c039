//! NVM-Raft (`nvm-raft.txt`): replication in which the map is the log.
//!
//! # The problem
//!
//! A replicated store writes each change to a log, sends it, and when a majority has it, makes it in the state: twice on
//! each node, and with a file for term and vote beside. A [`LogMap`](coreplane_mvcc::LogMap) is log and state in one: an
//! entry is written once, applying it is to say so, taking it back is to roll back, and a snapshot is a version that is
//! pinned.
//!
//! # The picture
//!
//! ```text
//!   propose ─▶ ┌────────────────── Node ──────────────────┐ ─▶ settled, lost
//!   read    ─▶ │  consensus (raft 0.7)                     │ ─▶ reads that may be answered
//!   step    ─▶ │     │ entries, votes      │ committed     │ ─▶ envelopes for others
//!   tick    ─▶ │     ▼                     ▼               │
//!              │  LogView: append, roll_back, set_vote, apply, one commit
//!              └─────────────────── LogMap ────────────────┘
//! ```
//!
//! A [`Node`] does no input or output but that of its map: what comes in is a call, what goes out is taken by
//! [`Node::take_output`]. Time is [`Node::tick`], and chance comes from a seed. So a cluster of them runs in one thread,
//! and the same seed does the same.
//!
//! # What holds
//!
//! - What a node says of itself to another (a vote, that it has entries) is durable before.
//! - What a proposal is called by is a number of this node's, never an index: a later leader may put another entry there.
//!   All that are open when a leadership ends are lost to their caller, who cannot know what became of them.
//! - A read is answered when a majority has confirmed the term since it came, and all that was committed then is applied.
//! - A node that installs a snapshot has no log to speak for: it neither votes nor is counted until it has all of it.
//!   Where its log ended it keeps in mind until it has come so far again: it votes for nobody who has less.
//!
//! # Rooms
//!
//! | room | what it is |
//! |---|---|
//! | `entry` | an entry in the map and on the wire |
//! | `members` | who takes part |
//! | `codec` | what nodes say to each other |
//! | `map` | what a node asks of what it keeps |
//! | `wal_baseline` | the thesis's baseline behind that: a log beside a map, in files or in a pool |
//! | `log_view` | the map as consensus sees it |
//! | `node` | the node: `settings`, its `start`, `admission` of messages, who may `propose`, `reads`, what is done to `apply`, `transfer` of snapshots, the `promise` of what was acknowledged |
//! | `engine` | the node as an engine: the `core` behind its lock, `effects` of proposals, the `settlement` of tickets, `read`, `write`, `walk`, what a `follower` shows, the `feed` of changes |
//!
//! # Departures from the thesis (3.4)
//!
//! - Its consensus is its own. Here it is the `raft` crate's, the one of TiKV.
//! - Its confirmations go out by a timer of k entries or a millisecond. Here they go out with the commit that makes them
//!   durable, which is at the end of each turn.

mod codec;
mod engine;
mod entry;
mod log_view;
mod map;
mod members;
mod node;
mod wal_baseline;

pub use codec::{Envelope, Invalid};
pub use engine::{ChangeFeed, FollowerReads, Replica, map_options};
pub use entry::ENTRY_BYTES_MAX;
pub use map::{MapSnapshot, ReplicaMap};
pub use members::{MemberChange, Members, NodeId};
pub use node::{AppliedEntry, MemberProgress, Node, Output, Proposal, Role, Settings, Status};
pub use wal_baseline::{WalBaseline, WalOptions};
