//! `cargo xtask measure figures`: figures 8 to 10 of the SCMKV paper.
//!
//! The paper writes and reads two data sets, small (16 B keys, 100 B values, 64 Mi records) and
//! large (128 B, 512 B, 8 Mi), uniform and skewed, on one thread (figures 8 and 9), and writes the
//! small one on 1 to 10 (figure 10). Here the counts are what fits; Masstree is absent. Writes are
//! to records that are there already, chosen as the figure says.

use std::path::Path;
use std::process::Command;

use super::chart::Chart;
use super::child;
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure};
use super::{Binaries, Rounds};
use crate::Outcome;

const STEPS: &str = "load,c@uniform,c@zipfian,overwrite@uniform,overwrite@zipfian";

/// What is drawn: its name, its medium (ours), its index (ours).
const OURS: [(&str, &str, &str); 4] = [
    ("scmkv-noflush, index in the pool", "emulated:noflush", "pmem"),
    ("scmkv-flush, index in the pool", "emulated:none", "pmem"),
    ("scmkv-noflush, index in DRAM", "emulated:noflush", "dram"),
    ("scmkv-flush, index in DRAM", "emulated:none", "dram"),
];

/// A data set of the paper.
#[derive(Debug, Clone, Copy)]
struct Dataset {
    name: &'static str,
    key: u64,
    value: u64,
    records: u64,
    paper: &'static str,
}

/// `cargo xtask measure figures …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["small", "large", "operations", "threads", "peers"])?;
    let small: u64 = flags.get("small", 4 << 20, 100_000)?;
    let large: u64 = flags.get("large", 1 << 20, 25_000)?;
    let datasets = [
        Dataset { name: "small", key: 16, value: 100, records: small, paper: "64 Mi" },
        Dataset { name: "large", key: 128, value: 512, records: large, paper: "8 Mi" },
    ];
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let threads: u64 = flags.get("threads", cores, cores)?;
    let peers: Vec<String> = flags.list("peers", "leveldb", "leveldb")?;
    let peers = peers.into_iter().filter(|peer| peer != "none").collect();
    let operations = flags.get("operations", 2_000_000, 50_000)?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), true)?;
    let bench = Bench { binaries, mount: Mount::make(root, &flags)?, operations, peers };
    let rounds = flags.rounds()?;
    let title = "SCMKV's figures 8 to 10";
    let mut record = Record::begin(root, flags.out(root, "figures"), title, flags.quick())?;
    record.note("mount", bench.mount.described());
    record.note("rounds", &format!("{rounds}, contenders alternating; figures are medians"));
    for Dataset { name, records, paper, .. } in datasets {
        record.note(
            &format!("{name} data set"),
            &format!("{records} records (in the paper {paper})"),
        );
    }
    record.note("operations a phase", &format!("{operations} (peers: a fifth)"));
    record.note("absent", "Masstree");
    let mut results = Rounds::default();
    for round in 0..rounds {
        for dataset in datasets {
            bench.turn(dataset, 1, round, &mut results, &mut record)?;
        }
        for threads in 2..=threads {
            bench.turn(datasets[0], threads, round, &mut results, &mut record)?;
        }
    }
    let series = bench.series();
    let single = "of a single thread";
    draw(&mut record, 8, &format!("Write throughput {single}"), "overwrite", &series, &results)?;
    draw(&mut record, 9, &format!("Read throughput {single}"), "c", &series, &results)?;
    scaling(&mut record, threads, &series, &results)?;
    record.section("What the paper says", PAPER);
    record.finish()
}

const PAPER: &str = "\
In its text, on dual Xeon E5-2650 v3 with DRAM for storage-class memory: 2.1 M writes/s on one core and
5.4 on four, 6.7 on ten (small, uniform); LevelDB 0.11 to 0.21 M from one core to ten. Flushing costs
40 % on small and 20 % on large records of the skewed sets. Its `scmkv-flush` acknowledges a write
while the last lines of its log page may still be in the caches; ours (`strict`) fences first.
`noflush` is a medium of a build for this comparison alone: a power cut would lose everything.";

struct Bench {
    binaries: Binaries,
    mount: Mount,
    operations: u64,
    peers: Vec<String>,
}

impl Bench {
    fn series(&self) -> Vec<String> {
        let ours = OURS.iter().map(|(name, ..)| (*name).to_owned());
        ours.chain(self.peers.iter().cloned()).collect()
    }

    /// Every contender once.
    fn turn(
        &self,
        dataset: Dataset,
        threads: u64,
        round: usize,
        results: &mut Rounds,
        record: &mut Record,
    ) -> Outcome<()> {
        let names = self.series();
        for at in 0..names.len() {
            let name = &names[(at + round) % names.len()];
            let label = format!("{}, {threads} threads, round {}, {name}", dataset.name, round + 1);
            println!("{label}");
            let lines = child::lines(&mut self.command(name, dataset, threads)?);
            for mut line in lines.unwrap_or_else(|why| {
                record.failed(&label, &why);
                Vec::new()
            }) {
                if let (Some(phase), Some(how), Some(rate)) = (
                    line["phase"].as_str(),
                    line["distribution"].as_str(),
                    line["ops_per_s"].as_f64(),
                ) {
                    results.add(&what(phase, dataset.name, how, threads), name, rate / 1e6);
                }
                line["contender"] = name.as_str().into();
                line["dataset"] = dataset.name.into();
                line["round"] = round.into();
                record.keep(&line)?;
            }
        }
        Ok(())
    }

    fn command(&self, name: &str, dataset: Dataset, threads: u64) -> Outcome<Command> {
        let place = self.mount.fresh("store")?;
        let ours = OURS.iter().find(|(ours, ..)| *ours == name);
        let operations = if ours.is_some() { self.operations } else { self.operations / 5 };
        let limit = 120 + (dataset.records + 4 * operations) / 5_000;
        let mut command = match ours {
            Some((_, medium, index)) => {
                let mut command = child::limited(&self.binaries.coreplane, limit);
                command.args(["bench", "--json", "--media", medium, "--index", index]);
                let record = dataset.key + dataset.value + 40;
                let written = dataset.records + 2 * operations;
                let size = written * record * 11 / 10 + dataset.records * 32 + (256 << 20);
                command.args(["--size", &size.to_string()]).arg("--pool").arg(place);
                command
            }
            None => {
                let mut command = child::limited(&self.binaries.peers, limit);
                command.args(["--peer", name, "--safety", "kill"]).arg("--directory").arg(place);
                command
            }
        };
        command.args(["--workload", STEPS]);
        for (option, value) in [
            ("--records", dataset.records),
            ("--operations", operations),
            ("--threads", threads),
            ("--key-size", dataset.key),
            ("--value-size", dataset.value),
        ] {
            command.args([option, &value.to_string()]);
        }
        Ok(command)
    }
}

/// The name of a figure among the results.
fn what(phase: &str, dataset: &str, distribution: &str, threads: u64) -> String {
    format!("{phase} {dataset} {distribution} {threads}")
}

/// A figure over the four data sets: table and chart.
fn draw(
    record: &mut Record,
    number: u32,
    title: &str,
    phase: &str,
    series: &[String],
    results: &Rounds,
) -> Outcome<()> {
    let groups =
        [("small", "uniform"), ("small", "zipfian"), ("large", "uniform"), ("large", "zipfian")];
    let called = |how: &str| if how == "uniform" { "udata" } else { "zdata" };
    let groups_shown = groups.map(|(set, how)| format!("{set}, {}", called(how)));
    let names = groups.map(|(set, how)| what(phase, set, how, 1));
    show(record, number, title, &groups_shown, &names, series, results)
}

fn scaling(record: &mut Record, threads: u64, series: &[String], results: &Rounds) -> Outcome<()> {
    let groups: Vec<String> = (1..=threads).map(|threads| format!("{threads} threads")).collect();
    let names: Vec<String> =
        (1..=threads).map(|threads| what("overwrite", "small", "uniform", threads)).collect();
    let title = "Write throughput of the small uniform data set by threads";
    show(record, 10, title, &groups, &names, series, results)
}

fn show(
    record: &mut Record,
    number: u32,
    title: &str,
    groups: &[String],
    names: &[String],
    series: &[String],
    results: &Rounds,
) -> Outcome<()> {
    let mut table =
        Table::new(std::iter::once("M operations/s").chain(groups.iter().map(String::as_str)));
    let mut bars = Vec::new();
    for of in series {
        let figures: Vec<Option<f64>> = names.iter().map(|name| results.median(name, of)).collect();
        table.row(std::iter::once(of.clone()).chain(figures.iter().map(|value| figure(*value))));
        bars.push((of.clone(), figures));
    }
    record.section(&format!("Figure {number}: {title}"), &table.finish());
    let chart = Chart {
        title: title.to_owned(),
        unit: "M operations/s".to_owned(),
        groups: groups.to_vec(),
        series: bars,
    };
    record.chart(&format!("figure-{number}.svg"), title, &chart.svg())
}
