//! Passed, failed and skipped checks: the closing lines of every long command.
//!
//! A check that could not run is neither a success nor silent: it is listed by name with its
//! reason, so that "everything passed" is never read out of a run that skipped half.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// The counts of test programs, read from their output.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Programs with failures.
    pub(crate) failures: Vec<String>,
    /// Tests that could not run: what and why.
    left_out: Vec<String>,
}

impl Counts {
    /// Counts a line of output. A test that cannot run in this environment writes `SKIPPED: what: why` to its
    /// standard output (by `writeln!`, since printed text is captured), and is listed as left out.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some((_, what)) = line.split_once("SKIPPED: ") {
            self.left_out.push(what.to_owned());
        }
        if let Some((good, bad)) = counts(line) {
            self.passed += good;
            self.failed += bad;
        }
    }
}

/// The counts of a run.
#[derive(Debug)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    failures: Vec<String>,
    left_out: Vec<String>,
    started: Instant,
}

impl Tally {
    /// No counts yet.
    pub(crate) fn new() -> Self {
        Self {
            passed: 0,
            failed: 0,
            failures: Vec::new(),
            left_out: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Announces a stage.
    pub(crate) fn stage(&self, name: &str) {
        let seconds = self.started.elapsed().as_secs();
        println!("\n=== {name} ({}:{:02}) ===", seconds / 60, seconds % 60);
    }

    /// Counts one check.
    pub(crate) fn count<E: Display>(&mut self, name: &str, outcome: Result<(), E>) {
        match outcome {
            Ok(()) => {
                println!("ok: {name}");
                self.passed += 1;
            }
            Err(why) => {
                println!("FAILED: {name}: {why}");
                self.failed += 1;
                self.failures.push(name.to_owned());
            }
        }
    }

    /// Counts one check that passed, which the caller has reported.
    pub(crate) fn count_quietly(&mut self) {
        self.passed += 1;
    }

    /// Notes a check that did not run, and why.
    pub(crate) fn leave_out(&mut self, name: &str, why: impl Display) {
        let why = ends(&why.to_string());
        println!("*** SKIPPED: {name}: {why} ***");
        self.left_out.push(format!("{name}: {why}"));
    }

    /// Runs `cargo test …`, shows its output, and counts its tests.
    pub(crate) fn cargo_test(&mut self, name: &str, command: &mut Command) -> Outcome<()> {
        let started = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("cargo has no output")?;
        let mut counts = Counts::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            counts.read(&line);
        }
        // A test that crashes its process, or code that does not compile, does not appear in a count.
        if !child.wait()?.success() && counts.failed == 0 {
            counts.failed = 1;
        }
        self.count_tests(name, counts, started.elapsed());
        Ok(())
    }

    /// Counts tests; if none ran, that is a failure.
    pub(crate) fn count_tests(&mut self, name: &str, counts: Counts, took: Duration) {
        let Counts { passed, failed, failures, left_out } = counts;
        let seconds = took.as_secs();
        println!(
            "{name}: {passed} passed, {failed} failed in {} min {} s",
            seconds / 60,
            seconds % 60
        );
        self.passed += passed;
        self.failed += failed;
        self.left_out.extend(left_out);
        if failed > 0 {
            self.failures.push(format!("{name} ({failed})"));
            self.failures.extend(failures.iter().map(|program| format!("{name}: {program}")));
        } else if passed == 0 {
            self.count(name, Err("not one test ran"));
        }
    }

    /// Adds the counts of a part that ran beside this one.
    pub(crate) fn add(&mut self, part: Self) {
        self.passed += part.passed;
        self.failed += part.failed;
        self.failures.extend(part.failures);
        self.left_out.extend(part.left_out);
    }

    /// True if anything has failed so far.
    pub(crate) fn has_failures(&self) -> bool {
        self.failed > 0
    }

    /// Prints the closing lines; an error if anything failed.
    pub(crate) fn close(&self) -> Outcome<()> {
        let seconds = self.started.elapsed().as_secs();
        println!("\nafter {} min {} s", seconds / 60, seconds % 60);
        if self.left_out.is_empty() {
            println!("left out: nothing");
        } else {
            println!("left out:");
            self.left_out.iter().for_each(|line| println!("  - {line}"));
        }
        if !self.failures.is_empty() {
            println!("failed:");
            self.failures.iter().for_each(|line| println!("  - {line}"));
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        match (self.passed, self.failed) {
            (0, 0) => Err("nothing ran".into()),
            (_, 0) => Ok(()),
            (_, count) => Err(format!("{count} failed").into()),
        }
    }
}

/// The first and the last line of the output of a program.
fn ends(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("").to_owned();
    lines.next_back().map_or(first.clone(), |last| format!("{first} {last}"))
}

/// Passed and failed out of `test result: ok. 3 passed; 0 failed; …`.
fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut parts = counts.split("; ");
    let mut number = |what: &str| parts.next()?.strip_suffix(what)?.trim().parse().ok();
    Some((number("passed")?, number("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_are_read() {
        let line = "test result: FAILED. 8 passed; 2 failed; 0 ignored; 0 measured; finished";
        assert_eq!(counts(line), Some((8, 2)));
        assert_eq!(counts("test result: ok"), None);
        assert_eq!(counts("running 3 tests"), None);
    }

    #[test]
    fn a_long_reason_is_cut_to_its_ends() {
        assert_eq!(ends("pip failed:\nretry\nno network"), "pip failed: no network");
        assert_eq!(ends("no QEMU"), "no QEMU");
    }

    #[test]
    fn a_crash_without_a_count_is_a_failure() {
        let mut tally = Tally::new();
        let script = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exit 66";
        tally.cargo_test("x", Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((tally.passed, tally.failed), (2, 1));
        assert!(tally.close().is_err());
    }

    #[test]
    fn tests_that_did_not_run_are_a_failure() {
        let mut tally = Tally::new();
        assert!(tally.close().is_err(), "nothing ran");
        let script = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored; 7 filtered out'";
        tally.cargo_test("x", Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (0, 1, 1));
        assert!(tally.close().is_err());
    }

    #[test]
    fn a_test_that_says_so_is_left_out() {
        let mut tally = Tally::new();
        let script =
            "echo 'test a ... SKIPPED: b: no c'; echo 'test result: ok. 1 passed; 0 failed'";
        tally.cargo_test("x", Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((tally.passed, tally.failed), (1, 0));
        assert_eq!(tally.left_out, ["b: no c"]);
    }

    #[test]
    fn what_was_left_out_is_no_failure_and_no_success() {
        let mut tally = Tally::new();
        tally.leave_out("a", "no tool");
        tally.count("b", Ok::<(), String>(()));
        assert_eq!((tally.passed, tally.failed), (1, 0));
        assert!(tally.close().is_ok());
        tally.count("c", Err("broken"));
        assert!(tally.close().is_err());
    }
}
