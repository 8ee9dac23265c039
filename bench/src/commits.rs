//! Inserts, reads and deletes where some writes share a commit: the table of NVM-Raft (4.2).
//!
//! One thread. All records are inserted into an empty store, read, and deleted, each time in an order of its own,
//! drawn before the clock starts as keys are made before; writes are early, and every so many of them are made
//! durable together. What is measured is the mean of an operation, its part of the commit in it. A cycle that does
//! not count comes first: it is the first to touch index and pages.

use crate::choice::{Draws, shuffled};
use crate::commit_group::{CommitGroup, EARLY};
use crate::record::{check_value, write_key, write_value};
use crate::{Error, MapWork, Plan, Result};
use coreplane_engine::{Outcome, StorageEngine, Visibility};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What the cycles have shown. Serialized, it is one line of `coreplane bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommitsReport {
    /// `commits`.
    pub phase: &'static str,
    /// The engine.
    pub engine: String,
    /// Records.
    pub records: u64,
    /// Cycles that count.
    pub cycles: u64,
    /// Writes that share a commit.
    pub group: usize,
    /// The mean time of an insert, in nanoseconds.
    pub insert_ns: f64,
    /// Of a read, whose value is checked.
    pub read_ns: f64,
    /// Of a delete.
    pub delete_ns: f64,
    /// Fences, or syncs, for a write.
    pub fences_per_write: f64,
    /// Lines flushed for a write; what goes past the caches is not flushed.
    pub flushes_per_write: f64,
    /// Pages that were cleaned: 0 if the pool is large enough.
    pub pages_cleaned: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
}

/// Runs the cycles in an empty store.
///
/// # Errors
/// [`Error::Plan`] if the plan cannot be carried out; [`Error::WrongValue`]; if the store fails.
pub fn run_commits(
    engine: &dyn StorageEngine,
    plan: &Plan,
    work: &MapWork,
) -> Result<CommitsReport> {
    plan.check()?;
    if work.group == 0 || work.cycles == 0 {
        return Err(Error::Plan("commits of no write, or no cycle".to_owned()));
    }
    let mut keys = vec![0; plan.records as usize * plan.key_size];
    for (number, key) in (0..).zip(keys.chunks_exact_mut(plan.key_size)) {
        write_key(number, key);
    }
    let cycle = Cycle { engine, plan, keys, group: work.group };
    let mut draws = Draws::new(plan.seed);
    cycle.run(0, &mut draws)?;
    let (before, mut sums) = (engine.stats(), [Duration::ZERO; 3]);
    for number in 1..=work.cycles {
        let took = cycle.run(number, &mut draws)?;
        sums.iter_mut().zip(took).for_each(|(sum, took)| *sum += took);
    }
    let after = engine.stats();
    let operations = (plan.records * work.cycles) as f64;
    let [insert_ns, read_ns, delete_ns] = sums.map(|sum| sum.as_nanos() as f64 / operations);
    Ok(CommitsReport {
        phase: "commits",
        engine: engine.name().to_owned(),
        records: plan.records,
        cycles: work.cycles,
        group: work.group,
        insert_ns,
        read_ns,
        delete_ns,
        fences_per_write: (after.fences - before.fences) as f64 / (2.0 * operations),
        flushes_per_write: (after.flushes - before.flushes) as f64 / (2.0 * operations),
        pages_cleaned: after.cleaner_pages_freed,
        key_size: plan.key_size,
        value_size: plan.value_size,
    })
}

/// What every cycle does.
struct Cycle<'a> {
    engine: &'a dyn StorageEngine,
    plan: &'a Plan,
    /// The keys of all records, one after the other.
    keys: Vec<u8>,
    group: usize,
}

impl Cycle<'_> {
    /// How long the inserts, the reads and the deletes took.
    fn run(&self, number: u64, draws: &mut Draws) -> Result<[Duration; 3]> {
        let mut order = || shuffled(self.plan.records, draws);
        let orders = [order(), order(), order()];
        let [inserts, reads, deletes] = &orders;
        Ok([self.insert(inserts, number)?, self.read(reads, number)?, self.delete(deletes)?])
    }

    #[inline]
    fn key(&self, number: u32) -> &[u8] {
        let at = number as usize * self.plan.key_size;
        &self.keys[at..at + self.plan.key_size]
    }

    fn insert(&self, order: &[u32], version: u64) -> Result<Duration> {
        let mut value = vec![0; self.plan.value_size];
        self.write(order, "it was there before", |number| {
            write_value(u64::from(number), version, &mut value);
            self.engine.insert(self.key(number), &value, &EARLY)
        })
    }

    fn delete(&self, order: &[u32]) -> Result<Duration> {
        self.write(order, "it was not there any more", |number| {
            self.engine.delete(self.key(number), &EARLY)
        })
    }

    /// Makes a write of each record, and a commit of each group.
    fn write(
        &self,
        order: &[u32],
        refused: &'static str,
        mut write: impl FnMut(u32) -> coreplane_engine::Result<Outcome>,
    ) -> Result<Duration> {
        let mut group = CommitGroup::new(self.engine, self.group);
        let begun = Instant::now();
        for &number in order {
            let outcome = write(number)?;
            if outcome.written().is_none() {
                return Err(Error::WrongValue { number: number.into(), what: refused });
            }
            group.add(&outcome)?;
        }
        group.commit()?;
        Ok(begun.elapsed())
    }

    fn read(&self, order: &[u32], version: u64) -> Result<Duration> {
        let begun = Instant::now();
        for &number in order {
            let number_read = u64::from(number);
            let mut found = Err("it is not there");
            self.engine.get_with(self.key(number), Visibility::Durable, &mut |record| {
                let value = record.value.to_cow();
                found = check_value(number_read, &value, self.plan.value_size);
            })?;
            let is_newest = |found| if found == version { Ok(()) } else { Err("it is an old one") };
            found
                .and_then(is_newest)
                .map_err(|what| Error::WrongValue { number: number_read, what })?;
        }
        Ok(begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::Engine;
    use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};

    #[test]
    fn a_fence_for_ten_writes_and_nothing_is_left() -> Result<()> {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let (media, options) = (coreplane_pmem::MediaChoice::Auto, Options::default());
        let path = directory.path().join("pool");
        let store =
            MapEngine::create(MapKind::List, &path, 8 << 20, Geometry::default(), media, &options)?;
        let plan = Plan { records: 1000, key_size: 10, value_size: 10, ..Plan::default() };
        let report = run_commits(&store, &plan, &MapWork { cycles: 2, ..MapWork::default() })?;
        assert!(report.insert_ns > 0.0 && report.read_ns > 0.0 && report.delete_ns > 0.0);
        assert!((0.1..0.12).contains(&report.fences_per_write), "{report:?}");
        assert_eq!((report.pages_cleaned, store.len()?), (0, 0), "{report:?}");
        Ok(())
    }

    #[test]
    fn a_store_that_has_the_keys_is_refused() {
        let engine = ModelEngine::new();
        let plan = Plan { records: 10, key_size: 10, value_size: 10, ..Plan::default() };
        let mut key = vec![0; 10];
        write_key(7, &mut key);
        let put = engine.insert(&key, b"there", &EARLY);
        assert!(put.is_ok_and(|outcome| outcome.written().is_some()));
        let refused = run_commits(&engine, &plan, &MapWork::default());
        assert!(matches!(refused, Err(Error::WrongValue { number: 7, .. })), "{refused:?}");
        let none = MapWork { group: 0, ..MapWork::default() };
        assert!(matches!(run_commits(&engine, &plan, &none), Err(Error::Plan(_))));
    }
}
