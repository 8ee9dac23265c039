//! `cargo xtask sanitize thread|address [--reduced]`: the tests of the engine under a sanitizer.
//!
//! The sanitizers ship with the stable toolchain and need only `RUSTC_BOOTSTRAP=1` to be switched
//! on. The standard library is not instrumented, unless its source is installed (`rustup component
//! add rust-src`) and it is built anew. The address sanitizer does not mind. To the thread
//! sanitizer an uninstrumented hand-over looks like a race: those of the test runner and of `Arc`
//! are named in `xtask/tsan.supp`, but the end of a `thread::scope` cannot be told from a true
//! one. So without the source the thread sanitizer runs the kernels alone, whose tests join their
//! threads by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tally::Tally;
use crate::{Outcome, cargo};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Parts of the engine whose threads share memory without locks: a package, and which of its tests
/// have truly concurrent threads. The loom tests are left out: they run one thread at a time on
/// stacks of their own, where the sanitizer finds nothing and takes minutes.
const KERNELS: [(&str, &[&str]); 2] = [
    ("coreplane-pmem", &["--lib", "--", "epoch::tests", "spin::tests"]),
    ("coreplane-scmkv", &["--test", "stress"]),
];

/// Everything that a sanitizer looks at in a full run.
const PACKAGES: [&str; 4] =
    ["coreplane-engine", "coreplane-pmem", "coreplane-scmkv", "coreplane-server"];

/// A sanitizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sanitizer {
    /// Races.
    Thread,
    /// Reads and writes out of bounds, and after the free.
    Address,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Address => "address",
        }
    }

    fn runtime(self) -> &'static str {
        match self {
            Self::Thread => "_rt.tsan.a",
            Self::Address => "_rt.asan.a",
        }
    }

    fn flags(self) -> &'static str {
        match self {
            Self::Thread => "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
            Self::Address => "-Zsanitizer=address",
        }
    }
}

/// Reads the command's arguments.
pub(crate) fn parse(arguments: &[String]) -> Outcome<(Sanitizer, bool)> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["thread"] => Ok((Sanitizer::Thread, false)),
        ["thread", "--reduced"] => Ok((Sanitizer::Thread, true)),
        ["address"] => Ok((Sanitizer::Address, false)),
        ["address", "--reduced"] => Ok((Sanitizer::Address, true)),
        _ => Err("usage: cargo xtask sanitize thread|address [--reduced]".into()),
    }
}

/// Runs the tests: of the kernels alone if `reduced`.
pub(crate) fn run(
    root: &Path,
    sanitizer: Sanitizer,
    reduced: bool,
    tally: &mut Tally,
) -> Outcome<()> {
    let name = format!("{} sanitizer", sanitizer.name());
    tally.stage(&name);
    let libraries = match libraries(root, sanitizer) {
        Ok(libraries) => libraries,
        Err(why) => {
            tally.leave_out(&name, why);
            return Ok(());
        }
    };
    if reduced {
        return kernels(root, sanitizer, tally);
    }
    let source = libraries.join("../../src/rust/library").is_dir();
    if sanitizer == Sanitizer::Thread && !source {
        let why = "rust-src is not installed, so the standard library is not instrumented";
        tally.leave_out("thread sanitizer beyond the kernels", why);
        return kernels(root, sanitizer, tally);
    }
    let mut command = command(root, sanitizer);
    if sanitizer == Sanitizer::Thread {
        command.arg("-Zbuild-std");
    }
    for package in PACKAGES {
        command.args(["-p", package]);
    }
    command.args(["--lib", "--tests"]);
    tally.cargo_test(&name, &mut command)?;
    Ok(())
}

fn kernels(root: &Path, sanitizer: Sanitizer, tally: &mut Tally) -> Outcome<()> {
    for (package, tests) in KERNELS {
        let kernel = format!("{} sanitizer: {package} {}", sanitizer.name(), tests.join(" "));
        let mut command = command(root, sanitizer);
        command.args(["-p", package]).args(tests);
        if tally.cargo_test(&kernel, &mut command)? == 0 {
            tally.count(&kernel, Err("no test has this name any more"));
        }
    }
    Ok(())
}

/// The longest history: a race whose other side has been forgotten is not reported.
fn command(root: &Path, sanitizer: Sanitizer) -> Command {
    let suppressions = root.join("xtask/tsan.supp");
    let mut command = Command::new(cargo());
    command
        .args(["test", "--quiet", "--no-fail-fast", "--target", TARGET])
        .arg("--target-dir")
        .arg(root.join("target/sanitizer").join(sanitizer.name()))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", sanitizer.flags())
        .env("TSAN_OPTIONS", format!("history_size=7:suppressions={}", suppressions.display()))
        .current_dir(root);
    command
}

/// Where the toolchain has the sanitizer's runtime, or why it cannot be had here.
fn libraries(root: &Path, sanitizer: Sanitizer) -> Result<PathBuf, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("it runs on x86-64 Linux alone".to_owned());
    }
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(root);
    let output = rustc.output().map_err(|error| error.to_string())?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let found = std::fs::read_dir(&libraries)
        .map_err(|error| format!("{}: {error}", libraries.display()))?
        .filter_map(Result::ok)
        .any(|entry| entry.file_name().to_string_lossy().ends_with(sanitizer.runtime()));
    if found { Ok(libraries) } else { Err("this toolchain ships no runtime for it".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Option<(Sanitizer, bool)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words).ok()
    }

    #[test]
    fn arguments_are_read() {
        assert_eq!(parsed(&["thread"]), Some((Sanitizer::Thread, false)));
        assert_eq!(parsed(&["address", "--reduced"]), Some((Sanitizer::Address, true)));
        assert_eq!(parsed(&["memory"]), None);
        assert_eq!(parsed(&[]), None);
    }
}
