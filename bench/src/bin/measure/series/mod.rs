//! `cargo xtask measure series`: the time-series store by the library, without HTTP: what `bench-peers/series/measure.py` has
//! beside others.

mod cell;
mod report;
mod walk;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::{Rounds, child};
use crate::Outcome;
use cell::{Cell, Part};
use walk::Kind;

const PARTS: &str = "single,batch,space,series,reopen";

/// What is asked for.
struct Plan {
    parts: Vec<String>,
    threads: Vec<u64>,
    sets: u32,
    /// MiB of a set's pool.
    size: u64,
    media: String,
    devices: u64,
    points: u64,
    reopen_points: u64,
    series: u64,
    ms: u64,
    seed: u64,
    rounds: usize,
}

/// A place for stores, and what it is called.
struct Place {
    name: &'static str,
    directory: PathBuf,
}

/// What is wanted, and where it goes.
struct Bench<'a> {
    plan: &'a Plan,
    record: &'a mut Record,
    results: Rounds,
}

/// `measure series-cell JSON`: one part, in a process of its own.
pub(super) fn run_cell(arguments: &[String]) -> Outcome<()> {
    let [cell] = arguments else {
        return Err("series-cell JSON".into());
    };
    let cell: Cell = serde_json::from_str(cell)?;
    println!("{}", cell.run()?);
    Ok(())
}

/// `cargo xtask measure series …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own = [
        "parts",
        "threads",
        "sets",
        "size",
        "media",
        "devices",
        "points",
        "reopen-points",
        "series",
        "ms",
        "seed",
        "disk",
    ];
    let flags = Flags::parse(arguments, &own)?;
    let media = "auto".to_owned();
    let plan = Plan {
        parts: flags.list("parts", PARTS, PARTS)?,
        threads: flags.list("threads", "1,4", "1,4")?,
        sets: flags.get("sets", 4, 4)?,
        size: flags.get("size", 2048, 512)?,
        media: flags.get("media", media.clone(), media)?,
        devices: flags.get("devices", 1000, 1000)?,
        points: flags.get("points", 10_000_000, 1_000_000)?,
        reopen_points: flags.get("reopen-points", 100_000_000, 2_000_000)?,
        series: flags.get("series", 1_000_000, 20_000)?,
        ms: flags.get("ms", 5000, 500)?,
        seed: flags.get("seed", 1, 1)?,
        rounds: flags.rounds()?,
    };
    let mount = Mount::make(root, &flags)?;
    let disk: PathBuf =
        flags.get("disk", root.join("target/measure"), root.join("target/measure"))?;
    let mut record =
        Record::begin(root, flags.out(root, "series"), "The time-series store", flags.quick())?;
    record.note("memory", mount.described());
    record.note("disk", &format!("{} ({})", disk.display(), super::mount::file_system(&disk)));
    record.note(
        "store",
        &format!("{} queue sets of {} MiB, --media {}", plan.sets, plan.size, plan.media),
    );
    record.note(
        "load",
        &format!(
            "{} devices with ten fields, TSBS's tags; random walks, seed {}; a point is one value of one field; what was \
             written is counted by a query at the end of each part",
            plan.devices, plan.seed
        ),
    );
    record.note("rounds", &format!("{}; figures are medians", plan.rounds));
    let place = format!("coreplane-series-{}", std::process::id());
    let places = [
        Place { name: "memory", directory: mount.fresh("series")? },
        Place { name: "disk", directory: disk.join(place) },
    ];
    let mut bench = Bench { plan: &plan, record: &mut record, results: Rounds::default() };
    for round in 0..plan.rounds {
        for place in &places {
            bench.round(round, place)?;
        }
    }
    let results = bench.results;
    report::sections(&mut record, &results, &plan);
    record.finish()
}

fn removed(directory: &Path) -> Outcome<()> {
    if directory.exists() {
        std::fs::remove_dir_all(directory)?;
    }
    Ok(())
}

impl Bench<'_> {
    fn round(&mut self, round: usize, place: &Place) -> Outcome<()> {
        let plan = self.plan;
        let has = |part: &str| plan.parts.iter().any(|it| it == part);
        let is_memory = place.name == "memory";
        for &threads in &plan.threads {
            if has("single") {
                self.part(round, place, Part::Single, threads)?;
            }
            if has("batch") {
                self.part(round, place, Part::Batch { is_sorted: true }, threads)?;
                if is_memory {
                    self.part(round, place, Part::Batch { is_sorted: false }, threads)?;
                }
            }
        }
        if has("space") && is_memory {
            self.part(round, place, Part::Space(Kind::Integers), 1)?;
            self.part(round, place, Part::Space(Kind::Decimals), 1)?;
        }
        if has("series") && is_memory {
            for has_two_tags in [false, true] {
                self.part(round, place, Part::Series { has_two_tags }, 1)?;
            }
        }
        if has("reopen") && is_memory {
            self.reopen(round, place)?;
        }
        Ok(())
    }

    fn new_cell(&self, place: &Place, part: Part, threads: u64) -> Cell {
        let plan = self.plan;
        Cell {
            directory: place.directory.clone(),
            media: plan.media.clone(),
            sets: plan.sets,
            size: plan.size << 20,
            seed: plan.seed,
            devices: if matches!(part, Part::Series { .. }) { plan.series } else { plan.devices },
            threads,
            points: plan.points,
            ms: plan.ms,
            part,
        }
    }

    /// A part on an empty directory; nothing is left there.
    fn part(&mut self, round: usize, place: &Place, part: Part, threads: u64) -> Outcome<()> {
        removed(&place.directory)?;
        let cell = self.new_cell(place, part, threads);
        self.cell(round, place, &cell)?;
        removed(&place.directory)
    }

    /// A store is filled and left open, and another process opens it.
    fn reopen(&mut self, round: usize, place: &Place) -> Outcome<()> {
        removed(&place.directory)?;
        let points = self.plan.reopen_points;
        let fill = Cell { points, ..self.new_cell(place, Part::Fill, 1) };
        if let Some(line) = self.cell(round, place, &fill)? {
            let sum = line["sum"].as_i64().ok_or("a sum is missing")?;
            let since = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
            let part = Part::Reopen { since: u64::try_from(since)?, sum };
            self.cell(round, place, &Cell { part, ..fill })?;
        }
        removed(&place.directory)
    }

    /// A part in a process of its own; none if it failed, which is noted.
    fn cell(&mut self, round: usize, place: &Place, cell: &Cell) -> Outcome<Option<Value>> {
        let label = format!("{}, {}", place.name, report::label(cell));
        println!("{label}, round {}", round + 1);
        let limit = 300 + (cell.points + cell.devices) / 50_000;
        let mut command = child::limited(std::env::current_exe()?, limit);
        command.arg("series-cell").arg(serde_json::to_string(cell)?);
        match child::lines(&mut command) {
            Ok(lines) => {
                let mut line = lines.into_iter().next().ok_or("a part that says nothing")?;
                line["round"] = round.into();
                line["place"] = place.name.into();
                self.record.keep(&line)?;
                report::take(&mut self.results, &label, &line);
                Ok(Some(line))
            }
            Err(why) => {
                self.record.failed(&label, &why);
                Ok(None)
            }
        }
    }
}
