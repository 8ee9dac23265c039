//! What engines keep in DRAM beside their pools, and how their threads count and wait. Nothing here is on the medium, and
//! nothing is needed by a recovery.
//!
//! | module | what it is |
//! |---|---|
//! | [`huge`] | memory for large tables |
//! | [`chunked`] | a table that grows a chunk at a time |
//! | [`stripes`] | counters without a locked instruction |
//! | [`spin`] | locks, and waiting for other threads |
//! | [`isolation`] | reads of several keys beside batches |
//! | [`windows`] | the time within which a write that is not durable has to be |

pub mod chunked;
pub mod huge;
pub mod isolation;
pub mod spin;
pub mod stripes;
pub mod windows;
