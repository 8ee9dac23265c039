//! `cargo xtask measure filter`: how often the filter of a matrix's group is wrong, and what it
//! costs.
//!
//! The work is `coreplane bench --workload filter`, which says what it does; here it runs for
//! several sizes, since what a probe costs is mostly one miss of the caches, and in rounds.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

use super::flags::Flags;
use super::record::Record;
use super::table::{Table, figure};
use super::{Binaries, Rounds, child};
use crate::Outcome;

/// Phases with a price: what they are called, and the phase.
const PRICES: [(&str, &str); 8] = [
    ("probe, there", "filter-hit"),
    ("probe, not there", "filter-miss"),
    ("probe, there, each waits for the last", "filter-hit-waiting"),
    ("probe, not there, each waits for the last", "filter-miss-waiting"),
    ("insert, half full", "filter-insert-50"),
    ("insert, until full", "filter-insert-100"),
    ("remove", "filter-remove"),
    ("insert, remove and probe beside rebuilds", "filter-churn"),
];

/// Percent of the design load, and the phase that counts false answers there.
const LOADS: [(u64, &str); 3] =
    [(50, "filter-false-50"), (100, "filter-false-100"), (120, "filter-false-120")];

/// At most so many in a hundred are wrong at the design load.
const WRONG: f64 = 0.01;

/// What was promised to be without a denial.
const OPERATIONS: u64 = 100_000_000;

/// `cargo xtask measure filter …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["keys", "operations", "threads"])?;
    let keys: Vec<u64> = flags.list("keys", "1000000,10000000", "100000,1000000")?;
    let operations: u64 = flags.get("operations", OPERATIONS, 2_000_000)?;
    let threads: u64 = flags.get("threads", 2, 2)?;
    let rounds = flags.rounds()?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let title = "The filter of a matrix's group";
    let mut record = Record::begin(root, flags.out(root, "filter"), title, flags.quick())?;
    record.note("rounds", &format!("{rounds}, sizes alternating; prices are medians"));
    record.note(
        "beside rebuilds",
        &format!(
            "{operations} operations a size and round on {threads} threads, half of them probes, while \
             another thread makes the filter anew with twice the room and back, without a pause"
        ),
    );
    record.note("prices", "with the hash of a key of 8 bytes, on one thread but for the last");
    let mut taken = Taken::default();
    for round in 0..rounds {
        for &keys in &keys {
            println!("{keys} keys, round {}", round + 1);
            let mut command = child::limited(&binaries.coreplane, 120 + operations / 500_000);
            command.args(["bench", "--workload", "filter", "--json"]);
            for (option, value) in [
                ("--records", keys),
                ("--operations", operations),
                ("--threads", threads),
                ("--seed", round as u64 + 1),
            ] {
                command.args([option, &value.to_string()]);
            }
            match child::lines(&mut command) {
                Ok(lines) => {
                    for mut line in lines {
                        taken.take(keys, &line);
                        line["round"] = round.into();
                        record.keep(&line)?;
                    }
                }
                Err(why) => record.failed(&format!("{keys} keys, round {}", round + 1), &why),
            }
        }
    }
    record.section("What was promised", &taken.verdicts(&keys));
    record.section("Wrong answers for keys that are not there", &taken.wrong(&keys));
    record.section("Nanoseconds", &taken.prices(&keys));
    record.finish()
}

/// What the rounds have shown.
#[derive(Debug, Default)]
struct Taken {
    rounds: Rounds,
    /// By keys: operations beside rebuilds, denials of any phase, rebuilds.
    denials: BTreeMap<u64, [u64; 3]>,
}

impl Taken {
    fn take(&mut self, keys: u64, line: &Value) {
        let whose = keys.to_string();
        let phase = line["phase"].as_str().unwrap_or_default();
        let count = |name: &str| line[name].as_u64();
        if let Some(price) = line["ns_per_operation"].as_f64() {
            self.rounds.add(phase, &whose, price);
        }
        if let Some(bits) = line["bits_per_key"].as_f64()
            && phase == "filter-insert-50"
        {
            self.rounds.add("bits", &whose, bits);
        }
        if let (Some(wrong), Some(of)) = (count("false_positives"), count("operations")) {
            self.rounds.add(&format!("{phase} wrong"), &whose, wrong as f64 / of.max(1) as f64);
        }
        let [operations, denied, rebuilds] = self.denials.entry(keys).or_default();
        *denied += count("false_negatives").unwrap_or(0);
        if phase == "filter-churn" {
            *operations += count("operations").unwrap_or(0);
            *rebuilds += count("rebuilds").unwrap_or(0);
        }
    }

    fn verdicts(&self, keys: &[u64]) -> String {
        let mut table = Table::new(["keys", "what", "found", "promised", "verdict"]);
        let said = |is_met: bool| if is_met { "met" } else { "**missed**" };
        for &keys in keys {
            let whose = keys.to_string();
            let wrong = self.rounds.median("filter-false-100 wrong", &whose);
            let (found, is_met) = match wrong {
                Some(wrong) => (format!("{:.3} %", wrong * 100.0), wrong <= WRONG),
                None => ("not measured".to_owned(), false),
            };
            table.row([
                &whose,
                "wrong \"perhaps\" at the design load",
                &found,
                "≤ 1 %",
                said(is_met),
            ]);
            let [operations, denied, rebuilds] =
                self.denials.get(&keys).copied().unwrap_or_default();
            let found = format!("{denied} in {operations} operations, {rebuilds} rebuilds");
            let is_met = denied == 0 && operations >= OPERATIONS && rebuilds > 0;
            let verdict = match (denied, is_met) {
                (0, false) => "too few operations to say",
                _ => said(is_met),
            };
            table.row([&whose, "wrong \"surely not\"", &found, "0 in 100,000,000", verdict]);
        }
        table.finish()
    }

    fn wrong(&self, keys: &[u64]) -> String {
        let loads = LOADS.map(|(percent, _)| format!("{percent} % of the design load"));
        let mut table =
            Table::new(["keys".to_owned(), "bits a key".to_owned()].into_iter().chain(loads));
        for keys in keys {
            let whose = keys.to_string();
            let cells = LOADS.map(|(_, phase)| {
                let wrong = self.rounds.median(&format!("{phase} wrong"), &whose);
                wrong.map_or_else(|| "–".to_owned(), |wrong| format!("{:.3} %", wrong * 100.0))
            });
            let bits = figure(self.rounds.median("bits", &whose));
            table.row([whose.clone(), bits].into_iter().chain(cells));
        }
        table.finish()
    }

    fn prices(&self, keys: &[u64]) -> String {
        let sizes = keys.iter().map(|keys| format!("{keys} keys"));
        let mut table = Table::new(std::iter::once("ns".to_owned()).chain(sizes));
        for (called, phase) in PRICES {
            let cells =
                keys.iter().map(|keys| figure(self.rounds.median(phase, &keys.to_string())));
            table.row(std::iter::once(called.to_owned()).chain(cells));
        }
        table.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn promises_are_judged() {
        let mut taken = Taken::default();
        let wrong = |count: u64| {
            json!({"phase": "filter-false-100", "ns_per_operation": 5.0, "false_positives": count,
                   "false_negatives": null, "operations": 1000})
        };
        taken.take(10, &wrong(8));
        taken.take(20, &wrong(11));
        let churn = |denied: u64, operations: u64| {
            json!({"phase": "filter-churn", "ns_per_operation": 50.0, "false_positives": null,
                   "false_negatives": denied, "operations": operations, "rebuilds": 3})
        };
        taken.take(10, &churn(0, 99_999_999));
        let text = taken.verdicts(&[10, 20]);
        assert!(
            text.contains("| 10 | wrong \"perhaps\" at the design load | 0.800 % | ≤ 1 % | met |")
        );
        assert!(text.contains(
            "| 20 | wrong \"perhaps\" at the design load | 1.100 % | ≤ 1 % | **missed** |"
        ));
        assert!(text.contains("too few operations to say"), "{text}");
        taken.take(10, &churn(0, 1));
        assert!(
            taken
                .verdicts(&[10])
                .contains("0 in 100000000 operations, 6 rebuilds | 0 in 100,000,000 | met |")
        );
        taken.take(10, &churn(1, 1));
        assert!(taken.verdicts(&[10]).contains("**missed**"));
        assert!(taken.prices(&[10]).contains("| 50.0 |"));
    }
}
