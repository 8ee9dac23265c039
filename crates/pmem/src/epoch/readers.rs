//! A domain of one space: its readers, counted under a lock.
//!
//! When a page of the process-wide domain is used again depends on whoever reads in any pool, and on
//! threads that the system has stopped somewhere. A simulation with many pools in one process is then
//! not the same when it is run again. So a space may have a domain to itself.
//!
//! It is the same protocol, with a lock in the place of the fences:
//!
//! ```text
//!   reader:   locked: pinned at the epoch;     look at the page's state; read;     locked: no more
//!   retirer:  state = retired;     locked: stamp = epoch, advanced by one
//!   later:    locked: use the page again if all that are pinned are so at epochs behind the stamp
//! ```
//!
//! Of a pin and a stamp one comes first. If it is the pin, its epoch is not behind the stamp, and the page
//! waits for it; if it is the stamp, the reader sees that the page is retired. A pin locks twice, and all
//! readers of a space take turns: it is not for speed.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The readers of one space.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The next epoch to pin.
    epoch: u64,
    /// How many readers each epoch has that has any.
    pinned: BTreeMap<u64, u64>,
}

/// One of them: has the epoch pinned at which it began.
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

    /// Draws a stamp for what was made unreachable before the call, and advances the epoch.
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
