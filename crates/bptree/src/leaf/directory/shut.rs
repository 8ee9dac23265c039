//! Leaves that are closed to writers, for a while or for good.

use super::{CHANGING, DEAD, Directory, LOCKED, SHUT, UNLOADED};
use coreplane_pmem::spin::Backoff;
use std::sync::atomic::Ordering;

impl Directory {
    /// Keeps writers out of the leaf from now on, loaded or not, once the present writer has ended; false if the
    /// leaf is dead.
    pub(crate) fn shut(&self) -> bool {
        let mut backoff = Backoff::new();
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word & (DEAD | UNLOADED) == DEAD {
                return false;
            }
            let is_free = word & (LOCKED | CHANGING) == 0;
            if word & SHUT != 0 || is_free && self.exchange(word, word | SHUT) {
                return true;
            }
            backoff.wait();
        }
    }

    /// Admits writers to a shut leaf again, once the present holder of the lock has put the word back.
    pub(crate) fn unshut(&self) {
        let mut backoff = Backoff::new();
        loop {
            let word = self.word.load(Ordering::Acquire);
            let is_free = word & (LOCKED | CHANGING) == 0;
            if word & SHUT == 0 || is_free && self.exchange(word, word & !SHUT) {
                return;
            }
            backoff.wait();
        }
    }

    /// Declares the leaf dead from now on, loaded or not.
    pub(crate) fn kill(&self) {
        let mut backoff = Backoff::new();
        loop {
            if let Some(load) = self.begin_load() {
                return load.kill();
            }
            if let Some(held) = self.lock() {
                return held.free();
            }
            if self.word.load(Ordering::Acquire) & (DEAD | UNLOADED) == DEAD {
                return;
            }
            backoff.wait();
        }
    }
}
