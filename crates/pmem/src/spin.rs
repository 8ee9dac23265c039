//! Waiting for another thread: spin a little, then let it run.
//!
//! Under the crash simulator only one thread runs at a time, so that whoever spins would wait for
//! ever. Both kinds of waiting here let another thread run instead
//! ([`media::sim`](crate::media::sim)).

use crate::media::sim::schedule;
use parking_lot::{Mutex, MutexGuard};

/// How long this wait has lasted.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

impl Backoff {
    /// A wait that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits a little, longer each time; gives the processor away after a few turns.
    pub fn wait(&mut self) {
        if schedule::waiting() {
            return;
        }
        if self.turns < 6 {
            for _ in 0..1 << self.turns {
                std::hint::spin_loop();
            }
            self.turns += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

/// Locks `mutex`; in a simulated thread so that the one who holds it can run.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| lock_contended(mutex))
}

#[cold]
fn lock_contended<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    while schedule::waiting() {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
    mutex.lock()
}
