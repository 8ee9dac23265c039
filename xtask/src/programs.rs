//! The test programs, built once with the feature that enables mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::groups::Running;
use crate::{Outcome, cargo};

/// How often a process is asked whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// The name of a crate's unit tests.
pub(crate) const UNIT: &str = "(unit tests)";

/// Enables the mistakes; nothing else may turn it on (`tidy`).
pub(crate) const FEATURE: &str = "coreplane-pmem/mutants";

/// All packages except the peers, which build foreign engines.
pub(crate) const PACKAGES: [&str; 5] = [
    "--workspace",
    "--exclude",
    "coreplane-bench-peers",
    "--exclude",
    "coreplane-bench-peers-bindings",
];

/// Cargo's arguments for the packages and features with which the tests are built.
pub(crate) fn selection() -> Vec<&'static str> {
    PACKAGES.into_iter().chain(["--features", FEATURE]).collect()
}

/// A test program, and the directory that it is to run in.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) directory: PathBuf,
}

/// The programs, by package and test: a file of `tests`, a program's own tests, or [`UNIT`].
#[derive(Debug, Default)]
pub(crate) struct Programs(BTreeMap<(String, String), Program>);

impl Programs {
    /// Builds the programs of these packages and tests, and no others: package by package, since cargo looks for a
    /// test's name in all packages of one call.
    ///
    /// # Errors
    /// If cargo fails.
    pub(crate) fn of_packages(
        root: &Path,
        wanted: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Outcome<Self> {
        let mut programs = Self::default();
        for (package, tests) in wanted {
            let mut command = Command::new(cargo());
            command.args(["test", "-p", package]);
            for test in tests {
                match *test {
                    UNIT => command.arg("--lib"),
                    name => command.args(["--test", name]),
                };
            }
            programs.add(root, &mut command, package)?;
        }
        Ok(programs)
    }

    /// Builds the programs of the workspace for these targets: nothing is left to do if they were built before with
    /// the feature.
    ///
    /// # Errors
    /// If cargo fails.
    pub(crate) fn of_workspace(root: &Path, targets: &[[&str; 2]]) -> Outcome<Self> {
        let mut programs = Self::default();
        for targets in targets {
            let mut command = Command::new(cargo());
            command.arg("test").args(PACKAGES).args(targets);
            programs.add(root, &mut command, "the workspace")?;
        }
        Ok(programs)
    }

    /// Adds the programs that a call of `cargo test` builds.
    fn add(&mut self, root: &Path, command: &mut Command, what: &str) -> Outcome<()> {
        command.args(["--no-run", "--features", FEATURE]).current_dir(root);
        let built = built(command).map_err(|error| format!("the tests of {what}: {error}"))?;
        self.0.extend(built.iter().filter_map(program));
        Ok(())
    }

    /// The program of a test.
    pub(crate) fn get(&self, package: &str, test: &str) -> Option<&Program> {
        self.0.get(&(package.to_owned(), test.to_owned()))
    }

    /// All, in order: package, test and program.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &Program)> {
        self.0.iter().map(|((package, test), program)| (&**package, &**test, program))
    }
}

impl FromIterator<((String, String), Program)> for Programs {
    fn from_iter<I: IntoIterator<Item = ((String, String), Program)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

/// Runs a command of cargo that builds; its messages, also about what was built before.
fn built(command: &mut Command) -> Outcome<Vec<serde_json::Value>> {
    command.args(["--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("no build: {}", output.status).into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Builds by a command of cargo; the path of the binary `name`, wherever cargo has put it.
///
/// # Errors
/// If cargo fails, or has not built it.
pub(crate) fn binary(command: &mut Command, name: &str) -> Outcome<PathBuf> {
    let path = built(command)?.iter().find_map(|message| binary_in(message, name));
    path.ok_or_else(|| format!("cargo has built no {name}").into())
}

fn binary_in(message: &serde_json::Value, name: &str) -> Option<PathBuf> {
    let target = &message["target"];
    let is_it = target["kind"][0] == "bin" && target["name"] == name;
    message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
}

/// The test program in a message of cargo's.
fn program(message: &serde_json::Value) -> Option<((String, String), Program)> {
    let target = &message["target"];
    let path = message["executable"].as_str()?;
    if message["profile"]["test"].as_bool() != Some(true) {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    let package = package_of(message["package_id"].as_str()?)?.to_owned();
    let test = match target["kind"][0].as_str()? {
        "lib" => UNIT,
        _ => target["name"].as_str()?,
    };
    Some(((package, test.to_owned()), Program { path: PathBuf::from(path), directory }))
}

/// The name in a package's id: `path+file:///…/crates/pmem#coreplane-pmem@0.1.0`, or, if its directory has the same
/// name, `path+file:///…/crates/coreplane#0.1.0`.
fn package_of(id: &str) -> Option<&str> {
    let (place, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => place.rsplit('/').next(),
    }
}

/// Waits for the end of a process, which leads a process group; none if it, and all that it has started, had to be
/// stopped.
///
/// # Errors
/// If the system refuses.
pub(crate) fn wait(mut child: Child, limit: Duration) -> Outcome<Option<ExitStatus>> {
    let started = Instant::now();
    let group = rustix::process::Pid::from_child(&child);
    let _running = Running::of(group);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > limit {
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL)?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn packages_have_names() {
        assert_eq!(
            package_of("path+file:///work/crates/pmem#coreplane-pmem@0.1.0"),
            Some("coreplane-pmem")
        );
        assert_eq!(package_of("path+file:///work/crates/coreplane#0.1.0"), Some("coreplane"));
        assert_eq!(package_of("coreplane"), None);
    }

    #[test]
    fn a_program_that_takes_too_long_is_stopped_with_all_that_it_has_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & sleep 60"]).process_group(0);
        let child = command.spawn().unwrap();
        assert_eq!(wait(child, Duration::from_millis(50)).unwrap(), None);
        let quick = Command::new("true").spawn().unwrap();
        assert!(wait(quick, Duration::from_secs(60)).unwrap().unwrap().success());
    }

    #[test]
    fn programs_are_found_among_what_cargo_says() {
        let message = |kind: &str, is_test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///work/crates/pmem#coreplane-pmem@0.1.0",
                "manifest_path": "/work/crates/pmem/Cargo.toml",
                "target": {"kind": [kind], "name": "sim_pool"},
                "profile": {"test": is_test},
                "executable": "/work/target/sim_pool-1",
            })
        };
        let of = |test: &str| ("coreplane-pmem".to_owned(), test.to_owned());
        let (key, found) = program(&message("test", true)).unwrap();
        assert_eq!((key, found.directory), (of("sim_pool"), PathBuf::from("/work/crates/pmem")));
        assert_eq!(program(&message("lib", true)).unwrap().0, of(UNIT));
        assert!(program(&message("bin", false)).is_none());
        let path = Some(PathBuf::from("/work/target/sim_pool-1"));
        assert_eq!(binary_in(&message("bin", false), "sim_pool"), path);
        assert_eq!(binary_in(&message("test", true), "sim_pool"), None);
        assert_eq!(binary_in(&message("bin", false), "other"), None);
        assert!(program(&serde_json::json!({"reason": "build-finished"})).is_none());
    }
}
