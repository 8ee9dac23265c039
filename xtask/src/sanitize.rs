//! `cargo xtask sanitize thread|address [--reduced|PACKAGE…]`: the tests of the engine under a
//! sanitizer.
//!
//! The sanitizers ship with the stable toolchain and need only `RUSTC_BOOTSTRAP=1` to be enabled. The standard
//! library is not instrumented, unless its source is installed (`rustup component add rust-src`) and it is rebuilt.
//! The address sanitizer works without that. The thread sanitizer reports uninstrumented hand-overs as races: those
//! of the test runner and of `Arc` are named in `xtask/tsan.supp`, but the end of a `thread::scope` cannot be
//! distinguished from a true race. So without the source the thread sanitizer runs the kernels alone, whose tests
//! join their threads by hand.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::groups::Running;
use crate::tally::Tally;
use crate::{Outcome, cargo};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The tests of this name are loom's: it runs threads in turn on stacks of its own, and leaks the allocations of a
/// model that is meant to fail. The thread sanitizer finds nothing there and takes minutes; the address sanitizer
/// cannot follow those stacks and reports leaks.
const MODELS: &str = "kernel::tests";

/// Parts of the engine whose threads share memory without locks: a package, and those of its tests that have truly
/// concurrent threads ([`MODELS`] do not).
const KERNELS: [(&str, &[&str]); 5] = [
    ("coreplane-bptree", &["--test", "stress"]),
    ("coreplane-mkvs", &["--test", "rebuilds"]),
    ("coreplane-pmem", &["--lib", "--", "epoch::tests", "epoch::published"]),
    ("coreplane-pmem", &["--lib", "--", "spin::tests"]),
    ("coreplane-scmkv", &["--test", "stress"]),
];

/// How often a compiler in the background is asked whether it has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// The packages of a full run.
const PACKAGES: [&str; 7] = [
    "coreplane-bptree",
    "coreplane-conformance",
    "coreplane-engine",
    "coreplane-mkvs",
    "coreplane-pmem",
    "coreplane-scmkv",
    "coreplane-server",
];

/// A sanitizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sanitizer {
    /// Races.
    Thread,
    /// Accesses out of bounds, and after the free.
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
            // With its own system calls rustix maps memory without the sanitizer's knowledge; two mappings, one after
            // the other at the same address, then look like one mapping with a race.
            Self::Thread => {
                "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg=rustix_use_libc"
            }
            Self::Address => "-Zsanitizer=address",
        }
    }
}

/// The tests that run under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Those of the kernels.
    Kernels,
    /// Those of these packages, which are among [`PACKAGES`].
    Packages(Vec<&'static str>),
}

impl Extent {
    /// Everything.
    pub(crate) fn full() -> Self {
        Self::Packages(PACKAGES.to_vec())
    }
}

/// Reads the command's arguments.
pub(crate) fn parse(arguments: &[String]) -> Outcome<(Sanitizer, Extent)> {
    let known = PACKAGES.join(" ");
    let usage = || format!("usage: cargo xtask sanitize thread|address [--reduced | {known}]");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (sanitizer, rest) = match words[..] {
        ["thread", ref rest @ ..] => (Sanitizer::Thread, rest),
        ["address", ref rest @ ..] => (Sanitizer::Address, rest),
        _ => return Err(usage().into()),
    };
    let extent = match *rest {
        [] => Extent::full(),
        ["--reduced"] => Extent::Kernels,
        ref names => {
            let package = |name: &&str| PACKAGES.into_iter().find(|package| package == name);
            let packages: Option<Vec<_>> = names.iter().map(package).collect();
            Extent::Packages(packages.ok_or_else(usage)?)
        }
    };
    Ok((sanitizer, extent))
}

/// Runs the tests of `extent`.
pub(crate) fn run(
    root: &Path,
    sanitizer: Sanitizer,
    extent: &Extent,
    tally: &mut Tally,
) -> Outcome<()> {
    let name = format!("{} sanitizer", sanitizer.name());
    tally.stage(&name);
    let others = others(root)?.join(", ");
    tally.leave_out(&format!("{name}: {others}"), "no sanitizer runs their tests");
    let libraries = match libraries(root, sanitizer) {
        Ok(libraries) => libraries,
        Err(why) => {
            tally.leave_out(&name, why);
            return Ok(());
        }
    };
    let Extent::Packages(packages) = extent else {
        let all = PACKAGES.map(|package| package.trim_start_matches("coreplane-")).join(", ");
        tally.leave_out(&format!("{name} beyond the kernels of {all}"), "nightly");
        return kernels(root, sanitizer, tally);
    };
    let source = libraries.join("../../src/rust/library").is_dir();
    if sanitizer == Sanitizer::Thread && !source {
        let why = "rust-src is not installed, so the standard library is not instrumented";
        tally.leave_out("thread sanitizer beyond the kernels", why);
        return kernels(root, sanitizer, tally);
    }
    for package in packages {
        let mut command = command(root, sanitizer);
        if sanitizer == Sanitizer::Thread {
            command.arg("-Zbuild-std");
        }
        command.args(["-p", package, "--lib", "--tests", "--", "--skip", MODELS]);
        tally.cargo_test(&format!("{name}: {package}"), &mut command)?;
    }
    tally
        .leave_out(&format!("{name}: {MODELS}"), "loom has stacks of its own; they run without it");
    for package in PACKAGES.iter().filter(|package| !packages.contains(package)) {
        tally.leave_out(&format!("{name}: {package}"), "not asked for");
    }
    Ok(())
}

/// The crates that are not among [`PACKAGES`].
fn others(root: &Path) -> Outcome<Vec<String>> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !PACKAGES.contains(&&*format!("coreplane-{name}")) {
            others.push(name);
        }
    }
    others.sort();
    Ok(others)
}

/// The compilation of the kernels' tests for the thread sanitizer, in the background and in the processors' idle time:
/// beside tests that wait. It ends when this is dropped; [`run`] compiles the rest, and what has failed, and shows it.
pub(crate) struct Compilation {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compilation {
    /// Begins it.
    pub(crate) fn begin(root: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (root, is_stopped) = (root.to_owned(), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let has_runtime = libraries(&root, Sanitizer::Thread).is_ok();
            let _all = has_runtime
                && KERNELS.iter().all(|kernel| is_compiled(&root, *kernel, &is_stopped));
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join().is_ok();
        }
    }
}

/// Compiles a kernel's tests, unless it is stopped before.
fn is_compiled(root: &Path, (package, tests): (&str, &[&str]), is_stopped: &AtomicBool) -> bool {
    // Without the arguments of the tests themselves.
    let tests = tests.split(|it| *it == "--").next().unwrap_or(tests);
    let mut cargo = command(root, Sanitizer::Thread);
    cargo.args(["--no-run", "-p", package]).args(tests);
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"]).arg(cargo.get_program()).args(cargo.get_args());
    idle.envs(cargo.get_envs().filter_map(|(name, value)| Some((name, value?))));
    idle.current_dir(root).process_group(0);
    idle.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = idle.spawn() else { return false };
    let group = Pid::from_child(&child);
    let _running = Running::of(group);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        if is_stopped.load(Ordering::Relaxed) {
            let _stopped = kill_process_group(group, Signal::KILL).is_ok();
            let _ended = child.wait().is_ok();
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

fn kernels(root: &Path, sanitizer: Sanitizer, tally: &mut Tally) -> Outcome<()> {
    for (package, tests) in KERNELS {
        let kernel = format!("{} sanitizer: {package} {}", sanitizer.name(), tests.join(" "));
        let mut command = command(root, sanitizer);
        command.args(["-p", package]).args(tests);
        tally.cargo_test(&kernel, &mut command)?;
    }
    Ok(())
}

/// With the longest history: a race whose other side has been dropped from the history is not reported.
fn command(root: &Path, sanitizer: Sanitizer) -> Command {
    let suppressions = root.join("xtask/tsan.supp");
    let mut command = Command::new(cargo());
    command
        .args(["test", "--quiet", "--no-fail-fast", "--target", TARGET])
        .arg("--target-dir")
        .arg(root.join("target/sanitizer").join(sanitizer.name()))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", sanitizer.flags())
        // Suppressions name functions in full, which line tables alone do not contain.
        .envs([("CARGO_PROFILE_DEV_DEBUG", "full"), ("CARGO_PROFILE_TEST_DEBUG", "full")])
        .env("TSAN_OPTIONS", format!("history_size=7:suppressions={}", suppressions.display()))
        .current_dir(root);
    command
}

/// The directory with the sanitizer's runtime, or why it is not available here.
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

    fn parsed(words: &[&str]) -> Option<(Sanitizer, Extent)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words).ok()
    }

    #[test]
    fn crates_without_a_sanitizer_are_named() {
        let others = others(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
        let is_named = |name: &str| others.iter().any(|other| other == name);
        assert!(is_named("mvcc") && is_named("coreplane") && !is_named("pmem"), "{others:?}");
    }

    #[test]
    fn arguments_are_read() {
        assert_eq!(parsed(&["thread"]), Some((Sanitizer::Thread, Extent::full())));
        assert_eq!(parsed(&["address", "--reduced"]), Some((Sanitizer::Address, Extent::Kernels)));
        let one = Extent::Packages(vec!["coreplane-pmem"]);
        assert_eq!(parsed(&["address", "coreplane-pmem"]), Some((Sanitizer::Address, one)));
        assert_eq!(parsed(&["address", "coreplane-pmme"]), None);
        assert_eq!(parsed(&["memory"]), None);
        assert_eq!(parsed(&[]), None);
    }
}
