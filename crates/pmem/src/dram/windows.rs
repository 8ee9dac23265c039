//! Time windows within which writes must become durable, and the thread that ends them.
//!
//! The thread sleeps while no window is open. The first write wakes it; it waits for half of the
//! shortest open window, and makes durable the writes that it finds. So, except for the time of the
//! flush itself, no write stays undurable for longer than a window, at whichever time of a turn it
//! came. As long as the thread finds writes it goes on in this way and needs no waking: a writer
//! then stores one word a turn.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest turn, in microseconds: windows are not ended more often.
const TURN_MIN: u64 = 50;
/// No window.
const NONE: u64 = u64::MAX;

/// The open windows.
#[derive(Debug)]
pub struct Windows {
    /// The shortest window opened since they were last ended, in microseconds.
    open: AtomicU64,
    /// How long the thread that ends them sleeps now, in microseconds.
    turn: AtomicU64,
    sleeping: Mutex<()>,
    changed: Condvar,
}

impl Default for Windows {
    fn default() -> Self {
        Self::new()
    }
}

impl Windows {
    /// Without an open window.
    pub fn new() -> Self {
        Self {
            open: AtomicU64::new(NONE),
            turn: AtomicU64::new(NONE),
            sleeping: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Notes a write that must be durable within `window`. The thread that ends the windows must be able to find it
    /// from now on: its log is still locked, or it was noted in a locked instruction.
    #[inline]
    pub fn opened(&self, window: Duration) {
        let micros = u64::try_from(window.as_micros()).unwrap_or(NONE).min(NONE - 1);
        // If one is open already, the thread that ends the windows has not come to this log yet.
        if micros < self.open.load(Ordering::SeqCst) {
            self.open_for(micros);
        }
    }

    fn open_for(&self, micros: u64) {
        let before = self.open.fetch_min(micros, Ordering::SeqCst);
        if micros < before && turn_of(micros) < self.turn.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Sleeps until windows are to be ended; false if it was woken before. `turn`: the length of
    /// the last turn, [`NONE`] if no window was open then.
    fn sleep(&self, turn: &mut u64, is_closed: impl Fn() -> bool) -> bool {
        let mut sleeping = self.sleeping.lock();
        // Stored before `open` is loaded, as `open_for` loads this after it has stored `open`.
        self.turn.store(*turn, Ordering::SeqCst);
        *turn = turn_of(self.open.load(Ordering::SeqCst)).min(*turn);
        self.turn.store(*turn, Ordering::SeqCst);
        // Under the lock, which `wake` takes: no call to end is missed.
        if is_closed() {
            return false;
        }
        if *turn == NONE {
            self.changed.wait(&mut sleeping);
            return false;
        }
        self.changed.wait_for(&mut sleeping, Duration::from_micros(*turn)).timed_out()
    }

    /// Ends windows by `end` as they become due, until `is_closed` (announced by [`Windows::wake`])
    /// or until `end` returns false.
    pub fn end_in_time(&self, is_closed: impl Fn() -> bool, end: impl Fn() -> bool) {
        let mut turn = NONE;
        while !is_closed() {
            if !self.sleep(&mut turn, &is_closed) {
                continue;
            }
            // Before any log is looked at: a later write opens a window again.
            let ended = self.open.swap(NONE, Ordering::SeqCst);
            turn = turn_of(ended);
            if ended != NONE && !end() {
                return;
            }
        }
    }

    /// Makes the thread check whether the store is closed.
    #[cold]
    pub fn wake(&self) {
        drop(self.sleeping.lock());
        self.changed.notify_all();
    }
}

/// The length of a turn while a window of `micros` is open: a turn in which it was opened takes at
/// most half of it.
fn turn_of(micros: u64) -> u64 {
    if micros == NONE { NONE } else { (micros / 2).max(TURN_MIN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_window_is_a_window() {
        let windows = Windows::new();
        windows.opened(Duration::MAX);
        assert_eq!(windows.open.load(Ordering::SeqCst), NONE - 1);
    }
}
