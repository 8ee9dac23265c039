//! NVM-Raft (`nvm-raft.txt`): replication in which the map is the log.
//!
//! # The problem
//!
//! A replicated store writes each change to a log, sends it, and applies it to the state when a majority has it: it
//! writes twice on each node, and keeps another file for term and vote. A [`LogMap`](coreplane_mvcc::LogMap) is log
//! and state in one: an entry is written once, applying it only marks it as applied, undoing it is a rollback, and a
//! snapshot is a pinned version.
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
//! A [`Node`] does no input or output except on its map: input arrives as calls, and [`Node::take_output`] hands over
//! the output. Time is [`Node::tick`], and chance comes from a seed. So a cluster of nodes runs in one thread, and
//! the same seed repeats the same run.
//!
//! # What holds
//!
//! - A statement of a node about itself (a vote, that it has entries) is durable before another node hears it.
//! - The name of a proposal is a number of this node, never an index: a later leader may put another entry at that
//!   index. When a leadership ends, all open proposals are reported as lost; the caller cannot know their result.
//! - A read is answered once a majority has confirmed the term after the read arrived, and once all entries committed
//!   by then are applied.
//! - A node that installs a snapshot has no log: it votes only by the noted end of its earlier log, and it is not
//!   counted until it has the whole snapshot. That end stays noted, and until its log has come so far again the node
//!   votes for no candidate that has less.
//!
//! # Rooms
//!
//! | module | contents |
//! |---|---|
//! | `entry` | an entry in the map and on the wire |
//! | `members` | the nodes that take part |
//! | `codec` | the messages between nodes |
//! | `map` | the trait of the log and map below a node |
//! | `ring` | the newest entries in DRAM |
//! | `wal_baseline` | the thesis's baseline behind that trait: a log beside a map, in files or in a pool |
//! | `log_view` | the map as consensus sees it |
//! | `node` | `start`, `identity`, `admission`, `propose`, `draft`, `turn`, `apply`, `reads`, `room`, `hold`, `transfer`, `presence`, `promise` |
//! | `engine` | the node as an engine: `core`, `effects`, `settlement`, `read`, `write`, `walk`, `follower`, `feed` |
//!
//! # Departures from the thesis (3.4)
//!
//! - The thesis has its own consensus. Here it is the `raft` crate, that of TiKV.
//! - The thesis sends confirmations after k entries or a millisecond. Here they go out with the commit that makes
//!   them durable, at the end of each turn.

mod codec;
mod engine;
mod entry;
mod log_view;
mod map;
mod members;
mod node;
mod ring;
mod wal_baseline;

pub use codec::{Envelope, Invalid, Record};
pub use engine::{ChangeFeed, FollowerReads, Replica, map_options};
pub use entry::ENTRY_BYTES_MAX;
pub use map::{MapSnapshot, ReplicaMap, StatePage};
pub use members::{MemberChange, Members, NodeId};
pub use node::{AppliedEntry, MemberProgress, Node, Output, Proposal, Role, Settings, Status};
pub use wal_baseline::{WalBaseline, WalOptions};
