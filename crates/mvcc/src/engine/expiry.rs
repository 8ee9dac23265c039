//! The background sweep of expired records.
//!
//! Expired records are absent to every reader, and yet they are counted and take space. So a thread goes through the
//! map when a record may have expired, in slices, between which it rests many times as long, and replaces expired
//! records by tombstones. A log has no such thread: its caller appends what is to be removed.

use super::upkeep::Swept;
use super::{MapEngine, Store};
use coreplane_record::{SWEEP_SLICE, SweepRest};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A round through the map.
struct Round {
    /// The key from which it goes on.
    from: Vec<u8>,
    worked: Duration,
}

impl Store {
    /// All work of the thread.
    pub(super) fn sweep_in_background(&self) {
        let mut round: Option<Round> = None;
        while !self.volume.closed.load(Ordering::Acquire) {
            let until = Instant::now() + self.sweep_on(&mut round);
            while !self.volume.closed.load(Ordering::Acquire) {
                let Some(left) = until.checked_duration_since(Instant::now()) else { break };
                std::thread::park_timeout(left);
            }
        }
    }

    /// Goes on with the sweep for a slice, if there is work; returns how long to rest then.
    fn sweep_on(&self, at: &mut Option<Round>) -> Duration {
        let mut round = match at.take() {
            Some(round) => round,
            None if self.expiries.is_due(self.volume.now()) => {
                self.expiries.begin_round();
                Round { from: Vec::new(), worked: Duration::ZERO }
            }
            None => return SweepRest::Idle.into(),
        };
        let start = Instant::now();
        let swept = self.sweep_some(&round.from, &|| start.elapsed() >= SWEEP_SLICE);
        let worked = start.elapsed();
        round.worked += worked;
        match swept {
            Ok(Swept { next: Some(next), .. }) => {
                *at = Some(Round { from: next, ..round });
                SweepRest::Part(worked).into()
            }
            Ok(Swept { next: None, .. }) => SweepRest::Round(round.worked).into(),
            // A full store makes room as its writers ask for it, and they get the error.
            Err(_) => {
                *at = Some(round);
                SweepRest::Failure.into()
            }
        }
    }
}

impl MapEngine {
    /// Starts the sweep.
    pub(super) fn start_sweep(&self) -> coreplane_engine::Result<()> {
        let store = std::sync::Arc::clone(&self.store);
        let sweep = move || store.sweep_in_background();
        self.keep(coreplane_pmem::background::spawn("coreplane-expire", sweep))
    }
}
