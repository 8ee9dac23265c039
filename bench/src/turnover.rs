//! Space, DRAM and flushed lines while every record is written over many times.
//!
//! The records are loaded, and then written over as often as is asked for: each once before any of them again, in
//! an order that is drawn anew each time, so that what dies is scattered over the pages. Every so many writes
//! share a commit. A pool of a given size makes the store clean; one that is too small refuses writes, which are
//! counted.
//!
//! The bytes that are in use are those of all pages that are not free, whatever is in them; they are held against
//! the bytes of the newest record of each key with its header: nothing else must be kept.

use crate::choice::{Draws, shuffled};
use crate::commit_group::{CommitGroup, EARLY};
use crate::memory::Dram;
use crate::occupancy::check_all;
use crate::record::{write_key, write_value};
use crate::{Error, MapWork, Plan, Result};
use coreplane_engine::{Error as EngineError, Stats, StorageEngine};
use coreplane_record::Header;
use serde::Serialize;
use std::time::Instant;

/// Bytes of a line, as flushes are counted.
const LINE: u64 = 64;

/// What the overwrites have shown. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnoverReport {
    /// `turnover`.
    pub phase: &'static str,
    /// The engine.
    pub engine: String,
    /// Records.
    pub records: u64,
    /// Overwrites of each of them.
    pub times: u64,
    /// Writes that share a commit.
    pub group: usize,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of pages that are not free: the most after any pass over all records.
    pub in_use_bytes: u64,
    /// Bytes of the newest records, headers included.
    pub newest_bytes: u64,
    /// One over the other.
    pub in_use_per_newest: f64,
    /// What the engine counts as alive at the end, in bytes.
    pub live_bytes: u64,
    /// Bytes of DRAM for index and tables, as the engine counts them, for a record.
    pub dram_per_record: f64,
    /// Bytes of anonymous memory that the process came to use since before the load, for a record.
    pub rss_per_record: f64,
    /// Overwrites a second.
    pub puts_per_s: f64,
    /// Bytes of the lines flushed, for an overwrite, the cleaner's too; what goes past the caches is not flushed.
    pub flushed_per_put: f64,
    /// Bytes that the cleaner copied, for an overwrite.
    pub copied_per_put: f64,
    /// Pages that were cleaned.
    pub pages_cleaned: u64,
    /// Overwrites that ended in [`NoSpace`](EngineError::NoSpace).
    pub refused_puts: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
}

/// Loads an empty store, writes over every record as often as `work` says, and reads them all.
///
/// # Errors
/// [`Error::Plan`] if the plan cannot be carried out; [`Error::WrongValue`]; if the store does not take the
/// records, or fails otherwise than for want of space.
pub fn run_turnover(
    engine: &dyn StorageEngine,
    plan: &Plan,
    work: &MapWork,
) -> Result<TurnoverReport> {
    plan.check()?;
    if work.group == 0 || work.times == 0 {
        return Err(Error::Plan("commits of no write, or no overwrite".to_owned()));
    }
    let mut draws = Draws::new(plan.seed);
    let mut order = shuffled(plan.records, &mut draws);
    let memory = Dram::measured_from_now();
    let refused = write_all(engine, plan, work.group, (&order, 0))?;
    if refused > 0 {
        return Err(Error::Plan(format!("the pool does not take {refused} of the records")));
    }
    let loaded = engine.stats();
    let (mut in_use_bytes, mut refused_puts, mut seconds) = (in_use(&loaded), 0, 0.0);
    for version in 1..=work.times {
        order = shuffled(plan.records, &mut draws);
        let begun = Instant::now();
        refused_puts += write_all(engine, plan, work.group, (&order, version))?;
        seconds += begun.elapsed().as_secs_f64();
        in_use_bytes = in_use_bytes.max(in_use(&engine.stats()));
    }
    let (ended, rss) = (engine.stats(), memory.grown());
    check_all(engine, plan, plan.records)?;
    let newest = Header::put(1).record_len(&vec![0; plan.key_size], plan.value_size) as u64;
    let newest_bytes = newest * plan.records;
    let puts = plan.records * work.times;
    let per_put = |bytes: u64| bytes as f64 / puts as f64;
    Ok(TurnoverReport {
        phase: "turnover",
        engine: engine.name().to_owned(),
        records: plan.records,
        times: work.times,
        group: work.group,
        pool_bytes: ended.pool_bytes,
        in_use_bytes,
        newest_bytes,
        in_use_per_newest: in_use_bytes as f64 / newest_bytes as f64,
        live_bytes: ended.live_bytes,
        dram_per_record: ended.dram_bytes as f64 / plan.records as f64,
        rss_per_record: rss as f64 / plan.records as f64,
        puts_per_s: (puts - refused_puts) as f64 / seconds,
        flushed_per_put: per_put((ended.flushes - loaded.flushes) * LINE),
        copied_per_put: per_put(ended.cleaner_bytes_copied - loaded.cleaner_bytes_copied),
        pages_cleaned: ended.cleaner_pages_freed,
        refused_puts,
        key_size: plan.key_size,
        value_size: plan.value_size,
    })
}

fn in_use(stats: &Stats) -> u64 {
    stats.pool_bytes.saturating_sub(stats.free_bytes)
}

/// Writes this version of each record; how many writes were refused.
fn write_all(
    engine: &dyn StorageEngine,
    plan: &Plan,
    group: usize,
    (order, version): (&[u32], u64),
) -> Result<u64> {
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    let (mut group, mut refused) = (CommitGroup::new(engine, group), 0);
    for number in order.iter().copied().map(u64::from) {
        write_key(number, &mut key);
        write_value(number, version, &mut value);
        match engine.put(&key, &value, &EARLY) {
            Ok(outcome) => group.add(&outcome)?,
            Err(EngineError::NoSpace { .. }) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    group.commit()?;
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_bptree::{Bptree, PAGE_SIZE};
    use coreplane_pmem::MediaChoice;

    #[test]
    fn a_pool_twice_as_large_as_what_lives_is_written_over() -> Result<()> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let path = directory.path().join("pool");
        let store =
            Bptree::create(&path, 8 << 20, PAGE_SIZE, MediaChoice::Auto, &Default::default())?;
        let plan = Plan { records: 25_000, ..Plan::default() };
        let work = MapWork { times: 4, ..MapWork::default() };
        let report = run_turnover(&store, &plan, &work)?;
        assert_eq!(report.newest_bytes, 25_000 * 136);
        assert!((1.0..2.6).contains(&report.in_use_per_newest), "{report:?}");
        assert!(report.refused_puts == 0 && report.puts_per_s > 0.0, "{report:?}");
        let refused = run_turnover(&store, &plan, &MapWork { times: 0, ..work });
        assert!(matches!(refused, Err(Error::Plan(_))));
        Ok(())
    }
}
