//! What a phase has shown.

use hdrhistogram::Histogram;
use serde::Serialize;

/// What a phase has shown. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The workload.
    pub phase: String,
    /// The target.
    pub engine: String,
    /// Threads.
    pub threads: usize,
    /// Operations of all threads.
    pub operations: u64,
    /// From the first thread's first to the last thread's last operation.
    pub seconds: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// The median time of an operation, in nanoseconds (of a batch, for `mget`).
    pub p50_ns: u64,
    /// 99 % took at most so long.
    pub p99_ns: u64,
    /// The mean time of an operation that only reads, in nanoseconds; 0 if there was none.
    pub read_mean_ns: u64,
    /// The mean time of one that writes.
    pub write_mean_ns: u64,
    /// 99.9 % took at most so long.
    pub p999_ns: u64,
    /// Lines flushed meanwhile, by everyone.
    pub flushes: u64,
    /// Fences or syncs meanwhile, by everyone.
    pub fences: u64,
    /// DRAM for index and tables at the end, in bytes.
    pub dram_bytes: u64,
    /// Values read, each of them checked.
    pub hits_verified: u64,
    /// Records that had been loaded.
    pub records: u64,
    /// How records were chosen.
    pub distribution: &'static str,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Where the draws began.
    pub seed: u64,
}

/// What one thread has counted.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) latencies: Histogram<u32>,
    pub(crate) hits: u64,
    pub(crate) operations: u64,
    pub(crate) reads: Mean,
    pub(crate) writes: Mean,
}

/// A sum of times, and of how many.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mean {
    nanoseconds: u64,
    count: u64,
}

impl Mean {
    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.nanoseconds += nanoseconds;
        self.count += 1;
    }

    fn merge(&mut self, other: Self) {
        self.nanoseconds += other.nanoseconds;
        self.count += other.count;
    }

    pub(crate) fn nanoseconds(self) -> u64 {
        self.nanoseconds.checked_div(self.count).unwrap_or(0)
    }
}

impl Tally {
    /// From 1 ns to 100 s, to three digits.
    pub(crate) fn new() -> crate::Result<Self> {
        let latencies = Histogram::new_with_bounds(1, 100_000_000_000, 3)
            .map_err(|error| crate::Error::Plan(format!("no histogram: {error}")))?;
        let (reads, writes) = (Mean::default(), Mean::default());
        Ok(Self { latencies, hits: 0, operations: 0, reads, writes })
    }

    pub(crate) fn merge(&mut self, other: &Self) -> crate::Result<()> {
        self.latencies
            .add(&other.latencies)
            .map_err(|error| crate::Error::Plan(format!("histograms: {error}")))?;
        self.hits += other.hits;
        self.operations += other.operations;
        self.reads.merge(other.reads);
        self.writes.merge(other.writes);
        Ok(())
    }
}
