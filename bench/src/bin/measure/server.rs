//! `cargo xtask measure server`: redis-benchmark against `coreplane serve` and redis-server.
//!
//! The client saturates a core first, so that requests a second say little about the server on a
//! small machine: what a command costs the server, in processor time, is beside them.

use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::flags::Flags;
use super::mount::{Mount, file_system};
use super::record::Record;
use super::server_process::{REDIS, ServerProcess, free_port};
use super::table::{Table, figure};
use super::{Binaries, Rounds, child};
use crate::Outcome;

/// Servers, and whether they write to the disk.
const SERVERS: [(&str, bool); 5] = [
    ("coreplane strict, tmpfs", false),
    ("redis, no persistence", false),
    ("redis, appendfsync always, tmpfs", false),
    ("coreplane strict, disk", true),
    ("redis, appendfsync always, disk", true),
];
const TESTS: [&str; 4] = ["set", "get", "incr", "mset"];
const PIPELINES: [u64; 2] = [1, 16];

/// `cargo xtask measure server …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let flags = Flags::parse(arguments, &["requests", "keyspace", "disk"])?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    let default = root.join("target/measure").to_string_lossy().into_owned();
    let disk: String = flags.get("disk", default.clone(), default)?;
    let disk = Path::new(&disk).join(format!("disk-{}", std::process::id()));
    let bench = Bench {
        binaries,
        mount: Mount::make(root, &flags)?,
        disk: disk.clone(),
        requests: flags.get("requests", 200_000, 10_000)?,
        keyspace: flags.get("keyspace", 100_000, 10_000)?,
    };
    let title = "The server beside redis-server";
    let mut record = Record::begin(root, flags.out(root, "server"), title, flags.quick())?;
    let rounds = flags.rounds()?;
    std::fs::create_dir_all(&disk)?;
    record.note("tmpfs", bench.mount.described());
    record.note("disk", &format!("{} ({})", disk.display(), file_system(&disk)));
    record
        .note("rounds", &format!("{rounds}, servers alternating, each fresh; figures are medians"));
    record.note(
        "client",
        &format!(
            "redis-benchmark -c 50 -d 100 -r {}, {} requests at -P 1 and four times as many at -P 16, \
             half of that on the disk; MSET has 10 keys",
            bench.keyspace, bench.requests
        ),
    );
    let servers =
        "as by default: coreplane one event loop for each core but one, redis-server a single one";
    record.note("servers", servers);
    let mut results = Rounds::default();
    for round in 0..rounds {
        for at in 0..SERVERS.len() {
            let (name, on_disk) = SERVERS[(at + round) % SERVERS.len()];
            println!("round {}, {name}", round + 1);
            if let Err(why) = bench.turn(name, on_disk, round, &mut results, &mut record) {
                record.failed(name, &why);
            }
        }
    }
    std::fs::remove_dir_all(&disk)?;
    report(&mut record, &results);
    record.finish()
}

struct Bench {
    binaries: Binaries,
    mount: Mount,
    disk: PathBuf,
    requests: u64,
    keyspace: u64,
}

impl Bench {
    /// One server, fresh, through all tests.
    fn turn(
        &self,
        name: &str,
        on_disk: bool,
        round: usize,
        results: &mut Rounds,
        record: &mut Record,
    ) -> Outcome<()> {
        let server = self.start(name, on_disk)?;
        for pipeline in PIPELINES {
            for test in TESTS {
                let mut requests = self.requests * if pipeline > 1 { 4 } else { 1 };
                if on_disk {
                    requests /= 2;
                }
                if test == "mset" {
                    requests /= 5;
                }
                let before = child::processor_seconds(server.child.id())?;
                let (rate, p50, p99) = self.client(server.port, test, pipeline, requests)?;
                let used = child::processor_seconds(server.child.id())? - before;
                let cost = used * 1e6 / requests as f64;
                let what = |figure: &str| format!("{figure} {test} {pipeline}");
                results.add(&what("rate"), name, rate / 1e3);
                results.add(&what("p99"), name, p99);
                results.add(&what("cost"), name, cost);
                record.keep(&json!({
                    "server": name, "round": round, "test": test, "pipeline": pipeline,
                    "requests": requests, "requests_per_s": rate, "p50_ms": p50, "p99_ms": p99,
                    "server_cpu_us_per_command": cost,
                }))?;
            }
        }
        Ok(())
    }

    fn start(&self, name: &str, on_disk: bool) -> Outcome<ServerProcess> {
        let place = if on_disk {
            let place = self.disk.join("store");
            if place.is_dir() {
                std::fs::remove_dir_all(&place)?;
            }
            place
        } else {
            self.mount.fresh("store")?
        };
        std::fs::create_dir(&place)?;
        let port = free_port()?;
        let mut command = if name.starts_with("coreplane") {
            let mut command = Command::new(&self.binaries.coreplane);
            command.args(["serve", "--size", "1GiB", "--durability", "strict"]);
            command.arg("--pool").arg(place.join("pool"));
            command
        } else {
            let mut command = Command::new("redis-server");
            command.args(["--save", "", "--dir"]).arg(&place);
            let always = name.contains("always");
            command.args(["--appendonly", if always { "yes" } else { "no" }]);
            command.args(["--appendfsync", "always"]);
            command
        };
        command.args(["--port", &port.to_string()]);
        ServerProcess::start(&mut command, port, REDIS)
    }

    /// Requests a second, and milliseconds at 50 and 99 %.
    fn client(
        &self,
        port: u16,
        test: &str,
        pipeline: u64,
        requests: u64,
    ) -> Outcome<(f64, f64, f64)> {
        let mut command = child::limited("redis-benchmark", 300);
        command.args(["--csv", "-c", "50", "-d", "100", "-t", test]);
        for (option, value) in
            [("-p", u64::from(port)), ("-P", pipeline), ("-n", requests), ("-r", self.keyspace)]
        {
            command.args([option, &value.to_string()]);
        }
        let said = child::output(&mut command)?;
        parse(&said).ok_or_else(|| format!("redis-benchmark said {said:?}").into())
    }
}

/// `"SET","123456.00","0.3","0.1","0.3","0.4","0.5","1.2"`: test, rate, mean, least, 50 %, 95 %,
/// 99 %, most, below a line of headings.
fn parse(csv: &str) -> Option<(f64, f64, f64)> {
    let row = csv.lines().map(str::trim).rfind(|line| line.starts_with('"'))?;
    let cell = |at: usize| row.split("\",\"").nth(at)?.trim_matches('"').parse::<f64>().ok();
    Some((cell(1)?, cell(4)?, cell(6)?))
}

fn report(record: &mut Record, results: &Rounds) {
    let cells: Vec<(&str, u64)> = PIPELINES
        .into_iter()
        .flat_map(|pipeline| TESTS.into_iter().map(move |test| (test, pipeline)))
        .collect();
    let headings = |first: &str| {
        let rest =
            cells.iter().map(|(test, pipeline)| format!("{} -P {pipeline}", test.to_uppercase()));
        Table::new(std::iter::once(first.to_owned()).chain(rest))
    };
    let mut table = headings("requests a second, ratio");
    for (us, them) in [(0, 1), (0, 2), (3, 4)] {
        let (us, them) = (SERVERS[us].0, SERVERS[them].0);
        let ratio = cells.iter().map(|(test, pipeline)| {
            let what = format!("rate {test} {pipeline}");
            figure(results.ratio(&what, us, (&what, them)))
        });
        table.row(std::iter::once(format!("{us} / {them}")).chain(ratio));
    }
    record.section("Ratios", &table.finish());
    for (name, title) in [
        ("rate", "Thousands of requests a second"),
        ("p99", "99 % answered within, ms"),
        ("cost", "Server processor time a command, µs"),
    ] {
        let mut table = headings("");
        for (server, _) in SERVERS {
            let row = cells.iter().map(|(test, pipeline)| {
                figure(results.median(&format!("{name} {test} {pipeline}"), server))
            });
            table.row(std::iter::once(server.to_owned()).chain(row));
        }
        record.section(title, &table.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_of_a_benchmark_is_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                   \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"MSET (10 keys)\",\"5000.50\",\"9.1\",\"1.0\",\"8.5\",\"11.0\",\"12.5\",\"13.0\"\n";
        assert_eq!(parse(csv), Some((5000.5, 8.5, 12.5)));
        assert_eq!(parse("nothing"), None);
    }
}
