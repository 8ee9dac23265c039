//! `cargo xtask measure resync`: what clients see of a device that is pulled out and of the one in its
//! place, and what becomes of what they wrote.

use serde_json::Value;
use std::path::Path;

use super::child;
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure, percent};
use super::{Binaries, Rounds};
use crate::Outcome;

/// As the command names them, in their order.
const STAGES: [&str; 7] =
    ["before", "degraded", "resync", "after", "degraded again", "resync, throttled", "after again"];

const COLUMNS: [&str; 8] = [
    "seconds",
    "puts_per_s",
    "gets_per_s",
    "put_p999_ns",
    "put_max_ns",
    "get_p999_ns",
    "get_max_ns",
    "filled_bytes_per_s",
];

/// What must not be, in any round.
const FAULTS: [&str; 4] = ["failed_gets", "stale_gets", "failed_puts", "lost"];

/// `cargo xtask measure resync …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["engine", "keys", "stage-ms", "throttle"])?;
    let engine: String = flags.get("engine", "bptree".to_owned(), "bptree".to_owned())?;
    let keys: u64 = flags.get("keys", 1_000_000, 20_000)?;
    let stage_ms: u64 = flags.get("stage-ms", 5_000, 300)?;
    let throttle: u64 = flags.get("throttle", 8 << 20, 4 << 20)?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let mount = Mount::make(root, &flags)?;
    let rounds = flags.rounds()?;
    let called = if engine == "bptree" { "resync".to_owned() } else { format!("resync-{engine}") };
    let title = "A device is pulled out under load, and replaced";
    let mut record = Record::begin(root, flags.out(root, &called), title, flags.quick())?;
    record.note("engine", &engine);
    record.note("mount", mount.described());
    record.note("matrix", &format!("2x2, W = all, {keys} keys of 16 B with 100 B"));
    record.note("load", "4 writers and 4 readers, each as fast as it can, all the time");
    record.note("throttle", &format!("{throttle} bytes of keys and values a second"));
    record.note("rounds", &format!("{rounds}; figures are medians, faults are sums"));
    let mut results = Rounds::default();
    let mut faults = [0; FAULTS.len()];
    let mut ends = Vec::new();
    for round in 0..rounds {
        let label = format!("round {}", round + 1);
        println!("{label}");
        // Half of the keys at the throttled speed, and stages.
        let limit = 120 + 8 * stage_ms / 1000 + keys * 60 / throttle.max(1) + keys / 20_000;
        let mut command = child::limited(&binaries.coreplane, limit);
        command.args(["bench", "--workload", "resync", "--json", "--engine", &engine]);
        command.arg("--pool").arg(mount.fresh("store")?);
        for (option, value) in [
            ("--records", keys),
            ("--stage-ms", stage_ms),
            ("--throttle", throttle),
            ("--seed", round as u64 + 1),
        ] {
            command.args([option, &value.to_string()]);
        }
        match child::lines(&mut command) {
            Err(why) => record.failed(&label, &why),
            Ok(lines) => {
                for line in lines {
                    take(&line, &mut results, &mut faults, &mut ends);
                    record.keep(&line)?;
                }
            }
        }
    }
    record.section("What clients see", &table(&results));
    record.section("What must not be", &verdict(faults, &ends, rounds));
    record.finish()
}

/// Notes a line: a stage, or the end.
fn take(
    line: &Value,
    results: &mut Rounds,
    faults: &mut [u64; FAULTS.len()],
    ends: &mut Vec<bool>,
) {
    for (sum, fault) in faults.iter_mut().zip(FAULTS) {
        *sum += line[fault].as_u64().unwrap_or(0);
    }
    let stage = line["stage"].as_str().unwrap_or("?");
    if stage == "end" {
        ends.push(line["is_equal"] == true);
        return;
    }
    for column in COLUMNS {
        if let Some(found) = line[column].as_f64() {
            results.add(column, stage, found);
        }
    }
}

fn table(results: &Rounds) -> String {
    let mut table = Table::new([
        "stage",
        "seconds",
        "puts, k/s",
        "gets, k/s",
        "of before",
        "put p99.9, µs",
        "put max, ms",
        "get p99.9, µs",
        "get max, ms",
        "filled, MB/s",
    ]);
    let both = |stage| {
        let of = |column| results.median(column, stage);
        Some(of("puts_per_s")? + of("gets_per_s")?)
    };
    for stage in STAGES {
        let scaled =
            |column, scale: f64| figure(results.median(column, stage).map(|found| found * scale));
        let share = both(stage).zip(both(STAGES[0])).map(|(now, before)| now / before);
        let is_filled = stage.starts_with("resync");
        table.row([
            stage.to_owned(),
            scaled("seconds", 1.0),
            scaled("puts_per_s", 1e-3),
            scaled("gets_per_s", 1e-3),
            percent(share),
            scaled("put_p999_ns", 1e-3),
            scaled("put_max_ns", 1e-6),
            scaled("get_p999_ns", 1e-3),
            scaled("get_max_ns", 1e-6),
            if is_filled { scaled("filled_bytes_per_s", 1e-6) } else { String::new() },
        ]);
    }
    table.finish()
}

fn verdict(faults: [u64; FAULTS.len()], ends: &[bool], rounds: usize) -> String {
    let mut table = Table::new(["what", "found", "verdict"]);
    // Of a round that did not end nobody knows.
    let is_known = ends.len() == rounds;
    let met = |is_met: bool| match (is_known, is_met) {
        (_, false) => "**missed**",
        (true, true) => "met",
        (false, true) => "not all rounds ended",
    };
    for (fault, sum) in FAULTS.iter().zip(faults) {
        table.row([fault.replace('_', " ").as_str(), &sum.to_string(), met(sum == 0)]);
    }
    let equal = ends.iter().filter(|is_equal| **is_equal).count();
    let found = format!("{equal} of {rounds} rounds");
    table.row(["members equal at the end, and sound", &found, met(equal == ends.len())]);
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fault_in_any_round_is_a_miss() {
        let (mut results, mut faults, mut ends) = (Rounds::default(), [0; FAULTS.len()], vec![]);
        for failed_gets in [0, 1] {
            let stage = json!({"stage": "degraded", "failed_gets": failed_gets, "puts_per_s": 1e5,
                               "gets_per_s": 2e5});
            take(&stage, &mut results, &mut faults, &mut ends);
            let before = json!({"stage": "before", "puts_per_s": 2e5, "gets_per_s": 4e5});
            take(&before, &mut results, &mut faults, &mut ends);
            take(
                &json!({"stage": "end", "lost": 0, "is_equal": true}),
                &mut results,
                &mut faults,
                &mut ends,
            );
        }
        let text = table(&results);
        assert!(text.contains("| degraded | – | 100 | 200 | 50 % |"), "{text}");
        let verdicts = |text: String| -> Vec<bool> {
            text.lines().skip(2).map(|row| row.ends_with("| met |")).collect()
        };
        assert_eq!(verdicts(verdict(faults, &ends, 2)), [false, true, true, true, true]);
        assert_eq!(verdicts(verdict([0; 4], &ends, 3)), [false; 5], "one did not end");
        assert_eq!(verdicts(verdict([0; 4], &[true, false], 2)), [true, true, true, true, false]);
    }
}
