//! Runs the targets of `fuzz/`, each for a while. Inputs worth keeping stay from night to night in
//! `target/fuzz-corpus`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::tally::Tally;
use crate::{Outcome, cargo};
use coreplane_vm::programs::quiet;

/// Runs every target for `time`.
pub(crate) fn run(root: &Path, time: Duration, tally: &mut Tally) -> Outcome<()> {
    tally.stage("fuzzing");
    if !have_cargo_fuzz()
        && let Err(why) = install_cargo_fuzz()
    {
        tally.leave_out("fuzzing", why);
        return Ok(());
    }
    let list = fuzz(root, &["list"]).output()?;
    if !list.status.success() {
        return Err(String::from_utf8_lossy(&list.stderr).into());
    }
    let list = String::from_utf8_lossy(&list.stdout);
    if list.trim().is_empty() {
        return Err("there are no targets".into());
    }
    // In memory: the targets write a file for every input. They cannot clean up themselves.
    let place = PathBuf::from(format!("/dev/shm/coreplane-fuzz-{}", std::process::id()));
    std::fs::create_dir(&place)?;
    for target in list.lines() {
        let name = format!("fuzz {target}");
        tally.stage(&name);
        let outcome = one(root, target, time, &place);
        tally.count(&name, outcome.map(|inputs| println!("{name}: {inputs} inputs tried")));
    }
    Ok(std::fs::remove_dir_all(&place)?)
}

fn fuzz(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.arg("fuzz").args(arguments).env("RUSTC_BOOTSTRAP", "1").current_dir(root);
    command
}

/// The number of inputs that `target` has withstood.
fn one(root: &Path, target: &str, time: Duration, place: &Path) -> Outcome<u64> {
    let grown = root.join("target/fuzz-corpus").join(target);
    std::fs::create_dir_all(&grown)?;
    let mut command = fuzz(root, &["run", target]);
    // New inputs go into the first directory; the second one has the seeds that are kept.
    command.arg(&grown).arg(root.join("fuzz/seeds").join(target));
    command.args(["--", "-timeout=60", "-rss_limit_mb=4096", "-detect_leaks=0"]);
    command.arg(format!("-max_total_time={}", time.as_secs())).env("TMPDIR", place);
    watch(&mut command)
}

/// Shows the fuzzer's output, and reads from it the number of inputs tried. The fuzzer may succeed without having
/// tried any.
fn watch(command: &mut Command) -> Outcome<u64> {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let said = child.stderr.take().ok_or("the fuzzer has no output")?;
    let mut tried = None;
    for line in BufReader::new(said).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        tried = inputs(&line).or(tried);
    }
    let status = child.wait()?;
    match tried {
        _ if !status.success() => Err(status.to_string().into()),
        None | Some(0) => Err("it ended without having tried an input".into()),
        Some(inputs) => Ok(inputs),
    }
}

/// The number in `Done 123 runs in 4 second(s)`, the last line of libFuzzer.
fn inputs(line: &str) -> Option<u64> {
    line.strip_prefix("Done ")?.split_once(" runs in ")?.0.parse().ok()
}

/// `cargo install` puts it where cargo looks for its own subcommands, whether that is on the path or not.
fn have_cargo_fuzz() -> bool {
    quiet(Command::new(cargo()).args(["fuzz", "--version"])).is_ok()
}

fn install_cargo_fuzz() -> Outcome<()> {
    println!("installing by cargo: cargo-fuzz");
    quiet(Command::new(cargo()).args(["install", "--locked", "cargo-fuzz"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(script: &str) -> Outcome<u64> {
        watch(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn the_inputs_are_counted() {
        assert_eq!(ran("echo 'Done 12 runs in 3 second(s)' >&2").unwrap(), 12);
    }

    #[test]
    fn a_fuzzer_that_tried_nothing_has_failed() {
        assert!(ran("true").is_err());
        assert!(ran("echo 'Done 0 runs in 3 second(s)' >&2").is_err());
        assert!(ran("echo 'Done 12 runs in 3 second(s)' >&2; exit 77").is_err());
    }
}
