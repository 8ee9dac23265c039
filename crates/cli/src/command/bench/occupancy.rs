//! Overwrites in pools of rising occupancy.

use super::scratch::Scratch;
use super::show_report;
use crate::arguments::Bench;
use crate::failure::Failure;
use coreplane_bench::{Plan, load_until_full, overwrite_share};

/// Uses pools of its own beside the pool: a line for each share.
pub(super) fn run(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let pool = Scratch::new(bench, "occupancy");
    let full =
        pool.with(pool.size(), |store| load_until_full(&**store.engine(), plan, u64::MAX))?;
    for percent in &bench.sweep.shares {
        let records = full * percent / 100;
        let report = pool.with(pool.size(), |store| {
            let engine = &**store.engine();
            let loaded = load_until_full(engine, plan, records)?;
            overwrite_share(engine, plan, (*percent, loaded), bench.sweep.overwrite_ms)
        })?;
        let line = format!(
            "{:>3} %  {:>10} records, {:.2} bytes for each of theirs   puts {:>9.0}/s  p50 {:>6} ns  p99.9 {:>9} ns  \
             max {:>11} ns   over 20 ms {}  refused {}",
            report.percent,
            report.records,
            report.pool_bytes_per_byte,
            report.puts_per_s,
            report.p50_ns,
            report.p999_ns,
            report.max_ns,
            report.long_puts,
            report.refused_puts,
        );
        show_report(bench, &report, &line)?;
    }
    Ok(())
}
