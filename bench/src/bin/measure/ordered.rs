//! `cargo xtask measure ordered`: the ordered engines between the floor and the ordered peers.
//!
//! Twice, with what a write must survive the same for all: a kill of the process (ours `strict`,
//! theirs the fastest setting that does), then a power cut (ours `strict`, theirs a sync at each
//! write; fewer records, since a load of millions of synced writes lasts). In a turn a contender
//! gets a fresh store, is loaded, and runs each phase on one thread and on two, one after the
//! other, so that what is divided was measured within seconds. Then it gets another one, which two
//! threads load.
//!
//! Whoever decides a goal, we and LMDB, has its turn in every round; the others, which are slower
//! and further away, in the first ones.

mod verdict;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::child;
use super::engines::{Shape, describe, shapes};
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure, percent};
use super::{Binaries, Rounds};
use crate::Outcome;

/// Phases after the load: what they are called, and the step of the driver.
const COLUMNS: [(&str, &str, &str); 7] = [
    ("load", "load", "uniform"),
    ("C uniform", "c", "uniform"),
    ("C zipfian", "c", "zipfian"),
    ("A uniform", "a", "uniform"),
    ("A zipfian", "a", "zipfian"),
    ("E uniform", "e", "uniform"),
    ("E zipfian", "e", "zipfian"),
];
const THREADS: [u64; 2] = [1, 2];
/// Of a record with its header: 64 that are longer do not fit into pages of 16 KiB.
const LONG: u64 = 250;
/// Records of a scan.
const SCAN: &str = "50";
/// Strict where a kill is what counts, too: on such a medium nothing less is faster.
const ENGINES: &str = "bptree";
const PEERS: &str = "lmdb,redb,rocksdb,leveldb,fjall";
/// Neither takes part in the goals of a write that survives a power cut: they cost nothing more.
const FLOORS: [&str; 2] = ["floor-dram", "floor-dram-seen"];

/// What a write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Kill,
    Power,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "a kill of the process",
            Self::Power => "a power cut",
        }
    }

    /// A peer's name in this class.
    fn peer(self, name: &str) -> String {
        match self {
            Self::Kill => name.to_owned(),
            Self::Power => format!("{name}+power"),
        }
    }
}

/// How much is done.
struct Counts {
    operations: u64,
    peer_operations: u64,
    rounds: usize,
    peer_rounds: usize,
}

/// `cargo xtask measure ordered …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own = [
        "engines",
        "keys",
        "power-keys",
        "sizes",
        "operations",
        "peer-operations",
        "peer-rounds",
        "peers",
    ];
    let flags = Flags::parse(arguments, &own)?;
    let counts = Counts {
        operations: flags.get("operations", 1_000_000, 50_000)?,
        peer_operations: flags.get("peer-operations", 200_000, 20_000)?,
        rounds: flags.rounds()?,
        peer_rounds: flags.get("peer-rounds", 1, 1)?,
    };
    let kill = shapes(&flags)?;
    let tenth = kill.iter().map(|shape| shape.records).max().unwrap_or(10) / 10;
    let power_keys: u64 = flags.get("power-keys", tenth, tenth)?;
    let scaled = |shape: &Shape| Shape {
        records: (shape.records * power_keys / (tenth * 10).max(1)).max(1),
        ..*shape
    };
    let power: Vec<Shape> = kill.iter().filter(|_| power_keys > 0).map(scaled).collect();
    let engines: Vec<String> = flags.list("engines", ENGINES, ENGINES)?;
    let peers: Vec<String> = flags.list("peers", PEERS, PEERS)?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), true)?;
    let bench = Bench { binaries, mount: Mount::make(root, &flags)?, counts, engines, peers };
    let title = "The ordered engines beside the floors and the ordered peers";
    let mut record = Record::begin(root, flags.out(root, "ordered"), title, flags.quick())?;
    bench.notes(&mut record);
    for (class, shapes) in [(Class::Kill, kill), (Class::Power, power)] {
        for shape in shapes {
            let mut taken = Taken::default();
            for round in 0..bench.counts.rounds {
                bench.round(class, shape, round, &mut taken, &mut record)?;
            }
            bench.report(class, shape, &taken, &mut record);
        }
    }
    record.finish()
}

/// What the rounds have shown.
#[derive(Debug, Default)]
struct Taken {
    rounds: Rounds,
    described: BTreeMap<String, String>,
    /// Records that a scan showed, by column and thread.
    shown: BTreeMap<String, f64>,
}

/// The steps of a load.
fn loads(name: &str, threads: u64) -> String {
    let fill = if name.starts_with("redb") { "fill," } else { "" };
    format!("{fill}load:{threads}t")
}

/// All of the turn in which a store is loaded by two threads: a store that one has loaded has all.
fn two_loads(name: &str) -> String {
    loads(name, 2)
}

/// The name of a figure among the results.
fn what(column: &str, threads: u64) -> String {
    format!("{column} {threads}t")
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    counts: Counts,
    engines: Vec<String>,
    peers: Vec<String>,
}

impl Bench {
    fn notes(&self, record: &mut Record) {
        let Counts { operations, peer_operations, rounds, peer_rounds } = self.counts;
        record.note("mount", self.mount.described());
        record.note(
            "rounds",
            &format!(
                "{rounds}, contenders alternating; of the floors and of all peers but lmdb the first {peer_rounds}; figures are \
                 medians"
            ),
        );
        record.note(
            "operations a phase",
            &format!(
                "{operations} (lmdb: {}, other peers: {peer_operations}); a tenth of that in E, of other \
                 peers a fortieth",
                2 * peer_operations
            ),
        );
        let synced = "on a tmpfs a sync costs a system call and keeps nothing: there, what is said to \
                      survive a power cut shows what the protocol costs";
        record.note("synced", synced);
        record.note(
            "E",
            &format!(
                "95 % scans of {SCAN} records, whose values are read and checked against their keys, \
                 5 % inserts of new ones"
            ),
        );
        record.note(
            "bptree",
            "pages as the manual has it: of 16 KiB, the default, where records have at most 200 bytes; \
             of 64 KiB where they are longer",
        );
        record.note(
            "redb",
            "nine tenths of its records are put in transactions of 1024, which is not measured; its \
             load is that of the last tenth, one by one",
        );
        record.note(
            "two threads",
            "each phase right after the same one on one thread, on the same store; the load of two \
             threads is a store of its own",
        );
    }

    /// Who takes part, in this round.
    fn contenders(&self, class: Class, round: usize) -> Vec<String> {
        let mut names = self.engines.clone();
        let first = round < self.counts.peer_rounds;
        if first && class == Class::Kill {
            names.extend(FLOORS.map(str::to_owned));
        }
        let peers = self.peers.iter().filter(|name| first || name.as_str() == "lmdb");
        names.extend(peers.map(|name| class.peer(name)));
        names
    }

    fn round(
        &self,
        class: Class,
        shape: Shape,
        round: usize,
        taken: &mut Taken,
        record: &mut Record,
    ) -> Outcome<()> {
        let names = self.contenders(class, round);
        for at in 0..names.len() {
            let name = &names[(at + round) % names.len()];
            for steps in [self.steps(name), two_loads(name)] {
                self.turn(Turn { class, shape, round, name, steps: &steps }, taken, record)?;
            }
        }
        Ok(())
    }

    fn is_ours(&self, name: &str) -> bool {
        self.engines.iter().any(|engine| engine == name)
    }

    /// Operations of a phase, and of how many of them E makes one.
    fn operations(&self, name: &str) -> (u64, u64) {
        if self.is_ours(name) || name.starts_with("floor") {
            (self.counts.operations, 10)
        } else if name.starts_with("lmdb") {
            (self.counts.peer_operations * 2, 10)
        } else {
            (self.counts.peer_operations, 40)
        }
    }

    /// The load, and each phase on one thread and then on two.
    fn steps(&self, name: &str) -> String {
        let mut steps = loads(name, 1);
        for (_, phase, distribution) in &COLUMNS[1..] {
            let (operations, part) = self.operations(name);
            let operations = if *phase == "e" { (operations / part).max(1) } else { operations };
            for threads in THREADS {
                steps += &format!(",{phase}@{distribution}:{threads}t:{operations}");
            }
        }
        steps
    }

    fn turn(&self, turn: Turn<'_>, taken: &mut Taken, record: &mut Record) -> Outcome<()> {
        let Turn { class, shape, round, name, steps } = turn;
        let label = format!(
            "{}/{} B, {} records, to survive {}, round {}, {name}{}",
            shape.key,
            shape.value,
            shape.records,
            class.name(),
            round + 1,
            if steps == two_loads(name) { ", load of two threads" } else { "" }
        );
        println!("{label}");
        let lines = child::lines(&mut self.command(turn)?).unwrap_or_else(|why| {
            record.failed(&label, &why);
            Vec::new()
        });
        for mut line in lines {
            let is = |column: &&(&str, &str, &str)| {
                line["phase"] == column.1 && line["distribution"] == column.2
            };
            if let (Some((column, ..)), Some(rate), Some(threads)) =
                (COLUMNS.iter().find(is), line["ops_per_s"].as_f64(), line["threads"].as_u64())
            {
                let what = what(column, threads);
                taken.rounds.add(&what, name, rate / 1e6);
                if let Some(slow) = line["p99_ns"].as_f64() {
                    taken.rounds.add(&format!("p99 {what}"), name, slow / 1e3);
                }
                if let Err(why) = taken.scanned(&what, &line) {
                    record.failed(&label, &why);
                }
            }
            if line["phase"] == "load"
                && let Some(bytes) = line["dram_bytes"].as_f64()
            {
                taken.rounds.add("DRAM", name, bytes / shape.records as f64);
                taken.described.entry(name.to_owned()).or_insert_with(|| describe(&line));
            }
            line["contender"] = name.into();
            line["to_survive"] = class.name().into();
            line["round"] = round.into();
            line["mount"] = self.mount.described().into();
            record.keep(&line)?;
        }
        Ok(())
    }

    /// The command of one turn, which leaves nothing behind that the next one would not remove.
    fn command(&self, turn: Turn<'_>) -> Outcome<Command> {
        let Turn { shape, name, steps, .. } = turn;
        let (operations, _) = self.operations(name);
        let place = self.mount.fresh("store")?;
        let limit = 120 + (shape.records + 10 * operations) / 5_000;
        let (called, setting) = name.split_once('+').unwrap_or((name, ""));
        let mut command = if self.is_ours(name) {
            let mut command = child::limited(&self.binaries.coreplane, limit);
            command.args(["bench", "--json", "--engine", called, "--durability", "strict"]);
            // Leaves are not full, and records that were overwritten stay until a leaf is made anew.
            let record = shape.key + shape.value + 40;
            let size = (shape.records + operations) * record * 3 + (512 << 20);
            command.args(["--size", &size.to_string()]).arg("--pool").arg(place);
            if called == "bptree" && record > LONG {
                command.args(["--page-size", "64KiB"]);
            }
            command
        } else {
            let safety = if setting.is_empty() { "kill" } else { setting };
            let mut command = child::limited(&self.binaries.peers, limit);
            command.args(["--peer", called, "--safety", safety]).arg("--directory").arg(place);
            command
        };
        command.args(["--workload", steps, "--scan", SCAN, "--threads", "1"]);
        for (option, value) in [
            ("--records", shape.records),
            ("--operations", operations),
            ("--key-size", shape.key),
            ("--value-size", shape.value),
        ] {
            command.args([option, &value.to_string()]);
        }
        Ok(command)
    }

    fn report(&self, class: Class, shape: Shape, taken: &Taken, record: &mut Record) {
        let Shape { key, value, records } = shape;
        let of = format!("{key} B keys, {value} B values, {records} records");
        let names = self.contenders(class, 0);
        let peers: Vec<String> = self.peers.iter().map(|name| class.peer(name)).collect();
        let title = format!("What was promised: to survive {}, {of}", class.name());
        record.section(&title, &verdict::table(class, &self.engines, &peers, &taken.rounds));
        for threads in THREADS {
            let title = format!("To survive {}, {of}, threads: {threads}", class.name());
            let mut text = rates(&taken.rounds, &names, threads, "", "M operations/s");
            text += "\n";
            text += &rates(&taken.rounds, &names, threads, "p99 ", "99 % took at most, µs");
            record.section(&title, &text);
        }
        let mut table = Table::new([
            "contender",
            "DRAM, bytes a key, once loaded",
            "what a write survives, and settings",
        ]);
        for name in &names {
            let said = taken.described.get(name).map_or("", String::as_str);
            table.row([name.as_str(), &figure(taken.rounds.median("DRAM", name)), said]);
        }
        let note = "\nDRAM: of ours and the floors index and tables; of peers all anonymous memory of \
                    the process, caches included. Durability `kill`: survives a kill of the process; \
                    `power`: synced at each write; strict: flushed and fenced at each write. The \
                    floor of E reads what was appended one after the other \
                    as if that were the order of the keys.";
        record.section(
            &format!("Settings: to survive {}, {of}", class.name()),
            &(table.finish() + note),
        );
    }
}

/// A contender's turn.
#[derive(Debug, Clone, Copy)]
struct Turn<'a> {
    class: Class,
    shape: Shape,
    round: usize,
    name: &'a str,
    steps: &'a str,
}

impl Taken {
    /// Holds the records that a scan showed against what the others showed: all must do the same.
    fn scanned(&mut self, what: &str, line: &serde_json::Value) -> Outcome<()> {
        if line["phase"] != "e" {
            return Ok(());
        }
        let (Some(shown), Some(operations)) =
            (line["hits_verified"].as_f64(), line["operations"].as_f64())
        else {
            return Err("the line does not say what was scanned".into());
        };
        let shown = shown / operations;
        let first = *self.shown.entry(what.to_owned()).or_insert(shown);
        // One operation in twenty inserts, as it is drawn.
        if (shown / first - 1.0).abs() > 0.05 {
            return Err(
                format!("{what}: {shown:.1} records an operation, others {first:.1}").into()
            );
        }
        Ok(())
    }
}

fn rates(rounds: &Rounds, names: &[String], threads: u64, prefix: &str, unit: &str) -> String {
    let heads = std::iter::once(unit).chain(COLUMNS.iter().map(|column| column.0));
    let mut table = Table::new(heads.chain(prefix.is_empty().then_some("widest spread")));
    for name in names {
        let mut cells = vec![name.clone()];
        cells.extend(COLUMNS.iter().map(|column| {
            figure(rounds.median(&format!("{prefix}{}", what(column.0, threads)), name))
        }));
        if prefix.is_empty() {
            cells.push(percent(rounds.spread(name)));
        }
        table.row(cells);
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scans_must_show_as_much_as_others_do() {
        let mut taken = Taken::default();
        let line = |hits: u64| json!({"phase": "e", "hits_verified": hits, "operations": 100});
        assert!(taken.scanned("E uniform 1t", &line(4750)).is_ok());
        assert!(taken.scanned("E uniform 1t", &line(4700)).is_ok());
        assert!(taken.scanned("E uniform 1t", &line(95)).is_err());
        assert!(taken.scanned("E zipfian 1t", &line(95)).is_ok(), "the first of its kind");
        assert!(taken.scanned("C uniform 1t", &json!({"phase": "c"})).is_ok());
    }
}
