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

/// A device stalls for one in so many parts of the time.
const SHARE: u64 = 66;

const PROTOTYPES: [&str; 2] = ["mkvs-gekv", "mkvs"];
const COLUMNS: [&str; 6] = ["mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns", "late"];

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
                ("--period-us", (stall_us * SHARE).max(1_000_000)),
                ("--seed", round as u64 + 1),
            ] {
                command.args([option, &value.to_string()]);
            }
            match child::lines(&mut command) {
                Err(why) => record.failed(&label, &why),
                Ok(lines) => {
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
        record.section(&format!("Stalls of {stall_us} us"), &table(&results, operations));
    }
    record.finish()
}

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
        "{}\nWith competition over without: p99.9 {} (goal: at most 0.2), mean {} (goal: at most 1.1).",
        table.finish(),
        ratio("p999_ns"),
        ratio("mean_ns")
    )
}
