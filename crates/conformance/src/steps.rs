//! The calls of an iteration, for tests of how far each goes.

use coreplane_engine::{Engine, Result};

/// The number of calls of `iterate` with this `count` from the first to the last, and the keys that they show.
///
/// # Errors
/// As [`Engine::iterate`].
pub fn iterate_all(engine: &dyn Engine, count: usize) -> Result<(usize, Vec<Vec<u8>>)> {
    let (mut calls, mut cursor, mut shown) = (0, 0, Vec::new());
    loop {
        cursor = engine.iterate(cursor, count, &mut |entry| shown.push(entry.key.to_vec()))?;
        calls += 1;
        if cursor == 0 {
            return Ok((calls, shown));
        }
    }
}
