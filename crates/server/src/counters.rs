//! The counters of an event loop.
//!
//! Each counter has one writer, its loop, which needs no locked instruction for it; any thread may read. So a reset,
//! which any loop may ask for, does not write the number, but notes from which one on it counts.

use crate::command_counters::CommandCounters;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    sum: AtomicU64,
    /// The sum at the last reset.
    base: AtomicU64,
}

impl Counter {
    /// Adds `more`. Only its own loop calls this.
    pub(crate) fn add(&self, more: u64) {
        let sum = self.sum.load(Ordering::Relaxed).wrapping_add(more);
        self.sum.store(sum, Ordering::Relaxed);
    }

    /// The number.
    pub(crate) fn get(&self) -> u64 {
        // The base first: the sum is at least that by then.
        let base = self.base.load(Ordering::Acquire);
        self.sum.load(Ordering::Relaxed).wrapping_sub(base)
    }

    /// Zero again, whatever its loop adds meanwhile.
    pub(crate) fn reset(&self) {
        self.base.store(self.sum.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Durations, counted in buckets that double: bucket `n` holds those below 2^n microseconds.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Counter; Self::BUCKETS],
    sum_micros: Counter,
}

impl Histogram {
    /// The last bound is half an hour.
    pub(crate) const BUCKETS: usize = 32;

    /// Counts `took`.
    pub(crate) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)].add(1);
        self.sum_micros.add(micros);
    }

    /// Adds this one's buckets and sum to `total`.
    pub(crate) fn add_to(&self, total: &mut Totals) {
        for (sum, bucket) in total.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.get();
        }
        total.sum_micros += self.sum_micros.get();
    }

    /// Empty again.
    pub(crate) fn reset(&self) {
        self.buckets.iter().for_each(Counter::reset);
        self.sum_micros.reset();
    }
}

/// The sum of several histograms.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// By bucket; bucket `n` holds durations below 2^n microseconds.
    pub buckets: [u64; Histogram::BUCKETS],
    /// Of all durations.
    pub sum_micros: u64,
}

impl Totals {
    /// The number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A bound in microseconds below which `share` of the durations lie; 0 if there are none.
    pub(crate) fn quantile_micros(&self, share: f64) -> u64 {
        let count = self.count();
        let wanted = (count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, held) in self.buckets.iter().enumerate() {
            seen += held;
            if seen >= wanted && count > 0 {
                return 1 << bucket;
            }
        }
        0
    }
}

/// The counters of one loop.
#[derive(Debug, Default)]
pub(crate) struct LoopCounters {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections refused because there were too many.
    pub rejected: Counter,
    /// Connections closed because of their output.
    pub output_limit_drops: Counter,
    /// Commands run.
    pub commands: Counter,
    /// Slices of commands that went on in a later turn.
    pub slices: Counter,
    /// Commands answered with an error.
    pub errors: Counter,
    /// Bytes read.
    pub bytes_in: Counter,
    /// Bytes written.
    pub bytes_out: Counter,
    /// Turns that asked the engine for durability.
    pub commits: Counter,
    /// Of these, turns whose answers had to wait.
    pub waits: Counter,
    /// Syncs so long that another thread took over the loop.
    pub handovers: Counter,
    /// From the end of the wait for events to the last answer of the turn.
    pub turn_time: Histogram,
    /// From a turn's end until its answers were durable, where they had to wait.
    pub wait_time: Histogram,
    /// By the numbers of commands.
    pub by_command: Box<[CommandCounters]>,
    /// Errors that were answered, by their code. Only readers of the statistics contend for this lock.
    pub errors_by_code: Mutex<BTreeMap<String, u64>>,
}

impl LoopCounters {
    /// Counters for so many command numbers.
    pub(crate) fn new(numbers: usize) -> Self {
        let by_command = (0..numbers).map(|_| CommandCounters::default()).collect();
        Self { by_command, ..Self::default() }
    }

    /// Counts an error with this text, whose code is its first word.
    pub(crate) fn count_error(&self, text: &[u8]) {
        self.errors.add(1);
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        let code = String::from_utf8_lossy(code);
        let mut by_code = self.errors_by_code.lock();
        match by_code.get_mut(code.as_ref()) {
            Some(count) => *count += 1,
            None => drop(by_code.insert(code.into_owned(), 1)),
        }
    }

    /// Sets all counters to zero, as `CONFIG RESETSTAT` asks.
    pub(crate) fn reset(&self) {
        let single = [
            &self.connections,
            &self.rejected,
            &self.output_limit_drops,
            &self.commands,
            &self.slices,
            &self.errors,
            &self.bytes_in,
            &self.bytes_out,
            &self.commits,
            &self.waits,
            &self.handovers,
        ];
        for counter in single {
            counter.reset();
        }
        self.turn_time.reset();
        self.wait_time.reset();
        self.by_command.iter().for_each(CommandCounters::reset);
        self.errors_by_code.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// What was added before a reset is not counted after it, although more is being added.
    #[test]
    fn a_reset_beside_the_writer_is_not_lost() {
        const LOT: u64 = 100;
        let (counter, added) = (Counter::default(), AtomicU64::new(0));
        let (is_over, mut lost) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    (0..LOT).for_each(|_| counter.add(1));
                    added.fetch_add(LOT, Ordering::AcqRel);
                }
            });
            for _ in 0..400 {
                let start = added.load(Ordering::Acquire);
                while added.load(Ordering::Acquire) < start + 10 * LOT {
                    std::hint::spin_loop();
                }
                let before = added.load(Ordering::Acquire);
                counter.reset();
                let counted = counter.get();
                let since = added.load(Ordering::Acquire) - before;
                lost += usize::from(counted > since + LOT);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(lost, 0, "resets were lost");
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let histogram = Histogram::default();
        for micros in [0, 1, 3, 3, 100] {
            histogram.record(Duration::from_micros(micros));
        }
        let mut total = Totals::default();
        histogram.add_to(&mut total);
        assert_eq!(total.count(), 5);
        assert_eq!(total.sum_micros, 107);
        assert_eq!(total.quantile_micros(0.5), 4);
        assert_eq!(total.quantile_micros(1.0), 128);
        assert_eq!(Totals::default().quantile_micros(0.5), 0);
    }
}
