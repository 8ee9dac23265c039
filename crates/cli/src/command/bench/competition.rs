//! Gets of matrices whose devices stall.

use super::show_report;
use crate::arguments::Bench;
use crate::failure::Failure;
use coreplane::Prototype;
use coreplane_bench::{Plan, competition};
use std::path::PathBuf;

/// Without competition and with it, each on a matrix of its own beside the pool.
pub(super) fn run(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let beside = bench.pool.pool.clone().unwrap_or_else(|| PathBuf::from("/dev/shm/coreplane"));
    for prototype in [Prototype::Gekv, Prototype::Mkvs] {
        let mut name = beside.as_os_str().to_owned();
        name.push(format!(".{prototype}-{}", std::process::id()));
        let (place, checks) = (PathBuf::from(name), !bench.no_check_reads);
        let report = competition(&place, plan, &bench.jitter, prototype, checks)?;
        let line = format!(
            "{:<16} {:<10} {:>8.0} gets/s   mean {:>9.0} ns  p50 {:>8} ns  p99 {:>9} ns  p99.9 {:>9} \
             ns   late {}  hedges {}  too late {}  not begun {}   woken late by p99.9 {} ns, max {} ns   \
             others had {}, {} was stolen   all stalled {:.3} %",
            report.phase,
            report.prototype,
            report.rate,
            report.mean_ns,
            report.p50_ns,
            report.p99_ns,
            report.p999_ns,
            report.late,
            report.hedges,
            report.losses,
            report.cancelled,
            report.woken_late_p999_ns,
            report.woken_late_max_ns,
            percent(report.others),
            percent(report.stolen),
            100.0 * report.all_stalled,
        );
        show_report(bench, &report, &line)?;
    }
    Ok(())
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "?".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}
