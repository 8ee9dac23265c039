//! `cargo xtask`: the checks and long jobs of this workspace.
#![allow(clippy::print_stdout, reason = "a command for people: what it prints is its result")]

mod check;
mod clients;
mod examples;
mod first_steps;
mod fuzz;
mod groups;
mod measure;
mod mutants;
mod nightly;
mod programs;
mod redis_suite;
mod sanitize;
mod schedule;
mod suite;
mod tally;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use coreplane_vm::Build;
use coreplane_vm::programs::cargo;
use tally::Tally;

/// An answer or a reason, for people.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "\
cargo xtask COMMAND

  test [--quick]                        check, all tests, some mutants, reduced thread
                                        sanitizer, the VM;
                                        installs what it needs, says what it left out.
                                        --quick: the workspace's tests, examples and first steps
  check                                 fmt, clippy, doc, deny, typos, tidy
  first-steps [--bless]                 the commands of docs/first-steps.md, held against what the page says
  tidy [--bless | --rooms [CRATE…]]     the rules that no compiler checks (CONTRIBUTING.md);
                                        --bless updates their lists where the rules allow it;
                                        --rooms prints how large the crates with rooms are, and
                                        how many of their files import each other
  sanitize thread|address [--reduced | PACKAGE…]
                                        the engine's tests under a sanitizer;
                                        --reduced: stress tests, epochs and spin locks alone
  vm [--probe]                          the DAX path in a virtual machine, with its power cut;
                                        --probe: detection alone
  mutants [--handful | --list | NAME…]  makes the mistakes of the catalogue, one by one: those that the
                                        tests do not notice are failures; a name may be a beginning
  measure engines|figures|restart|server
                                        what it costs and how fast it is, beside floors and peers;
                                        `measure help` has the options
  nightly [--fuzz-seconds N] [STAGE…]   all of it, at full scale, and Redis's own tests, fuzzing and peers; or
                                        some of its stages: check tests redis histories mutants thread address
                                        vm peers fuzz
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match groups::end_with_this_process().and_then(|()| run(command, rest)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, rest: &[String]) -> Outcome<()> {
    let root = root();
    match command {
        "test" => suite::test(&root, rest),
        "nightly" => nightly::run(&root, rest),
        "check" => {
            let mut tally = Tally::new();
            check::run(&root, &mut tally);
            tally.close()
        }
        "first-steps" => {
            let left_out = first_steps::run(&root, rest, first_steps::Examples::ByCargo)?;
            left_out.iter().for_each(|(section, why)| println!("left out: {section}: {why}"));
            Ok(())
        }
        "tidy" => tidy::run(&root, rest),
        "sanitize" => {
            let (sanitizer, extent) = sanitize::parse(rest)?;
            let mut tally = Tally::new();
            sanitize::run(&root, sanitizer, &extent, &mut tally)?;
            tally.close()
        }
        "measure" => measure::run(&root, rest),
        "mutants" => mutants::command(&root, rest),
        "vm" => {
            let verdict = coreplane_vm::run(&root, &Build::RELEASE, rest)?;
            println!("{verdict}");
            Ok(())
        }
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such command: {command}\n{USAGE}").into()),
    }
}

/// The workspace's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}
