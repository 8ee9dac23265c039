//! Clients with which the end-to-end tests drive the server: from the distribution, or from their languages'
//! registries into `target`, so that nothing of the user's own changes. Missing clients are reported, and their tests
//! do nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::tally::Tally;
use coreplane_vm::programs::{apt_install, have, quiet};

/// Telegraf, of which only the parts that the tests use are built; the tests were written against this version.
const TELEGRAF: &str = "github.com/influxdata/telegraf/cmd/telegraf@v1.37.2";
const TELEGRAF_PARTS: &str = "custom,inputs.file,outputs.influxdb,outputs.influxdb_v2,outputs.opentsdb,parsers.influx,serializers.influx";
/// Clients of npm, each with its version.
const NODE: [(&str, &str, &str); 3] = [
    ("influx-node", "influx", "5.12.0"),
    ("ioredis", "ioredis", "5.11.1"),
    ("node-redis", "redis", "5.12.1"),
];
/// The Maven goal for the clients that `redis_java/pom.xml` names.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// The clients that may be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toolchains {
    /// Clients that take minutes to build are used only if they were built before.
    AsBuilt,
    /// All of it.
    Build,
}

/// The clients with which the end-to-end tests drive the server.
pub(crate) struct Clients {
    /// The value of `PYTHONPATH`, if clients in Python had to be fetched.
    python: Option<PathBuf>,
    /// The place of the copies that were fetched and built.
    place: PathBuf,
    /// The clients that are not available. Their tests fail unless they are named here.
    left_out: Vec<&'static str>,
}

impl Clients {
    /// Environment variables with the places of the clients, and the names of the missing ones.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut set = vec![("COREPLANE_CLIENTS_LEFT_OUT", self.left_out.join(",").into())];
        set.extend(self.python.iter().map(|path| ("PYTHONPATH", path.into())));
        set.push(("NODE_PATH", self.place.join("node/node_modules").into()));
        set.push(("CLASSPATH", self.place.join("java/jars/*").into()));
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let own = [self.place.join("go")];
        let paths = std::env::join_paths(std::env::split_paths(&paths).chain(own));
        set.extend(paths.ok().map(|paths| ("PATH", paths)));
        set
    }

    /// True if this client is not available.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.left_out.contains(&name)
    }
}

/// Installs the missing clients, and the server to compare with.
pub(crate) fn clients(root: &Path, toolchains: Toolchains, tally: &mut Tally) -> Clients {
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
        ("collectd", "collectd-core"),
        ("go", "golang-go"),
        ("node", "nodejs"),
        ("npm", "npm"),
        ("javac", "default-jdk-headless"),
        ("mvn", "maven"),
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
    let place = root.join("target");
    for (name, outcome) in [
        ("namespaces", namespaces()),
        ("loops", loops()),
        ("influx-go", go_client(root, &place, "influx")),
        ("redis-go", go_client(root, &place, "redis")),
        ("redis-java", java_clients(root, &place.join("java"))),
        ("telegraf", telegraf(&place, toolchains)),
    ]
    .into_iter()
    .chain(NODE.map(|(name, package, version)| (name, node_client(&place, package, version))))
    {
        if let Err(why) = outcome {
            tally.leave_out(name, why);
            left_out.push(name);
        }
    }
    let python = python_clients(root, &mut left_out, tally);
    Clients { python, place, left_out }
}

/// Network namespaces, and the tools that cut their network, for partitions of a cluster.
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

/// A FUSE file as a block device, for file systems on a disk of ours. It needs root and the devices.
fn loops() -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("to mount takes root".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        std::fs::metadata(device).map_err(|error| format!("{device}: {error}"))?;
    }
    quiet(Command::new("losetup").arg("-f"))
}

/// Makes `import redis` and `import influxdb` work: with the installed packages, or with copies below `target`, so
/// that nothing of the user's Python changes, and a distribution that forbids pip to change its own Python (PEP 668)
/// does not object.
fn python_clients(
    root: &Path,
    left_out: &mut Vec<&'static str>,
    tally: &mut Tally,
) -> Option<PathBuf> {
    let place = root.join("target/python");
    let mut is_needed = false;
    for (name, check, package) in [
        // The first version that speaks RESP3; Debian's package does not.
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

/// A client for Go, in a program of the tests.
fn go_client(root: &Path, place: &Path, of: &str) -> Outcome<()> {
    let source = root.join(format!("crates/cli/tests/clients/{of}_go"));
    let program = place.join(format!("go/{of}-go"));
    quiet(go()?.args(["build", "-o"]).arg(program).arg(".").current_dir(source))
}

/// Telegraf, from the distribution or built from its modules, which takes some minutes.
fn telegraf(place: &Path, toolchains: Toolchains) -> Outcome<()> {
    let place = place.join("go");
    if have("telegraf") || place.join("telegraf").is_file() {
        return Ok(());
    }
    if toolchains == Toolchains::AsBuilt {
        return Err("it takes minutes to build: nightly, or one on the path".into());
    }
    quiet(go()?.args(["install", "-tags", TELEGRAF_PARTS, TELEGRAF]).env("GOBIN", place))
}

fn go() -> Outcome<Command> {
    if have("go") { Ok(Command::new("go")) } else { Err("there is no go here".into()) }
}

/// This client of npm.
fn node_client(place: &Path, package: &str, version: &str) -> Outcome<()> {
    if !have("node") || !have("npm") {
        return Err("there is no node, or no npm, here".into());
    }
    let place = place.join("node");
    let own = place.join("node_modules").join(package).join("package.json");
    let wanted = format!("\"version\": \"{version}\"");
    if std::fs::read_to_string(own).is_ok_and(|own| own.contains(&wanted)) {
        return Ok(());
    }
    println!("installing by npm: {package}@{version}");
    std::fs::create_dir_all(&place)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(place);
    quiet(npm.arg(format!("{package}@{version}")))
}

/// Jedis and Lettuce with their dependencies, from Maven Central into `place`.
fn java_clients(root: &Path, place: &Path) -> Outcome<()> {
    if !have("javac") || !have("mvn") {
        return Err("there is no JDK, or no Maven, here".into());
    }
    let project = std::fs::read(root.join("crates/cli/tests/clients/redis_java/pom.xml"))?;
    // The project file at the time when the jars were copied.
    let copied = place.join("copied.xml");
    if std::fs::read(&copied).is_ok_and(|copied| copied == project) {
        return Ok(());
    }
    println!("installing by Maven: Jedis and Lettuce");
    let jars = place.join("jars");
    if jars.exists() {
        std::fs::remove_dir_all(&jars)?;
    }
    std::fs::create_dir_all(&jars)?;
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", COPY, "-f"]).arg(root.join("crates/cli/tests/clients/redis_java"));
    for (property, path) in [("maven.repo.local", "repository"), ("outputDirectory", "jars")] {
        maven.arg(format!("-D{property}={}", place.join(path).display()));
    }
    quiet(&mut maven)?;
    Ok(std::fs::write(copied, project)?)
}
