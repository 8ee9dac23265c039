//! A matrix under load that loses a device and gets a new one.

use super::write_report;
use crate::arguments::Bench;
use crate::failure::{self, Failure, NO, Outcome};
use coreplane::EngineChoice;
use coreplane_bench::{DeviceEngine, Plan, ResyncReport, resync};
use std::io::{self, Write};
use std::path::PathBuf;

/// Uses a matrix of its own beside the pool: a line for each stage, and one for the end. It is no success if anything
/// failed, was lost or differs.
pub(super) fn run(bench: &Bench, plan: &Plan) -> Outcome {
    let engine = match bench.engine {
        None | Some(EngineChoice::Bptree) => DeviceEngine::Bptree,
        Some(EngineChoice::Scmkv) => DeviceEngine::Scmkv,
        Some(EngineChoice::Map(_) | EngineChoice::Model) => {
            let message = "resync is measured with bptree or scmkv";
            return Err(Failure::new(failure::USAGE, message));
        }
    };
    let beside = bench.pool.pool.clone().unwrap_or_else(|| PathBuf::from("/dev/shm/coreplane"));
    let mut name = beside.into_os_string();
    name.push(format!(".resync-{}", std::process::id()));
    let (place, checks) = (PathBuf::from(name), !bench.no_check_reads);
    let (stages, end) = resync(&place, plan, &bench.refill, engine, checks)?;
    let mut out = io::stdout().lock();
    let is_sound = stages.iter().all(ResyncReport::is_sound) && end.is_sound();
    let code = if is_sound { 0 } else { NO };
    if bench.pool.json {
        for stage in &stages {
            write_report(&mut out, bench, stage)?;
        }
        write_report(&mut out, bench, &end)?;
        return Ok(code);
    }
    for stage in stages {
        writeln!(
            out,
            "{:<18} {:>6.2} s   puts {:>9.0}/s  p99.9 {:>9} ns  max {:>11} ns   gets {:>9.0}/s  p99.9 \
             {:>9} ns  max {:>11} ns   failed {} {}  stale {}   filled {} records, {:.1} MB/s",
            stage.stage,
            stage.seconds,
            stage.puts_per_s,
            stage.put_p999_ns,
            stage.put_max_ns,
            stage.gets_per_s,
            stage.get_p999_ns,
            stage.get_max_ns,
            stage.failed_puts,
            stage.failed_gets,
            stage.stale_gets,
            stage.filled_records,
            stage.filled_bytes_per_s / 1e6,
        )?;
    }
    writeln!(
        out,
        "end                {} writes acknowledged, {} lost; members {}",
        end.acknowledged,
        end.lost,
        if end.is_equal { "have the same".to_owned() } else { end.damages.join("; ") },
    )?;
    Ok(code)
}
