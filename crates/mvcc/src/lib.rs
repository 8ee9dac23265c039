//! The persistent multi-version maps of NVM-Raft (`nvm-raft.txt`, 3.2 and 3.3), each as an engine of its own.
//!
//! # The problem
//!
//! A replicated store keeps a log of what is to be done and a state of what was done, writes everything twice,
//! and reads the log again when it starts. In persistent memory both can be one sorted map from (key, version)
//! to value: an entry is written once, taking it back is to roll versions back, and a snapshot is a version that
//! is pinned.
//!
//! # The picture
//!
//! ```text
//!   MapEngine    one writer at a time, versions, tickets, expiry, snapshots
//!      │  LogMap  the same as a log: entries are pending until they are applied or rolled back
//!      │ ┌──┘
//!     Map        key, version ─▶ offset of a record        List: an ordered index in DRAM
//!      │                                                   Tree: nodes in the stream, too
//!    Stream      records in the order of births, committed in groups with one fence
//!      │
//!    Volume      pages with lives, the table that says which
//! ```
//!
//! # Rooms
//!
//! From the bottom to the top: a room names nothing but itself and rooms that stand earlier in this table.
//!
//! | room | what it is |
//! |---|---|
//! | `volume` | the pool: `root`, `table` of pages, `pages` that are free, pages `ahead`, the `stream` of records, `overflow` of large values |
//! | `control` | what a log says of itself on the medium |
//! | `map` | what a map is to the engine, and what a log is to who replicates |
//! | `key` | a key in DRAM |
//! | `list` | the persistent list: `entries` of a log, `grave`, `tombstone`, `clean`, `recover`, what is `found` of a log, `damage`, `rewrite` |
//! | `tree` | the persistent tree: `node`, `fresh`, `look`, `need`, `change`, `seal`, `clean`, `grave`, `recover`, `rest`, `count`, `entries` of a log |
//! | `engine` | an engine over any map: `open`, `write`, `batch`, `read`, `walk`, `durable`, `snapshot` |
//! | `log` | log and state in one map: `append`, `read`, `install` |

mod control;
mod engine;
mod key;
mod list;
mod log;
mod map;
mod tree;
mod volume;

pub use control::{Control, ENTRY_HEADER_MAX, MEMBERS_MAX};
pub use coreplane_engine::TimeSource;
pub use coreplane_record::Options;
pub use engine::{MapEngine, MapKind};
pub use log::{LogAppend, LogEntry, LogMap, LogSnapshot, SnapshotRecord};
pub use volume::geometry::Geometry;
