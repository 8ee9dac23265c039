//! `cargo xtask first-steps`: types the commands of `docs/first-steps.md` as a newcomer would, and compares their
//! answers with the page.
//!
//! A command that fails, or whose answer differs from the page, is a failure. `--bless` writes the answers into the
//! page instead; parts that may differ from run to run must then be replaced by `…` by hand. Each run has its own
//! ports and directory, which are translated to those of the page. A section whose clients are not installed is left
//! out.

mod page;
mod shell;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use coreplane_vm::programs::have;

use crate::{Outcome, cargo, programs};
use page::{Section, Step, is_answer, sections, with_answers};
use shell::Shell;

const PAGE: &str = "docs/first-steps.md";
/// The directory of the pools in the page.
const PLACE: &str = "/dev/shm/first-steps";
/// Programs that may be missing on a machine.
const CLIENTS: [&str; 4] = ["redis-cli", "nbdinfo", "nbdcopy", "curl"];
/// The texts before a port in the page, whose ports have four digits.
const BEFORE_PORTS: [&str; 3] = ["port ", "-p ", "127.0.0.1:"];

/// For a build of the page: as the tests are built (`profile.test` of the workspace), so that little is built again.
const LIKE_TESTS: (&str, &str) = ("CARGO_PROFILE_DEV_OPT_LEVEL", "2");

/// A program of the page that cargo builds and runs, and where the tests have built it.
const EXAMPLE: (&str, &str) =
    ("cargo run --quiet --package coreplane --example visits --", "target/debug/examples/visits");

/// The example programs of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Examples {
    /// The command is run as it stands, and builds the program.
    ByCargo,
    /// The program that the tests have built is run.
    Built,
}

/// `cargo xtask first-steps [--bless]`: the sections that were left out, and why.
pub(crate) fn run(
    root: &Path,
    arguments: &[String],
    examples: Examples,
) -> Outcome<Vec<(String, String)>> {
    let is_blessed = match arguments {
        [] => false,
        [only] if only == "--bless" => true,
        _ => return Err("first-steps takes no argument but --bless".into()),
    };
    let text = std::fs::read_to_string(root.join(PAGE))?;
    let (mut left_out, mut faults, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    if examples == Examples::Built && !text.contains(EXAMPLE.0) {
        return Err(format!("{PAGE} does not have the command {}", EXAMPLE.0).into());
    }
    let program = build(root)?;
    let programs = program.parent().ok_or("a program without a directory")?;
    let place = Place::new(examples)?;
    for section in sections(&text)? {
        if let Some(client) = missing(&section) {
            left_out.push((section.title, format!("there is no {client} here")));
            continue;
        }
        println!("{}", section.title);
        let mut shell = Shell::start(root, programs, LIKE_TESTS)?;
        for step in section.steps {
            let (answer, code) = place.run(&mut shell, &step.command)?;
            if code != 0 || !is_answer(&step.answer, &answer) {
                faults.push(fault(&step, &answer, code));
            }
            if code != 0 {
                // The later steps need this one.
                break;
            }
            if !is_answer(&step.answer, &answer) {
                answers.push((step.lines, answer));
            }
        }
    }
    if is_blessed && !answers.is_empty() {
        std::fs::write(root.join(PAGE), with_answers(&text, &answers))?;
    }
    if faults.is_empty() { Ok(left_out) } else { Err(faults.join("\n").into()) }
}

/// Builds the command; reuses the tests' build, if there is one. Its path.
fn build(root: &Path) -> Outcome<PathBuf> {
    let mut build = Command::new(cargo());
    // Another profile with the same settings would do, but not with those that a variable gives one of them alone.
    build.args(["build", "--profile", "test"]).args(programs::selection());
    // With the examples, which have the features of the tests' dependencies: otherwise most of it is built again.
    build.args(["--bin", "coreplane", "--examples"]).current_dir(root);
    programs::binary(&mut build, "coreplane")
}

/// A missing client that this section needs.
fn missing(section: &Section) -> Option<&'static str> {
    let needs = |client: &str| {
        section.steps.iter().any(|step| step.command.split_whitespace().any(|word| word == client))
    };
    CLIENTS.into_iter().find(|client| needs(client) && !have(client))
}

fn fault(step: &Step, answer: &[String], code: i32) -> String {
    let [expected, said] = [&step.answer[..], answer].map(|lines| lines.join("\n    "));
    format!(
        "$ {}\n  exit code {code}\n  expected:\n    {expected}\n  said:\n    {said}",
        step.command
    )
}

/// The directory and the ports of a run.
struct Place {
    directory: PathBuf,
    /// The digit before each port.
    digit: char,
    examples: Examples,
}

impl Place {
    fn new(examples: Examples) -> Outcome<Self> {
        let directory = PathBuf::from(format!("{PLACE}-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let text = std::fs::read_to_string(crate::root().join(PAGE))?;
        let ports = ports(&text);
        // Below the range of ephemeral ports.
        let is_free = |digit: &char| {
            let mut all = ports.iter().map(|port| format!("127.0.0.1:{digit}{port}"));
            all.all(|address| TcpListener::bind(address).is_ok())
        };
        let digit = ['1', '2'].into_iter().find(is_free);
        Ok(Self { directory, digit: digit.ok_or("the ports are taken")?, examples })
    }

    /// Runs a command of the page; its answer in the terms of the page.
    fn run(&self, shell: &mut Shell, command: &str) -> Outcome<(Vec<String>, i32)> {
        let directory = self.directory.display().to_string();
        let mut own = command.replace(PLACE, &directory);
        if self.examples == Examples::Built {
            own = own.replace(EXAMPLE.0, EXAMPLE.1);
        }
        for before in BEFORE_PORTS {
            own = own.replace(before, &format!("{before}{}", self.digit));
        }
        let (answer, code) = shell.run(&own).map_err(|error| format!("$ {command}: {error}"))?;
        let as_in_page = |line: String| {
            let line = line.replace(&directory, PLACE);
            line.replace(&format!("127.0.0.1:{}", self.digit), "127.0.0.1:")
        };
        Ok((answer.into_iter().map(as_in_page).collect(), code))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.directory);
    }
}

/// The ports that a page names.
fn ports(page: &str) -> Vec<&str> {
    let behind = |before| page.split(before).skip(1).filter_map(|rest| rest.get(..4));
    let is_port = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    BEFORE_PORTS.into_iter().flat_map(behind).filter(is_port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_and_programs_missed() {
        let page = "## A\n```console\n$ x --port 7000 | y -p 7001\nready on 127.0.0.1:7002\n$ y -p $it\n```\n";
        assert_eq!(ports(page), ["7000", "7001", "7002"]);
        let page = "## A\n```console\n$ echo redis-client\n```\n";
        assert_eq!(missing(&sections(page).unwrap()[0]), None);
    }
}
