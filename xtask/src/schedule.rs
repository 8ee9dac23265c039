//! Test programs: first those that start clients or nodes with short deadlines of their own, one after the other; then
//! the others two at a time, those that mostly wait beside those that compute, and the longest first, so that both
//! threads end at about the same time.
//!
//! One after the other, as cargo runs them, they leave 30 % of two processors idle: tests wait for servers, for
//! deadlines and for the last test of their program.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::programs::{Program, Programs, wait};
use crate::tally::Counts;

/// The package whose programs start servers; they run alone, but for [`BESIDE`].
const SERVERS: &str = "coreplane-cli";

/// Programs of this package that may run beside others: nothing that they start has a deadline below a minute.
const BESIDE: [&str; 4] = ["blocks", "stores", "time_series_damage", "time_series_kills"];

/// Packages whose tests wait for servers or deadlines more than others, those that wait most first.
const WAITING: [&str; 6] = [
    SERVERS,
    "coreplane-bench",
    "coreplane-http",
    "coreplane-server",
    "coreplane-mkvs",
    "coreplane-replica",
];

/// The longest, by package and test: from half a minute on.
const LONGEST: [(&str, &str); 14] = [
    ("coreplane-mkvs", "conformance"),
    ("coreplane-mkvs", "matrix"),
    ("coreplane-mvcc", "crashes"),
    ("coreplane-replica", "world"),
    ("coreplane-bptree", "crashes"),
    ("coreplane-mvcc", "log"),
    (SERVERS, "blocks"),
    (SERVERS, "stores"),
    ("coreplane-scmkv", "crashes"),
    ("coreplane-mkvs", "crashes"),
    ("coreplane-scmkv", "repair"),
    ("coreplane-replica", "conformance"),
    ("coreplane-mkvs", "histories"),
    ("coreplane-mvcc", "conformance"),
];

/// A program that runs longer is stopped, and has failed: the longest takes three minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// A program that has ended.
struct Ran {
    output: String,
    /// None: it was stopped.
    is_success: Option<bool>,
    took: Duration,
}

/// Runs all programs, shows the output of each when it has ended, and counts its tests. `beside` is called when those
/// that run alone have ended.
pub(crate) fn run(
    programs: &Programs,
    environment: &[(&'static str, OsString)],
    beside: &mut dyn FnMut(),
) -> Counts {
    let counts = Mutex::new(Counts::default());
    let run_one = |(package, test, program): (&str, &str, &Program)| {
        let name = format!("{package} {test}");
        println!("{name} begins");
        let ran = one(program, environment, LIMIT);
        show(&name, ran, &mut lock(&counts));
    };
    let (alone, others): (Vec<_>, Vec<_>) =
        programs.iter().partition(|(package, test, _)| runs_alone(package, test));
    alone.into_iter().for_each(run_one);
    beside();
    let is_long =
        |(package, test, _): &(&str, &str, &Program)| LONGEST.contains(&(*package, *test));
    let (long, short): (Vec<_>, Vec<_>) = others.into_iter().partition(is_long);
    let left = Mutex::new([long, short].map(in_order));
    // One thread takes the first that is left, the other one the last.
    let next = |is_first: bool| {
        let mut left = lock(&left);
        left.iter_mut().find_map(|it| if is_first { it.pop_front() } else { it.pop_back() })
    };
    let work = |is_first: bool| {
        while let Some(program) = next(is_first) {
            run_one(program);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(true));
        work(false);
    });
    counts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Those that wait most come first.
fn in_order<'a>(
    mut programs: Vec<(&'a str, &'a str, &'a Program)>,
) -> VecDeque<(&'a str, &'a str, &'a Program)> {
    let rank = |package| WAITING.iter().position(|it| *it == package).unwrap_or(WAITING.len());
    programs.sort_by_key(|(package, ..)| rank(*package));
    programs.into()
}

fn runs_alone(package: &str, test: &str) -> bool {
    package == SERVERS && !BESIDE.contains(&test)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the output of a program, and counts its tests. A program that has ended otherwise than by a failed test is
/// a failure, too.
fn show(name: &str, ran: Outcome<Ran>, counts: &mut Counts) {
    let failed = counts.failed;
    match ran {
        Ok(ran) => {
            println!("\n{name}: {:.1} s", ran.took.as_secs_f64());
            print!("{}", ran.output);
            ran.output.lines().for_each(|line| counts.read(line));
            if ran.is_success.is_none() {
                println!("{name} was stopped after {} s", ran.took.as_secs());
            }
            if ran.is_success != Some(true) && counts.failed == failed {
                counts.failed += 1;
            }
        }
        Err(why) => {
            println!("\n{name}: {why}");
            counts.failed += 1;
        }
    }
    if counts.failed > failed {
        println!("FAILED: {name}");
        counts.failures.push(name.to_owned());
    }
}

/// Runs a program to its end, or to the limit.
fn one(
    program: &Program,
    environment: &[(&'static str, OsString)],
    limit: Duration,
) -> Outcome<Ran> {
    let log = tempfile::NamedTempFile::new()?;
    let started = Instant::now();
    let child = Command::new(&program.path)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&program.directory)
        .stdin(Stdio::null())
        .stdout(log.reopen()?)
        .stderr(log.reopen()?)
        // Its child processes are stopped with it.
        .process_group(0)
        .spawn()?;
    let status = wait(child, limit)?;
    let output = String::from_utf8_lossy(&std::fs::read(log.path())?).into_owned();
    Ok(Ran { output, is_success: status.map(|it| it.success()), took: started.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Written by another process: a file that this one has open for writing while it starts a program cannot be run.
    fn program(directory: &Path, name: &str, script: &str) -> Program {
        let path = directory.join(name);
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$2\"; chmod +x \"$2\"", "sh"]);
        assert!(shell.arg(script).arg(&path).status().unwrap().success());
        Program { path, directory: directory.to_owned() }
    }

    fn ran(directory: &Path, scripts: &[(&str, &str)]) -> (u64, u64) {
        let mut counts = Counts::default();
        for (name, script) in scripts {
            let program = program(directory, name, script);
            let limit = Duration::from_millis(if *name == "hangs" { 300 } else { 60_000 });
            show(name, one(&program, &[("WORD", "ok".into())], limit), &mut counts);
        }
        (counts.passed, counts.failed)
    }

    #[test]
    fn programs_are_counted_whether_they_count_their_tests_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let of = |scripts: &[(&str, &str)]| ran(directory.path(), scripts);
        let sound = "echo \"test result: $WORD. 2 passed; 0 failed; 0 ignored\"";
        assert_eq!(of(&[("sound", sound)]), (2, 0));
        let failed = "echo 'test result: FAILED. 1 passed; 3 failed; 0 ignored' >&2; exit 101";
        assert_eq!(of(&[("sound", sound), ("failed", failed)]), (3, 3));
        assert_eq!(of(&[("crash", "kill -9 $$")]), (0, 1), "a crash has no count");
        let crash = format!("{sound}\nexit 66");
        assert_eq!(of(&[("late", &crash)]), (2, 1), "a crash after the count is a failure");
        assert_eq!(of(&[("hangs", "sleep 60 & sleep 60")]), (0, 1));
        let gone =
            Program { path: directory.path().join("gone"), directory: directory.path().into() };
        let mut counts = Counts::default();
        show("gone", one(&gone, &[], LIMIT), &mut counts);
        assert_eq!(
            (counts.passed, counts.failed, counts.failures),
            (0, 1, vec!["gone".to_owned()])
        );
    }

    /// One that has another name by now would run alone.
    #[test]
    fn every_program_that_may_run_beside_others_is_there() {
        for name in BESIDE {
            assert!(is_program(SERVERS, name), "{name}");
        }
    }

    #[test]
    fn every_program_that_is_long_is_there() {
        for (package, name) in LONGEST {
            assert!(is_program(package, name), "{package} {name}");
        }
    }

    fn is_program(package: &str, name: &str) -> bool {
        let package = package.strip_prefix("coreplane-").unwrap();
        let tests =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(package).join("tests");
        tests.join(format!("{name}.rs")).is_file() || tests.join(name).join("main.rs").is_file()
    }

    #[test]
    fn each_program_runs_once_and_one_that_fails_hides_none() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let script = |status: u8| {
            format!(
                "echo x >> ran-$(basename $0)\necho 'test result: ok. 1 passed; 0 failed'\nexit {status}"
            )
        };
        let programs: Programs = [SERVERS, "coreplane-scmkv", "coreplane-mkvs"]
            .into_iter()
            .flat_map(|package| [(package, "a", 0), (package, "stores", 66)])
            .map(|(package, test, status)| {
                let name = (package.to_owned(), test.to_owned());
                (name, program(place, &format!("{package}-{test}"), &script(status)))
            })
            .collect();
        let mut ran_alone = 0;
        let counts = run(&programs, &[], &mut || {
            ran_alone = std::fs::read_dir(place).unwrap().count() - programs.iter().count();
        });
        assert_eq!(ran_alone, 1);
        assert_eq!((counts.passed, counts.failed, counts.failures.len()), (6, 3, 3));
        for (package, test, _) in programs.iter() {
            let marks = std::fs::read_to_string(place.join(format!("ran-{package}-{test}")));
            assert_eq!(marks.unwrap(), "x\n", "{package} {test}");
        }
    }
}
