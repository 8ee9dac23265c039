//! Redis's own tests (`tests/` of 7.0.15), run against `coreplane serve` as their external server.
//!
//! This repository contains nothing of Redis. Its tests come from the source package of the distribution, by apt with
//! lists of its own below `target`, so that nothing of the user's changes. Apt checks the signature, and this module
//! the checksum of the archive. A user without apt names the directory of the tests: `REDIS_SUITE=DIRECTORY`.
//!
//! `redis-suite.skip` names the tests of features that Coreplane does not promise, each below its reason. A test that
//! is neither listed there nor passes is a failure, and so is a listed name that no unit has.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::tally::Tally;
use crate::{Outcome, cargo};
use coreplane_vm::programs::{apt_install, have, quiet};

/// Units of the suite, each with a server of its own.
const UNITS: [&str; 13] = [
    "unit/protocol",
    "unit/keyspace",
    "unit/type/string",
    "unit/type/incr",
    "unit/multi",
    "unit/expire",
    "unit/scan",
    "unit/info",
    "unit/auth",
    "unit/introspection",
    "unit/introspection-2",
    "unit/slowlog",
    "unit/pause",
];

/// Units whose tests are marked as unsuitable for external servers, though they need nothing else: the mark, and its
/// replacement.
const MARKS: [(&str, &str, &str); 2] = [
    ("unit/info", r#""info" "external:skip""#, r#""info""#),
    ("unit/auth", r#""auth external:skip""#, r#""auth""#),
];

const ARCHIVE: &str = "redis_7.0.15.orig.tar.gz";
const ARCHIVE_SHA256: &str = "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982";

/// Runs all units, or those that `wanted` names.
pub(crate) fn run(root: &Path, tally: &mut Tally) -> Outcome<()> {
    tally.stage("Redis's own tests");
    let (tclsh, suite) = match tcl().and_then(|tclsh| Ok((tclsh, suite(root)?))) {
        Ok(found) => found,
        Err(why) => {
            tally.leave_out("Redis's own tests", why);
            return Ok(());
        }
    };
    let skip = root.join("xtask/redis-suite.skip");
    let skips = Skips::parse(&std::fs::read_to_string(&skip)?)?;
    let mut build = Command::new(cargo());
    build.args(["build", "--release", "--package", "coreplane-cli"]).current_dir(root);
    quiet(&mut build)?;
    let mut total = Counts::default();
    for unit in UNITS {
        let server = Server::start(root)?;
        let mut tests = Command::new(tclsh);
        tests.arg("tests/test_helper.tcl").args(["--host", "127.0.0.1", "--port", &server.port]);
        tests.args(["--singledb", "--ignore-digest", "--durable", "--single", unit]);
        // Its output has no colours then.
        tests.arg("--skipfile").arg(&skip).env("TERM", "dumb").current_dir(&suite);
        let counts = count(&mut tests)?;
        drop(server);
        let Counts { passed, failed, ignored, .. } = &counts;
        let skipped = counts.skipped.len();
        println!("{unit}: {passed} passed, {skipped} skipped, {ignored} not for external servers");
        (0..*passed).for_each(|_| tally.count_quietly());
        if *passed == 0 && skipped == 0 {
            tally.count(unit, Err("not one test ran"));
        }
        for test in failed {
            tally.count(&format!("{unit}: {test}"), Err("see above"));
        }
        total.ignored += ignored;
        total.skipped.extend(counts.skipped);
    }
    tally.leave_out(
        "Redis's own tests",
        format!(
            "{} are skipped for the reasons in xtask/redis-suite.skip, {} by the suite itself",
            total.skipped.len(),
            total.ignored
        ),
    );
    let idle: Vec<&String> = skips.names.difference(&total.skipped).collect();
    for name in idle {
        tally.count(&format!("redis-suite.skip: {name}"), Err("no unit has such a test"));
    }
    Ok(())
}

/// The interpreter of the suite.
fn tcl() -> Outcome<&'static str> {
    let found = || ["tclsh8.7", "tclsh8.6", "tclsh"].into_iter().find(|name| have(name));
    if let Some(found) = found() {
        return Ok(found);
    }
    apt_install(&["tcl"])?;
    found().ok_or_else(|| "apt installed tcl, and yet there is no tclsh".into())
}

/// The directory of the suite.
fn suite(root: &Path) -> Outcome<PathBuf> {
    if let Some(given) = std::env::var_os("REDIS_SUITE") {
        return Ok(given.into());
    }
    let place = root.join("target/redis-suite");
    let suite = place.join("suite");
    if suite.join("complete").is_file() {
        return Ok(suite);
    }
    let archive = archive(&place)?;
    let mut sum = Command::new("sha256sum");
    let checked = place.join("sha256");
    std::fs::write(&checked, format!("{ARCHIVE_SHA256}  {}\n", archive.display()))?;
    quiet(sum.arg("--check").arg(&checked))?;
    std::fs::create_dir_all(&suite)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).arg("-C").arg(&suite);
    quiet(unpack.args(["--strip-components=1", "--wildcards", "*/tests/*"]))?;
    for (unit, mark, instead) in MARKS {
        let path = suite.join("tests").join(format!("{unit}.tcl"));
        std::fs::write(&path, std::fs::read_to_string(&path)?.replace(mark, instead))?;
    }
    std::fs::write(suite.join("complete"), "")?;
    Ok(suite)
}

/// The archive of the source package, by apt.
fn archive(place: &Path) -> Outcome<PathBuf> {
    let archive = place.join(ARCHIVE);
    if archive.is_file() {
        return Ok(archive);
    }
    if !have("apt-get") {
        return Err("there is no apt-get here: set REDIS_SUITE to where Redis's tests are".into());
    }
    for directory in ["lists/partial", "cache/archives/partial", "parts"] {
        std::fs::create_dir_all(place.join("apt").join(directory))?;
    }
    let apt = place.join("apt");
    source_lists(&apt.join("parts"))?;
    let run = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-q", "-o", "Dir::Etc::sourcelist=/dev/null"]);
        for (option, directory) in [
            ("Dir::Etc::sourceparts", "parts"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(format!("{option}={}", apt.join(directory).display()));
        }
        quiet(command.args(words).current_dir(place))
    };
    println!("fetching by apt: the source package of redis");
    run(&["update"])?;
    run(&["source", "--download-only", "redis"])?;
    if archive.is_file() {
        return Ok(archive);
    }
    Err(format!("the distribution's redis has another version: no {ARCHIVE}").into())
}

/// Writes the lists of the system's apt as lists of source packages.
fn source_lists(parts: &Path) -> Outcome<()> {
    let etc = Path::new("/etc/apt");
    let more = std::fs::read_dir(etc.join("sources.list.d")).into_iter().flatten();
    let more = more.filter_map(|entry| Some(entry.ok()?.path()));
    for (index, path) in more.chain([etc.join("sources.list")]).enumerate() {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        if !path.is_file() || !["list", "sources"].contains(&kind) {
            continue;
        }
        let text = sources_of(&std::fs::read_to_string(&path)?);
        std::fs::write(parts.join(format!("{index}.{kind}")), text)?;
    }
    Ok(())
}

fn sources_of(list: &str) -> String {
    let line = |line: &str| match line {
        _ if line.starts_with("Types:") => "Types: deb-src\n".to_owned(),
        _ if line.starts_with("deb ") || line.starts_with("deb\t") => {
            format!("deb-src{}\n", &line["deb".len()..])
        }
        _ if line.starts_with("deb-src") => "\n".to_owned(),
        _ => format!("{line}\n"),
    };
    list.lines().map(line).collect()
}

/// Names and patterns of tests that are skipped.
#[derive(Debug, PartialEq, Eq)]
struct Skips {
    /// Without the patterns.
    names: BTreeSet<String>,
}

impl Skips {
    /// Reads a file of paragraphs: a reason behind `#`, and the tests.
    fn parse(text: &str) -> Outcome<Self> {
        let mut names = BTreeSet::new();
        let mut has_reason = false;
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() {
                has_reason = false;
            } else if let Some(reason) = line.strip_prefix("# ") {
                has_reason = !reason.trim().is_empty();
            } else if !has_reason {
                return Err(format!("redis-suite.skip:{}: no reason above it", index + 1).into());
            } else if !line.starts_with('/') {
                names.insert(line.to_owned());
            }
        }
        Ok(Self { names })
    }
}

/// The results of a unit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: Vec<String>,
    skipped: BTreeSet<String>,
    ignored: u64,
}

impl Counts {
    fn add(&mut self, line: &str) {
        let Some((kind, test)) = line.strip_prefix('[').and_then(|line| line.split_once("]: "))
        else {
            return;
        };
        match kind {
            "ok" => self.passed += 1,
            "err" | "exception" => self.failed.push(test.to_owned()),
            "skip" => drop(self.skipped.insert(test.to_owned())),
            "ignore" => self.ignored += 1,
            _ => {}
        }
    }
}

/// Runs a unit, and shows its output except for tests that passed.
fn count(tests: &mut Command) -> Outcome<Counts> {
    let mut child = tests.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
    let output = child.stdout.take().ok_or("the suite has no output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        counts.add(line);
        if ["[ok]", "[skip]", "[ignore]", "[testing]"].iter().all(|mark| !line.starts_with(mark)) {
            println!("{line}");
        }
    }
    if !child.wait()?.success() && counts.failed.is_empty() {
        counts.failed.push("the suite itself".to_owned());
    }
    Ok(counts)
}

/// A server with an empty pool, until it is dropped.
struct Server {
    child: Child,
    directory: PathBuf,
    port: String,
}

impl Server {
    fn start(root: &Path) -> Outcome<Self> {
        let directory = root.join("target/redis-suite/pool");
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let program = target.unwrap_or_else(|| root.join("target")).join("release/coreplane");
        // Left by an interrupted run.
        drop(std::fs::remove_dir_all(&directory));
        std::fs::create_dir_all(&directory)?;
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--pool"]);
        let child = command.arg(directory.join("pool")).stdout(Stdio::piped()).spawn()?;
        let mut server = Self { child, directory, port: String::new() };
        let output = server.child.stdout.take().ok_or("the server has no output")?;
        let mut lines = BufReader::new(output).lines();
        for line in lines.by_ref() {
            if let Some((_, port)) = line?.split_once("ready on 127.0.0.1:") {
                server.port = port.trim().to_owned();
                // Its later output must be read.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(server);
            }
        }
        Err("the server ended at once".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_skip_has_a_reason() {
        let skips = Skips::parse("# why\none\n/^two\n\n# why not\nthree\n").unwrap();
        assert_eq!(skips.names.into_iter().collect::<Vec<_>>(), ["one", "three"]);
        for wrong in ["one\n", "# \none\n", "# why\none\n\ntwo\n"] {
            assert!(Skips::parse(wrong).is_err(), "{wrong}");
        }
        Skips::parse(include_str!("../redis-suite.skip")).unwrap();
    }

    #[test]
    fn lines_of_the_suite_are_counted() {
        let mut counts = Counts::default();
        for line in
            ["[ok]: a (3 ms)", "[err]: b in tests/x.tcl", "[skip]: c", "[ignore]: d", "[e", "ok"]
        {
            counts.add(line);
        }
        assert_eq!((counts.passed, counts.ignored), (1, 1));
        assert_eq!(counts.failed, ["b in tests/x.tcl"]);
        assert!(counts.skipped.contains("c"));
    }

    #[test]
    fn places_of_packages_become_places_of_sources() {
        let list = "# deb\ndeb [a=b] x y main\ndeb-src x y main\n";
        assert_eq!(sources_of(list), "# deb\ndeb-src [a=b] x y main\n\n");
        assert_eq!(sources_of("Types: deb\nURIs: x\n"), "Types: deb-src\nURIs: x\n");
    }
}
