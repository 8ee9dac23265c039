//! The persistent multi-version maps of NVM-Raft (`nvm-raft.txt`, 3.2 and 3.3), each as an engine of its own.
//!
//! # The problem
//!
//! A replicated store keeps a log of operations to apply and a state of applied ones, writes everything twice, and
//! reads the log again when it starts. In persistent memory both can be one sorted map from (key, version) to value:
//! an entry is written once, taking it back means rolling versions back, and a snapshot is a pinned version.
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
//!    Volume      pages with lives, the table that states which
//! ```
//!
//! # Rooms
//!
//! From the bottom to the top: a room names only itself and rooms that stand earlier in this table.
//!
//! | room | what it is |
//! |---|---|
//! | `volume` | the pool: `root`, page `table`, free `pages`, pages `ahead`, `stream`, large values in `overflow` |
//! | `control` | the state of a log on the medium |
//! | `map` | the interface of a map to the engine, and of a log to its replicator |
//! | `key` | a key in DRAM |
//! | `list` | the list: `entries` of a log, `grave`, `tombstone`, `clean`, `recover`, `found`, `damage`, `rewrite` |
//! | `tree` | the tree: `node`, `change`, `seal`, `clean`, `grave`, `recover`, `rest`, `count`, `entries` of a log |
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
