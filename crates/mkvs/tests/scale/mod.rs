//! The amount of testing: as usual, or all of it.

/// `usual`, or `full` with `COREPLANE_TEST_SCALE=full`.
pub(crate) fn scaled<T>(usual: T, full: T) -> T {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    if is_full { full } else { usual }
}
