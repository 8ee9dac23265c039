//! Coreplane on a DAX file system, through a power cut.
//!
//! The machine is emulated (QEMU's TCG, so that no KVM is needed) and its NVDIMM is a file of the host, which
//! outlives the machine as a real module outlives a power cut. The first boot makes the NVDIMM a DAX device, creates
//! a pool on it, serves it and puts it under load; QEMU is then killed in the middle of the writes. The second boot,
//! with another persistence domain, must find every acknowledged write.
//!
//! This shows that MAP_SYNC is detected, that the persistence domain is read, and that the pool and its recovery work
//! on the real path. It cannot show a missing flush, since the host's page cache keeps every store; the crash
//! simulator does that.
//!
//! `cargo xtask vm` runs it. [`programs`] installs the programs that it and xtask need and a machine lacks.
#![allow(clippy::print_stdout, reason = "it tells people what it does")]

mod archive;
mod image;
mod machine;
mod packages;
pub mod programs;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use machine::{Boot, Machine};

/// An answer or a reason, for people.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The directory of the machine's parts, in the workspace.
const PLACE: &str = "target/vm";
/// Acknowledged operations after which the plug may be pulled.
const ENOUGH: u64 = 20_000;
/// The longest time under load before the plug is pulled.
const DRIVING: Duration = Duration::from_secs(25);
/// A boot that takes longer than this is a failure.
const PATIENCE: Duration = Duration::from_secs(100);

/// How the run ended.
#[derive(Debug)]
pub enum Verdict {
    /// Everything acknowledged is there.
    Passed,
    /// The machine was not available, and why.
    Skipped(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => write!(out, "vm: passed"),
            Self::Skipped(why) => write!(
                out,
                "\n*** SKIPPED: the VM test of the DAX path did not run ***\n*** {why} ***\n"
            ),
        }
    }
}

/// A build of the programs for the machine.
#[derive(Debug, Clone, Copy)]
pub struct Build<'a> {
    /// Cargo's profile.
    pub profile: &'a str,
    /// Its directory below `target`.
    pub directory: &'a str,
    /// Cargo's arguments for packages and features: with those of earlier tests nothing is built a second time.
    pub arguments: &'a [&'a str],
}

impl Build<'static> {
    /// The programs that users run.
    pub const RELEASE: Self = Self {
        profile: "release",
        directory: "release",
        arguments: &["-p", "coreplane-cli", "-p", "coreplane-vm", "-p", "coreplane-pmem"],
    };
}

/// Builds the programs of the workspace at `root`, boots them, pulls the plug and checks. With `--probe` it tests
/// only the detection, without a server.
///
/// # Errors
///
/// An unknown argument, a failed build or boot, and reports that the machine should have made and has not.
pub fn run(root: &Path, build: &Build<'_>, arguments: &[String]) -> Outcome<Verdict> {
    if let Some(unknown) = arguments.iter().find(|argument| *argument != "--probe") {
        return Err(format!("vm: unknown argument {unknown}").into());
    }
    let place = root.join(PLACE);
    let kernel = match fetch(root)? {
        Ok(kernel) => kernel,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    let started = Instant::now();
    let initrd = image::build(root, &place, &kernel, build)?;
    println!("vm: image built in {:.1} s", started.elapsed().as_secs_f32());
    let nvdimm = image::format_nvdimm(&place)?;
    let bench = Bench { kernel: kernel.image, initrd, nvdimm };
    if arguments.is_empty() {
        bench.cut_and_recover()?;
    } else {
        bench.probe()?;
    }
    println!("vm: {:.1} s in all", started.elapsed().as_secs_f32());
    Ok(Verdict::Passed)
}

/// Installs and fetches the parts of the machine, which [`run`] does otherwise: beside other work, if called before.
///
/// # Errors
///
/// Those of the file system. A machine that is not available is none: [`run`] says why.
pub fn prepare(root: &Path) -> Outcome<()> {
    fetch(root).map(|_kernel| ())
}

fn fetch(root: &Path) -> Outcome<Result<packages::Kernel, String>> {
    let place = root.join(PLACE);
    std::fs::create_dir_all(&place)?;
    packages::prepare(&place)
}

/// The parts that the boots share.
struct Bench {
    kernel: PathBuf,
    initrd: PathBuf,
    nvdimm: PathBuf,
}

impl Bench {
    fn boot(&self, domain: &str, options: &str) -> Outcome<Machine> {
        Machine::boot(&Boot {
            kernel: &self.kernel,
            initrd: &self.initrd,
            nvdimm: &self.nvdimm,
            persistence: domain,
            options,
        })
    }

    fn probe(&self) -> Outcome<()> {
        let mut machine = self.boot("mem-ctrl", "coreplane.provision=1 coreplane.step=probe")?;
        let lines = machine.lines_until_end(PATIENCE)?;
        expect(&lines, "persistence-domain memory_controller")?;
        expect(&lines, "probe map_sync=ok")?;
        expect_probes(&lines)
    }

    fn cut_and_recover(&self) -> Outcome<()> {
        let mut machine = self.boot("mem-ctrl", "coreplane.provision=1 coreplane.step=write")?;
        let acknowledged = machine.drive(ENOUGH, DRIVING, PATIENCE)?;
        machine.kill()?;
        expect(machine.seen(), "persistence-domain memory_controller")?;
        expect(machine.seen(), "probe map_sync=ok")?;
        println!("vm: killed in mid-write; acknowledged {acknowledged:?}");
        let list: Vec<String> = acknowledged.iter().map(u64::to_string).collect();
        let options = format!("coreplane.step=check coreplane.acked={}", list.join(","));
        // With caches inside the persistence domain flushes are omitted, fences stay.
        let mut machine = self.boot("cpu", &options)?;
        let lines = machine.lines_until_end(PATIENCE)?;
        expect(&lines, "persistence-domain cpu_cache")?;
        expect_probes(&lines)?;
        expect_with(&lines, "checked operations=", " faults=0")
    }
}

/// The expected reports of `dax_probe` about a plain mapping and a mount without DAX.
fn expect_probes(lines: &[String]) -> Outcome<()> {
    expect(lines, "probe pool_power_safe=yes")?;
    expect(lines, "probe plain_mapping=refused")?;
    expect(lines, "probe map_sync_without_dax=refused")?;
    expect(lines, "probe dax_pool_without_dax=refused")
}

fn expect(lines: &[String], start: &str) -> Outcome<()> {
    expect_with(lines, start, "")
}

fn expect_with(lines: &[String], start: &str, end: &str) -> Outcome<()> {
    if lines.iter().any(|line| line.starts_with(start) && line.ends_with(end)) {
        return Ok(());
    }
    Err(format!("the machine never said \"{start}…{end}\"; it said:\n  {}", lines.join("\n  "))
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_not_said_is_missed() {
        let lines = vec!["checked operations=5 keys=1 faults=0".to_owned()];
        assert!(expect_with(&lines, "checked operations=", " faults=0").is_ok());
        assert!(expect(&lines, "persistence-domain cpu_cache").is_err());
        let lines = vec!["checked operations=5 keys=1 faults=10".to_owned()];
        assert!(expect_with(&lines, "checked operations=", " faults=0").is_err());
    }

    #[test]
    fn skipping_is_loud() {
        let said = Verdict::Skipped("no QEMU".to_owned()).to_string();
        assert!(said.contains("SKIPPED") && said.contains("no QEMU"));
    }
}
