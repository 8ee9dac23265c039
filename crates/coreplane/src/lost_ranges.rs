//! The devices of a matrix that have lost records.
//!
//! Finding them requires a look at each of their leaves. So it is done only on request: an open reads no leaf for it.
//! And a device may hang, while the caller wants to learn the status of the matrix, including that. So a thread of
//! its own looks, once, and again after devices were healed; no caller waits for it.

use coreplane_mkvs::{Matrix, Position};
use coreplane_pmem::background;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest wait for the end of a look.
const PATIENCE: Duration = Duration::from_secs(2);

/// Devices, each with the number of key ranges in which it has lost records.
type Found = Vec<(Position, usize)>;

/// The result of the last look.
#[derive(Debug, Default)]
pub(crate) struct LostRanges {
    shared: Arc<(Mutex<Look>, Condvar)>,
}

#[derive(Debug, Default)]
struct Look {
    found: Option<Found>,
    thread: Option<JoinHandle<()>>,
    /// Raised when the result becomes void: a look that began earlier does not count.
    turn: u64,
}

impl LostRanges {
    /// The result; if there is none, a look begins, unless one is under way.
    pub(crate) fn look(&self, matrix: &Arc<Matrix>) -> Option<Found> {
        let mut look = self.shared.0.lock();
        if look.found.is_none() && look.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            self.begin(&mut look, matrix);
        }
        look.found.clone()
    }

    fn begin(&self, look: &mut Look, matrix: &Arc<Matrix>) {
        let (shared, matrix, turn) = (Arc::clone(&self.shared), Arc::clone(matrix), look.turn);
        let run = move || {
            let found = matrix.devices_with_lost_ranges();
            // A caller that was told that the look is over must not find the pools still open.
            drop(matrix);
            let (look, is_over) = &*shared;
            let mut look = look.lock();
            if look.turn == turn {
                look.found = Some(found);
            }
            look.thread = None;
            is_over.notify_all();
        };
        // If no thread can be started, the next caller tries again.
        look.thread = background::spawn("coreplane-ranges", run).ok();
    }

    /// Makes the result void, since the devices may have changed.
    pub(crate) fn forget(&self) {
        let mut look = self.shared.0.lock();
        look.found = None;
        look.turn += 1;
    }

    /// Waits until no look is under way, but not for a device that hangs.
    pub(crate) fn end(&self) {
        let (look, is_over) = &*self.shared;
        let (mut look, until) = (look.lock(), Instant::now() + PATIENCE);
        while look.thread.is_some() && !is_over.wait_until(&mut look, until).timed_out() {}
    }
}
