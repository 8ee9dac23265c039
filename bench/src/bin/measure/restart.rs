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
    let flags = Flags::parse(arguments, &["keys", "engine"])?;
    let engine: String = flags.get("engine", "scmkv".to_owned(), "scmkv".to_owned())?;
    let (indexes, all): (&[&str], _) = match engine.as_str() {
        "scmkv" => (&["pmem", "dram"], "1000000,10000000,40000000"),
        // Its inner nodes are in DRAM.
        "bptree" => (&["dram"], "1000000,10000000"),
        _ => return Err(format!("--engine {engine}: scmkv and bptree have pools").into()),
    };
    let keys: Vec<u64> = flags.list("keys", all, "100000,1000000")?;
    let rounds = flags.rounds()?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let bench = Bench { binaries, mount: Mount::make(root, &flags)?, engine };
    let title = "Restart: from the start of the process to the first read and write";
    let called = if bench.engine == "scmkv" { "restart" } else { "restart-bptree" };
    let mut record = Record::begin(root, flags.out(root, called), title, flags.quick())?;
    record.note("engine", &bench.engine);
    record.note("mount", bench.mount.described());
    record.note("rounds", &format!("{rounds}; figures are medians; 16 B keys, 100 B values"));
    let mut results = Rounds::default();
    for &keys in &keys {
        for index in indexes {
            let label = format!("{keys} keys, index {index}");
            if let Err(why) = bench.series(keys, index, rounds, &mut results, &mut record) {
                record.failed(&label, &why);
            }
        }
    }
    let mut table = Table::new([
        "keys",
        "index",
        "after",
        "process start to first get, ms",
        "process start to first get and put, ms",
        "open, ms",
        "first get, ms",
        "first put, ms",
    ]);
    for &keys in &keys {
        for index in indexes {
            for after in ["close", "kill -9"] {
                let of = whose(keys, index, after);
                let cell = |what: &str| figure(results.median(what, &of));
                table.row([
                    keys.to_string(),
                    (*index).to_owned(),
                    after.to_owned(),
                    cell("read"),
                    cell("wall"),
                    cell("open_ms"),
                    cell("first_get_ms"),
                    cell("first_put_ms"),
                ]);
            }
        }
    }
    let note = "\nThe last three from the call that opens, one after the other. The first two include \
                the start of the process and its output; to the first get is what both took less the \
                time of the put.";
    record.section("Milliseconds until the store answers", &(table.finish() + note));
    if bench.engine == "bptree" {
        record.section("What was promised", &verdicts(&keys, &results));
    }
    record.finish()
}

/// Milliseconds from the start of the process to its first read, and of how many keys.
const GOALS: [(&str, f64); 2] = [("close", 100.0), ("kill -9", 2000.0)];
const GOAL_KEYS: u64 = 10_000_000;

fn verdicts(keys: &[u64], results: &Rounds) -> String {
    let mut table =
        Table::new(["keys", "after", "to the first get, ms", "promised, ms", "verdict"]);
    for &keys in keys {
        for (after, goal) in GOALS {
            let found = results.median("read", &whose(keys, "dram", after));
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

fn whose(keys: u64, index: &str, after: &str) -> String {
    format!("{keys} {index} {after}")
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    engine: String,
}

impl Bench {
    /// Loads a pool, and opens it again and again.
    fn series(
        &self,
        keys: u64,
        index: &str,
        rounds: usize,
        results: &mut Rounds,
        record: &mut Record,
    ) -> Outcome<()> {
        let pool = self.mount.fresh("pool")?;
        println!("{keys} keys, index {index}: loading");
        // Records of 144 bytes, index, and room for what is overwritten before it is cleaned; leaves
        // of a tree are half full at worst.
        let each = if self.engine == "bptree" { 2 * (144 + 32) } else { 144 + 32 };
        let size = keys * each * 21 / 20 + (2 << 30);
        let mut load = child::limited(&self.binaries.coreplane, 120 + keys / 50_000);
        load.args(["bench", "--workload", "load", "--threads", "2", "--json", "--index", index]);
        load.args(["--engine", &self.engine]);
        load.args(["--records", &keys.to_string(), "--size", &size.to_string()]);
        child::lines(load.arg("--pool").arg(&pool))?;
        for after in ["close", "kill -9"] {
            for round in 0..rounds {
                if after == "kill -9" {
                    self.overwrite_and_kill(&pool, keys)?;
                }
                let (mut line, wall) = self.open(&pool, keys, round as u64)?;
                println!(
                    "{keys} keys, index {index}, after {after}: {:.1} ms",
                    wall.as_secs_f64() * 1e3
                );
                if line["misses"] != 0 {
                    return Err(format!("a record is missing after {after}").into());
                }
                let of = whose(keys, index, after);
                let wall = wall.as_secs_f64() * 1e3;
                results.add("wall", &of, wall);
                let time = |what: &str| line[what].as_f64().ok_or("the line has no times");
                let put = time("first_put_ms")? - time("first_get_ms")?;
                results.add("read", &of, wall - put);
                for what in ["open_ms", "first_get_ms", "first_put_ms"] {
                    results.add(what, &of, time(what)?);
                }
                line["after"] = after.into();
                line["round"] = round.into();
                line["wall_ms"] = wall.into();
                record.keep(&line)?;
            }
        }
        self.mount.fresh("pool")?;
        Ok(())
    }

    /// Opens, reads, writes, closes; the time until the first line.
    fn open(&self, pool: &Path, keys: u64, seed: u64) -> Outcome<(Value, Duration)> {
        let mut command = Command::new(&self.binaries.coreplane);
        command.args(["bench", "--workload", "open", "--json", "--records", &keys.to_string()]);
        command.args(["--seed", &seed.to_string()]).arg("--pool").arg(pool);
        let begun = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let watchdog = child::Watchdog::over(&child, PATIENCE);
        let mut line = String::new();
        let out = child.stdout.take().ok_or("the child has no output")?;
        BufReader::new(out).read_line(&mut line)?;
        let wall = begun.elapsed();
        let status = child.wait()?;
        drop(watchdog);
        if !status.success() {
            return Err(format!("open: {status}").into());
        }
        Ok((serde_json::from_str(&line)?, wall))
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
    fn goals_are_of_ten_million_keys() {
        let mut results = Rounds::default();
        for (keys, after, time) in [
            (GOAL_KEYS, "close", 99.0),
            (GOAL_KEYS, "kill -9", 2001.0),
            (1_000, "close", 1.0),
            (1_000, "kill -9", 2001.0),
        ] {
            results.add("read", &whose(keys, "dram", after), time);
        }
        let text = verdicts(&[GOAL_KEYS, 1_000, 5], &results);
        let verdicts: Vec<&str> =
            text.lines().skip(2).filter_map(|row| row.split(" | ").last()).collect();
        let wanted = ["met", "**missed**", "too few keys to say", "**missed**"];
        let read = verdicts.iter().map(|verdict| verdict.trim_end_matches(" |"));
        assert!(read.eq(wanted.into_iter().chain(["not measured"; 2])), "{text}");
    }
}
