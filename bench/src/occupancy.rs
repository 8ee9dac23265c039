//! What overwrites cost the fuller a pool is.
//!
//! A pool of a given size is loaded with records until it takes no more: that is its *capacity*. Then pools of
//! the same size are loaded with a share of it, and all threads write over records chosen evenly, for a
//! while, each write timed. Afterwards every record is read, and must be one that was written.

use crate::choice::Draws;
use crate::record::{check_value, write_key, write_value};
use crate::report::Tally;
use crate::{Error, Plan, Result};
use coreplane_engine::{Engine, Error as EngineError, Visibility, WriteOptions};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Nobody should wait longer for a write.
const LONG: Duration = Duration::from_millis(20);

/// Writes between two looks at the clock that ends a stage.
const AT_A_TIME: usize = 64;

/// The shares, and how long each is written to.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Sweep {
    /// occupancy: percent of the records that a load can put in.
    #[arg(long, value_delimiter = ',', default_values_t = Sweep::default().shares)]
    pub shares: Vec<u64>,
    /// occupancy: milliseconds of overwrites at each.
    #[arg(long, default_value_t = Sweep::default().overwrite_ms)]
    pub overwrite_ms: u64,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { shares: vec![50, 60, 70, 80, 90, 95, 98, 100], overwrite_ms: 4000 }
    }
}

/// What a share has shown. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OccupancyReport {
    /// `occupancy`.
    pub phase: &'static str,
    /// The engine.
    pub engine: String,
    /// Percent of the capacity.
    pub percent: u64,
    /// Records that were loaded.
    pub records: u64,
    /// Bytes of the pool for each byte of keys and values.
    pub pool_bytes_per_byte: f64,
    /// Threads.
    pub threads: usize,
    /// Overwrites a second, of all threads.
    pub puts_per_s: f64,
    /// Half of them took at most so long.
    pub p50_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Overwrites that took longer than 20 ms.
    pub long_puts: u64,
    /// Overwrites that ended in [`NoSpace`](EngineError::NoSpace).
    pub refused_puts: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
}

/// How many records a store takes, at most `most`: they are in it then.
///
/// # Errors
/// If the store fails otherwise than for want of space.
pub fn load_until_full(engine: &dyn Engine, plan: &Plan, most: u64) -> Result<u64> {
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    for number in 0..most {
        write_key(number, &mut key);
        write_value(number, 0, &mut value);
        match engine.put(&key, &value, &WriteOptions::default()) {
            Ok(_) => {}
            Err(EngineError::NoSpace { .. }) => return Ok(number),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(most)
}

/// Writes over the records of a store with so many of them, and reads them all.
///
/// # Errors
/// [`Error::WrongValue`]; if the store fails otherwise than for want of space.
pub fn overwrite_share(
    engine: &dyn Engine,
    plan: &Plan,
    (percent, records): (u64, u64),
    overwrite_ms: u64,
) -> Result<OccupancyReport> {
    let begun = Instant::now();
    let end = begun + Duration::from_millis(overwrite_ms);
    let mut ended = Vec::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..plan.threads as u64)
            .map(|thread| {
                let draws = Draws::new(plan.seed ^ (thread << 32));
                scope.spawn(move || overwrite_until(end, engine, plan, (records, draws)))
            })
            .collect();
        ended.extend(writers.into_iter().map(|writer| writer.join()));
    });
    let seconds = begun.elapsed().as_secs_f64();
    let (mut tally, mut long_puts, mut refused_puts) = (Tally::new()?, 0, 0);
    for writer in ended {
        let (its, long, refused) = writer.map_err(|_| Error::Panicked)??;
        tally.merge(&its)?;
        (long_puts, refused_puts) = (long_puts + long, refused_puts + refused);
    }
    check_all(engine, plan, records)?;
    let bytes = records * (plan.key_size + plan.value_size) as u64;
    Ok(OccupancyReport {
        phase: "occupancy",
        engine: engine.name().to_owned(),
        percent,
        records,
        pool_bytes_per_byte: engine.stats().pool_bytes as f64 / bytes.max(1) as f64,
        threads: plan.threads,
        puts_per_s: tally.operations as f64 / seconds,
        p50_ns: tally.latencies.value_at_quantile(0.5),
        p999_ns: tally.latencies.value_at_quantile(0.999),
        max_ns: tally.latencies.max(),
        long_puts,
        refused_puts,
        key_size: plan.key_size,
        value_size: plan.value_size,
    })
}

/// What overwrites of a store that was just opened have shown. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverwriteReport {
    /// `then`.
    pub phase: &'static str,
    /// The engine.
    pub engine: String,
    /// Records.
    pub records: u64,
    /// Overwrites a second.
    pub puts_per_s: f64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// Overwrites that ended in [`NoSpace`](EngineError::NoSpace).
    pub refused_puts: u64,
}

/// Writes over evenly chosen records of a loaded store, for so long, on one thread.
///
/// # Errors
/// If the store fails otherwise than for want of space.
pub fn overwrite_for(engine: &dyn Engine, plan: &Plan, time: Duration) -> Result<OverwriteReport> {
    let begun = Instant::now();
    let chosen = (plan.records, Draws::new(plan.seed));
    let (tally, _, refused_puts) = overwrite_until(begun + time, engine, plan, chosen)?;
    Ok(OverwriteReport {
        phase: "then",
        engine: engine.name().to_owned(),
        records: plan.records,
        puts_per_s: tally.operations as f64 / begun.elapsed().as_secs_f64(),
        max_ns: tally.latencies.max(),
        refused_puts,
    })
}

/// Writes until then; beside the times how many writes were long, and how many refused.
fn overwrite_until(
    end: Instant,
    engine: &dyn Engine,
    plan: &Plan,
    (records, mut draws): (u64, Draws),
) -> Result<(Tally, u64, u64)> {
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    let (mut tally, mut long, mut refused) = (Tally::new()?, 0, 0);
    while Instant::now() < end {
        for _ in 0..AT_A_TIME {
            let number = draws.below(records);
            write_key(number, &mut key);
            write_value(number, tally.operations + 1, &mut value);
            let begun = Instant::now();
            match engine.put(&key, &value, &WriteOptions::default()) {
                Ok(_) => tally.operations += 1,
                Err(EngineError::NoSpace { .. }) => refused += 1,
                Err(error) => return Err(error.into()),
            }
            let took = begun.elapsed();
            long += u64::from(took > LONG);
            tally.latencies.saturating_record(took.as_nanos() as u64);
        }
    }
    Ok((tally, long, refused))
}

/// Every record is there, with a value that was written for it.
pub(crate) fn check_all(engine: &dyn Engine, plan: &Plan, records: u64) -> Result<()> {
    let mut key = vec![0; plan.key_size];
    for number in 0..records {
        write_key(number, &mut key);
        let mut checked = Err("it is not there");
        engine.get_with(&key, Visibility::Durable, &mut |record| {
            checked = check_value(number, &record.value.to_cow(), plan.value_size);
        })?;
        checked.map_err(|what| Error::WrongValue { number, what })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_bptree::{Bptree, PAGE_SIZE};
    use coreplane_pmem::MediaChoice;

    #[test]
    fn a_pool_that_is_full_is_written_over_and_read() -> Result<()> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let store =
            Bptree::create(&path, 8 << 20, PAGE_SIZE, MediaChoice::Auto, &Default::default())?;
        let plan = Plan { threads: 2, ..Plan::default() };
        let records = load_until_full(&store, &plan, u64::MAX)?;
        assert!(records > 30_000, "{records} records");
        let one = Plan { records, ..Plan::default() };
        let report = overwrite_for(&store, &one, Duration::from_millis(20))?;
        assert!(report.puts_per_s > 0.0 && report.max_ns > 0, "{report:?}");
        let report = overwrite_share(&store, &plan, (100, records), 50)?;
        assert!(report.puts_per_s > 0.0 && report.refused_puts == 0, "{report:?}");
        assert!((1.0..2.0).contains(&report.pool_bytes_per_byte), "{report:?}");
        Ok(())
    }
}
