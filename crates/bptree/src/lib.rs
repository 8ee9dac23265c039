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
//! - `inner`: from a key to its leaf
//! - `kernel`: how readers without locks and writers stay out of each other's way
//! - `leaf`: what is in a page, and what is known of it
//! - `lock`, `look`: from a key to its leaf, to write to it; a key in its leaf
//! - `keys`, `hurt`: long ones, of which a record has a part; those that are damaged
//! - `put`, `batch`, `multi_leaf_commit`: writing
//! - `image`, `rewrite`, `merge`, `fill_factor`, `compact`: making room, and saving it
//! - `fill`: what of a leaf has not arrived
//! - `mend`: a superseded mark with a wrong bit
//! - `clear`: emptying the store
//! - `durable`: what may be lost yet
//! - `get`, `scan`, `cursor`: reading
//! - `read`, `prove`, `recover`: after a crash
//! - `checkpoint`, `lazy_load`: after a close
//! - `doubt`: what is known of damage
//! - `verify`, `scrub`, `salvage`: whether all is as it should be, and what is saved where it is not

mod batch;
mod checkpoint;
mod clear;
mod compact;
mod counters;
mod cursor;
mod doubt;
mod durable;
mod engine;
mod fill;
mod fill_factor;
mod get;
mod hurt;
mod image;
mod inner;
mod kernel;
mod keys;
mod lazy_load;
mod leaf;
mod lock;
mod look;
mod mend;
mod merge;
mod multi_leaf_commit;
mod newer;
mod open;
mod overflow;
mod pages;
mod prefetch;
mod prove;
mod put;
mod read;
mod recover;
mod rewrite;
mod salvage;
mod scan;
mod scrub;
mod short;
mod store;
mod verify;

pub use coreplane_engine::TimeSource;
pub use engine::Bptree;
pub use open::{KIND, Options, PAGE_SIZE};
