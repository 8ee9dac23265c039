//! Stories of a store that a power cut ends: operations drawn from a seed, and the state that must
//! be left of them.
//!
//! ```text
//!   draw ─▶ op ─▶ perform ─▶ acknowledged     ✂     recover ─▶ contents ─▶ check
//! ```
//!
//! Acknowledged writes are there. Writes that were called and not acknowledged are there or not:
//! each change by itself, a batch wholly or not at all. Nothing else is there, and the store passes
//! `verify`.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

mod operation;
mod survivors;

pub(crate) use operation::{Change, Draw, Op, created, key, options};
pub(crate) use survivors::{Durable, Map, check, contents, recover};

use coreplane_pmem::media::sim::SimOptions;

/// The size of a store at first, and how far it may grow, in bytes.
pub(crate) const LEN: u64 = 160 << 10;
pub(crate) const LEN_MAX: u64 = 224 << 10;

/// A medium for a store of tiny pages.
pub(crate) fn sim_options(seed: u64) -> SimOptions {
    SimOptions {
        len: LEN,
        max_len: LEN_MAX,
        page_size: 4096,
        seed,
        images_per_cut: 40,
        recovery_cut_in: 50,
        images_per_recovery_cut: 2,
        checkers: 2,
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

/// How many keys a story has: from keys that are overwritten and cleaned a lot to keys that make
/// the index split.
pub(crate) fn keys(seed: u64) -> u8 {
    24 + (seed % 3) as u8 * 50
}
