//! SCMKV: a log-structured hash engine, point reads and writes at the speed of the medium.
//!
//! ```text
//!   key ─hash─▶ index: one line of 8 slots ─tag, offset─▶ record in a log page
//!                                                          ▲
//!   put:  append to this thread's log ─ flush ─ fence ─────┘ then store the slot
//! ```
//!
//! The paper (Wang, Huang, Zhu: *SCMKV: A Lightweight Log-Structured Key-Value Store on SCM*, NPC
//! 2018) gives the shape: pages of 2 MiB, a log and an allocator per thread, a page information
//! table, 16-bit tags, checksums, cost-benefit cleaning, one recovery thread per unclean log. Each
//! module says what it keeps of the paper and where it departs: the paper acknowledges writes that
//! are not durable, lets readers see them, keeps its lock bits in persistent memory, never deletes
//! and never grows.
//!
//! From the bottom up; a room, a folder or file here, imports only from itself and rooms below:
//!
//! | room | what it is |
//! |---|---|
//! | `table` | `Table`: pages, index, logs; staged writes, live bytes, the root |
//! | `read` | `Reader`: gets, iterations, changes |
//! | `clean` | `Cleaner`: census, victims, copies, index repair; how free pages are shared out |
//! | `write` | `Writer`: one write, batches, large values, expiry |
//! | `store` | `Store`: the whole store |
//! | `recovery` | from a pool to a store: creation, opening, the logs replayed; the close |
//! | `upkeep` | checkpoints, growth, scrub, verify, repair, background threads |
//! | `engine` | the engine's traits |
//! | `tests` | tests that look into several rooms |
//!
//! `Store` contains `Writer`, which contains `Cleaner`, then `Reader`, then `Table`; each
//! dereferences to the next. A layer does not know the layers above it.
//!
//! **The log is the truth.** Everything else can be made from it.

mod clean;
mod engine;
mod read;
mod recovery;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;
mod write;

pub use coreplane_engine::TimeSource;
pub use coreplane_engine::{Fate, Finding, Repair, Tell};
pub use engine::Scmkv;
pub use recovery::open::{Options, Placement};
pub use table::KIND;
pub use table::geometry::Geometry;
