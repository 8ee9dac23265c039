//! Choices that a seed makes for a history, and counters of events in histories.

use coreplane_engine::Engine;
use coreplane_mkvs::{Matrix, Prototype, ReadPath};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A generator of numbers (xorshift), from a seed above 0.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn of(seed: u64, part: u64) -> Self {
        let mut dice = Self((seed << 8 | part).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // The first numbers are similar to the seed.
        for _ in 0..4 {
            dice.throw(2);
        }
        dice
    }

    pub(crate) fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % sides
    }
}

/// Counters of events in histories.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) histories: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) cut_off: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) pulls: AtomicU64,
    /// Pulls of a device whose peer was pulled out before.
    pub(crate) peer_pulls: AtomicU64,
    pub(crate) returns: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) scrubs: AtomicU64,
    pub(crate) crashes: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Hedge wins of devices; without competition one device of a group serves all reads.
    pub(crate) wins: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) cancelled: AtomicU64,
}

/// The path of reads in the history of a seed. All paths, each with either prototype, come up in 20 seeds;
/// the first five include competition through rings.
pub(crate) fn read_path_of(seed: u64) -> ReadPath {
    match seed % 4 {
        0 => ReadPath::Auto,
        2 => ReadPath::Inline,
        _ => ReadPath::Rings,
    }
}

pub(crate) fn prototype_of(seed: u64) -> Prototype {
    if seed % 5 == 2 { Prototype::Gekv } else { Prototype::Mkvs }
}

pub(crate) fn add(to: &AtomicU64, count: u64) {
    to.fetch_add(count, Ordering::Relaxed);
}

impl Tally {
    /// Prints the counters for the histories of a matrix in one line, with the number of violations.
    pub(crate) fn print(&self, named: &str, seeds: Range<u64>, violations: usize) {
        let figures = [
            ("calls", &self.calls),
            ("cut off", &self.cut_off),
            ("races won", &self.wins),
            ("lost", &self.losses),
            ("cancelled", &self.cancelled),
            ("hedges", &self.hedges),
            ("stalls", &self.stalls),
            ("kills", &self.crashes),
            ("pulled out", &self.pulls),
            ("after a peer", &self.peer_pulls),
            ("returns", &self.returns),
            ("groups added", &self.groups),
            ("scrubs", &self.scrubs),
            ("opens refused", &self.refused),
        ];
        let told =
            figures.map(|(name, figure)| format!("{} {name}", figure.load(Ordering::Relaxed)));
        let histories = self.histories.load(Ordering::Relaxed);
        let (first, last) = (seeds.start, seeds.end - 1);
        let told = told.join(", ");
        eprintln!(
            "{named}: {histories} seeds ({first} to {last}), {told}, {violations} violations"
        );
    }

    pub(crate) fn count_races(&self, matrix: &Matrix) {
        let stats = matrix.stats();
        let counters = [
            ("matrix_hedge_wins", &self.wins),
            ("matrix_hedges", &self.hedges),
            ("matrix_hedge_losses", &self.losses),
            ("matrix_hedge_cancelled", &self.cancelled),
        ];
        for (name, counter) in counters {
            add(counter, stats.figure(name).expect("a figure"));
        }
    }
}
