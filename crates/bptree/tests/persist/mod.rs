//! Retries a write until there is space.

use coreplane_engine::Error;

/// Space may be short for a moment while a page waits for its readers.
pub(crate) fn persist(mut write: impl FnMut() -> Result<(), Error>) {
    for _ in 0..10_000 {
        match write() {
            Ok(()) => return,
            Err(Error::NoSpace { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no space for good");
}
