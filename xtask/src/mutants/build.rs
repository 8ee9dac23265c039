//! The test programs, built once with the feature that enables mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::catalogue::Suite;
use crate::{Outcome, cargo};

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

/// A test program, and the directory that it is to run in.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) directory: PathBuf,
}

/// The programs, by package and test.
#[derive(Debug)]
pub(super) struct Programs(BTreeMap<(String, String), Program>);

impl Programs {
    /// Builds the programs of the suites, and no others: package by package, since cargo looks for a test's name in
    /// all packages of one call.
    pub(super) fn build(root: &Path, suites: &[Suite]) -> Outcome<Self> {
        let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for suite in suites {
            wanted.entry(suite.package).or_default().insert(suite.test);
        }
        let mut programs = Self(BTreeMap::new());
        for (package, tests) in wanted {
            programs.build_of(root, package, tests)?;
        }
        suites.iter().try_for_each(|suite| programs.of(suite).map(drop))?;
        Ok(programs)
    }

    /// Builds all tests of the workspace: nothing is left to do if they were built with the feature.
    pub(super) fn of_workspace(root: &Path, suites: &[Suite]) -> Outcome<Self> {
        let mut programs = Self(BTreeMap::new());
        for targets in [["--lib", "--bins"], ["--test", "*"]] {
            let mut command = Command::new(cargo());
            command.arg("test").args(PACKAGES).args(targets);
            programs.add(root, &mut command, "the workspace")?;
        }
        suites.iter().try_for_each(|suite| programs.of(suite).map(drop))?;
        Ok(programs)
    }

    fn build_of(&mut self, root: &Path, package: &str, tests: BTreeSet<&str>) -> Outcome<()> {
        let mut command = Command::new(cargo());
        command.args(["test", "-p", package]);
        for test in tests {
            match test {
                Suite::UNIT => command.arg("--lib"),
                name => command.args(["--test", name]),
            };
        }
        self.add(root, &mut command, package)
    }

    /// Adds the programs that a call of `cargo test` builds.
    fn add(&mut self, root: &Path, command: &mut Command, what: &str) -> Outcome<()> {
        command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
        command.args(["--features", FEATURE]).current_dir(root);
        let output = command.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("the tests of {what} do not build: {}", output.status).into());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let built = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        self.0.extend(built.filter_map(|message| program(&message)));
        Ok(())
    }

    /// The program that contains a suite.
    pub(super) fn of(&self, suite: &Suite) -> Outcome<&Program> {
        let key = (suite.package.to_owned(), suite.test.to_owned());
        self.0.get(&key).ok_or_else(|| format!("there is no test program {}", suite.name()).into())
    }
}

/// The program in a message of cargo's.
fn program(message: &serde_json::Value) -> Option<((String, String), Program)> {
    let target = &message["target"];
    let path = message["executable"].as_str()?;
    if message["profile"]["test"].as_bool() != Some(true) {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    // The last part of `path+file:///…/crates/pmem#coreplane-pmem@0.1.0`.
    let (_, id) = message["package_id"].as_str()?.rsplit_once(['#', ' '])?;
    let package = id.split('@').next()?.to_owned();
    let test = match target["kind"][0].as_str()? {
        "lib" => Suite::UNIT,
        _ => target["name"].as_str()?,
    };
    Some(((package, test.to_owned()), Program { path: PathBuf::from(path), directory }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(program(&message("lib", true)).unwrap().0, of(Suite::UNIT));
        assert!(program(&message("bin", false)).is_none());
        assert!(program(&serde_json::json!({"reason": "build-finished"})).is_none());
    }
}
