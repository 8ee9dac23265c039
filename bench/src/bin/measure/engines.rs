//! `cargo xtask measure engines`: us between the floor and the peers.
//!
//! In each round every contender gets a fresh store on the same mount, is loaded, and runs the
//! phases one after the other; the next round begins with the next contender. Floors do the same
//! phases through the same driver, so that each of our figures has its floor, and each its peer.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::child;
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure, percent};
use super::{Binaries, Rounds};
use crate::Outcome;

/// The phases in their order: reads before the overwrites that scatter the log.
const STEPS: &str = "load,c@uniform,c@zipfian,mget@uniform,b@uniform,b@zipfian,a@uniform,\
                     a@zipfian,f@uniform,f@zipfian,overwrite@uniform";

/// Columns: what they are called, and which phase and distribution they are.
const COLUMNS: [(&str, &str, &str); 11] = [
    ("put (load)", "load", "uniform"),
    ("get uniform (C)", "c", "uniform"),
    ("get zipfian (C)", "c", "zipfian"),
    ("mget 16 uniform", "mget", "uniform"),
    ("A uniform", "a", "uniform"),
    ("A zipfian", "a", "zipfian"),
    ("B uniform", "b", "uniform"),
    ("B zipfian", "b", "zipfian"),
    ("F uniform", "f", "uniform"),
    ("F zipfian", "f", "zipfian"),
    ("overwrite uniform", "overwrite", "uniform"),
];

const OURS: [&str; 2] = ["scmkv-pmem", "scmkv-dram"];
const FLOORS: [&str; 2] = ["floor-pmem", "floor-dram"];
/// Those whose puts return when every thread sees them, as ours do.
const SEEN: [&str; 2] = ["floor-pmem-seen", "floor-dram-seen"];
/// Each at its fastest setting that survives a kill, then with a sync at each write.
const PEERS: &str = "rocksdb,leveldb,lmdb,redb,fjall,\
                     rocksdb+power,leveldb+power,lmdb+power,lmdb-nomap+power,redb+power,fjall+power";

/// Bytes of a key and a value, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) records: u64,
}

/// How much is done.
struct Counts {
    threads: Vec<u64>,
    operations: u64,
    peer_operations: u64,
}

/// `cargo xtask measure engines …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own = ["keys", "sizes", "operations", "peer-operations", "threads", "peers"];
    let flags = Flags::parse(arguments, &own)?;
    let quick = flags.quick();
    let counts = Counts {
        threads: flags.list("threads", "1,2", "1,2")?,
        operations: flags.get("operations", 2_000_000, 50_000)?,
        peer_operations: flags.get("peer-operations", 400_000, 20_000)?,
    };
    let shapes = shapes(&flags)?;
    let peers = peers(&flags)?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), true)?;
    let mount = Mount::make(root, &flags)?;
    let rounds = flags.rounds()?;
    let title = "Engines beside the floors and the peers";
    let mut record = Record::begin(root, flags.out(root, "engines"), title, quick)?;
    record.note("mount", mount.described());
    record.note("rounds", &format!("{rounds}, contenders alternating; figures are medians"));
    record.note(
        "operations a phase",
        &format!(
            "{} (peers: {}), after a load of all records",
            counts.operations, counts.peer_operations
        ),
    );
    let contenders: Vec<&str> = FLOORS
        .iter()
        .zip(OURS)
        .flat_map(|(floor, ours)| [*floor, ours])
        .chain(SEEN)
        .chain(peers.iter().map(String::as_str))
        .collect();
    let bench = Bench { binaries, mount, counts };
    for shape in shapes {
        let mut results = BTreeMap::new();
        let mut described = BTreeMap::new();
        for threads in bench.counts.threads.clone() {
            let results: &mut Rounds = results.entry(threads).or_default();
            for round in 0..rounds {
                for at in 0..contenders.len() {
                    let name = contenders[(at + round) % contenders.len()];
                    let run = Run { name, shape, threads, round };
                    bench.measure(run, results, &mut described, &mut record)?;
                }
            }
        }
        report(&mut record, shape, &contenders, &results, &described);
    }
    record.finish()
}

/// What `--sizes` and `--keys` say.
pub(super) fn shapes(flags: &Flags) -> Outcome<Vec<Shape>> {
    let keys: Vec<u64> = flags.list("keys", "4000000", "100000")?;
    let sizes: Vec<String> = flags.list("sizes", "16/100,128/512", "16/100,128/512")?;
    let mut shapes = Vec::new();
    for keys in keys {
        for size in &sizes {
            let wrong = || format!("--sizes {size}: 16/100 is one");
            let (key, value) = size.split_once('/').ok_or_else(wrong)?;
            let [key, value] = [key, value].map(|bytes| bytes.parse::<u64>().map_err(|_| wrong()));
            let (key, value) = (key?, value?);
            // As in the issue: a quarter of the keys where records are large.
            let records = if key + value > 256 { keys / 4 } else { keys };
            shapes.push(Shape { key, value, records: records.max(1) });
        }
    }
    Ok(shapes)
}

fn peers(flags: &Flags) -> Outcome<Vec<String>> {
    let given: Vec<String> =
        flags.list("peers", "all", "rocksdb,leveldb,lmdb,redb,fjall,lmdb+power")?;
    let all = || PEERS.split(',').map(|name| name.trim().to_owned()).collect();
    Ok(match given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["all"] => all(),
        ["none"] => Vec::new(),
        _ => given,
    })
}

/// One contender's turn.
#[derive(Clone, Copy)]
struct Run<'a> {
    name: &'a str,
    shape: Shape,
    threads: u64,
    round: usize,
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    counts: Counts,
}

impl Bench {
    fn measure(
        &self,
        run: Run<'_>,
        results: &mut Rounds,
        described: &mut BTreeMap<String, String>,
        record: &mut Record,
    ) -> Outcome<()> {
        let Run { name, shape, threads, round } = run;
        let label = format!(
            "{}/{} B, {threads} threads, round {}, {name}",
            shape.key,
            shape.value,
            round + 1
        );
        println!("{label}");
        let lines = match child::lines(&mut self.command(run)?) {
            Ok(lines) => lines,
            Err(why) => {
                record.failed(&label, &why);
                Vec::new()
            }
        };
        for mut line in lines {
            let is = |column: &&(&str, &str, &str)| {
                line["phase"] == column.1 && line["distribution"] == column.2
            };
            if let (Some((column, ..)), Some(rate)) =
                (COLUMNS.iter().find(is), line["ops_per_s"].as_f64())
            {
                results.add(column, name, rate / 1e6);
                if let Some(slow) = line["p99_ns"].as_f64() {
                    results.add(&format!("p99 {column}"), name, slow / 1e3);
                }
            }
            if line["phase"] == "load"
                && let Some(bytes) = line["dram_bytes"].as_f64()
            {
                results.add("DRAM", name, bytes / shape.records as f64);
                described.entry(name.to_owned()).or_insert_with(|| describe(&line));
            }
            line["contender"] = name.into();
            line["round"] = round.into();
            line["mount"] = self.mount.described().into();
            record.keep(&line)?;
        }
        Ok(())
    }

    /// The command of one turn, which leaves nothing behind that the next one would not remove.
    fn command(&self, run: Run<'_>) -> Outcome<Command> {
        let Run { name, shape, threads, .. } = run;
        let ours = name.strip_prefix("scmkv-");
        let floor = name.starts_with("floor-");
        let operations = if ours.is_some() || floor {
            self.counts.operations
        } else {
            self.counts.peer_operations
        };
        let place = self.mount.fresh("store")?;
        let limit = 120 + (shape.records + 11 * operations) / 5_000;
        let mut command = match ours {
            Some(ours) => {
                let (index, durability) = ours.split_once('+').unwrap_or((ours, "strict"));
                let mut command = child::limited(&self.binaries.coreplane, limit);
                command.args(["bench", "--durability", durability, "--json", "--index", index]);
                command.arg("--pool").arg(place);
                let size = pool_size(shape, operations);
                command.args(["--size", &size.to_string()]);
                command
            }
            None => {
                let (peer, safety) = name.split_once('+').unwrap_or((name, "kill"));
                let mut command = child::limited(&self.binaries.peers, limit);
                command.args(["--peer", peer, "--safety", safety]).arg("--directory").arg(place);
                command
            }
        };
        command.args(["--workload", STEPS]);
        for (option, value) in [
            ("--records", shape.records),
            ("--operations", operations),
            ("--threads", threads),
            ("--key-size", shape.key),
            ("--value-size", shape.value),
        ] {
            command.args([option, &value.to_string()]);
        }
        Ok(command)
    }
}

/// Bytes of a pool that holds all that the steps write, 3.1 times the operations, with the index:
/// floors never clean, so that here cleaning is not what is measured.
fn pool_size(shape: Shape, operations: u64) -> u64 {
    let record = shape.key + shape.value + 40;
    (shape.records + operations * 32 / 10) * record * 11 / 10 + shape.records * 32 + (256 << 20)
}

/// What a contender's line says of its durability and settings.
pub(super) fn describe(line: &Value) -> String {
    let durability = line["durability"].as_str().unwrap_or("?");
    let settings = match &line["settings"] {
        Value::Object(settings) => settings
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name}: {text}"),
                other => format!("{name}: {other}"),
            })
            .collect::<Vec<_>>()
            .join("; "),
        _ => format!(
            "medium: {}; index: {}; pages: {} bytes",
            line["medium"], line["index"], line["page_bytes"]
        )
        .replace('"', ""),
    };
    format!("{durability}; {settings}")
}

fn report(
    record: &mut Record,
    shape: Shape,
    contenders: &[&str],
    results: &BTreeMap<u64, Rounds>,
    described: &BTreeMap<String, String>,
) {
    let Shape { key, value, records } = shape;
    let of = format!("{key} B keys, {value} B values, {records} records");
    for (threads, rounds) in results {
        let text = format!(
            "{}\n{}",
            ratios(rounds, contenders),
            absolute(rounds, contenders, "", "M operations/s")
        );
        record.section(&format!("{of}, threads: {threads}"), &text);
        let slow = absolute(rounds, contenders, "p99 ", "99 % took at most, µs (mget: a batch)");
        record.section(&format!("Latencies: {of}, threads: {threads}"), &slow);
    }
    if let (Some(one), Some(two)) = (results.get(&1), results.get(&2)) {
        record.section(&format!("Two threads over one: {of}"), &scaling(one, two, contenders));
    }
    if let Some(rounds) = results.values().next() {
        let mut table = Table::new([
            "contender",
            "DRAM, bytes a key, once loaded",
            "what a write survives, and settings",
        ]);
        for name in contenders {
            let said = described.get(*name).map_or("", String::as_str);
            table.row([*name, &figure(rounds.median("DRAM", name)), said]);
        }
        let note = "\nDRAM: of ours and the floors index and tables; of peers all anonymous memory \
                    of the process, caches included. Durability `kill`: survives a kill of the \
                    process; `power`: synced at each write; strict: flushed and fenced at each write.";
        record.section(&format!("Memory and durability: {of}"), &(table.finish() + note));
    }
}

fn headings(first: &str) -> Vec<&str> {
    std::iter::once(first).chain(COLUMNS.iter().map(|column| column.0)).collect()
}

fn row(table: &mut Table, name: &str, cell: impl Fn(&str) -> String) {
    table.row(std::iter::once(name.to_owned()).chain(COLUMNS.iter().map(|column| cell(column.0))));
}

/// Us over the floor, us over the best peer of each durability, mget over get.
fn ratios(rounds: &Rounds, contenders: &[&str]) -> String {
    let mut table = Table::new(headings("ratio"));
    for (ours, floor) in OURS.into_iter().zip(FLOORS).chain(OURS.into_iter().zip(SEEN)) {
        row(&mut table, &format!("{ours} / {floor}"), |column| {
            percent(rounds.ratio(column, ours, (column, floor)))
        });
    }
    let is_peer = |name: &&str| !name.starts_with("scmkv-") && !name.starts_with("floor-");
    let peers = || contenders.iter().copied().filter(is_peer);
    let pairs = OURS.map(|ours| [(ours, false, "survives a kill"), (ours, true, "synced")]);
    for (ours, power, called) in pairs.into_iter().flatten() {
        let rivals = || peers().filter(|name| name.ends_with("+power") == power);
        if !contenders.contains(&ours) || rivals().next().is_none() {
            continue;
        }
        row(&mut table, &format!("{ours} / best peer, {called}"), |column| {
            match (rounds.median(column, ours), rounds.best(column, rivals())) {
                (Some(us), Some((best, name))) => format!("{} ({name})", figure(Some(us / best))),
                _ => "–".to_owned(),
            }
        });
    }
    let mut text = table.finish();
    for ours in OURS {
        let ratio = rounds.ratio("mget 16 uniform", ours, ("get uniform (C)", ours));
        text += &format!("\n{ours}: mget of 16 is {} times single gets, by key.", figure(ratio));
    }
    text + "\n"
}

fn absolute(rounds: &Rounds, contenders: &[&str], prefix: &str, unit: &str) -> String {
    let mut heads = headings(unit);
    if prefix.is_empty() {
        heads.push("widest spread");
    }
    let mut table = Table::new(heads);
    for name in contenders {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(
            COLUMNS
                .iter()
                .map(|column| figure(rounds.median(&format!("{prefix}{}", column.0), name))),
        );
        cells.push(percent(rounds.spread(name)));
        cells.truncate(if prefix.is_empty() { COLUMNS.len() + 2 } else { COLUMNS.len() + 1 });
        table.row(cells);
    }
    table.finish()
}

fn scaling(one: &Rounds, two: &Rounds, contenders: &[&str]) -> String {
    let mut table = Table::new(headings("two / one"));
    for name in contenders {
        row(&mut table, name, |column| {
            match (two.median(column, name), one.median(column, name)) {
                (Some(two), Some(one)) => figure(Some(two / one)),
                _ => "–".to_owned(),
            }
        });
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_column() {
        let steps: Vec<&str> = STEPS.split(',').collect();
        assert_eq!(steps.len(), COLUMNS.len());
        for step in steps {
            let (phase, distribution) = step.split_once('@').unwrap_or((step, "uniform"));
            let found =
                COLUMNS.iter().filter(|column| (column.1, column.2) == (phase, distribution));
            assert_eq!(found.count(), 1, "{step}");
        }
    }

    #[test]
    fn ratios_name_the_best_peer_of_each_durability() {
        let mut rounds = Rounds::default();
        for (name, rate) in [
            ("scmkv-pmem", 3.0),
            ("floor-pmem", 4.0),
            ("lmdb", 1.5),
            ("redb", 0.5),
            ("redb+power", 0.1),
        ] {
            rounds.add("A uniform", name, rate);
        }
        let text = ratios(&rounds, &["scmkv-pmem", "floor-pmem", "lmdb", "redb", "redb+power"]);
        for part in ["75 %", "2.00 (lmdb)", "30.0 (redb+power)"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn sizes_and_peers_are_read() {
        let read = |text: &str| {
            let arguments: Vec<String> = text.split(' ').map(str::to_owned).collect();
            Flags::parse(&arguments, &["sizes", "peers", "keys"]).unwrap()
        };
        let flags = read("--sizes 16/100,128/512 --keys 4000 --peers none");
        let records: Vec<u64> = shapes(&flags).unwrap().iter().map(|shape| shape.records).collect();
        assert_eq!(records, [4000, 1000]);
        assert!(peers(&flags).unwrap().is_empty());
        assert_eq!(peers(&read("--peers all")).unwrap().len(), 11);
        assert!(shapes(&read("--sizes 16")).is_err());
    }
}
