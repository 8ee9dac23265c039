//! The device behind a simulated file, which decides when syncs happen. Each file has its own device.
//!
//! It has no thread of its own. At each access of any thread it may take one step: begin the
//! requested round, or end the one under way; the seed decides at which access. A waiting thread
//! makes it take steps ([`Device::step`]).

use super::fault::Fault;
use super::log::{Event, Log};
use super::rng::Rng;
use crate::SyncError;
use crate::space::rounds::Rounds;

#[derive(Debug)]
pub(super) struct Device {
    /// The number of the file.
    space: usize,
    rounds: Rounds,
    /// True if there were flushes since the last round began.
    dirty: bool,
    /// The first round that fails.
    failing: Option<u64>,
    rng: Rng,
    /// It takes a step once in this many accesses, on average.
    rests: usize,
}

impl Device {
    pub(super) fn new(space: usize, seed: u64, failing: Option<u64>) -> Self {
        let mut rng = Rng::of(seed, u64::MAX - space as u64);
        // From a device that acts at the next access to one that acts only after many accesses.
        let rests = 1 << rng.below(8);
        Self { space, rounds: Rounds::default(), dirty: false, failing, rng, rests }
    }

    pub(super) fn flushed(&mut self) {
        self.dirty = true;
    }

    /// The generation that covers all flushes so far.
    pub(super) fn covering(&self) -> u64 {
        self.rounds.covering(self.dirty)
    }

    /// As [`Device::covering`], for a thread that does not wait.
    pub(super) fn draw(&self, fault: Option<&Fault>, log: &mut Log) -> u64 {
        let is_older = fault == Some(&Fault::CoveredByOlder);
        let generation = self.rounds.covering(self.dirty && !is_older);
        log.push(Event::Drawn { space: self.space, generation });
        generation
    }

    pub(super) fn request(&mut self, generation: u64, log: &mut Log) {
        if self.rounds.want(generation) {
            log.push(Event::Requested { space: self.space, generation });
        }
    }

    /// True if a sync that covers `generation` has succeeded.
    pub(super) fn is_done(&self, generation: u64) -> Result<bool, SyncError> {
        self.rounds.is_done(generation)
    }

    /// As [`Device::is_done`], as reported to the program, with faults.
    pub(super) fn is_said_to_be_done(
        &self,
        generation: u64,
        fault: Option<&Fault>,
    ) -> Result<bool, SyncError> {
        match fault {
            Some(Fault::DoneWhenDrawn) if !self.rounds.is_wanted(generation) => Ok(true),
            Some(Fault::DoneWhenRequested) if self.rounds.is_wanted(generation) => Ok(true),
            _ => self.is_done(generation),
        }
    }

    /// Notes an access to the medium, at which the device may take a step.
    pub(super) fn accessed(&mut self, log: &mut Log) {
        let could_move = self.rounds.is_running() || self.rounds.is_due();
        if could_move && self.rng.one_in(self.rests) {
            self.step(log);
        }
    }

    /// Ends the round under way, or begins one.
    pub(super) fn step(&mut self, log: &mut Log) {
        if self.rounds.is_running() {
            let failed = self.failing.is_some_and(|first| first <= self.rounds.covering(false));
            let failure = || Err(SyncError("the simulated medium failed".to_owned()));
            self.rounds.end(if failed { failure() } else { Ok(()) });
            log.push(Event::SyncEnded { space: self.space, failed });
        } else {
            let generation = self.rounds.begin();
            self.dirty = false;
            log.push(Event::SyncBegan { space: self.space, generation });
        }
    }

    /// The process was killed, and the next one begins. It makes a sync only after a flush of its own; that also covers
    /// what was flushed before, by a sync that had not ended or by none.
    pub(super) fn killed(&mut self) {
        self.rounds = self.rounds.of_next_process();
        (self.dirty, self.failing) = (false, None);
    }

    /// Makes every sync fail from now on, including the one under way.
    pub(super) fn fail(&mut self) {
        self.failing = Some(0);
    }

    /// Takes no more steps by itself.
    pub(super) fn stall(&mut self) {
        self.rests = usize::MAX;
    }

    pub(super) fn error(&self) -> Option<&SyncError> {
        self.rounds.error()
    }
}
