//! `cargo xtask measure matrix`: the MKVS paper's tables 1 to 6 and figures 3 to 6.
//!
//! The paper runs YCSB on its prototypes through system calls of its own, and on Redis and
//! memcached through their clients. Here the prototypes are measured twice: as the *library* that
//! takes the place of those system calls, and behind `coreplane serve`, where they have the same
//! way to go as Redis and memcached: one driver, a connection a thread, the loopback interface.
//!
//! A store of a thousand records is loaded in milliseconds, so the workloads on it are repeated,
//! and every store is made anew in each round.

mod paper;
mod report;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child;
use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::server_process::{MEMCACHED, REDIS, ServerProcess, free_port};
use super::{Binaries, Rounds};
use crate::Outcome;

/// Ours, and theirs.
const PROTOTYPES: [&str; 3] = ["mkvs", "mkvs-gekv", "mkvs-ekv"];
const RIVALS: [&str; 2] = ["redis", "memcached"];

/// The way to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Library,
    Server,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Server => "server",
        }
    }
}

/// Whose a figure is among the results.
fn whose(system: &str, way: Way) -> String {
    format!("{system} {}", way.name())
}

/// The name of a figure among the results.
fn what(phase: &str, records: u64, operations: u64, threads: u64) -> String {
    format!("{phase} {records} {operations} {threads}")
}

/// Bytes of a key and a value.
#[derive(Debug, Clone, Copy)]
struct Size {
    key: u64,
    value: u64,
}

impl Size {
    fn parse(text: &str) -> Outcome<Self> {
        let wrong = || format!("{text}: 24/1000 is a size");
        let (key, value) = text.split_once('/').ok_or_else(wrong)?;
        let (key, value) = (key.parse().map_err(|_| wrong())?, value.parse().map_err(|_| wrong())?);
        Ok(Self { key, value })
    }
}

/// What is done with one fresh store.
#[derive(Debug, Clone)]
struct Story {
    records: u64,
    size: Size,
    /// Steps of the driver.
    steps: String,
    /// Records that the steps write, at most about.
    writes: u64,
}

/// How much is done.
struct Counts {
    threads: Vec<u64>,
    repeat: u64,
    large: u64,
    operations: u64,
    server_operations: u64,
    size: Size,
    large_size: Size,
}

/// `cargo xtask measure matrix …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own =
        ["size", "threads", "repeat", "large", "large-size", "operations", "server-operations"];
    let flags = Flags::parse(arguments, &own)?;
    let size = || "24/1000".to_owned();
    let counts = Counts {
        threads: flags.list("threads", "1,2,4,8,16", "1,4")?,
        repeat: flags.get("repeat", 5, 2)?,
        large: flags.get("large", 1_000_000, 20_000)?,
        operations: flags.get("operations", 300_000, 10_000)?,
        server_operations: flags.get("server-operations", 40_000, 4_000)?,
        size: Size::parse(&flags.get("size", size(), size())?)?,
        large_size: Size::parse(&flags.get("large-size", size(), size())?)?,
    };
    let binaries = Binaries::prepare(root, !flags.has("no-build"), true)?;
    let prototypes = Prototypes::known_to(&binaries)?;
    let bench = Bench { binaries, mount: Mount::make(root, &flags)?, counts, prototypes };
    let title = "MKVS's tables 1 to 6 and figures 3 to 6";
    let mut record = Record::begin(root, flags.out(root, "matrix"), title, flags.quick())?;
    let rounds = flags.rounds()?;
    bench.notes(&mut record, rounds);
    let mut results = Rounds::default();
    let contenders = bench.contenders();
    for round in 0..rounds {
        for story in bench.small_stories() {
            for at in 0..contenders.len() {
                let (system, way) = contenders[(at + round) % contenders.len()];
                bench.turn(
                    Turn { story: &story, system, way, round },
                    &mut results,
                    &mut record,
                )?;
            }
        }
    }
    for (system, way) in contenders {
        let story = bench.large_story(way);
        bench.turn(Turn { story: &story, system, way, round: 0 }, &mut results, &mut record)?;
    }
    report::write(&bench.counts, &results, &mut record);
    record.finish()
}

/// How a prototype is made.
#[derive(Debug)]
enum Prototypes {
    /// By `create --prototype`.
    All,
    /// As far as the shape alone makes them: one group member less, no race.
    ByShape,
}

impl Prototypes {
    fn known_to(binaries: &Binaries) -> Outcome<Self> {
        let mut command = child::limited(&binaries.coreplane, 10);
        let help = child::output(command.args(["create", "--help"]))?;
        Ok(if help.contains("--prototype") { Self::All } else { Self::ByShape })
    }

    /// Options of `coreplane create`; none: it cannot be made.
    fn options(&self, name: &str) -> Option<Vec<String>> {
        let options = match (self, name) {
            (_, rival) if !PROTOTYPES.contains(&rival) => return None,
            (Self::All, name) => format!("--matrix 2x2 --ack first --prototype {name}"),
            (Self::ByShape, "mkvs") => "--matrix 2x2 --ack first".to_owned(),
            (Self::ByShape, "mkvs-ekv") => "--matrix 1x1 --ack first".to_owned(),
            (Self::ByShape, _) => return None,
        };
        Some(options.split(' ').map(str::to_owned).collect())
    }
}

/// A contender's turn at a story.
#[derive(Debug, Clone, Copy)]
struct Turn<'a> {
    story: &'a Story,
    system: &'static str,
    way: Way,
    round: usize,
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    counts: Counts,
    prototypes: Prototypes,
}

impl Bench {
    fn notes(&self, record: &mut Record, rounds: usize) {
        let Counts { repeat, large, operations, server_operations, size, large_size, .. } =
            &self.counts;
        record.note("mount", self.mount.described());
        record.note(
            "rounds",
            &format!(
                "{rounds}, contenders alternating, each with a fresh store, on which a workload runs \
                 {repeat} times; figures are medians. With {large} records once"
            ),
        );
        let cannot = "MongoDB, pmemkv (PMEM-KV) and PMEM-Redis cannot be installed here";
        record.note("absent", cannot);
        if matches!(self.prototypes, Prototypes::ByShape) {
            let why = "this coreplane has no `create --prototype`: mkvs is `--matrix 2x2 --ack first`, \
                       mkvs-ekv is `--matrix 1x1`, whose filter stays, mkvs-gekv is absent";
            record.note("prototypes", why);
        } else {
            record.note("prototypes", "`create --matrix 2x2 --ack first --prototype NAME`, bptree");
        }
        record.note(
            "records",
            &format!(
                "{} B keys and {} B values, as YCSB's ten fields of 100 bytes (the paper says nothing \
                 of it); with {large} records {} and {} B; chosen zipfian",
                size.key, size.value, large_size.key, large_size.value
            ),
        );
        record.note(
            "library",
            "`coreplane bench` on the matrix: in the caller's process, where the paper has system calls",
        );
        record.note(
            "server",
            "`coreplane serve --durability strict`, redis-server without persistence, memcached with \
             two threads; the same driver for all: blocking sockets on the loopback interface, a \
             connection a thread, one request under way on each",
        );
        record.note(
            &format!("operations with {large} records"),
            &format!("{operations} as a library, {server_operations} over the network"),
        );
    }

    fn contenders(&self) -> Vec<(&'static str, Way)> {
        let ours = PROTOTYPES.into_iter().filter(|name| self.prototypes.options(name).is_some());
        let library = ours.clone().map(|name| (name, Way::Library));
        library.chain(ours.chain(RIVALS).map(|name| (name, Way::Server))).collect()
    }

    /// The paper's: 1000 records by threads, and what its figures change.
    fn small_stories(&self) -> Vec<Story> {
        let Counts { repeat, size, .. } = self.counts;
        let story = |records: u64, steps: Vec<String>, operations: u64| Story {
            records,
            size,
            steps: steps.join(","),
            writes: records + operations,
        };
        let repeated = |threads: u64, operations: &[u64]| -> Vec<String> {
            (0..repeat)
                .flat_map(|_| operations)
                .flat_map(|count| ["b", "a"].map(|phase| format!("{phase}:{threads}t:{count}")))
                .collect()
        };
        let mut stories = Vec::new();
        for &threads in &self.counts.threads {
            let operations: &[u64] = if threads == 1 { &[1000, 5000, 10_000] } else { &[1000] };
            let mut steps = vec![format!("load:{threads}t:1000")];
            steps.extend(repeated(threads, operations));
            stories.push(story(1000, steps, repeat * operations.iter().sum::<u64>()));
        }
        for records in [5000, 10_000, 20_000] {
            let mut steps = vec![format!("load:1t:{records}")];
            steps.extend(repeated(1, &[1000]));
            stories.push(story(records, steps, repeat * 1000));
        }
        stories
    }

    /// So many records that the caches do not hold them: a tenth of them is loaded by each number
    /// of threads, the rest by any.
    fn large_story(&self, way: Way) -> Story {
        let Counts { large, large_size, threads, .. } = &self.counts;
        let operations = self.counts.large_operations(way);
        let part = self.counts.large_part();
        let mut steps: Vec<String> =
            threads.iter().map(|threads| format!("load:{threads}t:{part}")).collect();
        steps.push("load:2t".to_owned());
        for phase in ["b", "a"] {
            steps.extend(threads.iter().map(|threads| format!("{phase}:{threads}t:{operations}")));
        }
        let writes = large + operations * threads.len() as u64;
        Story { records: *large, size: *large_size, steps: steps.join(","), writes }
    }

    fn turn(&self, turn: Turn<'_>, results: &mut Rounds, record: &mut Record) -> Outcome<()> {
        let Turn { story, system, way, round } = turn;
        let label = format!(
            "{system} ({}), {} records, {}, round {}",
            way.name(),
            story.records,
            story.steps.split(',').next().unwrap_or_default(),
            round + 1
        );
        println!("{label}");
        let lines = self.lines(turn).unwrap_or_else(|why| {
            record.failed(&label, &why);
            Vec::new()
        });
        for mut line in lines {
            take(&line, &whose(system, way), results);
            line["contender"] = system.into();
            line["way"] = way.name().into();
            line["round"] = round.into();
            line["mount"] = self.mount.described().into();
            record.keep(&line)?;
        }
        Ok(())
    }

    /// A fresh store, and what the driver says of it.
    fn lines(&self, turn: Turn<'_>) -> Outcome<Vec<Value>> {
        let Turn { story, system, way, .. } = turn;
        let place = self.mount.fresh("store")?;
        let limit = 120 + (story.records + story.writes * 2) / 2_000;
        if let Some(options) = self.prototypes.options(system) {
            let mut create = child::limited(&self.binaries.coreplane, 120);
            create.args(["create", "--size", &story.device_size(system).to_string()]).args(options);
            child::output(create.arg("--pool").arg(&place))?;
        } else {
            std::fs::create_dir(&place)?;
        }
        let lines = match way {
            Way::Library => {
                let mut command = child::limited(&self.binaries.coreplane, limit);
                command.args(["bench", "--json"]).arg("--pool").arg(&place);
                child::lines(story.asked_of(&mut command))
            }
            Way::Server => {
                let server = self.serve(system, &place)?;
                let mut command = child::limited(&self.binaries.peers, limit);
                let protocol = if system == "memcached" { "memcached" } else { "resp" };
                let address = format!("127.0.0.1:{}", server.port);
                command.args(["--peer", protocol, "--address", &address]);
                child::lines(story.asked_of(&mut command))
            }
        };
        self.mount.fresh("store")?;
        lines
    }

    fn serve(&self, system: &str, place: &PathBuf) -> Outcome<ServerProcess> {
        let port = free_port()?;
        let port_text = port.to_string();
        let mut command = match system {
            "redis" => {
                let mut command = Command::new("redis-server");
                command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
                command.args(["--port", &port_text, "--dir"]).arg(place);
                command
            }
            "memcached" => {
                let mut command = Command::new("memcached");
                command.args(["-l", "127.0.0.1", "-p", &port_text, "-U", "0", "-t", "2"]);
                // Never full: what it drops would be missing. It does not run as root without a name.
                command.args(["-m", "8192", "-u", "root"]);
                command
            }
            _ => {
                let mut command = Command::new(&self.binaries.coreplane);
                command.args(["serve", "--durability", "strict", "--port", &port_text]);
                command.arg("--pool").arg(place);
                command
            }
        };
        let greeting = if system == "memcached" { MEMCACHED } else { REDIS };
        ServerProcess::start(&mut command, port, greeting)
    }
}

impl Counts {
    fn large_operations(&self, way: Way) -> u64 {
        match way {
            Way::Library => self.operations,
            Way::Server => self.server_operations,
        }
    }

    /// Records of the large store that one number of threads loads.
    fn large_part(&self) -> u64 {
        self.large / 10
    }
}

impl Story {
    /// Bytes of a device: room for twice what it holds, which is all of it in the prototype of one
    /// device, and half in two groups.
    fn device_size(&self, system: &str) -> u64 {
        let record = self.size.key + self.size.value + 64;
        let held = if system == "mkvs-ekv" { self.records } else { self.records / 2 };
        (held * record * 2 + (96 << 20)).next_multiple_of(1 << 20)
    }

    /// The driver's command, with the steps.
    fn asked_of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args(["--workload", &self.steps]);
        for (option, value) in [
            ("--records", self.records),
            ("--key-size", self.size.key),
            ("--value-size", self.size.value),
        ] {
            command.args([option, &value.to_string()]);
        }
        command
    }
}

/// Takes a line's figures: thousands of operations a second, and microseconds.
fn take(line: &Value, whose: &str, results: &mut Rounds) {
    let count = |name: &str| line[name].as_u64();
    let (Some(phase), Some(records), Some(operations), Some(threads), Some(rate)) = (
        line["phase"].as_str(),
        count("records"),
        count("operations"),
        count("threads"),
        line["ops_per_s"].as_f64(),
    ) else {
        return;
    };
    let name = what(phase, records, operations, threads);
    results.add(&name, whose, rate / 1e3);
    for mean in ["read", "write"] {
        if let Some(time) = line[format!("{mean}_mean_ns")].as_f64()
            && time > 0.0
        {
            results.add(&format!("{mean} {name}"), whose, time / 1e3);
        }
    }
}
