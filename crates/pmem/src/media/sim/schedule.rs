//! Threads of a simulated run, one at a time.

/// A place where another thread may run instead.
pub(super) fn point() {}
