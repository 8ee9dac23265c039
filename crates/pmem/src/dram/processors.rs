//! The processors of this process.

use std::sync::OnceLock;
use std::thread::available_parallelism;

/// The number of processors that the first caller may use, at least 1. It is read once: the system looks into the files
/// of its control groups each time, for longer than a small pool takes to be recovered.
pub fn available() -> usize {
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| available_parallelism().map_or(1, usize::from))
}
