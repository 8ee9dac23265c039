//! `cargo xtask measure`: installs the programs to compare with, builds the measurements, which are a program of
//! `bench`, and runs one.

use crate::{Outcome, cargo};
use coreplane_vm::programs::{apt_install, have};
use std::path::Path;
use std::process::Command;

/// Servers and clients of other projects, by the measurements that run them.
const PROGRAMS: [(&str, &str, &[&str]); 4] = [
    ("redis-server", "redis-server", &["matrix", "server"]),
    ("redis-benchmark", "redis-tools", &["server"]),
    ("memcached", "memcached", &["matrix"]),
    ("nbdkit", "nbdkit", &["disk"]),
];

/// Libraries of the C and C++ peers, by a header of theirs.
const LIBRARIES: [(&str, &str); 2] =
    [("rocksdb/c.h", "librocksdb-dev"), ("leveldb/c.h", "libleveldb-dev")];

/// Measurements with peers that are linked.
const WITH_PEERS: [&str; 4] = ["engines", "figures", "matrix", "ordered"];

/// `cargo xtask measure …`.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let what = arguments.first().map_or("", String::as_str);
    let builds = !arguments.iter().any(|argument| argument == "--no-build");
    apt_install(&absent_packages(what, builds))?;
    let mut command = Command::new(cargo());
    // In the caller's directory, to which relative paths of options refer.
    command.args(["run", "--release", "-p", "coreplane-bench", "--bin", "measure"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).arg("--").args(arguments);
    println!("building the measurements");
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("measure {what}: {status}").into()) }
}

/// The missing packages of the programs to compare with, and of the build.
fn absent_packages(what: &str, builds: bool) -> Vec<&'static str> {
    let is_run = |(program, _, by): &&(&str, _, &[&str])| by.contains(&what) && !have(program);
    let programs = PROGRAMS.iter().filter(is_run).map(|(_, package, _)| *package);
    let is_linked = builds && WITH_PEERS.contains(&what);
    let is_absent =
        |(header, _): &&(&str, _)| is_linked && !Path::new("/usr/include").join(header).exists();
    programs.chain(LIBRARIES.iter().filter(is_absent).map(|(_, package)| *package)).collect()
}
