//! `cargo xtask measure occupancy`: what overwrites cost the fuller a pool is.
//!
//! The work is `coreplane bench --workload occupancy`. There is a chart of the puts a second and one of their
//! 99.9 % by the share of the records that a load can put in.

use serde_json::Value;
use std::path::Path;

use super::chart::Chart;
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure};
use super::{Binaries, Rounds, child};
use crate::Outcome;

/// A pool may have at most so many bytes for each byte of keys and values when it is full.
const SPACE: f64 = 1.7;

/// Columns of the lines that are kept.
const COLUMNS: [&str; 7] = [
    "puts_per_s",
    "p50_ns",
    "p999_ns",
    "max_ns",
    "long_puts",
    "refused_puts",
    "pool_bytes_per_byte",
];

/// `cargo xtask measure occupancy …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own = ["engines", "sizes", "threads", "pool", "shares", "overwrite-ms"];
    let flags = Flags::parse(arguments, &own)?;
    let engines: Vec<String> = flags.list("engines", "scmkv,bptree", "scmkv,bptree")?;
    let sizes: Vec<String> = flags.list("sizes", "16/100,128/512", "16/100")?;
    let threads: Vec<u64> = flags.list("threads", "1,2", "1")?;
    let pool_gib: u64 = flags.get("pool", 1, 0)?;
    let shares: Vec<u64> = flags.list("shares", "50,60,70,80,90,95,98,100", "50,100")?;
    let overwrite_ms: u64 = flags.get("overwrite-ms", 4000, 100)?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let mount = Mount::make(root, &flags)?;
    let rounds = flags.rounds()?;
    let title = "Overwrites the fuller a pool is";
    let mut record = Record::begin(root, flags.out(root, "occupancy"), title, flags.quick())?;
    // A quick run has a small one.
    let pool = if pool_gib == 0 { 64 << 20 } else { pool_gib << 30 };
    record.note("mount", mount.described());
    record.note("pool", &format!("{} MiB, loaded anew for each share", pool >> 20));
    record.note(
        "writes",
        &format!("strict, of evenly chosen records, {overwrite_ms} ms at each share"),
    );
    record.note("rounds", &format!("{rounds}, contenders in turn; figures are medians"));
    let mut sweep = Sweep { shares, rounds: Rounds::default(), whose: Vec::new() };
    for round in 0..rounds {
        for (engine, size, threads) in contenders(&engines, &sizes, &threads) {
            let whose = format!("{engine} {size}, {threads} threads");
            println!("{whose}, round {}", round + 1);
            let Some((key, value)) = size.split_once('/') else {
                return Err(format!("--sizes {size}: not KEY/VALUE").into());
            };
            let limit = 120 + sweep.shares.len() as u64 * (30 + overwrite_ms / 1000);
            let mut command = child::limited(&binaries.coreplane, limit);
            command.args(["bench", "--workload", "occupancy", "--json", "--engine", engine]);
            command.arg("--pool").arg(mount.fresh("store")?);
            let shares: Vec<String> = sweep.shares.iter().map(u64::to_string).collect();
            for (option, value) in [
                ("--key-size", key.to_owned()),
                ("--value-size", value.to_owned()),
                ("--threads", threads.to_string()),
                ("--size", pool.to_string()),
                ("--shares", shares.join(",")),
                ("--overwrite-ms", overwrite_ms.to_string()),
                ("--seed", (round + 1).to_string()),
            ] {
                command.args([option, &value]);
            }
            match child::lines(&mut command) {
                Err(why) => record.failed(&whose, &why),
                Ok(lines) => {
                    for line in lines {
                        sweep.take(&whose, &line);
                        record.keep(&line)?;
                    }
                }
            }
        }
    }
    record.section("What was promised", &sweep.verdicts());
    record.section("All shares", &sweep.table());
    for (name, column, unit, scale) in [
        ("puts", "puts_per_s", "thousand a second", 1e-3),
        ("p999", "p999_ns", "99.9 %, µs", 1e-3),
        ("max", "max_ns", "the longest, ms", 1e-6),
    ] {
        let chart = sweep.chart(column, unit, scale);
        record.chart(&format!("{name}.svg"), &format!("Overwrites: {unit}"), &chart.svg())?;
    }
    record.finish()
}

/// Every engine with every size and every number of threads.
fn contenders<'a>(
    engines: &'a [String],
    sizes: &'a [String],
    threads: &'a [u64],
) -> impl Iterator<Item = (&'a str, &'a str, u64)> {
    engines.iter().flat_map(move |engine| {
        sizes.iter().flat_map(move |size| {
            threads.iter().map(move |threads| (engine.as_str(), size.as_str(), *threads))
        })
    })
}

/// What the rounds have shown.
#[derive(Debug)]
struct Sweep {
    shares: Vec<u64>,
    rounds: Rounds,
    whose: Vec<String>,
}

impl Sweep {
    fn take(&mut self, whose: &str, line: &Value) {
        let percent = line["percent"].as_u64().unwrap_or(0);
        if !self.whose.iter().any(|known| known == whose) {
            self.whose.push(whose.to_owned());
        }
        for column in COLUMNS {
            if let Some(found) = line[column].as_f64() {
                self.rounds.add(&format!("{column} {percent}"), whose, found);
            }
        }
    }

    fn median(&self, column: &str, percent: u64, whose: &str) -> Option<f64> {
        self.rounds.median(&format!("{column} {percent}"), whose)
    }

    fn verdicts(&self) -> String {
        let mut table = Table::new(["contender", "what", "found", "promised", "verdict"]);
        let said = |is_met: Option<bool>| match is_met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not measured",
        };
        for whose in &self.whose {
            let sum = |column| -> Option<f64> {
                self.shares.iter().map(|percent| self.median(column, *percent, whose)).sum()
            };
            let full = self.shares.iter().max().copied().unwrap_or(0);
            let space = self.median("pool_bytes_per_byte", full, whose).filter(|_| full == 100);
            let (refused, long) = (sum("refused_puts"), sum("long_puts"));
            for (what, found, promised, is_met) in [
                ("refused overwrites", refused, "0", refused.map(|it| it == 0.0)),
                ("overwrites over 20 ms", long, "0", long.map(|it| it == 0.0)),
                ("bytes of a full pool for one", space, "≤ 1.7", space.map(|it| it <= SPACE)),
            ] {
                let verdict = said(is_met);
                table.row([whose.as_str(), what, &figure(found), promised, verdict]);
            }
        }
        table.finish()
    }

    fn table(&self) -> String {
        let headings =
            ["contender", "%", "k/s", "p50, µs", "p99.9, µs", "max, ms", "over 20 ms", "refused"];
        let mut table = Table::new(headings);
        for whose in &self.whose {
            for percent in &self.shares {
                let of = |column, scale: f64| {
                    figure(self.median(column, *percent, whose).map(|found| found * scale))
                };
                table.row([
                    whose.clone(),
                    percent.to_string(),
                    of("puts_per_s", 1e-3),
                    of("p50_ns", 1e-3),
                    of("p999_ns", 1e-3),
                    of("max_ns", 1e-6),
                    of("long_puts", 1.0),
                    of("refused_puts", 1.0),
                ]);
            }
        }
        table.finish()
    }

    fn chart(&self, column: &str, unit: &str, scale: f64) -> Chart {
        let of = |whose: &String| {
            let at = |percent: &u64| self.median(column, *percent, whose).map(|it| it * scale);
            (whose.clone(), self.shares.iter().map(at).collect())
        };
        Chart {
            title: "Overwrites by the share of what a load can put in".to_owned(),
            unit: unit.to_owned(),
            groups: self.shares.iter().map(|percent| format!("{percent} %")).collect(),
            series: self.whose.iter().map(of).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_refused_at_any_share_is_a_miss() {
        let mut sweep =
            Sweep { shares: vec![50, 100], rounds: Rounds::default(), whose: Vec::new() };
        let line = |percent: u64, refused: u64| {
            json!({"percent": percent, "puts_per_s": 1e6, "p50_ns": 500, "p999_ns": 9000, "max_ns": 4_000_000,
                   "long_puts": 0, "refused_puts": refused, "pool_bytes_per_byte": 1.4})
        };
        for (whose, refused) in [("a", 0), ("b", 1)] {
            sweep.take(whose, &line(50, refused));
            sweep.take(whose, &line(100, 0));
        }
        let text = sweep.verdicts();
        assert!(text.contains("| a | refused overwrites | 0.00 | 0 | met |"), "{text}");
        assert!(text.contains("| b | refused overwrites | 1.00 | 0 | **missed** |"), "{text}");
        assert!(
            text.contains("| a | bytes of a full pool for one | 1.40 | ≤ 1.7 | met |"),
            "{text}"
        );
        assert!(sweep.table().contains("| a | 50 | 1000 | 0.50 | 9.00 | 4.00 | 0.00 | 0.00 |"));
        assert_eq!(sweep.chart("puts_per_s", "k/s", 1e-3).series.len(), 2);
    }
}
