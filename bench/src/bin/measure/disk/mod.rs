//! `cargo xtask measure disk`: a disk behind NBD beside `nbdkit`, a loop device, and the floor.
//!
//! ```text
//!   load (threads of this process) ─▶ Unix socket ─▶ coreplane nbd serve, nbdkit, floor
//!                                  └▶ O_DIRECT ─▶ loop device ─▶ file on the same file system
//! ```
//!
//! Sectors of 4 KiB at random, one client for all servers, and each sector that is read is held against what was written
//! to it last ([`sector`](crate::sector)). In memory a write of ours is flushed and fenced before it is answered, which nbdkit's is not;
//! on a disk each write is durable when it is answered, whoever answers (FUA, `O_DSYNC`).

mod client;
mod contender;
mod floor;
mod load;
mod report;
mod wire;

use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::flags::Flags;
use super::mount::{Mount, file_system};
use super::record::Record;
use super::sector::{SECTOR, Sectors};
use super::{Binaries, Rounds, child};
use crate::Outcome;
use contender::{Contender, Medium, Placing};
use load::{Load, Work};

/// What is asked for.
struct Plan {
    coreplane: PathBuf,
    len: u64,
    time: Duration,
    connections: Vec<usize>,
    depths: Vec<usize>,
    placing: Placing,
}

/// `measure floor-disk SOCKET BYTES`: the floor's process.
pub(super) fn serve_floor(arguments: &[String]) -> Outcome<()> {
    let [socket, len] = arguments else {
        return Err("floor-disk SOCKET BYTES".into());
    };
    floor::serve(Path::new(socket), len.parse()?)
}

/// `cargo xtask measure disk …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own =
        ["contenders", "disk", "disk-contenders", "size", "ms", "connections", "depths", "placing"];
    let flags = Flags::parse(arguments, &own)?;
    let memory: Vec<String> = flags.list(
        "contenders",
        "floor,coreplane,nbdkit,nbdkit+malloc,loop",
        "floor,coreplane,nbdkit,nbdkit+malloc,loop",
    )?;
    let file: Vec<String> =
        flags.list("disk-contenders", "coreplane,nbdkit,loop", "coreplane,nbdkit,loop")?;
    let rounds = flags.rounds()?;
    let binaries = Binaries::prepare(root, !flags.has("no-build"), false)?;
    contender::detach_stale(&root.join("target/measure"))?;
    let plan = Plan {
        coreplane: binaries.coreplane,
        len: flags.get("size", 256_u64, 64)? << 20,
        time: Duration::from_millis(flags.get("ms", 2000, 200)?),
        connections: flags.list("connections", "1,4", "1,4")?,
        depths: flags.list("depths", "1,16", "1,16")?,
        placing: flags.get("placing", Placing::Free, Placing::Free)?,
    };
    let mount = Mount::make(root, &flags)?;
    let here = root.join("target/measure").to_string_lossy().into_owned();
    let disk: String = flags.get("disk", here.clone(), here)?;
    let disk = Path::new(&disk).join("disk-files");
    let title = "A disk behind NBD";
    let mut record = Record::begin(root, flags.out(root, "disk"), title, flags.quick())?;
    record.note("mount", mount.described());
    record.note("rounds", &format!("{rounds}, contenders alternating; figures are medians"));
    record.note(
        "load",
        &format!(
            "{} MiB, sectors of 4 KiB at random, {} ms a cell; all that is read is checked, and all sectors at the end",
            plan.len >> 20,
            plan.time.as_millis()
        ),
    );
    record.note(
        "placing",
        match plan.placing {
            Placing::Free => "servers and clients where the kernel puts them",
            Placing::Apart(_) => "servers on the last processor, clients on the others",
            Placing::Together(_) => "servers and clients on the last processor",
        },
    );
    plan.placing.place_clients()?;
    let mut in_memory = || mount.fresh("disk");
    all_rounds(&plan, Medium::Memory, &memory, rounds, &mut record, &mut in_memory)?;
    let mut on_disk = || Ok(disk.clone());
    all_rounds(&plan, Medium::File, &file, rounds, &mut record, &mut on_disk)?;
    record.finish()
}

/// Contenders in turn, round after round, each in a place that is empty.
fn all_rounds(
    plan: &Plan,
    medium: Medium,
    names: &[String],
    rounds: usize,
    record: &mut Record,
    place: &mut dyn FnMut() -> Outcome<PathBuf>,
) -> Outcome<()> {
    if names.is_empty() {
        return Ok(());
    }
    let (mut results, mut kind) = (Rounds::default(), String::new());
    for round in 0..rounds {
        for turn in 0..names.len() {
            let name = &names[(turn + round) % names.len()];
            let label = format!("{medium:?}, {name}, round {}", round + 1);
            println!("{label}");
            let place = place()?;
            if place.exists() {
                // A killed run's.
                std::fs::remove_dir_all(&place)?;
            }
            std::fs::create_dir_all(&place)?;
            kind = file_system(&place);
            let ran = drive(plan, name, medium, &place, round, &mut results, record);
            std::fs::remove_dir_all(&place)?;
            if let Err(why) = ran {
                record.failed(&label, &why);
            }
        }
    }
    let heading = match medium {
        Medium::Memory => format!("In memory ({kind})"),
        Medium::File => format!("In files on a disk ({kind}), each write durable"),
    };
    record.section(&heading, &report::text(&results, plan, names, medium));
    Ok(())
}

/// All cells of a contender in a round.
fn drive(
    plan: &Plan,
    name: &str,
    medium: Medium,
    place: &Path,
    round: usize,
    results: &mut Rounds,
    record: &mut Record,
) -> Outcome<()> {
    let contender = Contender::start(&plan.coreplane, name, medium, plan.placing, place, plan.len)?;
    let sectors = Sectors::new(plan.len / SECTOR as u64);
    let (time, seed) = (plan.time, round as u64 + 1);
    let all = Load { work: Work::Fill, connections: 1, depth: 16, time, fua: false, seed };
    load::run(&contender.access, &all, &sectors)?;
    for &connections in &plan.connections {
        for &depth in &plan.depths {
            for work in [Work::Write, Work::Read] {
                let fua = medium == Medium::File;
                let load = Load { work, connections, depth, fua, ..all };
                let before = (contender.processor_seconds(), own_seconds());
                let done = load::run(&contender.access, &load, &sectors)?;
                let count = done.times.len() as f64;
                let used = |after: Option<f64>, before: Option<f64>| {
                    Some((after? - before?) * 1e6 / count)
                };
                let server = used(contender.processor_seconds(), before.0);
                let client = used(own_seconds(), before.1);
                let micros = |at: f64| done.times.value_at_quantile(at) as f64 / 1e3;
                let (p50, p99, mean) = (micros(0.5), micros(0.99), done.times.mean() / 1e3);
                let what = report::cell(work, connections, depth);
                for (column, found) in [
                    ("per_second", Some(done.per_second)),
                    ("p50_us", Some(p50)),
                    ("p99_us", Some(p99)),
                    ("server_us", server),
                    ("client_us", client),
                ] {
                    if let Some(found) = found {
                        results.add(&format!("{what} {column}"), name, found);
                    }
                }
                record.keep(&json!({
                    "medium": format!("{medium:?}"), "contender": name, "round": round, "work": format!("{work:?}"),
                    "connections": connections, "depth": depth, "operations": done.times.len(),
                    "per_second": done.per_second, "mean_us": mean, "p50_us": p50, "p99_us": p99,
                    "server_processor_us": server, "client_processor_us": client,
                }))?;
            }
        }
    }
    load::run(&contender.access, &Load { work: Work::Verify, ..all }, &sectors)?;
    Ok(())
}

/// Processor time of this process, which is the client.
fn own_seconds() -> Option<f64> {
    child::processor_seconds(std::process::id()).ok()
}
