//! Counters of each command: how often it was run, refused and failed, and how long it took.
//!
//! Where many commands come together, not all are timed ([`stopwatch`](crate::stopwatch)): a timed run counts for the
//! untimed runs of the same command before it, too.
//!
//! Times are kept in a histogram whose buckets are linear inside of each power of two: a bucket is a 16th of the
//! power wide, so a percentile is right to within 7 %, from a microsecond to a minute. The histogram is allocated
//! when the command is timed for the first time.

use crate::counters::Counter;
use crate::stopwatch::SLOW;
use std::sync::OnceLock;
use std::time::Duration;

/// A command that was run less often than this is timed each time.
const RARE: u64 = 1024;
/// Buckets in a power of two, and their logarithm.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: u32 = 4;
/// Times of 2^40 ns, 18 minutes, and more are in the last bucket.
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

/// The counters of one command.
#[derive(Debug, Default)]
pub(crate) struct CommandCounters {
    /// The number of runs.
    pub calls: Counter,
    /// The number of runs that failed.
    pub failed: Counter,
    /// The number of refusals before a run.
    pub rejected: Counter,
    /// The total time of the timed runs, with the untimed ones that they count for.
    nanos: Counter,
    /// The number of these runs.
    timed: Counter,
    latency: OnceLock<Box<[Counter]>>,
}

impl CommandCounters {
    /// True if the command was seldom run, so that each run is timed.
    pub(crate) fn is_rare(&self) -> bool {
        self.calls.get() < RARE
    }

    /// Counts the time of the last of `calls` runs. It counts for the untimed runs before it, too, unless it was
    /// slow.
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

    /// Sets all counters to zero.
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
    /// The sum of these.
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

    /// Approximate microseconds of all runs.
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
        // An untimed run counts as the mean of the timed ones.
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
