//! What a put waits for while pages are cleaned and a snapshot is read.
//!
//! One thread writes over records chosen evenly, each write durable when it returns and timed. *Quiet*: in a pool
//! so large that nothing is cleaned, and nobody reads. *Busy*: in a small one, after it has come to clean, while
//! another thread takes a snapshot, reads all of it in the order of keys, and begins anew. A snapshot keeps what is
//! written over, so that of each record there may be two in the pool. Each snapshot that is read to its end must
//! have shown every record.
//!
//! Writes follow each other without a pause, or come at a rate. Without a pause the faster case has more writes between
//! two interrupts of the kernel, so that fewer of its writes meet one. At a rate both cases meet as many; each write is
//! timed from when it was due, so that what waits behind a slow one counts, too.
//!
//! The second thread takes a processor, and its share of caches and memory: what is measured includes that.

use crate::choice::Draws;
use crate::occupancy::{check_all, load_until_full};
use crate::record::{check_value, number_of, write_key, write_value};
use crate::report::Tally;
use crate::{Error, Plan, Result};
use coreplane_engine::{Error as EngineError, Snapshots, StorageEngine, WriteOptions};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Overwrites between two looks at whether pages are cleaned yet.
const LOOK_EVERY: u64 = 1024;
/// If after so many overwrites of each record nothing was cleaned, nothing will be.
const WARM_UP_MAX: u64 = 64;

/// What the puts have shown. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InterferenceReport {
    /// `interference`.
    pub phase: &'static str,
    /// The engine.
    pub engine: String,
    /// `quiet` or `busy`.
    pub beside: &'static str,
    /// Records.
    pub records: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Overwrites that were timed.
    pub puts: u64,
    /// Overwrites a second that were due; 0 if each began when the last had ended.
    pub put_rate: u64,
    /// Overwrites a second.
    pub puts_per_s: f64,
    /// Half of them took at most so long.
    pub p50_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Overwrites that ended in [`NoSpace`](EngineError::NoSpace).
    pub refused_puts: u64,
    /// Pages that were cleaned meanwhile.
    pub pages_cleaned: u64,
    /// Snapshots that were read to the end meanwhile.
    pub snapshots: u64,
    /// Records that were read in snapshots.
    pub snapshot_records: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
}

/// Loads so many records into an empty store, and writes over them [`Plan::operations`] times, at a rate if it is not 0.
///
/// # Errors
/// [`Error::Plan`] if the store has no snapshots, does not take the records, or does not come to clean;
/// [`Error::WrongValue`]; if the store fails otherwise than for want of space.
pub fn run_interference(
    engine: &dyn StorageEngine,
    plan: &Plan,
    (records, put_rate): (u64, u64),
    is_busy: bool,
) -> Result<InterferenceReport> {
    let plan = &Plan { records, ..*plan };
    plan.check()?;
    snapshots_of(engine)?;
    let loaded = load_until_full(engine, plan, records)?;
    if loaded < records {
        return Err(Error::Plan(format!("the pool takes {loaded} of {records} records")));
    }
    let mut writer = Writer::new(engine, plan)?;
    if is_busy {
        writer.warm_up()?;
    }
    let (before, over) = (engine.stats(), AtomicBool::new(false));
    let (mut read, mut seconds) = (Ok(Ok(Read::default())), 0.0);
    let mut written = Ok(());
    std::thread::scope(|scope| {
        let over = &over;
        let reader = is_busy.then(|| scope.spawn(move || read_until(engine, plan, over)));
        let begun = Instant::now();
        written = writer.write(plan.operations, put_rate);
        seconds = begun.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        if let Some(reader) = reader {
            read = reader.join().map_err(|_| Error::Panicked);
        }
    });
    written?;
    let (read, after) = (read??, engine.stats());
    check_all(engine, plan, records)?;
    let Writer { tally, refused, .. } = writer;
    Ok(InterferenceReport {
        phase: "interference",
        engine: engine.name().to_owned(),
        beside: if is_busy { "busy" } else { "quiet" },
        records,
        pool_bytes: after.pool_bytes,
        puts: tally.operations,
        put_rate,
        puts_per_s: tally.operations as f64 / seconds,
        p50_ns: tally.latencies.value_at_quantile(0.5),
        p999_ns: tally.latencies.value_at_quantile(0.999),
        max_ns: tally.latencies.max(),
        refused_puts: refused,
        pages_cleaned: after.cleaner_pages_freed - before.cleaner_pages_freed,
        snapshots: read.snapshots,
        snapshot_records: read.records,
        key_size: plan.key_size,
        value_size: plan.value_size,
    })
}

fn snapshots_of(engine: &dyn StorageEngine) -> Result<&dyn Snapshots> {
    engine
        .snapshots()
        .ok_or_else(|| Error::Plan(format!("engine {} has no snapshots", engine.name())))
}

/// The thread that writes.
struct Writer<'a> {
    engine: &'a dyn StorageEngine,
    plan: &'a Plan,
    draws: Draws,
    version: u64,
    tally: Tally,
    refused: u64,
}

impl<'a> Writer<'a> {
    fn new(engine: &'a dyn StorageEngine, plan: &'a Plan) -> Result<Self> {
        let (draws, tally) = (Draws::new(plan.seed), Tally::new()?);
        Ok(Self { engine, plan, draws, version: 0, tally, refused: 0 })
    }

    /// Writes until pages are cleaned; that does not count.
    fn warm_up(&mut self) -> Result<()> {
        let most = WARM_UP_MAX * self.plan.records + LOOK_EVERY;
        while self.engine.stats().cleaner_pages_freed == 0 {
            self.write(LOOK_EVERY, 0)?;
            if self.version > most {
                let what = format!("nothing is cleaned after {most} overwrites");
                return Err(Error::Plan(what));
            }
        }
        (self.tally, self.refused) = (Tally::new()?, 0);
        Ok(())
    }

    fn write(&mut self, count: u64, rate: u64) -> Result<()> {
        let (mut key, mut value) = (vec![0; self.plan.key_size], vec![0; self.plan.value_size]);
        let first = Instant::now();
        for at in 0..count {
            let number = self.draws.below(self.plan.records);
            self.version += 1;
            write_key(number, &mut key);
            write_value(number, self.version, &mut value);
            let begun = match (at * 1_000_000_000).checked_div(rate) {
                Some(after_ns) => await_instant(first + Duration::from_nanos(after_ns)),
                None => Instant::now(),
            };
            let put = self.engine.put(&key, &value, &WriteOptions::default());
            let took = begun.elapsed();
            match put {
                Ok(_) => self.tally.operations += 1,
                Err(EngineError::NoSpace { .. }) => self.refused += 1,
                Err(error) => return Err(error.into()),
            }
            self.tally.latencies.saturating_record(took.as_nanos() as u64);
        }
        Ok(())
    }
}

/// Waits, without leaving the processor, until an instant if it has not passed yet; that instant.
fn await_instant(due: Instant) -> Instant {
    // No hint that it spins: a host may give the processor away for it.
    while Instant::now() < due {}
    due
}

/// What was read.
#[derive(Debug, Default)]
struct Read {
    snapshots: u64,
    records: u64,
}

/// Reads a snapshot after the other.
fn read_until(engine: &dyn StorageEngine, plan: &Plan, over: &AtomicBool) -> Result<Read> {
    let snapshots = snapshots_of(engine)?;
    let mut read = Read::default();
    while !over.load(Ordering::Relaxed) {
        let (mut seen, mut wrong) = (0, None);
        let snapshot = snapshots.snapshot()?;
        snapshot.scan(&[], None, false, usize::MAX, &mut |entry| {
            let number = number_of(entry.key).unwrap_or(u64::MAX);
            let value = entry.record.as_ref().map(|record| record.value.to_cow());
            let value = value.as_deref().unwrap_or_default();
            seen += 1;
            if let Err(what) = check_value(number, value, plan.value_size) {
                wrong = Some(Error::WrongValue { number, what });
            }
            wrong.is_none() && !over.load(Ordering::Relaxed)
        })?;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        read.records += seen;
        if over.load(Ordering::Relaxed) {
            break;
        }
        if seen != plan.records {
            let what = format!("a snapshot showed {seen} of {} records", plan.records);
            return Err(Error::Target(what));
        }
        read.snapshots += 1;
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
    use coreplane_pmem::MediaChoice;

    fn made(path: &std::path::Path, size: u64) -> Result<MapEngine> {
        let (media, options) = (MediaChoice::Auto, Options::default());
        Ok(MapEngine::create(MapKind::List, path, size, Geometry::default(), media, &options)?)
    }

    #[test]
    fn a_small_pool_cleans_and_a_large_one_does_not() -> Result<()> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let plan = Plan { operations: 30_000, ..Plan::default() };
        let busy =
            run_interference(&made(&directory.path().join("a"), 4 << 20)?, &plan, (7000, 0), true)?;
        assert!(busy.pages_cleaned > 0 && busy.snapshot_records > 0, "{busy:?}");
        assert_eq!(busy.puts + busy.refused_puts, 30_000, "{busy:?}");
        let large = made(&directory.path().join("b"), 64 << 20)?;
        let quiet = run_interference(&large, &plan, (7000, 0), false)?;
        assert_eq!((quiet.pages_cleaned, quiet.snapshots), (0, 0), "{quiet:?}");
        assert!(quiet.max_ns >= quiet.p999_ns && quiet.p999_ns >= quiet.p50_ns, "{quiet:?}");
        Ok(())
    }

    #[test]
    fn writes_come_at_a_rate_and_are_timed_from_when_they_were_due() -> Result<()> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let plan = Plan { operations: 1000, ..Plan::default() };
        let begun = Instant::now();
        let store = made(&directory.path().join("a"), 16 << 20)?;
        let slow = run_interference(&store, &plan, (100, 10_000), false)?;
        assert!(begun.elapsed() >= Duration::from_millis(99), "{slow:?}");
        assert!(slow.put_rate == 10_000 && slow.puts_per_s < 10_200.0, "{slow:?}");
        // A billion a second cannot be: what waits behind the first writes counts.
        let store = made(&directory.path().join("b"), 16 << 20)?;
        let behind = run_interference(&store, &plan, (100, 1_000_000_000), false)?;
        assert!(behind.max_ns as f64 > 0.9e12 / behind.puts_per_s, "{behind:?}");
        Ok(())
    }

    #[test]
    fn what_cannot_be_done_is_said() -> Result<()> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let plan = Plan { operations: 10, ..Plan::default() };
        let store = made(&directory.path().join("a"), 4 << 20)?;
        let full = run_interference(&store, &plan, (1_000_000, 0), false);
        assert!(matches!(full, Err(Error::Plan(_))), "{full:?}");
        let without = coreplane_bptree::Bptree::create(
            &directory.path().join("b"),
            8 << 20,
            coreplane_bptree::PAGE_SIZE,
            MediaChoice::Auto,
            &Default::default(),
        )?;
        let refused = run_interference(&without, &plan, (10, 0), false);
        assert!(matches!(refused, Err(Error::Plan(_))), "{refused:?}");
        Ok(())
    }
}
