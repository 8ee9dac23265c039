//! Unmodified clients: nbdinfo, nbdcopy and nbdsh of libnbd, qemu-io and qemu-img of QEMU.
//!
//! `cargo xtask test` installs them where they are missing. It lists the clients that it could not
//! install in `COREPLANE_CLIENTS_LEFT_OUT`; any other missing client is a failure here, never a
//! silent success.

mod memory;
mod wire;

use coreplane_nbd::Config;
use memory::Memory;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use wire::{NAME, Running};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SECTORS: usize = 4096;
const BYTES: usize = SECTORS * 4096;

/// A server with a disk of 16 MiB on a port and on a Unix socket.
struct Served {
    disk: Arc<Memory>,
    socket: PathBuf,
    running: Running,
    place: tempfile::TempDir,
}

impl Served {
    fn start(read_only: bool) -> Outcome<Self> {
        let place = tempfile::tempdir()?;
        let socket = place.path().join("nbd");
        let mut config = Config::new(NAME);
        config.export.description = "sectors in memory".to_owned();
        config.export.read_only = read_only;
        config.unix_socket = Some(socket.clone());
        let disk = Arc::new(Memory::new(SECTORS));
        let running = Running::start(config, disk.clone());
        Ok(Self { disk, socket, running, place })
    }

    fn tcp(&self, name: &str) -> String {
        let address = self.running.address.map(|address| address.to_string());
        format!("nbd://{}/{name}", address.unwrap_or_default())
    }

    fn unix(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }

    /// A file of this length with pseudo-random contents.
    fn random_file(&self, name: &str, len: usize) -> Outcome<(String, Vec<u8>)> {
        let path = self.place.path().join(name);
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let words = (0..len / 8).flat_map(|_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_ne_bytes()
        });
        let bytes: Vec<u8> = words.collect();
        std::fs::write(&path, &bytes)?;
        Ok((path.display().to_string(), bytes))
    }
}

fn run(program: &str, arguments: &[&str]) -> Outcome<(bool, String)> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

fn succeeds(program: &str, arguments: &[&str]) -> Outcome<String> {
    let (success, said) = run(program, arguments)?;
    assert!(success, "{program} {arguments:?}: {said}");
    Ok(said)
}

/// True if the client was reported as left out; fails if it is merely absent.
fn lacks(name: &str) -> Outcome<bool> {
    let is_there = match name {
        "nbdsh" => python().is_some(),
        _ => run(name, &["--version"]).is_ok_and(|it| it.0),
    };
    if is_there {
        return Ok(false);
    }
    let left_out = std::env::var("COREPLANE_CLIENTS_LEFT_OUT").unwrap_or_default();
    if left_out.split(',').any(|one| one == name) {
        // `cargo xtask` has listed it.
        return Ok(true);
    }
    Err(format!("{name} is not here; `cargo xtask test` installs it").into())
}

/// The Python for which nbdsh is installed: that of the distribution, which need not be the first on the path.
fn python() -> Option<&'static str> {
    let imports = |python: &&str| run(python, &["-c", "import nbd"]).is_ok_and(|it| it.0);
    ["python3", "/usr/bin/python3"].into_iter().find(imports)
}

#[test]
fn nbdinfo_is_told_what_there_is() -> Outcome<()> {
    if lacks("nbdinfo")? {
        return Ok(());
    }
    let served = Served::start(false)?;
    let said = succeeds("nbdinfo", &[&served.tcp("disk@device=7,interval=10ms")])?;
    for line in [
        "newstyle-fixed without TLS, using structured packets",
        "export=\"disk@device=7,interval=10ms\":",
        "description: sectors in memory",
        "export-size: 16777216",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let list = succeeds("nbdinfo", &["--list", "--json", &served.unix("")])?;
    assert!(list.contains("\"export-name\": \"disk\""), "{list}");
    for wrong in ["other", "disk@speed=1"] {
        let (success, said) = run("nbdinfo", &[&served.tcp(wrong)])?;
        assert!(!success, "{said}");
    }
    let read_only = Served::start(true)?;
    let said = succeeds("nbdinfo", &[&read_only.unix(NAME)])?;
    assert!(said.contains("is_read_only: true") && said.contains("can_trim: false"), "{said}");
    Ok(())
}

#[test]
fn nbdcopy_brings_a_file_in_and_out() -> Outcome<()> {
    if lacks("nbdcopy")? || lacks("nbdinfo")? {
        return Ok(());
    }
    let served = Served::start(false)?;
    let (from, bytes) = served.random_file("from", BYTES)?;
    succeeds("nbdcopy", &["--connections=4", "--flush", &from, &served.tcp(NAME)])?;
    served.disk.with(|state| {
        assert!(state.bytes == bytes);
        assert!(state.flushes > 0);
        state.bytes[BYTES / 2..].fill(0);
        state.present[SECTORS / 2..].fill(false);
    });
    let map = succeeds("nbdinfo", &["--map", &served.unix(NAME)])?;
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let half = (BYTES / 2).to_string();
    assert_eq!(lines[0][..], ["0", &half, "0", "data"]);
    assert_eq!(lines[1][..], [&half, &half, "3", "hole,zero"]);
    let to = served.place.path().join("to").display().to_string();
    succeeds("nbdcopy", &[&served.unix("disk@device=7"), &to])?;
    let copied = std::fs::read(&to)?;
    assert!(copied[..BYTES / 2] == bytes[..BYTES / 2]);
    assert!(copied.len() == BYTES && copied[BYTES / 2..].iter().all(|byte| *byte == 0));
    Ok(())
}

#[test]
fn nbdsh_makes_every_request() -> Outcome<()> {
    if lacks("nbdsh")? {
        return Ok(());
    }
    let served = Served::start(false)?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/every_request.py");
    let script = std::fs::read_to_string(script)?;
    let python = python().ok_or("nbdsh has no Python")?;
    for uri in [served.unix("disk@device=7,interval=10ms"), served.tcp(NAME)] {
        let open = format!("uri = {uri:?}");
        let said = succeeds(python, &["-m", "nbd", "-c", &open, "-c", &script])?;
        assert!(said.contains("every request: 9 parts"), "{said}");
    }
    served.disk.with(|state| {
        let is_it = |source: &&coreplane_nbd::Source| {
            source.device == Some(7) && source.interval == Some(Duration::from_millis(10))
        };
        assert!(state.sources.iter().filter(is_it).count() > 1, "{:?}", state.sources);
        assert!(state.fua > 0);
    });
    Ok(())
}

/// Runs commands of qemu-io, which prints mismatches.
fn qemu_io(uri: &str, options: &[&str], commands: &[&str]) -> Outcome<(bool, String)> {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let arguments: Vec<&str> =
        options.iter().copied().chain(["-f", "raw"]).chain(commands).chain([uri]).collect();
    let (success, said) = run("qemu-io", &arguments)?;
    let is_good = success && !said.contains("failed") && !said.contains("rror");
    Ok((is_good, said))
}

#[test]
fn qemu_io_finds_its_patterns() -> Outcome<()> {
    if lacks("qemu-io")? {
        return Ok(());
    }
    let served = Served::start(false)?;
    let parts: [&[&str]; 4] = [
        &["write -P 0xab 0 1M", "flush", "read -P 0xab 0 1M", "read -P 0 1M 1M"],
        // Parts of sectors, and a write across the end of a sector, durable when done.
        &["write -f -P 0xcd 1000 3000", "read -P 0xcd 1000 3000", "read -P 0xab 4000 4192"],
        &["discard 64k 64k", "read -P 0 64k 64k", "write -z -u 128k 64k", "read -P 0 128k 64k"],
        &[
            "write -z 200k 1000",
            "read -P 0 200k 1000",
            "aio_write -P 7 2M 8M",
            "aio_flush",
            "read -P 7 2M 8M",
        ],
    ];
    for (uri, options) in [
        (served.unix(NAME), &["-t", "none", "-d", "unmap"][..]),
        (served.tcp("disk@device=7"), &["-t", "writethrough", "-d", "unmap"]),
    ] {
        for part in parts {
            let (is_good, said) = qemu_io(&uri, options, part)?;
            assert!(is_good, "{part:?}: {said}");
        }
        served.disk.with(|state| {
            assert!(state.present[..16].iter().all(|present| *present));
            assert!(!state.present[16] && !state.present[47] && state.present[48]);
        });
    }
    served.disk.with(|state| assert!(state.flushes > 0 && state.fua > 0));
    let read_only = Served::start(true)?;
    let (is_good, said) = qemu_io(&read_only.unix(NAME), &[], &["write 0 4k"])?;
    assert!(!is_good, "{said}");
    Ok(())
}

#[test]
fn qemu_img_converts_and_compares() -> Outcome<()> {
    if lacks("qemu-img")? {
        return Ok(());
    }
    let served = Served::start(false)?;
    let (from, bytes) = served.random_file("from", BYTES / 2)?;
    let file = std::fs::OpenOptions::new().write(true).open(&from)?;
    file.set_len(BYTES as u64)?;
    let uri = served.unix(NAME);
    succeeds("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &from, &uri])?;
    served.disk.with(|state| {
        assert!(state.bytes[..BYTES / 2] == bytes);
        assert!(state.present[SECTORS / 2..].iter().all(|present| !present));
    });
    succeeds("qemu-img", &["compare", "-f", "raw", "-F", "raw", &from, &uri])?;
    let map = succeeds("qemu-img", &["map", "-f", "raw", "--output=json", &uri])?;
    assert!(map.contains("\"zero\": true") && map.contains("\"zero\": false"), "{map}");
    Ok(())
}
