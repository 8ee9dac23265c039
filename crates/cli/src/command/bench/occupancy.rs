//! Overwrites the fuller a pool is.

use crate::arguments::Bench;
use crate::failure::{self, Failure};
use crate::json;
use coreplane::Store;
use coreplane_bench::{Plan, load_until_full, overwrite_share};
use std::io::{self, Write};
use std::path::PathBuf;

/// Bytes of a pool, if nobody says.
const SIZE: u64 = 1 << 30;

/// In pools of its own beside the pool: a line for each share.
pub(super) fn run(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let beside = bench.pool.pool.clone().unwrap_or_else(|| PathBuf::from("/dev/shm/coreplane"));
    let mut name = beside.into_os_string();
    name.push(format!(".occupancy-{}", std::process::id()));
    let path = PathBuf::from(name);
    let full = in_pool(bench, &path, |store| load_until_full(&**store.engine(), plan, u64::MAX))?;
    for percent in &bench.sweep.shares {
        let records = full * percent / 100;
        let report = in_pool(bench, &path, |store| {
            let engine = &**store.engine();
            let loaded = load_until_full(engine, plan, records)?;
            overwrite_share(engine, plan, (*percent, loaded), bench.sweep.overwrite_ms)
        })?;
        let mut out = io::stdout().lock();
        if bench.pool.json {
            json::write_line(&mut out, &serde_json::to_value(&report)?)?;
            continue;
        }
        writeln!(
            out,
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
        )?;
    }
    Ok(())
}

/// Does it in a pool that was not there before, and is not afterwards.
fn in_pool<T>(
    bench: &Bench,
    path: &PathBuf,
    work: impl FnOnce(&Store) -> coreplane_bench::Result<T>,
) -> Result<T, Failure> {
    let config = coreplane::StoreConfig::at(path)
        .media(bench.pool.media.clone())
        .size(bench.size.unwrap_or(SIZE))
        .placement(bench.index)
        .durability(bench.durability);
    let config = bench.engine.map_or(config.clone(), |engine| config.engine(engine));
    let config = bench.page_size.map_or(config.clone(), |size| config.page_size(size));
    let store = config.create().map_err(|error| Failure::of_pool(&error, path))?;
    let done = work(&store);
    store.close()?;
    std::fs::remove_file(path)
        .map_err(|error| Failure::new(failure::FAILED, format!("{}: {error}", path.display())))?;
    Ok(done?)
}
