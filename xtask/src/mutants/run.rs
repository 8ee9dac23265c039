//! One run of a suite, with a mistake or without.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::catalogue::Suite;
use crate::Outcome;
use crate::programs::{Program, Programs, wait};

/// Names the mistake for the process; `coreplane_pmem::mutant` reads it.
const VARIABLE: &str = "COREPLANE_MUTANT";

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// So many tests ran.
    Passed(u64),
    /// These failed.
    Failed(Vec<String>),
    /// The process ended in some other way.
    Died(String),
    /// It was stopped.
    Late,
}

/// A run.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) ended: Ended,
    pub(super) took: Duration,
}

impl Ran {
    /// For people.
    pub(super) fn line(&self) -> String {
        let seconds = self.took.as_secs_f64();
        match &self.ended {
            Ended::Passed(count) => format!("{count} passed in {seconds:.1} s"),
            Ended::Failed(tests) => format!("failed: {}", tests.join(", ")),
            Ended::Died(how) => how.clone(),
            Ended::Late => format!("stopped after {seconds:.0} s"),
        }
    }
}

/// The program that contains a suite.
pub(super) fn program_of<'a>(programs: &'a Programs, suite: &Suite) -> Outcome<&'a Program> {
    let program = programs.get(suite.package, suite.test);
    program.ok_or_else(|| format!("there is no test program {}", suite.name()).into())
}

/// Runs a suite.
pub(super) fn run(
    programs: &Programs,
    suite: &Suite,
    mutant: Option<&str>,
    limit: Duration,
) -> Outcome<Ran> {
    let program = program_of(programs, suite)?;
    let name = format!("{}-{}", mutant.unwrap_or("none"), suite.name().replace(['/', ' '], "-"));
    let path = std::env::temp_dir().join(format!("mutants-{}-{name}.log", std::process::id()));
    let log = File::create(&path)?;
    let mut command = Command::new(&program.path);
    command
        .args(suite.filters)
        .env_remove(VARIABLE)
        .envs(mutant.map(|name| (VARIABLE, name)))
        .env("RUST_BACKTRACE", "0")
        .current_dir(&program.directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Its child processes are stopped with it.
        .process_group(0);
    let started = Instant::now();
    let status = wait(command.spawn()?, limit)?;
    let took = started.elapsed();
    let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    fs::remove_file(&path)?;
    let ended = status.map_or(Ended::Late, |status| ended(status, &text));
    Ok(Ran { ended, took })
}

fn ended(status: ExitStatus, output: &str) -> Ended {
    let result = |line: &str, word: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(word)?;
        Some(name.trim_end().trim_end_matches(" - should panic").to_owned())
    };
    let failed: Vec<String> =
        output.lines().filter_map(|line| result(line, "... FAILED")).collect();
    if !failed.is_empty() {
        return Ended::Failed(failed);
    }
    if status.success() {
        return Ended::Passed(
            output.lines().filter(|line| result(line, "... ok").is_some()).count() as u64,
        );
    }
    let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    match status.signal() {
        Some(signal) => Ended::Died(format!("signal {signal} ({last})")),
        None => Ended::Died(format!("{status} ({last})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_failed_are_named() {
        let output = "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... FAILED\n";
        let failed = ExitStatus::from_raw(101 << 8);
        let names = vec!["c".to_owned(), "d".to_owned()];
        assert_eq!(ended(failed, output), Ended::Failed(names));
        let sound = ExitStatus::from_raw(0);
        assert_eq!(ended(sound, "test a::b ... ok\ntest c ... ok\n"), Ended::Passed(2));
        assert_eq!(ended(sound, "running 0 tests\n"), Ended::Passed(0));
        let died = ended(ExitStatus::from_raw(6), "test a ... ok\nassertion\n");
        assert_eq!(died, Ended::Died("signal 6 (assertion)".to_owned()));
    }
}
