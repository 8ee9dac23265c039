//! How long a device takes for a read, and whether it stalls.
//!
//! # The hedge delay
//!
//! The *hedge delay* of a device is the time after which a read is late: four times the median of all reads. The
//! median is a running estimate: a read above it raises it by a share, a read below it lowers it by the same share.
//! So stalls, however long, do not raise the expected time, nor does a moment in which all reads were late.
//!
//! If more reads than those of stalls are late, most are late because of the load, which a second request makes
//! heavier: so at most one read in eight is sent twice.
//!
//! # Steady or not
//!
//! A device that levels its wear stops now and then for a thousand times as long as a read takes. If it does so for
//! a noticeable share of reads it is *unsteady*, until it has had no stall for as many reads as would have shown
//! it. A caller's CPU may be taken away too, which looks the same but is rarer.

use crate::stats::latency::{self, Times};
use coreplane_engine::Latency;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The bounds of the hedge delay: below the first, waking another device costs more than it can save.
const PATIENCE_MIN: u64 = 50_000;
const PATIENCE_MAX: u64 = 10_000_000;

/// The hedge delay in medians.
const MEDIANS: u64 = 4;

/// One read in so many may go to another device since it is late here, in addition to the first reads.
const LATE_SHARE: u64 = 8;
const LATE_FREE: u64 = 256;

/// A read that takes longer has met a stall.
const STALL: Duration = Duration::from_micros(200);

/// The time of each further read of a lane without a stall.
const LANE_READ: Duration = Duration::from_micros(5);

/// Reads after which it is decided anew whether the device is steady: unsteady if so many of them
/// met a stall, steady again if at most so many did.
const WINDOW: u32 = 1024;
const UNSTEADY: u32 = 4;
const STEADY: u32 = 1;

/// The share by which the median rises and falls.
const STEP: u64 = 32;

/// The times of a device's reads, and the decisions based on them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds that half of the reads take at most.
    median: AtomicU64,
    /// Nanoseconds of all reads through the ring, and how many they were.
    spent: AtomicU64,
    reads: AtomicU64,
    wins: AtomicU64,
    losses: AtomicU64,
    cancelled: AtomicU64,
    hedges: AtomicU64,
    /// Reads for which another device was asked.
    late: AtomicU64,
    /// A read is late, and the device has not shown a sign of life since.
    is_late: AtomicBool,
    is_unsteady: AtomicBool,
    looked: AtomicU32,
    stalled: AtomicU32,
    gets: Times,
    /// How long writes take, each on this device alone.
    pub(crate) puts: Times,
}

/// The end of a read on one device of a hedged read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Won,
    /// Another device was first.
    Lost,
    /// Another device was first before this one had begun.
    Cancelled,
    /// No answer: the device failed, or is not the one to ask any more.
    Void,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { median: AtomicU64::new(PATIENCE_MIN), ..Self::default() }
    }

    /// How long a read may take.
    pub(crate) fn hedge_delay(&self) -> Duration {
        let hedge_delay = MEDIANS * self.median.load(Ordering::Relaxed);
        Duration::from_nanos(hedge_delay.clamp(PATIENCE_MIN, PATIENCE_MAX))
    }

    /// Reads that the processor has taken from its ring.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// A read is late; true if another device may be asked in place of this one.
    pub(crate) fn note_late(&self) -> bool {
        self.is_late.store(true, Ordering::Relaxed);
        let late = self.late.fetch_add(1, Ordering::Relaxed);
        let may_be = late <= LATE_FREE + self.reads() / LATE_SHARE;
        if !may_be {
            self.late.fetch_sub(1, Ordering::Relaxed);
        }
        may_be
    }

    /// The device is asked since another one was late.
    pub(crate) fn note_hedge(&self) {
        self.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// True if a read is late and the device has not shown a sign of life since.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// True if reads on the device meet stalls.
    pub(crate) fn is_unsteady(&self) -> bool {
        self.is_unsteady.load(Ordering::Relaxed)
    }

    /// The processor has dealt with a read, which it was asked for and began at these times; for the processor
    /// alone.
    pub(crate) fn note(&self, end: End, asked_at: Instant, begun_at: Instant) {
        self.is_late.store(false, Ordering::Relaxed);
        let counter = match end {
            End::Won => Some(&self.wins),
            End::Lost => Some(&self.losses),
            End::Cancelled => Some(&self.cancelled),
            End::Void => None,
        };
        if let Some(counter) = counter {
            bump(counter, 1);
        }
        bump(&self.reads, 1);
        if end == End::Cancelled {
            return;
        }
        let now = Instant::now();
        self.look(now - begun_at, 1);
        let took = u64::try_from((now - asked_at).as_nanos()).unwrap_or(u64::MAX);
        bump(&self.spent, took);
        if latency::timer().is_some() {
            self.gets.note(now - asked_at);
        }
        let median = self.median.load(Ordering::Relaxed);
        let step = median / STEP;
        let changed = if took > median { median + step } else { median - step };
        // Not below the least value that a share can change.
        self.median.store(changed.clamp(STEP, PATIENCE_MAX), Ordering::Relaxed);
    }

    /// How long the device took for some reads in one call in the caller's thread; for the reads that are timed. A
    /// stall is as long for all of them as for one.
    pub(crate) fn note_here(&self, took: Duration, reads: usize, is_watching: bool) {
        let reads = u32::try_from(reads.max(1)).unwrap_or(u32::MAX);
        self.gets.note(took / reads);
        if is_watching {
            self.look(took.saturating_sub(LANE_READ * (reads - 1)), reads);
        }
    }

    /// Latencies of the device: for reads as their callers wait, including the ring.
    pub(crate) fn latencies(&self) -> Vec<Latency> {
        vec![self.gets.told("get"), self.puts.told("put")]
    }

    /// How long the device took for some reads, without the wait in the ring; for all reads, or for those that are
    /// timed.
    pub(crate) fn look(&self, took: Duration, reads: u32) {
        // Several threads store here: a lost update does not matter.
        let looked = self.looked.load(Ordering::Relaxed).saturating_add(reads);
        let stalled = self.stalled.load(Ordering::Relaxed) + u32::from(took > STALL);
        if stalled >= UNSTEADY {
            self.is_unsteady.store(true, Ordering::Relaxed);
        } else if looked >= WINDOW && stalled <= STEADY {
            self.is_unsteady.store(false, Ordering::Relaxed);
        }
        let is_over = looked >= WINDOW || stalled >= UNSTEADY;
        let (looked, stalled) = if is_over { (0, 0) } else { (looked, stalled) };
        self.looked.store(looked, Ordering::Relaxed);
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Its figures, by name: how many reads the processor has taken from its ring; how many of them were first,
    /// came too late, or had not begun when another device was first; how many came here since another device was
    /// late; mean nanoseconds from the ring to the answer; the hedge delay in nanoseconds; 1 if reads meet stalls.
    pub(crate) fn figures(&self) -> [(&'static str, u64); 8] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let served = get(&self.reads).saturating_sub(get(&self.cancelled));
        [
            ("ring_reads", get(&self.reads)),
            ("hedge_wins", get(&self.wins)),
            ("hedge_losses", get(&self.losses)),
            ("hedge_cancelled", get(&self.cancelled)),
            ("hedges", get(&self.hedges)),
            ("ring_read_mean_ns", get(&self.spent).checked_div(served).unwrap_or(0)),
            ("hedge_delay_ns", self.hedge_delay().as_nanos() as u64),
            ("unsteady", u64::from(self.is_unsteady())),
        ]
    }
}

/// Adds to a counter that one thread alone changes.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(pace: &Pace, took: Duration) {
        let begun_at = Instant::now().checked_sub(took).expect("the clock has run so long");
        pace.note(End::Won, begun_at, begun_at);
    }

    #[test]
    fn patience_is_four_times_what_half_of_the_reads_take() {
        let pace = Pace::new();
        for number in 0..20_000_u64 {
            // Evenly from 0 to 2 ms, in no order.
            served(&pace, Duration::from_micros(number * 7919 % 2000));
        }
        let hedge_delay = pace.hedge_delay();
        let bounds = Duration::from_micros(2000)..Duration::from_micros(7000);
        assert!(bounds.contains(&hedge_delay), "{hedge_delay:?}");
        served(&pace, Duration::from_millis(500));
        assert!(pace.hedge_delay() < hedge_delay * 11 / 10, "one stall is one read that is late");
    }

    #[test]
    fn where_most_reads_are_late_most_are_waited_for() {
        let pace = Pace::new();
        let mut asked_twice = 0;
        for _ in 0..8000 {
            asked_twice += u64::from(pace.note_late());
            served(&pace, Duration::from_millis(1));
        }
        assert!((1000..=1000 + LATE_FREE + 1).contains(&asked_twice), "{asked_twice}");
    }

    #[test]
    fn stalls_of_one_in_a_hundred_are_noticed_and_forgotten() {
        let pace = Pace::new();
        (0..5 * WINDOW).for_each(|_| pace.look(Duration::from_micros(1), 1));
        assert!(!pace.is_unsteady());
        for number in 0..WINDOW {
            let stalls = number % 100 == 0;
            pace.look(Duration::from_micros(if stalls { 1000 } else { 1 }), 1);
        }
        assert!(pace.is_unsteady());
        (0..3 * WINDOW).for_each(|_| pace.look(Duration::from_micros(1), 1));
        assert!(!pace.is_unsteady());
        // Rare pauses of the caller's CPU do not make a device unsteady.
        for number in 0..10 * WINDOW {
            let stalls = number % WINDOW == 0;
            pace.look(Duration::from_micros(if stalls { 5000 } else { 1 }), 1);
        }
        assert!(!pace.is_unsteady());
    }

    /// A stall holds up all reads of a lane, and counts once.
    #[test]
    fn stalls_of_lanes_are_counted_by_their_reads() {
        let (fast, slow) = (Duration::from_micros(5), Duration::from_millis(5));
        let looks = |stalled_every: u32| {
            let pace = Pace::new();
            let lane = |at: u32| if at.is_multiple_of(stalled_every) { slow } else { fast };
            (1..1000).for_each(|at| pace.note_here(lane(at), 64, true));
            pace.is_unsteady()
        };
        assert!(!looks(16), "one read in 1,024");
        assert!(looks(3), "one in 192");
        let slow = Pace::new();
        (0..1000).for_each(|_| slow.note_here(Duration::from_micros(64 * 4), 64, true));
        assert!(!slow.is_unsteady(), "it takes its time for each");
    }

    #[test]
    fn a_late_device_shows_that_it_lives() {
        let pace = Pace::new();
        assert!(pace.note_late());
        assert!(pace.is_late());
        pace.note(End::Cancelled, Instant::now(), Instant::now());
        assert!(!pace.is_late());
        let figures = pace.figures();
        for told in [("ring_reads", 1), ("hedge_cancelled", 1), ("ring_read_mean_ns", 0)] {
            assert!(figures.contains(&told), "{figures:?}");
        }
    }
}
