//! How long the calls of a device take, measured on some of them.
//!
//! Reading the clock twice takes as long as a tenth of a read. So one call in seventeen of a thread is timed and
//! counted: bucket `n` has calls that took less than `2^n` nanoseconds.

use coreplane_engine::Latency;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One in so many calls of a thread is timed. A prime above the number of a group's devices, so that not always the
/// same device is timed if a thread calls them in turn.
const TIMED_EVERY: u32 = 17;

/// The last bucket also has calls that take more than eight seconds.
const BUCKETS: usize = 34;

thread_local! {
    /// How many calls the thread makes until one is timed.
    static CALLS: Cell<u32> = const { Cell::new(TIMED_EVERY) };
}

/// When a call begins, if it is one of those that are timed.
#[inline]
pub(crate) fn timer() -> Option<Instant> {
    let left = CALLS.get() - 1;
    CALLS.set(if left == 0 { TIMED_EVERY } else { left });
    (left == 0).then(Instant::now)
}

/// Times of calls, from any thread.
#[derive(Debug)]
pub(crate) struct Times {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl Times {
    /// Notes that a call took so long.
    pub(crate) fn note(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Calls `call`, and notes how long it took if it is one of those that are timed.
    #[inline]
    pub(crate) fn of<T>(&self, call: impl FnOnce() -> T) -> T {
        self.of_each(1, call)
    }

    /// The same for a call that does `count` operations: notes how long each took.
    #[inline]
    pub(crate) fn of_each<T>(&self, count: u32, call: impl FnOnce() -> T) -> T {
        let began = timer();
        let answer = call();
        if let Some(began) = began {
            self.note(began.elapsed() / count.max(1));
        }
        answer
    }

    /// The times as they are reported, under a name.
    pub(crate) fn told(&self, name: &'static str) -> Latency {
        let buckets = self.buckets.iter().map(|held| held.load(Ordering::Relaxed)).collect();
        Latency { name, buckets, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_seventeen_is_timed() {
        let times = Times::default();
        for _ in 0..32 * TIMED_EVERY {
            times.of(|| ());
        }
        assert_eq!(times.told("get").count(), 32);
        times.note(Duration::from_micros(100));
        times.note(Duration::from_secs(100));
        let told = times.told("get");
        assert_eq!((told.count(), told.below_ns(1.0)), (34, 1 << (BUCKETS - 1)));
        assert!(told.sum_ns >= 100_000_100_000, "{told:?}");
    }
}
