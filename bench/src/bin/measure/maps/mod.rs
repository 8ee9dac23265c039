//! `cargo xtask measure maps`: what is asked of the maps of NVM-Raft alone.
//!
//! Three parts, each of which runs `coreplane bench` in rounds, contenders in turn: the table of the thesis
//! ([`thesis`]), space and DRAM while every record is written over ([`space`]), and what a put waits for while
//! pages are cleaned and a snapshot is read ([`latency`]). Engines are names: whatever `--engine` of
//! `coreplane bench` knows.
//!
//! YCSB beside `bptree` and LMDB is `measure ordered --engines …`, and the start is `measure restart
//! --engines …`: they ask the same of every engine.

mod latency;
mod space;
mod thesis;

use serde_json::Value;
use std::path::Path;

use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::figure;
use super::{Binaries, Rounds, child};
use crate::Outcome;

const ENGINES: &str = "list,cow-tree";
const PARTS: &str = "table,space,latency";

/// `cargo xtask measure maps …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let shared = ["engines", "parts"];
    let own: Vec<&str> = shared
        .iter()
        .chain(&thesis::FLAGS)
        .chain(&space::FLAGS)
        .chain(&latency::FLAGS)
        .copied()
        .collect();
    let flags = Flags::parse(arguments, &own)?;
    let engines: Vec<String> = flags.list("engines", ENGINES, ENGINES)?;
    let parts: Vec<String> = flags.list("parts", PARTS, PARTS)?;
    let asked: Vec<Part> = parts
        .iter()
        .map(|part| match part.as_str() {
            "table" => thesis::part(&flags, &engines),
            "space" => space::part(&flags, &engines),
            "latency" => latency::part(&flags, &engines),
            _ => Err(format!("--parts {part}: {PARTS} are parts").into()),
        })
        .collect::<Outcome<_>>()?;
    let rounds: usize = flags.get("rounds", 5, 1)?;
    let bench = Bench {
        binaries: Binaries::prepare(root, !flags.has("no-build"), false)?,
        mount: Mount::make(root, &flags)?,
        rounds: rounds.max(1),
    };
    let title = "The maps of NVM-Raft";
    let mut record = Record::begin(root, flags.out(root, "maps"), title, flags.quick())?;
    record.note("mount", bench.mount.described());
    record.note("rounds", &format!("{}, contenders in turn; figures are medians", bench.rounds));
    asked.iter().for_each(|part| record.note(part.name, &part.note));
    for part in &asked {
        let results = bench.measure(part, &mut record)?;
        let names: Vec<&str> = part.contenders.iter().map(|it| it.name.as_str()).collect();
        record.section(part.title, &(part.report)(&results, &names));
    }
    record.finish()
}

/// A part: what its contenders do, and what is said of it.
struct Part {
    name: &'static str,
    title: &'static str,
    note: String,
    contenders: Vec<Contender>,
    report: fn(&Rounds, &[&str]) -> String,
}

/// Who has a turn in each round.
struct Contender {
    name: String,
    /// Of `coreplane bench`.
    arguments: Vec<String>,
    /// Seconds after which it is given up.
    limit: u64,
    /// Whether it appends through the caches, so that all that is written is flushed, and counted as flushed.
    is_cached: bool,
}

impl Contender {
    /// A workload of an engine, with so many options more.
    fn new(
        name: String,
        engine: &str,
        workload: &str,
        options: &[(&str, u64)],
        limit: u64,
    ) -> Self {
        let words = ["--engine", engine, "--workload", workload].map(str::to_owned);
        let options =
            options.iter().flat_map(|(option, value)| [format!("--{option}"), value.to_string()]);
        Self {
            name,
            arguments: words.into_iter().chain(options).collect(),
            limit,
            is_cached: false,
        }
    }
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    rounds: usize,
}

impl Bench {
    /// All rounds of a part; each begins with the next contender.
    fn measure(&self, part: &Part, record: &mut Record) -> Outcome<Rounds> {
        let mut results = Rounds::default();
        for round in 0..self.rounds {
            let count = part.contenders.len();
            for contender in (0..count).filter_map(|at| part.contenders.get((at + round) % count)) {
                let label = format!("{}, round {}, {}", part.name, round + 1, contender.name);
                println!("{label}");
                let lines = child::lines(&mut self.command(contender, round)?);
                for mut line in lines.unwrap_or_else(|why| {
                    record.failed(&label, &why);
                    Vec::new()
                }) {
                    take(&mut results, &contender.name, &line);
                    line["contender"] = contender.name.as_str().into();
                    line["round"] = round.into();
                    record.keep(&line)?;
                }
            }
        }
        Ok(results)
    }

    fn command(&self, contender: &Contender, round: usize) -> Outcome<std::process::Command> {
        let mut command = child::limited(&self.binaries.coreplane, contender.limit);
        command.args(["bench", "--json", "--seed", &(round + 1).to_string()]);
        command.args(&contender.arguments).arg("--pool").arg(self.mount.fresh("store")?);
        if contender.is_cached {
            command.env("COREPLANE_APPEND", "cached");
        }
        Ok(command)
    }
}

/// Every figure of a line by its name; by that of the case first where there are several.
fn take(results: &mut Rounds, whose: &str, line: &Value) {
    let case = line["beside"].as_str().map(|beside| format!("{beside} ")).unwrap_or_default();
    for (name, value) in line.as_object().into_iter().flatten() {
        if let Some(value) = value.as_f64() {
            results.add(&format!("{case}{name}"), whose, value);
        }
    }
}

/// Cells of a goal that a figure must not exceed: figure, goal, verdict.
fn bounded(found: Option<f64>, goal: f64) -> [String; 3] {
    let verdict = match found {
        Some(found) if found <= goal => "met",
        Some(_) => "**missed**",
        None => "not measured",
    };
    [figure(found), format!("≤ {goal}"), verdict.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_are_taken_by_name_and_case() {
        let mut results = Rounds::default();
        take(&mut results, "a", &json!({"phase": "x", "p50_ns": 7}));
        take(&mut results, "a", &json!({"beside": "busy", "p50_ns": 9}));
        assert_eq!(results.median("p50_ns", "a"), Some(7.0));
        assert_eq!(results.median("busy p50_ns", "a"), Some(9.0));
        assert_eq!(results.median("phase", "a"), None);
    }

    #[test]
    fn a_goal_is_an_upper_bound() {
        assert_eq!(bounded(Some(2.5), 2.5), ["2.50", "≤ 2.5", "met"]);
        assert_eq!(bounded(Some(2.6), 2.5)[2], "**missed**");
        assert_eq!(bounded(None, 2.5)[2], "not measured");
    }

    #[test]
    fn a_contender_says_what_it_does() {
        let one = Contender::new("a".to_owned(), "list", "commits", &[("group", 10)], 9);
        let words = ["--engine", "list", "--workload", "commits", "--group", "10"];
        assert_eq!(one.arguments, words);
    }
}
