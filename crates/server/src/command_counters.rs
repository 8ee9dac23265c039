//! What is counted of each command: how often it was run, refused and failed, and how long it took.
//!
//! Where many commands come together not all are timed ([`stopwatch`](crate::stopwatch)): one that is counts for those
//! of its name before it, too.
//!
//! Times are kept in a histogram whose buckets are linear inside of each power of two: a bucket is a 16th of
//! the power wide, so a percentile is right to within 7 %, whether it is a microsecond or a minute. It has its
//! memory once the command was timed for the first time.

use crate::counters::Counter;
use crate::stopwatch::SLOW;
use std::sync::OnceLock;
use std::time::Duration;

/// A command that was run less often is timed each time.
const RARE: u64 = 1024;
/// Buckets in a power of two, and their logarithm.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: u32 = 4;
/// Nothing is longer than 2^40 ns, 18 minutes: what is has the last bucket.
const POWERS: usize = 40 - STEP_BITS as usize;
const BUCKETS: usize = (POWERS + 1) * STEPS;

/// The bucket of a time.
fn bucket(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    let power = nanos.ilog2() - STEP_BITS;
    let step = (nanos >> power) as usize - STEPS;
    ((power as usize + 1) * STEPS + step).min(BUCKETS - 1)
}

/// The longest time in a bucket.
fn longest(bucket: usize) -> u64 {
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    match power {
        0 => step as u64,
        power => ((STEPS + step + 1) as u64) * (1 << (power - 1)) - 1,
    }
}

/// What is counted of one command.
#[derive(Debug, Default)]
pub(crate) struct CommandCounters {
    /// Times that it was run.
    pub calls: Counter,
    /// Of these, how many failed.
    pub failed: Counter,
    /// Times that it was refused before it was run.
    pub rejected: Counter,
    /// Of all runs for which there is a time.
    nanos: Counter,
    /// How many these are.
    timed: Counter,
    latency: OnceLock<Box<[Counter]>>,
}

impl CommandCounters {
    /// True if it was seldom run, so that each run is to be timed.
    pub(crate) fn is_rare(&self) -> bool {
        self.calls.get() < RARE
    }

    /// A run took so long, the last of `calls`; so did those before it of which nothing is known, unless it was slow.
    pub(crate) fn time(&self, took: Duration, is_tracked: bool) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let unknown = self.calls.get().saturating_sub(self.timed.get());
        let runs = if took < SLOW { unknown } else { unknown.min(1) };
        self.timed.add(runs);
        self.nanos.add(nanos.saturating_mul(runs));
        if !is_tracked {
            return;
        }
        let latency =
            self.latency.get_or_init(|| (0..BUCKETS).map(|_| Counter::default()).collect());
        if let Some(counter) = latency.get(bucket(nanos)) {
            counter.add(runs);
        }
    }

    /// All zero again.
    pub(crate) fn reset(&self) {
        for counter in [&self.calls, &self.failed, &self.rejected, &self.nanos, &self.timed] {
            counter.reset();
        }
        self.latency.get().into_iter().flatten().for_each(Counter::reset);
    }
}

/// The sum of one command's counters over all loops.
#[derive(Debug)]
pub(crate) struct CommandTotals {
    pub calls: u64,
    pub failed: u64,
    pub rejected: u64,
    nanos: u64,
    timed: u64,
    latency: Vec<u64>,
}

impl CommandTotals {
    /// Of these.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a CommandCounters>) -> Self {
        let latency = vec![0; BUCKETS];
        let mut total = Self { calls: 0, failed: 0, rejected: 0, nanos: 0, timed: 0, latency };
        for one in all {
            total.calls += one.calls.get();
            total.failed += one.failed.get();
            total.rejected += one.rejected.get();
            total.nanos += one.nanos.get();
            total.timed += one.timed.get();
            let latency = one.latency.get().into_iter().flatten();
            for (sum, counter) in total.latency.iter_mut().zip(latency) {
                *sum += counter.get();
            }
        }
        total
    }

    /// True if nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls + self.failed + self.rejected == 0
    }

    /// Microseconds of all runs, about.
    pub(crate) fn micros(&self) -> u64 {
        let mean = self.nanos as f64 / self.timed.max(1) as f64;
        (mean * self.calls as f64 / 1000.0).round() as u64
    }

    /// Nanoseconds that `percent` of the timed runs took at most; none if none was timed.
    pub(crate) fn percentile(&self, percent: f64) -> Option<u64> {
        let count: u64 = self.latency.iter().sum();
        let wanted = ((count as f64 * percent / 100.0).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let found = self.latency.iter().position(|held| {
            seen += held;
            seen >= wanted
        });
        found.map(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_says_so() {
        let mut before = None;
        for bucket_index in 0..BUCKETS - 1 {
            let longest = longest(bucket_index);
            assert_eq!((bucket(longest), bucket(longest + 1)), (bucket_index, bucket_index + 1));
            assert!(before < Some(longest));
            before = Some(longest);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_right_to_within_seven_percent() {
        let counters = CommandCounters::default();
        assert_eq!(CommandTotals::of([&counters].into_iter()).percentile(50.0), None);
        for micros in 1..=1000 {
            counters.calls.add(1);
            counters.time(Duration::from_micros(micros), true);
        }
        let total = CommandTotals::of([&counters].into_iter());
        for (percent, exact) in [(0.0, 1_000), (50.0, 500_000), (99.9, 999_000), (100.0, 1_000_000)]
        {
            let found = total.percentile(percent).unwrap();
            assert!(found >= exact && found <= exact * 107 / 100, "{percent}: {found}");
        }
    }

    #[test]
    fn a_run_that_is_timed_counts_for_those_before_it() {
        let counters = CommandCounters::default();
        counters.calls.add(16);
        counters.time(Duration::from_micros(3), true);
        counters.calls.add(1);
        counters.time(Duration::from_secs(1), true);
        let total = CommandTotals::of([&counters].into_iter());
        assert_eq!(total.micros(), 16 * 3 + 1_000_000);
        assert_eq!(total.percentile(50.0).map(|nanos| nanos / 1000), Some(3));
        // What is not known is like what is.
        counters.calls.add(17);
        let total = CommandTotals::of([&counters].into_iter());
        assert_eq!(total.micros(), 2 * (16 * 3 + 1_000_000));
        assert!(counters.is_rare());
        counters.calls.add(RARE);
        assert!(!counters.is_rare());
        counters.reset();
        assert!(CommandTotals::of([&counters].into_iter()).is_empty());
    }
}
