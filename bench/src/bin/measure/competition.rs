//! `cargo xtask measure competition`: what competition is worth where devices stall.
//!
//! Both prototypes in turn, at the same load, with the same stalls; several lengths of a stall, all
//! for the same share of the time. A run without stalls says what the machine itself adds.

use std::path::Path;

use super::child;
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure, percent};
use super::{Binaries, Rounds};
use crate::Outcome;
use serde_json::Value;

/// A device stalls for one in so many parts of the time.
const SHARE: u64 = 66;

const PROTOTYPES: [&str; 2] = ["mkvs-gekv", "mkvs"];
const COLUMNS: [&str; 7] =
    ["mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns", "late", "served_p999_ns"];

/// `cargo xtask measure competition …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["operations", "rate", "stalls"])?;
    let operations: u64 = flags.get("operations", 100_000, 2_000)?;
    let rate: u64 = flags.get("rate", 4_000, 4_000)?;
    let stalls: Vec<u64> = flags.list("stalls", "0,1000,5000,20000", "5000")?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let mount = Mount::make(root, &flags)?;
    let rounds = flags.rounds()?;
    let title = "Competition where devices stall";
    let mut record = Record::begin(root, flags.out(root, "competition"), title, flags.quick())?;
    record.note("mount", mount.described());
    record.note("load", &format!("{operations} gets a run, {rate} a second are due, open loop"));
    record.note("stalls", &format!("each device for 1/{SHARE} of the time, by itself"));
    record.note("rounds", &format!("{rounds}, prototypes in turn; figures are medians"));
    for stall_us in stalls {
        let mut results = Rounds::default();
        let mut weather = Table::new(WEATHER);
        for round in 0..rounds {
            let label = format!("stalls of {stall_us} us, round {}", round + 1);
            println!("{label}");
            let mut command = child::limited(&binaries.coreplane, 120 + 4 * operations / rate);
            command.args(["bench", "--workload", "competition", "--json", "--records", "100000"]);
            command.arg("--pool").arg(mount.fresh("store")?);
            for (option, value) in [
                ("--operations", operations),
                ("--rate", rate),
                ("--stall-us", stall_us),
                ("--period-us", period_us(stall_us)),
                ("--seed", round as u64 + 1),
            ] {
                command.args([option, &value.to_string()]);
            }
            match child::lines(&mut command) {
                Err(why) => record.failed(&label, &why),
                Ok(lines) => {
                    weather.row(weather_of(round + 1, &lines));
                    for line in lines {
                        let name = line["prototype"].as_str().unwrap_or("?").to_owned();
                        for column in COLUMNS {
                            results.add(column, &name, line[column].as_f64().unwrap_or(f64::NAN));
                        }
                        record.keep(&line)?;
                    }
                }
            }
        }
        let text = format!("{}\n\n{}\n{READING}", table(&results, operations), weather.finish());
        record.section(&format!("Stalls of {stall_us} us"), &text);
    }
    record.finish()
}

/// Microseconds in which a device stalls once.
fn period_us(stall_us: u64) -> u64 {
    if stall_us == 0 { 1_000_000 } else { stall_us * SHARE }
}

/// What the machine did in a round, without competition and with it.
fn weather_of(round: usize, lines: &[Value]) -> Vec<String> {
    let of = |name: &str| lines.iter().find(|line| line["prototype"] == name);
    let [without, with] = PROTOTYPES.map(of);
    let get = |line: Option<&Value>, column: &str| line.and_then(|line| line[column].as_f64());
    let ratio = |column| Some(get(with, column)? / get(without, column)?);
    let both = |column, scale: f64| {
        let scaled = |line| figure(get(line, column).map(|found| found * scale));
        format!("{}, {}", scaled(without), scaled(with))
    };
    vec![
        round.to_string(),
        figure(ratio("p999_ns")),
        figure(ratio("mean_ns")),
        figure(ratio("served_p999_ns")),
        both("woken_late_p50_ns", 1e-3),
        both("woken_late_p999_ns", 1e-3),
        both("woken_late_max_ns", 1e-3),
        both("interrupted", 1.0),
        both("others", 100.0),
        both("stolen", 100.0),
        both("all_stalled", 100.0),
    ]
}

const WEATHER: [&str; 11] = [
    "round",
    "p99.9, with over without",
    "mean",
    "p99.9 from when clients were awake",
    "clients woken late by, µs: p50",
    "p99.9",
    "max",
    "device threads interrupted, times",
    "processors' time that others had, %",
    "was stolen, %",
    "both devices of a group stalled, % of the time",
];

const READING: &str = "Ratios, and then two figures: without competition, with it. How late a client is woken for a get that it \
     slept for has nothing to do with the store: where that is a good part of the p99.9, the round says what the \
     machine did, and the p99.9 from when clients were awake what the store did. Others' time is that of all \
     other processes, threads of the kernel among them. While both devices of a group stall nobody can answer; a \
     round in which that is more than 0.1 % of the time shows a stall as its p99.9 whatever the store does.";

fn table(results: &Rounds, operations: u64) -> String {
    let mut table = Table::new([
        "prototype",
        "mean, µs",
        "p50",
        "p99",
        "p99.9",
        "max",
        "took a tenth of a stall or more",
    ]);
    for name in PROTOTYPES {
        let median = |column| results.median(column, name);
        let micros = |column| figure(median(column).map(|nanoseconds| nanoseconds / 1e3));
        table.row([
            name.to_owned(),
            micros("mean_ns"),
            micros("p50_ns"),
            micros("p99_ns"),
            micros("p999_ns"),
            micros("max_ns"),
            percent(median("late").map(|late| late / operations as f64)),
        ]);
    }
    let ratio = |column| {
        let [without, with] = PROTOTYPES.map(|name| results.median(column, name));
        figure(with.zip(without).map(|(with, without)| with / without))
    };
    format!(
        "{}\nWith competition over without: p99.9 {} (goal: at most 0.2), mean {} (goal: at most 1.1); \
         p99.9 from when clients were awake {}.",
        table.finish(),
        ratio("p999_ns"),
        ratio("mean_ns"),
        ratio("served_p999_ns")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_round_shows_what_the_machine_did() {
        assert_eq!((period_us(0), period_us(5000)), (1_000_000, 330_000));
        let line = |name: &str, p999_ns: f64, others: Option<f64>| {
            json!({"prototype": name, "p999_ns": p999_ns, "mean_ns": 2e4, "others": others,
                   "woken_late_p999_ns": 80_000, "served_p999_ns": p999_ns.sqrt()})
        };
        let row = weather_of(3, &[line("mkvs-gekv", 1e6, Some(0.5)), line("mkvs", 2e5, None)]);
        assert_eq!(row.len(), WEATHER.len());
        assert_eq!(row[..4], ["3", "0.20", "1.00", "0.45"]);
        assert_eq!((row[5].as_str(), row[8].as_str()), ("80.0, 80.0", "50.0, –"));
    }
}
