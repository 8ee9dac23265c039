//! The ordered engine in each device of the matrix: a B+-tree in persistent memory.
//!
//! ```text
//!   key ─▶ inner nodes (DRAM) ─▶ a leaf's tags (DRAM) ─▶ record in the leaf's page
//! ```
//!
//! A leaf is a small log: records that prove themselves are appended to its page, one fence each,
//! and a table of contents in DRAM says which of them live. A full leaf is written anew, as one or
//! as two, and nothing is ever changed in place. So readers take no lock and copy nothing, a crash
//! finds every leaf whole, and inner nodes are never on the medium at all.
//!
//! # Layers
//!
//! Each of these contains the one before it and derefs to it, so that an upper one reaches all that is below,
//! and a lower one nothing that is above:
//!
//! ```text
//!   Volume    the pool as pages: free ones, the root, what is durable, long keys and values
//!   Tree      leaves over them, and the way to each: locks, looks, appends, a leaf written anew
//!   Reader    gets, scans, iterations, changes
//!   Writer    puts, batches, the search for room, merges, clears
//!   Store     open and close, scrub, verify, settling, sweeps, growth
//! ```
//!
//! `Recovery` stands beside a tree that nobody else has yet, and puts in order what a crash has left.
//!
//! # Rooms
//!
//! From the bottom to the top: a room names nothing but itself and rooms that stand earlier in this table, and
//! `cargo xtask tidy` sees to that.
//!
//! | room | what it is |
//! |---|---|
//! | `kernel` | how readers without locks and writers stay out of each other's way |
//! | `leaf` | what is in a page, and what is known of it |
//! | `inner` | from a key to its leaf |
//! | `volume` | the pool as pages: `pages`, `root`, `durable`, `keys` and `hurt`, `overflow`, `counters` |
//! | `tree` | from a key to its leaf and into it: `lock`, `look`, `prefetch`; its page: `append`, `fill`, `leaf_page`, `mend`, `lazy_load`; a leaf written anew: `image`, `rewrite`, `cuts`, `fill_factor`, `salvage`, `doubt`, `multi_leaf_commit` |
//! | `read` | `get`, `scan`, `cursor`, `newer`, `damage` |
//! | `write` | a write, told in `mod`: `ahead`, `sight`, `plan`, `publication`, `batch`; room for it: `page_search`, `compact`, `merge`; `clear` |
//! | `recovery` | `open`; after a crash: `recover`, `coverage`, `prove`; after a close: `checkpoint` |
//! | `upkeep` | the store: `close`, `scrub`, `verify`, `settle`, `sweep`, `tombstones` |
//! | `engine` | the engine's face |

mod engine;
mod inner;
mod kernel;
mod leaf;
mod read;
mod recovery;
mod tree;
mod upkeep;
mod volume;
mod write;

pub use coreplane_engine::TimeSource;
pub use engine::Bptree;
pub use recovery::open::{Options, PAGE_SIZE};
pub use volume::KIND;
