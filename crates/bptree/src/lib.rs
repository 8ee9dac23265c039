//! The ordered engine in each device of the matrix: a B+-tree in persistent memory.
//!
//! ```text
//!   key ─▶ inner nodes (DRAM) ─▶ a leaf's tags (DRAM) ─▶ record in the leaf's page
//! ```
//!
//! A leaf is a small log: self-certifying records are appended to its page, with one fence each, and a table of
//! contents in DRAM says which of them are live. A full leaf is rewritten as one or two new leaves, and nothing is
//! ever changed in place. So readers take no lock and copy nothing, a crash finds every leaf whole, and inner nodes
//! are never on the medium at all.
//!
//! # Layers
//!
//! Each layer contains the one before it and derefs to it, so that a layer reaches everything below it and nothing
//! above it:
//!
//! ```text
//!   Volume    the pool as pages: free pages, the root, durability, long keys and values
//!   Tree      leaves in those pages, and the way to each: locks, looks, appends, rewritten leaves
//!   Reader    gets, scans, iterations, changes
//!   Writer    puts, batches, the search for room, merges, clears
//!   Store     open and close, scrub, verify, settling, sweeps, growth
//! ```
//!
//! `Recovery` works on a tree that no other thread uses yet, and repairs what a crash has left.
//!
//! # Rooms
//!
//! From the bottom to the top: a room names only itself and rooms that stand earlier in this table, which
//! `cargo xtask tidy` checks.
//!
//! | room | what it is |
//! |---|---|
//! | `kernel` | how lock-free readers and writers stay out of each other's way |
//! | `leaf` | the content of a page, and the state of it in DRAM |
//! | `inner` | from a key to its leaf |
//! | `volume` | the pool as pages: `pages`, `root`, `durable`, `keys` and `hurt`, `overflow`, `counters` |
//! | `tree` | from a key to its leaf and into it, the leaf's page, rewritten leaves |
//! | `read` | `get`, `scan` and `snapshot`, `cursor`, `newer`, `damage` |
//! | `write` | writes, and room for them |
//! | `recovery` | `open`; after a crash: `recover`, `coverage`, `prove`; after a close: `checkpoint` |
//! | `upkeep` | the store: `close`, `scrub`, `verify`, `settle`, `sweep`, `tombstones` |
//! | `engine` | the interface of the engine |
//!
//! In `tree`, the way from a key to its leaf and into it is in `lock`, `look` and `prefetch`; the leaf's page in
//! `append`, `fill`, `leaf_page`, `mend` and `lazy_load`; a rewritten leaf in `image`, `rewrite`, `cuts`,
//! `fill_factor`, `salvage`, `doubt` and `multi_leaf_commit`. In `write`, a write is described in `mod`, and its
//! steps are in `ahead`, `sight`, `plan`, `publication` and `batch`; room for it is in `page_search`, `compact` and
//! `merge`; `clear` stands by itself.

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
