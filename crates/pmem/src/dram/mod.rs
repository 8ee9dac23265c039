//! Tables, counters and locks of engines in DRAM. Nothing here is on the medium, and a recovery needs none of it.
//!
//! | module | contents |
//! |---|---|
//! | [`huge`] | memory for large tables |
//! | [`chunked`] | a table that grows a chunk at a time |
//! | `pointers` | many pointers, most of which stay null |
//! | [`stripes`] | counters without a locked instruction |
//! | [`spin`] | locks, and waiting for other threads |
//! | [`background`] | threads that do not interrupt callers |
//! | [`isolation`] | reads of several keys beside batches |
//! | [`processors`] | how many threads are worth starting |
//! | [`windows`] | the time within which a relaxed write becomes durable |

pub mod background;
pub mod chunked;
pub mod huge;
pub mod isolation;
mod pointers;
pub mod processors;
pub mod spin;
pub mod stripes;
pub mod windows;
