//! The measurements of the maps of NVM-Raft, for any engine: `commits`, `turnover`, `interference`.

use super::scratch::Scratch;
use super::show_report;
use crate::arguments::Bench;
use crate::failure::Failure;
use coreplane_bench::{Plan, load_until_full, run_commits, run_interference, run_turnover};

/// Inserts, reads and deletes that share commits.
pub(super) fn commits(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let pool = Scratch::new(bench, "commits");
    let report =
        pool.with(pool.size(), |store| run_commits(&**store.engine(), plan, &bench.map_work))?;
    let line = format!(
        "commits          {:<10} every {} writes   insert {:.0} ns  read {:.0} ns  delete {:.0} ns   fences/write \
         {:.2}  flushes/write {:.2}",
        report.engine,
        report.group,
        report.insert_ns,
        report.read_ns,
        report.delete_ns,
        report.fences_per_write,
        report.flushes_per_write,
    );
    show_report(bench, &report, &line)
}

/// Overwrites of every record.
pub(super) fn turnover(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let pool = Scratch::new(bench, "turnover");
    let report =
        pool.with(pool.size(), |store| run_turnover(&**store.engine(), plan, &bench.map_work))?;
    let line = format!(
        "turnover         {:<10} {} times {} records   in use {:.2} bytes for one of the newest   DRAM {:.1} bytes a \
         record ({:.1} of the process)   flushed {:.0} bytes a put   refused {}",
        report.engine,
        report.times,
        report.records,
        report.in_use_per_newest,
        report.dram_per_record,
        report.rss_per_record,
        report.flushed_per_put,
        report.refused_puts,
    );
    show_report(bench, &report, &line)
}

/// Puts alone, and beside the cleaner and a snapshot that is read.
pub(super) fn interference(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let pool = Scratch::new(bench, "interference");
    let (size, work) = (pool.size(), bench.map_work);
    let full = pool.with(size, |store| load_until_full(&**store.engine(), plan, u64::MAX))?;
    // A snapshot may keep the same number of records again.
    let records = full * work.fullness / 200;
    for (size, is_busy) in [(size.saturating_mul(work.room), false), (size, true)] {
        let report = pool.with(size, |store| {
            run_interference(&**store.engine(), plan, (records, work.put_rate), is_busy)
        })?;
        let line = format!(
            "interference     {:<10} {:<5}   puts {:.0}/s  p50 {} ns  p99.9 {} ns  max {} ns   refused {}   pages \
             cleaned {}  snapshots {}",
            report.engine,
            report.beside,
            report.puts_per_s,
            report.p50_ns,
            report.p999_ns,
            report.max_ns,
            report.refused_puts,
            report.pages_cleaned,
            report.snapshots,
        );
        show_report(bench, &report, &line)?;
    }
    Ok(())
}
