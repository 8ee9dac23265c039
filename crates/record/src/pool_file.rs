//! The file of a pool, as an engine reports it.

use coreplane_engine::Backing;
use coreplane_pmem::Pool;

/// The state of a pool's file now. A file whose state cannot be read counts as removed.
pub fn backing_of(pool: &Pool) -> Backing {
    match pool.file_state() {
        None => Backing::Whole,
        Some(Ok(state)) if state.links > 0 && state.len >= state.expected => Backing::Whole,
        Some(Ok(state)) if state.links > 0 => {
            Backing::Shortened { len: state.len, expected: state.expected }
        }
        Some(_) => Backing::Removed,
    }
}
