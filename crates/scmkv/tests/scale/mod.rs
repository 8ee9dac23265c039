//! How much a test does: as usual, or all of it.

use std::sync::OnceLock;

/// `usual`, or `full` with `COREPLANE_TEST_SCALE=full`.
pub(crate) fn scaled<T>(usual: T, full: T) -> T {
    static IS_FULL: OnceLock<bool> = OnceLock::new();
    let by_variable = || std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    // Some tests ask for each byte of a pool.
    if *IS_FULL.get_or_init(by_variable) { full } else { usual }
}
