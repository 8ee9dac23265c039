//! `cargo xtask nightly`: all checks and tests, at full scale. It takes its time.
//!
//! It is a row of stages. If one fails, or cannot even start, the next ones run nevertheless, and the closing lines
//! are printed; a stage that was not requested is listed there as left out.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::clients::{Toolchains, clients};
use crate::sanitize::{self, Extent, Sanitizer};
use crate::tally::Tally;
use crate::{Outcome, cargo, check, fuzz, mutants, redis_suite, suite};
use coreplane_vm::Build;
use coreplane_vm::programs::{apt_install, have, quiet};

/// Tests read their scale from this variable: unset for a run that fits into a coffee break, `full` for all seeds,
/// rounds and crash images.
pub(crate) const SCALE: &str = "COREPLANE_TEST_SCALE";

/// The default time for fuzzing each target.
const FUZZING: Duration = Duration::from_secs(180);

const USAGE: &str = "usage: cargo xtask nightly [--fuzz-seconds N] [STAGE…]\n\
                     stages: check tests redis histories mutants thread address vm peers fuzz";

/// A part of the night.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Check,
    Tests,
    Redis,
    Histories,
    Mutants,
    Thread,
    Address,
    Machine,
    Peers,
    Fuzz,
}

/// All stages, in order: quick ones that find most come first.
const STAGES: [(&str, Stage); 10] = [
    ("check", Stage::Check),
    ("tests", Stage::Tests),
    ("redis", Stage::Redis),
    ("histories", Stage::Histories),
    ("mutants", Stage::Mutants),
    ("thread", Stage::Thread),
    ("address", Stage::Address),
    ("vm", Stage::Machine),
    ("peers", Stage::Peers),
    ("fuzz", Stage::Fuzz),
];

/// The stages and the time that were requested.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    stages: Vec<Stage>,
    fuzzing: Duration,
}

fn parse(arguments: &[String]) -> Outcome<Wanted> {
    let mut wanted = Wanted { stages: Vec::new(), fuzzing: FUZZING };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--fuzz-seconds" {
            let seconds = rest.next().and_then(|number| number.parse().ok());
            // To libFuzzer, 0 means no limit.
            wanted.fuzzing =
                seconds.filter(|number| *number > 0).map(Duration::from_secs).ok_or(USAGE)?;
        } else {
            let stage = STAGES.iter().find(|(name, _)| name == argument);
            wanted.stages.push(stage.ok_or_else(|| format!("nightly: {argument}?\n{USAGE}"))?.1);
        }
    }
    if wanted.stages.is_empty() {
        wanted.stages = STAGES.map(|(_, stage)| stage).to_vec();
    }
    Ok(wanted)
}

/// Runs the stages.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let wanted = parse(arguments)?;
    let mut tally = Tally::new();
    for (name, stage) in STAGES {
        if !wanted.stages.contains(&stage) {
            tally.leave_out(name, "not asked for");
        } else if let Err(why) = one(root, stage, wanted.fuzzing, &mut tally) {
            tally.count(name, Err(why));
        }
    }
    tally.close()
}

fn one(root: &Path, stage: Stage, fuzzing: Duration, tally: &mut Tally) -> Outcome<()> {
    match stage {
        Stage::Check => {
            check::run(root, tally);
            Ok(())
        }
        Stage::Tests => tests(root, tally),
        Stage::Redis => redis_suite::run(root, tally),
        Stage::Mutants => {
            mutants::run(root, &mutants::Extent::All, mutants::Baseline::Unknown, tally)
        }
        Stage::Thread => sanitize::run(root, Sanitizer::Thread, &Extent::full(), tally),
        Stage::Address => sanitize::run(root, Sanitizer::Address, &Extent::full(), tally),
        Stage::Machine => {
            suite::machine(root, &Build::RELEASE, tally);
            Ok(())
        }
        Stage::Peers => peers(root, tally),
        Stage::Histories => histories(root, tally),
        Stage::Fuzz => fuzz::run(root, fuzzing, tally),
    }
}

/// The workspace's tests at full scale, unless the caller's environment sets another scale: then the closing lines
/// say so.
fn tests(root: &Path, tally: &mut Tally) -> Outcome<()> {
    let clients = clients(root, Toolchains::Build, tally);
    let scale = std::env::var(SCALE).unwrap_or_else(|_| "full".to_owned());
    if scale != "full" {
        tally.leave_out("full scale", format!("the environment has {SCALE}={scale}"));
    }
    suite::workspace(root, &clients, Some(&scale), tally)
}

/// Histories of a cluster whose network is cut, judged by Porcupine too.
fn histories(root: &Path, tally: &mut Tally) -> Outcome<()> {
    tally.stage("histories, judged by Porcupine");
    let path = root.join("target/history.jsonl");
    let clients = clients(root, Toolchains::Build, tally);
    if clients.lacks("namespaces") {
        tally.leave_out("histories", "network namespaces are left out");
        return Ok(());
    }
    let go = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| have(go));
    let go = match go.map_or_else(|| apt_install(&["golang-go"]).map(|()| "go"), Ok) {
        Ok(go) => go,
        Err(why) => {
            tally.leave_out("histories: Go", why);
            return Ok(());
        }
    };
    let mut command = Command::new(cargo());
    command.args(["test", "-p", "coreplane-cli", "--test", "partitions"]);
    command.env(SCALE, "full").env("COREPLANE_HISTORY_FILE", &path).current_dir(root);
    tally.cargo_test("partitions", &mut command)?;
    let mut judge = Command::new(go);
    judge.args(["run", "."]).arg(&path).current_dir(root.join("bench-peers/porcupine"));
    tally.count("Porcupine", quiet(&mut judge));
    Ok(())
}

/// Runs the benchmark with other engines.
fn peers(root: &Path, tally: &mut Tally) -> Outcome<()> {
    tally.stage("peers");
    if let Err(why) = apt_install(&["librocksdb-dev", "libleveldb-dev"]) {
        tally.leave_out("peers: librocksdb-dev, libleveldb-dev", why);
        return Ok(());
    }
    let mut command = Command::new(cargo());
    command.args(["test", "--release", "-p", "coreplane-bench-peers"]).current_dir(root);
    tally.cargo_test("peers", &mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Option<Wanted> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words).ok()
    }

    #[test]
    fn arguments_are_read() {
        let all = parsed(&[]).unwrap();
        assert_eq!((all.stages.len(), all.fuzzing), (STAGES.len(), FUZZING));
        let two = parsed(&["fuzz", "--fuzz-seconds", "5", "vm"]).unwrap();
        assert_eq!(two.stages, [Stage::Fuzz, Stage::Machine]);
        assert_eq!(two.fuzzing, Duration::from_secs(5));
        for wrong in [&["--fuzz-seconds"][..], &["--fuzz-seconds", "0"], &["adress"], &["--all"]] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_usage_names_every_stage() {
        for (name, _) in STAGES {
            assert!(USAGE.contains(name) && crate::USAGE.contains(name), "{name}");
        }
    }
}
