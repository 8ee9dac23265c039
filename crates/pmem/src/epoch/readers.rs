//! A domain of one space: its readers, counted under a lock.
//!
//! In the process-wide domain the time at which a page is reused depends on the readers of all pools,
//! and on threads that the system has suspended. A simulation with many pools in one process could
//! then not be repeated exactly. So a space may have its own domain.
//!
//! The protocol is the same, with a lock instead of the fences:
//!
//! ```text
//!   reader:   locked: pinned at the epoch;     look at the page's state; read;     locked: unpinned
//!   retirer:  state = retired;     locked: stamp = epoch, advanced by one
//!   later:    locked: use the page again if all pinned epochs are greater than the stamp
//! ```
//!
//! The lock orders a pin and a stamp. If the pin comes first, its epoch is not greater than the stamp, and
//! the page waits for it; if the stamp comes first, the reader sees that the page is retired. A pin locks
//! twice, and all readers of a space contend for the lock: this domain is not meant for speed.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The readers of one space.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The next epoch to pin.
    epoch: u64,
    /// The number of readers of each epoch that has any.
    pinned: BTreeMap<u64, u64>,
}

/// A reader: pins the epoch at which it began.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    readers: &'a Readers,
    epoch: u64,
}

impl Readers {
    /// Pins the current epoch.
    pub(crate) fn pin(&self) -> Reader<'_> {
        let mut state = self.0.lock();
        let epoch = state.epoch;
        *state.pinned.entry(epoch).or_default() += 1;
        Reader { readers: self, epoch }
    }

    /// Draws a stamp for pages made unreachable before the call, and advances the epoch.
    pub(crate) fn stamp(&self) -> u64 {
        let mut state = self.0.lock();
        state.epoch += 1;
        state.epoch - 1
    }

    /// The oldest epoch that is pinned; `u64::MAX` if none is.
    pub(crate) fn oldest(&self) -> u64 {
        self.0.lock().pinned.first_key_value().map_or(u64::MAX, |(epoch, _)| *epoch)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut state = self.readers.0.lock();
        if let Some(readers) = state.pinned.get_mut(&self.epoch) {
            *readers -= 1;
            if *readers == 0 {
                state.pinned.remove(&self.epoch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Readers;

    #[test]
    fn a_stamp_passes_only_when_the_readers_of_its_time_are_gone() {
        let readers = Readers::default();
        assert_eq!(readers.oldest(), u64::MAX);
        let (early, beside) = (readers.pin(), readers.pin());
        let stamp = readers.stamp();
        let late = readers.pin();
        assert!(readers.stamp() > stamp);
        drop(early);
        assert!(readers.oldest() <= stamp, "one of two is left");
        drop(beside);
        assert!(readers.oldest() > stamp, "one that came later does not hold it back");
        drop(late);
        assert_eq!(readers.oldest(), u64::MAX);
    }
}
