//! Writes that are not durable yet, and must be within a time: the windows that they open, and the
//! thread that ends them.
//!
//! The thread sleeps while nothing is open. The first such write after that wakes it, it waits for
//! half of the least window that is open, and makes durable what it finds; so that, but for the
//! time of the flush itself, nothing stays undurable for longer than a window, wherever in its
//! turn it came. As long as it finds something it goes on like that, and needs no waking: a
//! writer then stores one word a turn.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Windows are not ended more often than this, in microseconds.
const TURN_MIN: u64 = 50;
/// No window.
const NONE: u64 = u64::MAX;

/// The open windows.
#[derive(Debug)]
pub struct Windows {
    /// The least that was opened since they were ended last, in microseconds.
    open: AtomicU64,
    /// So long the thread that ends them sleeps now, in microseconds.
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
    /// None is open.
    pub fn new() -> Self {
        Self {
            open: AtomicU64::new(NONE),
            turn: AtomicU64::new(NONE),
            sleeping: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// A write was made that is to be durable within `window`. Whoever ends the windows must find
    /// it from now on: its log is still locked, or it was noted in a locked instruction.
    #[inline]
    pub fn opened(&self, window: Duration) {
        let micros = window.as_secs().saturating_mul(1_000_000) + u64::from(window.subsec_micros());
        let micros = micros.min(NONE - 1);
        // Open already: then whoever ends the windows has yet to come to this log.
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

    /// Sleeps until windows are to be ended; false if it was woken before. `turn`: how long it
    /// was the last time, [`NONE`] if none was open then.
    fn sleep(&self, turn: &mut u64, is_closed: impl Fn() -> bool) -> bool {
        let mut sleeping = self.sleeping.lock();
        // Said before `open` is looked at, as `open_for` looks here when it has said that.
        self.turn.store(*turn, Ordering::SeqCst);
        *turn = turn_of(self.open.load(Ordering::SeqCst)).min(*turn);
        self.turn.store(*turn, Ordering::SeqCst);
        // Under the lock, as `wake` takes it: no call to end is slept through.
        if is_closed() {
            return false;
        }
        if *turn == NONE {
            self.changed.wait(&mut sleeping);
            return false;
        }
        self.changed.wait_for(&mut sleeping, Duration::from_micros(*turn)).timed_out()
    }

    /// Ends windows by `end` as they fall due, until `is_closed`, of which it is told by
    /// [`Windows::wake`], or until `end` says no.
    pub fn end_in_time(&self, is_closed: impl Fn() -> bool, end: impl Fn() -> bool) {
        let mut turn = NONE;
        while !is_closed() {
            if !self.sleep(&mut turn, &is_closed) {
                continue;
            }
            // Before anything is looked at: a write that comes after opens them again.
            let ended = self.open.swap(NONE, Ordering::SeqCst);
            turn = turn_of(ended);
            if ended != NONE && !end() {
                return;
            }
        }
    }

    /// Has the thread look whether the store is closed.
    #[cold]
    pub fn wake(&self) {
        drop(self.sleeping.lock());
        self.changed.notify_all();
    }
}

/// How long to wait with a window of `micros` open: half of it is over when a turn has passed in
/// which it was opened.
fn turn_of(micros: u64) -> u64 {
    if micros == NONE { NONE } else { (micros / 2).max(TURN_MIN) }
}
