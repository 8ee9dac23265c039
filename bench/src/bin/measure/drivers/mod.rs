//! `cargo xtask measure drivers`: the drivers of a disk beside each other, without client, file system or database.
//!
//! *Busy*: sources of four threads write as fast as it goes; each source is a device, whose writes go to the partition of its
//! queue set, whichever the driver. *Paced*: devices whose intervals differ write when they are due, on a medium that is slow
//! enough for it to matter which set has how much to do.

mod cell;
mod report;

use serde_json::Value;
use std::path::Path;

use super::flags::Flags;
use super::mount::Mount;
use super::record::Record;
use super::{Rounds, child};
use crate::Outcome;
use cell::Cell;

/// Queue sets, as in the paper.
const PARTITIONS: u32 = 4;

/// Profiles: DRAM; a DIMM for each partition; such a DIMM so slow that its bandwidth is all that counts.
const MEDIA: &str =
    "none,optane+channels=1+wait=yield,optane+channels=1+write-gbps=0.02+wait=yield";
const SLOW: &str = "optane+channels=1+write-gbps=0.02+wait=yield";

/// What is asked for.
struct Plan {
    drivers: Vec<String>,
    policies: Vec<String>,
    sources: Vec<u64>,
    lens: Vec<u64>,
    ms: u64,
    rounds: usize,
    paced_media: String,
    paced_rounds: usize,
    paced_ms: u64,
    demand: f64,
    skew: f64,
}

/// What is wanted, and where it lies.
struct Bench<'a> {
    plan: &'a Plan,
    mount: &'a Mount,
    record: &'a mut Record,
}

/// `measure drivers-cell JSON`: one cell, in a process that may be killed.
pub(super) fn run_cell(arguments: &[String]) -> Outcome<()> {
    let [cell] = arguments else {
        return Err("drivers-cell JSON".into());
    };
    let cell: Cell = serde_json::from_str(cell)?;
    println!("{}", cell.run()?);
    Ok(())
}

/// `cargo xtask measure drivers …`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let own = [
        "drivers",
        "policies",
        "sources",
        "lens",
        "media",
        "ms",
        "paced-media",
        "paced-rounds",
        "paced-ms",
        "demand",
        "skew",
    ];
    let flags = Flags::parse(arguments, &own)?;
    let media: Vec<String> = flags.list("media", MEDIA, MEDIA)?;
    let plan = Plan {
        drivers: flags.list("drivers", "multi,single,sync", "multi,single,sync")?,
        policies: flags.list("policies", "rate,paper,pid,hash", "rate,paper,pid,hash")?,
        sources: flags.list("sources", "1,2,3,4,5,6", "1,6")?,
        lens: flags.list("lens", "4096,256", "4096,256")?,
        ms: flags.get("ms", 1000, 200)?,
        rounds: flags.rounds()?,
        paced_media: flags.get("paced-media", SLOW.to_owned(), SLOW.to_owned())?,
        paced_rounds: flags.get("paced-rounds", 5, 1)?,
        paced_ms: flags.get("paced-ms", 3000, 500)?,
        demand: flags.get("demand", 60.0, 60.0)? / 100.0,
        skew: flags.get("skew", 100.0, 100.0)?,
    };

    let mount = Mount::make(root, &flags)?;
    let title = "The drivers of a disk";
    let mut record = Record::begin(root, flags.out(root, "drivers"), title, flags.quick())?;
    record.note("mount", mount.described());
    record.note(
        "load",
        &format!(
            "sources of {} threads by the library, each thread 2 MiB of its own; a disk of {PARTITIONS} partitions; \
             all that was written is read at the end and checked",
            cell::THREADS
        ),
    );
    record.note(
        "rounds",
        &format!(
            "{} of {} ms, drivers in turn; paced: {} of {} ms, policies in turn; figures are medians",
            plan.rounds, plan.ms, plan.paced_rounds, plan.paced_ms
        ),
    );
    let mut bench = Bench { plan: &plan, mount: &mount, record: &mut record };
    for media in &media {
        bench.busy(media)?;
    }
    if !plan.policies.is_empty() && plan.paced_rounds > 0 {
        bench.paced()?;
    }
    record.finish()
}

impl Bench<'_> {
    /// A cell in a process of its own; none if it failed, which is noted.
    fn cell(&mut self, cell: &Cell, round: usize, label: &str) -> Outcome<Option<Value>> {
        let mut command = child::limited(std::env::current_exe()?, 120 + cell.ms / 100);
        command.arg("drivers-cell").arg(serde_json::to_string(cell)?);
        match child::lines(&mut command) {
            Ok(lines) => {
                let mut line = lines.into_iter().next().ok_or("a cell that says nothing")?;
                line["round"] = round.into();
                self.record.keep(&line)?;
                Ok(Some(line))
            }
            Err(why) => {
                self.record.failed(label, &why);
                Ok(None)
            }
        }
    }

    fn new_cell(&self, media: &str, driver: &str, policy: &str) -> Outcome<Cell> {
        Ok(Cell {
            pool: self.mount.fresh("disk")?,
            media: media.replace('+', ","),
            driver: driver.to_owned(),
            policy: policy.to_owned(),
            partitions: PARTITIONS,
            sources: 1,
            len: 4096,
            ms: self.plan.ms,
            seed: 1,
            paced: None,
        })
    }

    fn busy(&mut self, media: &str) -> Outcome<()> {
        let plan = self.plan;
        let mut results = Rounds::default();
        for round in 0..plan.rounds {
            for &len in &plan.lens {
                for &sources in &plan.sources {
                    for turn in 0..plan.drivers.len() {
                        let driver = &plan.drivers[(turn + round) % plan.drivers.len()];
                        let label = format!("{media}, {len} bytes, {sources} sources, {driver}");
                        println!("{label}, round {}", round + 1);
                        let seed = round as u64 + 1;
                        let cell =
                            Cell { sources, len, seed, ..self.new_cell(media, driver, "rate")? };
                        if let Some(line) = self.cell(&cell, round, &label)? {
                            report::take(
                                &mut results,
                                &report::busy_cell(len, sources),
                                driver,
                                &line,
                            );
                        }
                    }
                }
            }
        }
        let heading = format!("Busy, each partition emulated:{}", media.replace('+', ","));
        self.record.section(&heading, &report::busy(&results, plan));
        Ok(())
    }

    /// What a queue set can do, first; then each policy with a share of four times that.
    fn paced(&mut self) -> Outcome<()> {
        let plan = self.plan;
        let media = plan.paced_media.clone();
        let busy = self.new_cell(&media, "multi", "rate")?;
        let Some(line) = self.cell(&busy, 0, "what one queue set can do")? else {
            return Ok(());
        };
        let alone = line["per_second"].as_f64().unwrap_or(f64::NAN);
        let rate = alone * f64::from(PARTITIONS) * plan.demand;
        let sources = *plan.sources.iter().max().unwrap_or(&6);
        let mut results = Rounds::default();
        for round in 0..plan.paced_rounds {
            for turn in 0..plan.policies.len() {
                let policy = &plan.policies[(turn + round) % plan.policies.len()];
                println!("paced, {policy}, round {}", round + 1);
                let cell = Cell {
                    sources,
                    ms: plan.paced_ms,
                    // The devices of a round come in the same order whatever the policy.
                    seed: round as u64 + 1,
                    paced: Some((rate, plan.skew)),
                    ..self.new_cell(&media, "multi", policy)?
                };
                if let Some(line) = self.cell(&cell, round, &format!("paced, {policy}"))? {
                    report::take(&mut results, report::PACED, policy, &line);
                }
            }
        }
        let heading = format!(
            "Paced: {} devices with intervals from 1 to {}, each partition emulated:{}",
            sources * cell::THREADS,
            plan.skew,
            media.replace('+', ",")
        );
        let text = report::paced(&results, plan, alone, rate);
        self.record.section(&heading, &text);
        Ok(())
    }
}
