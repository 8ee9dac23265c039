//! `cargo xtask`: the checks and long jobs of this workspace.
#![allow(clippy::print_stdout, reason = "a command for people: what it prints is its result")]

mod install;
mod tidy;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// An answer or a reason, for people.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "\
cargo xtask COMMAND

  tidy [--bless]                the rules that no compiler checks
  vm [--probe]                  the DAX path in a virtual machine, with its power cut
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let root = root();
    let outcome = match command.as_str() {
        "vm" => vm::run(&root, rest).map(|verdict| println!("{verdict}")),
        "tidy" => tidy::run(&root, rest),
        "help" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such command: {command}\n{USAGE}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// The cargo that runs this command, or the one on the path.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
