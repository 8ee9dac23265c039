//! `cargo xtask check`: all checks of the source that do not run it.
//!
//! The peers, which are no default members, are among it: nothing is linked, so that their foreign libraries need not
//! be installed.

use std::path::Path;
use std::process::Command;

use crate::tally::Tally;
use crate::{Outcome, cargo, tidy};
use coreplane_vm::programs::{have, quiet};

/// Runs every check; one that fails does not hide the next.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    tally.stage("check");
    if component(root, "fmt") {
        tally.count("fmt", run_cargo(root, &["fmt", "--all", "--check"], None));
    } else {
        tally.leave_out("fmt", "rustfmt is not installed");
    }
    if component(root, "clippy") {
        let arguments =
            ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
        tally.count("clippy", run_cargo(root, &arguments, None));
    } else {
        tally.leave_out("clippy", "clippy is not installed");
    }
    // As a newcomer builds it: with the features of its own dependencies alone.
    let arguments = ["check", "--quiet", "--package", "coreplane", "--examples"];
    tally.count("the library alone", run_cargo(root, &arguments, None));
    // The part with instructions, as for processors of no known kind. Apart, or everything would be compiled anew.
    let arguments =
        ["check", "--quiet", "--package", "coreplane-pmem", "--target-dir", "target/portable"];
    let unknown = Some(("RUSTFLAGS", "--cfg coreplane_portable -D warnings"));
    tally.count("any processor", run_cargo(root, &arguments, unknown));
    let arguments = ["doc", "--quiet", "--workspace", "--no-deps"];
    let deny = Some(("RUSTDOCFLAGS", "-D warnings"));
    tally.count("doc", run_cargo(root, &arguments, deny));
    if have("cargo-deny") {
        let arguments = ["deny", "--log-level", "error", "check", "licenses", "bans", "sources"];
        tally.count("deny", run_cargo(root, &arguments, None));
        advisories(root, tally);
    } else {
        tally.leave_out("deny", "cargo-deny is not installed");
    }
    if have("typos") {
        tally.count("typos", run_program(Command::new("typos").current_dir(root)));
    } else {
        tally.leave_out("typos", "typos is not installed");
    }
    tally.count("tidy", tidy::run(root, &[]));
}

/// Advisories come from a repository on the network; without it they are left out, not failed.
fn advisories(root: &Path, tally: &mut Tally) {
    let mut command = Command::new(cargo());
    command.args(["deny", "check", "advisories"]).current_dir(root);
    match quiet(&mut command) {
        Err(error) if error.to_string().contains("failed to fetch advisory database") => {
            tally.leave_out("deny advisories", "their database cannot be fetched");
        }
        outcome => tally.count("deny advisories", outcome),
    }
}

fn component(root: &Path, name: &str) -> bool {
    let mut command = Command::new(cargo());
    command.args([name, "--version"]).current_dir(root);
    command.output().is_ok_and(|output| output.status.success())
}

fn run_cargo(root: &Path, arguments: &[&str], variable: Option<(&str, &str)>) -> Outcome<()> {
    let mut command = Command::new(cargo());
    command.args(arguments).envs(variable).current_dir(root);
    run_program(&mut command)
}

fn run_program(command: &mut Command) -> Outcome<()> {
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    Err(status.to_string().into())
}
