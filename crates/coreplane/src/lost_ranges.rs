//! Which devices of a matrix have lost records.
//!
//! To find that out takes a look at each of their leaves. So nobody does it who does not ask: an open reads no
//! leaf for it. And a device may hang, while whoever asks how the matrix is wants to hear just that. So a
//! thread of its own looks, once, and after whatever heals devices again; who asks waits for it for a
//! moment.

use coreplane_mkvs::{Matrix, Position};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long somebody waits who asks.
const PATIENCE: Duration = Duration::from_secs(2);

/// Devices, and of how many ranges of keys they have lost records.
type Found = Vec<(Position, usize)>;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct LostRanges {
    shared: Arc<(Mutex<Look>, Condvar)>,
}

#[derive(Debug, Default)]
struct Look {
    found: Option<Found>,
    thread: Option<JoinHandle<()>>,
    /// Raised when what was found counts no more: a look that began before is none.
    turn: u64,
}

impl LostRanges {
    /// What was found, or is now; none if a device takes long to say.
    pub(crate) fn look(&self, matrix: &Arc<Matrix>) -> Option<Found> {
        let (look, is_over) = &*self.shared;
        let mut look = look.lock();
        let until = Instant::now() + PATIENCE;
        while look.found.is_none() {
            if look.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                self.begin(&mut look, matrix)?;
            }
            if is_over.wait_until(&mut look, until).timed_out() {
                break;
            }
        }
        look.found.clone()
    }

    fn begin(&self, look: &mut Look, matrix: &Arc<Matrix>) -> Option<()> {
        let (shared, matrix, turn) = (Arc::clone(&self.shared), Arc::clone(matrix), look.turn);
        let run = move || {
            let found = matrix.devices_with_lost_ranges();
            // Nobody is to find its pools open who was told that this is over.
            drop(matrix);
            let (look, is_over) = &*shared;
            let mut look = look.lock();
            if look.turn == turn {
                look.found = Some(found);
            }
            look.thread = None;
            is_over.notify_all();
        };
        let builder = std::thread::Builder::new().name("coreplane-ranges".to_owned());
        look.thread = Some(builder.spawn(run).ok()?);
        Some(())
    }

    /// It may be otherwise now.
    pub(crate) fn forget(&self) {
        let mut look = self.shared.0.lock();
        look.found = None;
        look.turn += 1;
    }

    /// Waits until nobody looks any more, but not for a device that hangs.
    pub(crate) fn end(&self) {
        let (look, is_over) = &*self.shared;
        let (mut look, until) = (look.lock(), Instant::now() + PATIENCE);
        while look.thread.is_some() && !is_over.wait_until(&mut look, until).timed_out() {}
    }
}
