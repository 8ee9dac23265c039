//! `cargo xtask test`, which a newcomer types and which continuous integration runs, in two stages: what is
//! quickly said, which is `check` and the unit tests, and the rest. What takes longer than a coffee break is in
//! `nightly`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{apt_install, have, quiet};
use crate::mutants::{self, Extent};
use crate::sanitize::{self, Sanitizer};
use crate::tally::Tally;
use crate::{Outcome, cargo, check, nightly, vm};

/// `cargo xtask test [--quick]`; `--quick` runs the workspace's tests alone.
pub(crate) fn test(root: &Path, arguments: &[String]) -> Outcome<()> {
    let quick = match arguments {
        [] => false,
        [only] if only == "--quick" => true,
        _ => return Err("test takes no argument but --quick".into()),
    };
    let mut tally = Tally::new();
    let clients = clients(root, &mut tally);
    if !quick {
        check::run(root, &mut tally);
    }
    unit_tests(root, &clients, &mut tally)?;
    if tally.has_failures() {
        tally.leave_out("the second stage", "the first has failed");
        return tally.close();
    }
    integration_tests(root, &clients, &mut tally)?;
    tally.leave_out("the peers' tests", "they build foreign engines: nightly");
    if quick {
        tally.leave_out("check, mutants, sanitizers and the VM", "--quick");
    } else {
        mutants::run(root, &Extent::Handful, &mut tally)?;
        sanitize::run(root, Sanitizer::Thread, &sanitize::Extent::Kernels, &mut tally)?;
        machine(root, &mut tally);
        let left = "the address sanitizer, fuzzing, most mutants, full scale";
        tally.leave_out(left, "nightly");
    }
    tally.close()
}

/// The first stage: what is tested beside the code.
fn unit_tests(root: &Path, clients: &Clients, tally: &mut Tally) -> Outcome<()> {
    tally.stage("first stage: unit tests");
    let mut command = tests(root, clients);
    command.args(["--lib", "--bins"]).args(["--features", mutants::FEATURE]);
    tally.cargo_test("unit tests", &mut command)
}

/// The second: stories, conformance, real clients, and the examples in the documentation. With the feature that makes
/// mistakes possible, of which none is made here, so that the mutants' handful has its programs by then.
fn integration_tests(root: &Path, clients: &Clients, tally: &mut Tally) -> Outcome<()> {
    tally.stage("second stage: integration tests");
    let mut command = tests(root, clients);
    command.args(["--test", "*"]).args(["--features", mutants::FEATURE]);
    tally.cargo_test("integration tests", &mut command)?;
    let mut command = tests(root, clients);
    tally.cargo_test("examples in the documentation", command.arg("--doc"))
}

/// Tests of every crate but the peers'.
fn tests(root: &Path, clients: &Clients) -> Command {
    let mut command = Command::new(cargo());
    command
        .args(["test", "--no-fail-fast"])
        .args(mutants::PACKAGES)
        .envs(clients.python.as_ref().map(|path| ("PYTHONPATH", path)))
        .env("COREPLANE_CLIENTS_LEFT_OUT", clients.left_out.join(","))
        .current_dir(root);
    command
}

/// The tests of every crate, end-to-end tests among them.
pub(crate) fn workspace(
    root: &Path,
    clients: &Clients,
    scale: Option<&str>,
    tally: &mut Tally,
) -> Outcome<()> {
    tally.stage("tests of the workspace");
    let mut command = tests(root, clients);
    command.envs(scale.map(|scale| (nightly::SCALE, scale)));
    tally.cargo_test("tests of the workspace", &mut command)
}

/// The virtual machine.
pub(crate) fn machine(root: &Path, tally: &mut Tally) {
    tally.stage("the DAX path in a virtual machine");
    match vm::run(root, &[]) {
        Ok(vm::Verdict::Passed) => tally.count("vm", Ok::<(), String>(())),
        Ok(vm::Verdict::Skipped(why)) => tally.leave_out("vm", why),
        Err(error) => tally.count("vm", Err(error)),
    }
}

/// The clients that the end-to-end tests drive the server with.
pub(crate) struct Clients {
    /// To be `PYTHONPATH`, if clients in Python had to be fetched.
    python: Option<PathBuf>,
    /// Those that could not be had. Their tests fail unless they are named here.
    left_out: Vec<&'static str>,
}

impl Clients {
    /// True if this one could not be had.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.left_out.contains(&name)
    }
}

/// Installs the clients and the server to compare with, where they are absent.
pub(crate) fn clients(root: &Path, tally: &mut Tally) -> Clients {
    tally.stage("clients for the end-to-end tests");
    let wanted = [
        ("redis-cli", "redis-tools"),
        ("redis-benchmark", "redis-tools"),
        ("redis-server", "redis-server"),
        ("python3", "python3"),
        ("nbdinfo", "libnbd-bin"),
        ("nbdcopy", "libnbd-bin"),
        ("nbdsh", "python3-libnbd"),
        ("qemu-io", "qemu-utils"),
        ("qemu-img", "qemu-utils"),
        ("nbdfuse", "libnbd-bin"),
        ("fio", "fio"),
        ("mkfs.ext4", "e2fsprogs"),
        ("losetup", "mount"),
        ("influxd", "influxdb"),
        ("influx", "influxdb-client"),
    ];
    let mut left_out = Vec::new();
    for (program, package) in wanted {
        if !have(program)
            && let Err(why) = apt_install(&[package])
        {
            tally.leave_out(program, why);
            left_out.push(program);
        }
    }
    for (name, outcome) in [("namespaces", namespaces()), ("loops", loops())] {
        if let Err(why) = outcome {
            tally.leave_out(name, why);
            left_out.push(name);
        }
    }
    let python = python_clients(root, &mut left_out, tally);
    Clients { python, left_out }
}

/// Network namespaces, and what cuts their network: partitions of a cluster.
fn namespaces() -> Outcome<()> {
    for (program, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        if !have(program) {
            apt_install(&[package])?;
        }
    }
    let name = format!("cptest{}", std::process::id());
    let run = |words: &[&str]| quiet(Command::new("ip").args(["netns"]).args(words));
    run(&["add", &name])?;
    let rules = run(&["exec", &name, "nft", "add", "table", "inet", "cut"]);
    run(&["del", &name])?;
    rules
}

/// A file of FUSE as a block device: file systems on a disk of ours. Without root or the devices it cannot be.
fn loops() -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("to mount takes root".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        std::fs::metadata(device).map_err(|error| format!("{device}: {error}"))?;
    }
    quiet(Command::new("losetup").arg("-f"))
}

/// Makes `import redis` and `import influxdb` work: as they are, or with copies below `target`, so that nothing of the
/// user's Python changes (nor does a distribution that forbids pip to change its own, PEP 668,
/// mind).
fn python_clients(
    root: &Path,
    left_out: &mut Vec<&'static str>,
    tally: &mut Tally,
) -> Option<PathBuf> {
    let place = root.join("target/python");
    let mut is_needed = false;
    for (name, check, package) in [
        // The first that speaks RESP3, which Debian's package does not.
        ("redis-py", "import redis; assert redis.VERSION >= (5,)", "redis>=5"),
        ("influxdb-python", "import influxdb", "influxdb"),
    ] {
        match python_client(&place, check, package) {
            Ok(is_copy) => is_needed |= is_copy,
            Err(why) => {
                tally.leave_out(name, why);
                left_out.push(name);
            }
        }
    }
    is_needed.then_some(place)
}

/// Makes this statement work; true if it needs the copies in `place`.
fn python_client(place: &Path, check: &str, package: &str) -> Outcome<bool> {
    let imports = |path: Option<&Path>| {
        let mut python = Command::new("python3");
        python.args(["-c", check]).envs(path.map(|path| ("PYTHONPATH", path)));
        quiet(&mut python).is_ok()
    };
    if imports(None) {
        return Ok(false);
    }
    if imports(Some(place)) {
        return Ok(true);
    }
    let pip = || {
        println!("installing by pip: {package}");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(place).arg(package);
        quiet(&mut pip)
    };
    pip().or_else(|_| {
        apt_install(&["python3-pip"])?;
        pip()
    })?;
    if imports(Some(place)) {
        return Ok(true);
    }
    Err("pip installed it, and yet this python3 cannot import it".into())
}
