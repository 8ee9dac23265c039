//! `cargo xtask measure cost`: what a matrix costs beside one device of the same engine.
//!
//! One client. Every write of a 2x2 matrix is made on two devices; at `first` it returns once one has it,
//! and the processor of the other makes it beside the client, on a core of its own if there is one.

use serde_json::Value;
use std::path::Path;

use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure, judged, percent};
use super::{Binaries, Rounds, child};
use crate::Outcome;

/// Phases: what they are called, and what `bench` calls them.
const PHASES: [(&str, &str); 4] =
    [("put, new", "load"), ("get", "c"), ("put, there", "overwrite"), ("get of 16", "mget")];

/// Whose figures the rest is held against.
const ONE: &str = "one device";

/// What is measured: its name, and what a write waits for.
const MATRICES: [(&str, &str); 2] = [("2x2, first", "first"), ("2x2, all", "all")];

/// What is promised of some of them: so much of the speed of one device, in these phases.
const PROMISED: [(&str, f64, &[usize]); 2] =
    [(MATRICES[0].0, 0.7, &[0, 1, 2]), (MATRICES[1].0, 0.5, &[0, 2])];

/// `cargo xtask measure cost …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["engine", "keys", "operations"])?;
    let engines: Vec<String> = flags.list("engine", "bptree,scmkv", "bptree,scmkv")?;
    let keys: u64 = flags.get("keys", 1_000_000, 50_000)?;
    // More than there are keys: a leaf that is full is made anew, which comes later than the first puts.
    let operations: u64 = flags.get("operations", 3 * keys, 3 * keys)?;
    let rounds = flags.rounds()?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let mount = Mount::make(root, &flags)?;
    let title = "What a matrix costs beside one device";
    let mut record = Record::begin(root, flags.out(root, "cost"), title, flags.quick())?;
    record.note("mount", mount.described());
    record.note("rounds", &format!("{rounds}, contenders alternating; figures are medians"));
    record.note(
        "load",
        &format!(
            "{keys} records of 16/100 B, {operations} operations of keys drawn uniformly, one client, strict"
        ),
    );
    for engine in &engines {
        let mut results = Rounds::default();
        for round in 0..rounds {
            for contender in 0..=MATRICES.len() {
                let matrix = contender.checked_sub(1).and_then(|at| MATRICES.get(at));
                let name = matrix.map_or(ONE, |(name, _)| *name);
                println!("{engine}, {name}, round {}", round + 1);
                let pool = mount.fresh("store")?;
                let ran = drive(&binaries.coreplane, &pool, engine, matrix, keys, operations);
                match ran {
                    Err(why) => record.failed(&format!("{engine}, {name}"), &why),
                    Ok(lines) => {
                        for mut line in lines {
                            take(&mut results, name, &line);
                            line["contender"] = name.into();
                            line["round"] = round.into();
                            record.keep(&line)?;
                        }
                    }
                }
            }
        }
        record.section(engine, &report(&results));
    }
    record.finish()
}

/// Makes the store, and lets `bench` at it.
fn drive(
    coreplane: &Path,
    pool: &Path,
    engine: &str,
    matrix: Option<&(&str, &str)>,
    keys: u64,
    operations: u64,
) -> Outcome<Vec<Value>> {
    let mut bench = child::limited(coreplane, 300);
    bench.args(["bench", "--json", "--engine", engine]).arg("--pool").arg(pool);
    bench.args(["--records", &keys.to_string()]);
    let phases: Vec<String> = PHASES.iter().map(|(_, phase)| phase_of(phase, operations)).collect();
    if let Some((_, ack)) = matrix {
        // As much for a device as `bench` gives one that has all.
        let size = keys * (16 + 100 + 48) * 2 + (256 << 20);
        let mut create = child::limited(coreplane, 60);
        create.args(["create", "--matrix", "2x2", "--engine", engine, "--ack", ack]);
        child::output(create.args(["--size", &size.to_string()]).arg("--pool").arg(pool))?;
    }
    child::lines(bench.args(["--workload", &phases.join(",")]))
}

/// As `bench` is told of it.
fn phase_of(phase: &str, operations: u64) -> String {
    if phase == "load" { phase.to_owned() } else { format!("{phase}@uniform:1t:{operations}") }
}

fn take(results: &mut Rounds, name: &str, line: &Value) {
    let phase = line["phase"].as_str().unwrap_or_default();
    for (column, scale) in [("ops_per_s", 1e-6), ("p50_ns", 1.0), ("p999_ns", 1e-3)] {
        let found = line[column].as_f64().unwrap_or(f64::NAN) * scale;
        results.add(&format!("{phase} {column}"), name, found);
    }
}

fn report(results: &Rounds) -> String {
    let mut goals =
        Table::new(["matrix", "phase", "M/s", "one device, M/s", "ratio", "promised", "verdict"]);
    let mut table = Table::new(["contender".to_owned()].into_iter().chain(PHASES.iter().flat_map(
        |(called, _)| {
            [
                format!("{called}, M/s"),
                "of one device".to_owned(),
                "p50, ns".to_owned(),
                "p99.9, µs".to_owned(),
            ]
        },
    )));
    let of = |phase: &str, column: &str| format!("{phase} {column}");
    for (matrix, goal, phases) in PROMISED {
        for (called, phase) in phases.iter().map(|at| PHASES[*at]) {
            let rate = of(phase, "ops_per_s");
            let ratio = results.ratio(&rate, matrix, (&rate, ONE));
            let rates = [matrix, ONE].map(|name| figure(results.median(&rate, name)));
            let names = [matrix, called].map(str::to_owned);
            goals.row(names.into_iter().chain(rates).chain(judged(ratio, goal)));
        }
    }
    for name in [ONE].into_iter().chain(MATRICES.iter().map(|(name, _)| *name)) {
        let cells = PHASES.iter().flat_map(|(_, phase)| {
            let rate = of(phase, "ops_per_s");
            [
                figure(results.median(&rate, name)),
                percent(results.ratio(&rate, name, (&rate, ONE))),
                figure(results.median(&of(phase, "p50_ns"), name)),
                figure(results.median(&of(phase, "p999_ns"), name)),
            ]
        });
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    format!("{}\n{}", goals.finish(), table.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_matrix_is_held_against_one_device() {
        let mut results = Rounds::default();
        let [first, all] = PROMISED.map(|(name, ..)| name);
        let rates = [(ONE, "load", 1e6), (first, "load", 7.1e5), (all, "load", 4.9e5)];
        let reads = [(ONE, "c", 2e6), (first, "c", 1.2e6)];
        for (name, phase, rate) in rates.into_iter().chain(reads) {
            let line = json!({"phase": phase, "ops_per_s": rate, "p50_ns": 300, "p999_ns": 4000});
            take(&mut results, name, &line);
        }
        let text = report(&results);
        let new = "| put, new | 0.71 | 1.00 | 0.71 | ≥ 0.7 | met |";
        assert!(text.contains(&format!("| 2x2, first {new}")), "{text}");
        assert!(text.contains("| get | 1.20 | 2.00 | 0.60 | ≥ 0.7 | **missed** |"), "{text}");
        assert!(text.contains("| put, there | – | – | – | ≥ 0.7 | not measured |"), "{text}");
        let new = "| put, new | 0.49 | 1.00 | 0.49 | ≥ 0.5 | **missed** |";
        assert!(text.contains(&format!("| 2x2, all {new}")), "{text}");
        assert!(text.contains("| 2x2, first | 0.71 | 71 % | 300 | 4.00 |"), "{text}");
    }
}
