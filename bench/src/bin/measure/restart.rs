//! `cargo xtask measure restart`: how long until a store answers again.
//!
//! "Open" means the first correct read and the first write. The clock starts before the process
//! does, and stops when the process has said that both are done; how much of it was the opening
//! itself, the process says too. Crashes are kills in the midst of overwrites on two threads, so
//! that there are logs without an end to recover.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::table::{Table, figure};
use super::{Binaries, Rounds, child};
use crate::Outcome;

/// Overwrites that a killed process was to make: more than it can in [`RUNNING`].
const OVERWRITES: u64 = 30_000_000;
/// How long after the phase began it is killed; it draws its records first, for half a second.
const RUNNING: Duration = Duration::from_millis(2500);
/// A child that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(300);

/// `cargo xtask measure restart …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["keys", "engines", "matrix", "then-ms"])?;
    let engines: Vec<String> = flags.list("engines", "scmkv", "scmkv")?;
    // None is one device.
    let matrix: String = flags.get("matrix", String::new(), String::new())?;
    let matrix = Some(matrix.as_str()).filter(|shape| !shape.is_empty());
    let is_hashed = engines.iter().all(|engine| engine == "scmkv");
    let all = if is_hashed { "1000000,10000000,40000000" } else { "1000000,10000000" };
    let keys: Vec<u64> = flags.list("keys", all, "100000,1000000")?;
    let then_ms: u64 = flags.get("then-ms", 0, 0)?;
    let rounds = flags.rounds()?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let bench = Bench { binaries, mount: Mount::make(root, &flags)?, rounds, then_ms };
    let title = "Restart: from the start of the process to the first read and write";
    let mut record = Record::begin(root, flags.out(root, "restart"), title, flags.quick())?;
    record.note("mount", bench.mount.described());
    record.note("rounds", &format!("{rounds}; figures are medians; 16 B keys, 100 B values"));
    let mut results = Rounds::default();
    let stores: Vec<Stored<'_>> = keys
        .iter()
        .flat_map(|keys| engines.iter().map(move |engine| (*keys, engine.as_str())))
        .flat_map(|(keys, engine)| {
            indexes(engine).iter().map(move |index| Stored { keys, engine, matrix, index })
        })
        .collect();
    for stored in &stores {
        if let Err(why) = bench.series(*stored, &mut results, &mut record) {
            record.failed(&stored.label(), &why);
        }
    }
    record.section("Milliseconds until the store answers", &table(&stores, &results, then_ms));
    if engines.iter().any(|engine| engine == "bptree") {
        record.section("What was promised of bptree", &verdicts(&keys, matrix, &results));
    }
    record.finish()
}

/// A loaded store.
#[derive(Debug, Clone, Copy)]
struct Stored<'a> {
    keys: u64,
    engine: &'a str,
    /// The shape of a matrix of such devices, which waits for all copies; none is one device.
    matrix: Option<&'a str>,
    index: &'a str,
}

impl Stored<'_> {
    /// The engine, and the shape of a matrix.
    fn name(&self) -> String {
        self.matrix
            .map_or_else(|| self.engine.to_owned(), |shape| format!("{} {shape}", self.engine))
    }

    fn label(&self) -> String {
        format!("{}, {} keys, index {}", self.name(), self.keys, self.index)
    }

    /// Whose figures these are.
    fn whose(&self, after: &str) -> String {
        format!("{} {} {} {after}", self.name(), self.keys, self.index)
    }
}

/// Where the index may lie; of all but scmkv where the engine has it.
fn indexes(engine: &str) -> &'static [&'static str] {
    if engine == "scmkv" { &["pmem", "dram"] } else { &["auto"] }
}

fn table(stores: &[Stored<'_>], results: &Rounds, then_ms: u64) -> String {
    let columns = [
        ("read", "process start to first get, ms"),
        ("wall", "process start to first get and put, ms"),
        ("open_ms", "open, ms"),
        ("first_get_ms", "first get, ms"),
        ("first_put_ms", "first put, ms"),
        ("rate", "M keys opened a second"),
        ("longest", "longest put afterwards, ms"),
        ("puts", "k puts/s afterwards"),
    ];
    let shown = if then_ms == 0 { &columns[..6] } else { &columns[..] };
    let heads = ["engine", "keys", "index", "after"];
    let mut table = Table::new(heads.into_iter().chain(shown.iter().map(|(_, head)| *head)));
    for stored in stores {
        let Stored { keys, index, .. } = *stored;
        for after in ["close", "kill -9"] {
            let of = stored.whose(after);
            let names = [stored.name(), keys.to_string(), index.to_owned(), after.to_owned()];
            let cells = shown.iter().map(|(what, _)| figure(results.median(what, &of)));
            table.row(names.into_iter().chain(cells));
        }
    }
    let mut note = "\nOpen, first get and first put from the call that opens, one after the other. The first two \
                    include the start of the process and its output; to the first get is what both took less \
                    the time of the put."
        .to_owned();
    if then_ms > 0 {
        note += &format!(
            " Afterwards: overwrites for {then_ms} ms, right after the first put, one thread, each durable \
             when it returns."
        );
    }
    table.finish() + &note
}

/// Milliseconds from the start of the process to its first read, and of how many keys.
const GOALS: [(&str, f64); 2] = [("close", 100.0), ("kill -9", 2000.0)];
const MATRIX_GOALS: [(&str, f64); 2] = [("close", 300.0), ("kill -9", 3000.0)];
const GOAL_KEYS: u64 = 10_000_000;

fn verdicts(keys: &[u64], matrix: Option<&str>, results: &Rounds) -> String {
    let goals = if matrix.is_some() { MATRIX_GOALS } else { GOALS };
    let mut table =
        Table::new(["keys", "after", "to the first get, ms", "promised, ms", "verdict"]);
    for &keys in keys {
        for (after, goal) in goals {
            let found = results.median("read", &tree(keys, matrix).whose(after));
            let verdict = match found {
                None => "not measured",
                Some(found) if found >= goal => "**missed**",
                Some(_) if keys < GOAL_KEYS => "too few keys to say",
                Some(_) => "met",
            };
            let promised = format!("< {goal} for {GOAL_KEYS} keys");
            table.row([&keys.to_string(), after, &figure(found), &promised, verdict]);
        }
    }
    table.finish()
}

/// The tree with so many keys.
fn tree(keys: u64, matrix: Option<&str>) -> Stored<'_> {
    Stored { keys, engine: "bptree", matrix, index: "auto" }
}

/// What an opening has shown.
struct Opened {
    line: Value,
    /// Until that line was there.
    wall: Duration,
    /// What the overwrites afterwards have shown; null if there were none.
    then: Value,
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    rounds: usize,
    /// Overwrites for so long after the first put.
    then_ms: u64,
}

impl Bench {
    /// Loads a pool, and opens it again and again.
    fn series(&self, stored: Stored<'_>, results: &mut Rounds, record: &mut Record) -> Outcome<()> {
        let pool = self.mount.fresh("pool")?;
        println!("{}: loading", stored.label());
        self.load(&pool, stored)?;
        for after in ["close", "kill -9"] {
            for round in 0..self.rounds {
                if after == "kill -9" {
                    self.overwrite_and_kill(&pool, stored.keys)?;
                }
                let Opened { mut line, wall, mut then } =
                    self.open(&pool, stored.keys, round as u64)?;
                let wall = wall.as_secs_f64() * 1e3;
                println!("{}, after {after}: {wall:.1} ms", stored.label());
                if line["misses"] != 0 {
                    return Err(format!("a record is missing after {after}").into());
                }
                let of = stored.whose(after);
                results.add("wall", &of, wall);
                let time = |what: &str| line[what].as_f64().ok_or("the line has no times");
                let put = time("first_put_ms")? - time("first_get_ms")?;
                results.add("read", &of, wall - put);
                results.add("rate", &of, stored.keys as f64 / time("open_ms")? * 1e-3);
                for what in ["open_ms", "first_get_ms", "first_put_ms"] {
                    results.add(what, &of, time(what)?);
                }
                if let (Some(longest), Some(rate)) =
                    (then["max_ns"].as_f64(), then["puts_per_s"].as_f64())
                {
                    results.add("longest", &of, longest * 1e-6);
                    results.add("puts", &of, rate * 1e-3);
                }
                for line in [&mut line, &mut then].into_iter().filter(|line| line.is_object()) {
                    line["after"] = after.into();
                    line["store"] = stored.name().into();
                    line["round"] = round.into();
                    line["wall_ms"] = wall.into();
                    record.keep(line)?;
                }
            }
        }
        self.mount.fresh("pool")?;
        Ok(())
    }

    fn load(&self, pool: &Path, stored: Stored<'_>) -> Outcome<()> {
        let Stored { keys, engine, matrix, index } = stored;
        // Records of 144 bytes, index, and room for what is overwritten before it is cleaned; leaves
        // of a tree are half full at worst.
        let each = if engine == "scmkv" { 144 + 32 } else { 2 * (144 + 32) };
        let size = keys * each * 21 / 20 + (2 << 30);
        if let Some(shape) = matrix {
            let groups = shape.split('x').next().and_then(|groups| groups.parse::<u64>().ok());
            let groups = groups.filter(|it| *it > 0).ok_or("a matrix is GROUPSxDEVICES")?;
            let mut create = child::limited(&self.binaries.coreplane, 120);
            create.args(["create", "--matrix", shape, "--ack", "all", "--engine", engine]);
            create.args(["--index", index, "--size", &(size / groups).to_string()]);
            child::output(create.arg("--pool").arg(pool))?;
        }
        let mut load = child::limited(&self.binaries.coreplane, 120 + keys / 50_000);
        load.args(["bench", "--workload", "load", "--threads", "2", "--json"]);
        load.args(["--records", &keys.to_string()]);
        if matrix.is_none() {
            load.args(["--index", index, "--engine", engine, "--size", &size.to_string()]);
        }
        child::lines(load.arg("--pool").arg(pool)).map(drop)
    }

    /// Opens, reads, writes, overwrites, closes; the time until the first line.
    fn open(&self, pool: &Path, keys: u64, seed: u64) -> Outcome<Opened> {
        let mut command = Command::new(&self.binaries.coreplane);
        command.args(["bench", "--workload", "open", "--json", "--records", &keys.to_string()]);
        command.args(["--seed", &seed.to_string(), "--then-ms", &self.then_ms.to_string()]);
        command.arg("--pool").arg(pool);
        let begun = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let watchdog = child::Watchdog::over(&child, PATIENCE);
        let (mut line, mut then) = (String::new(), String::new());
        let mut out = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
        out.read_line(&mut line)?;
        let wall = begun.elapsed();
        out.read_line(&mut then)?;
        let status = child.wait()?;
        drop(watchdog);
        if !status.success() {
            return Err(format!("open: {status}").into());
        }
        let then = if then.is_empty() { Value::Null } else { serde_json::from_str(&then)? };
        Ok(Opened { line: serde_json::from_str(&line)?, wall, then })
    }

    /// Leaves the pool as a crash does.
    fn overwrite_and_kill(&self, pool: &Path, keys: u64) -> Outcome<()> {
        let mut command = Command::new(&self.binaries.coreplane);
        command.args(["bench", "--workload", "overwrite@uniform", "--threads", "2", "--json"]);
        command.args(["--records", &keys.to_string(), "--operations", &OVERWRITES.to_string()]);
        command.arg("--pool").arg(pool).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let watchdog = child::Watchdog::over(&child, PATIENCE);
        let said = child.stderr.take().ok_or("the child has no standard error")?;
        let began = BufReader::new(said)
            .lines()
            .any(|line| line.is_ok_and(|line| line.contains("overwrite begins")));
        if began {
            std::thread::sleep(RUNNING);
        }
        drop(watchdog);
        let ended = child.try_wait()?;
        child.kill()?;
        child.wait()?;
        match ended {
            None if began => Ok(()),
            None => Err("it never began to overwrite".into()),
            Some(status) => Err(format!("it was not to end before it is killed: {status}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_of_each_store_is_in_its_row() {
        let index = indexes("list")[0];
        let stored = Stored { keys: 1000, engine: "list", matrix: None, index };
        let mut results = Rounds::default();
        for (what, found) in [("wall", 7.0), ("rate", 2.0), ("longest", 30.0)] {
            results.add(what, &stored.whose("kill -9"), found);
        }
        let row = "| list | 1000 | auto | kill -9 | – | 7.00 | – | – | – | 2.00 |";
        let with = table(&[stored], &results, 3000);
        assert!(with.contains(&format!("{row} 30.0 | – |")) && with.contains("3000 ms"), "{with}");
        assert!(table(&[stored], &results, 0).contains(&format!("{row}\n")));
        let of_matrix = Stored { matrix: Some("2x2"), ..stored };
        let row = table(&[of_matrix], &results, 0);
        assert!(row.contains("| list 2x2 | 1000 | auto | kill -9 | – |"), "{row}");
        assert_eq!(indexes("scmkv").len(), 2);
    }

    #[test]
    fn goals_are_of_ten_million_keys() {
        let mut results = Rounds::default();
        for (keys, after, time) in [
            (GOAL_KEYS, "close", 99.0),
            (GOAL_KEYS, "kill -9", 2001.0),
            (1_000, "close", 1.0),
            (1_000, "kill -9", 2001.0),
        ] {
            results.add("read", &tree(keys, None).whose(after), time);
        }
        results.add("read", &tree(GOAL_KEYS, Some("2x2")).whose("close"), 299.0);
        let text = verdicts(&[GOAL_KEYS], Some("2x2"), &results);
        assert!(text.contains("< 300 for 10000000 keys | met"), "{text}");
        let text = verdicts(&[GOAL_KEYS, 1_000, 5], None, &results);
        let verdicts: Vec<&str> =
            text.lines().skip(2).filter_map(|row| row.split(" | ").last()).collect();
        let wanted = ["met", "**missed**", "too few keys to say", "**missed**"];
        let read = verdicts.iter().map(|verdict| verdict.trim_end_matches(" |"));
        assert!(read.eq(wanted.into_iter().chain(["not measured"; 2])), "{text}");
    }
}
