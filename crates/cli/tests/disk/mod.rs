//! A disk behind `coreplane nbd serve`, and clients of block devices to test it.
#![allow(dead_code, reason = "each test takes what it needs")]

use crate::pool::{Place, Pool};
use crate::session::{Outcome, Served, expect};
use std::fs::File;
use std::process::{Command, Stdio};

/// The time limit of a client in seconds: a client that hangs on a lost device fails its test, and does not block the
/// run.
const SECONDS_MAX: &str = "120";

/// A disk, existing or not, and the arguments of its server.
pub(crate) struct Disk {
    pub(crate) place: Place,
    pub(crate) pool: Pool,
    pub(crate) socket: String,
    serve: Vec<String>,
}

impl Disk {
    /// The disk in this place that is served, and created on the first start, with these arguments.
    pub(crate) fn new(place: Place, serve: &[&str]) -> Outcome<Self> {
        let (pool, socket) = (place.pool("disk")?, place.argument("socket")?);
        Ok(Self { place, pool, socket, serve: serve.iter().map(|it| (*it).to_owned()).collect() })
    }

    /// A server of it on any port and on the Unix socket.
    pub(crate) fn serve(&self) -> Outcome<Served> {
        let complaints =
            File::options().create(true).append(true).open(self.place.path("complaints"))?;
        let pool = ["nbd", "serve", "--port", "0", "--unixsocket", &self.socket, "--pool"];
        let subcommand = [&pool[..], &[self.pool.name.as_str()]].concat();
        let arguments: Vec<&str> = self.serve.iter().map(String::as_str).collect();
        Served::start_as(&subcommand, complaints, &arguments)
    }

    /// The export by its Unix socket; `parameters` as in `@device=7`.
    pub(crate) fn uri(&self, parameters: &str) -> String {
        format!("nbd+unix:///disk{parameters}?socket={}", self.socket)
    }

    /// Runs `coreplane nbd verify`, which must end with this code; its output.
    pub(crate) fn verify(&self, code: i32) -> Outcome<String> {
        expect(code, &["nbd", "verify", "--json", "--pool", &self.pool.name])
    }

    /// The error output of its servers, which must contain no panic.
    pub(crate) fn complaints(&self) -> Outcome<String> {
        let complaints = std::fs::read_to_string(self.place.path("complaints"))?;
        assert!(!complaints.contains("panicked"), "{complaints}");
        Ok(complaints)
    }

    /// Ends the server in an orderly way; the disk must be sound.
    pub(crate) fn finish(&self, served: Served) -> Outcome<()> {
        served.terminate()?;
        assert!(!std::fs::exists(&self.socket)?, "the socket's file is left");
        self.verify(0)?;
        self.complaints().map(drop)
    }
}

/// Runs a client; whether it succeeded, and all its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Outcome<(bool, String)> {
    let output = Command::new("timeout")
        .args(["-k", "5", SECONDS_MAX, program])
        .args(arguments)
        // Complaints in English.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Runs a client, which must succeed; all its output.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> Outcome<String> {
    match run(program, arguments)? {
        (true, said) => Ok(said),
        (false, said) => Err(format!("{program} {arguments:?}: {said}").into()),
    }
}

/// True if one of the clients was reported as left out; fails if one is merely absent.
pub(crate) fn lack(names: &[&str]) -> Outcome<bool> {
    let left_out = std::env::var("COREPLANE_CLIENTS_LEFT_OUT").unwrap_or_default();
    for name in names {
        let is_there = match *name {
            "nbdsh" => python().is_some(),
            "loops" => can_mount(),
            "influx-node" => run("node", &["-e", "require('influx')"])?.0,
            "influxdb-python" => run("python3", &["-c", "import influxdb"])?.0,
            _ => run("which", &[name])?.0,
        };
        if !is_there && !left_out.split(',').any(|one| one == *name) {
            return Err(format!("{name} is not here; `cargo xtask test` installs it").into());
        }
        if !is_there {
            // `cargo xtask` has listed it.
            return Ok(true);
        }
    }
    Ok(false)
}

/// The Python that nbdsh uses: that of the distribution, which need not be the first on the path.
pub(crate) fn python() -> Option<&'static str> {
    let imports = |python: &&str| run(python, &["-c", "import nbd"]).is_ok_and(|it| it.0);
    ["python3", "/usr/bin/python3"].into_iter().find(imports)
}

/// True if files can be made block devices and mounted: loop devices, FUSE, and root.
fn can_mount() -> bool {
    let is_root = run("id", &["-u"]).is_ok_and(|it| it.1.trim() == "0");
    let is_there = |path: &&str| std::fs::exists(path).unwrap_or(false);
    is_root && ["/dev/fuse", "/dev/loop-control"].iter().all(is_there)
}

/// Runs statements of Python, in which `disk` is a handle of libnbd that is connected to `uri`, and `nbd` and `errno`
/// are imported.
pub(crate) fn python_runs(uri: &str, statements: &str) -> Outcome<String> {
    let python = python().ok_or("nbdsh has no Python")?;
    let connect = format!(
        "import nbd, errno\ndisk = nbd.NBD()\ndisk.set_uri_allow_local_file(True)\ndisk.connect_uri({uri:?})\n"
    );
    succeeds(python, &["-c", &format!("{connect}{statements}")])
}

/// How often servers are killed: `few`, or `many` at full scale, or the requested number.
pub(crate) fn rounds(few: u64, many: u64) -> Outcome<u64> {
    if let Ok(rounds) = std::env::var("COREPLANE_KILL_ROUNDS") {
        return Ok(rounds.parse()?);
    }
    let full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    Ok(if full { many } else { few })
}
