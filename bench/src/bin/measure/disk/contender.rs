//! Who is measured: a server of NBD, or a loop device, over so many bytes in a directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::load::Access;
use crate::{Outcome, child};

/// Nothing runs for longer: whoever hangs is killed.
const LIMIT: Duration = Duration::from_secs(600);

/// Where the bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// In memory; writes as they come.
    Memory,
    /// In files on a disk; each write is durable when it is answered.
    File,
}

/// A contender that runs; it ends when it is dropped.
#[derive(Debug)]
pub(super) struct Contender {
    pub(super) access: Access,
    child: Option<(Child, child::Watchdog)>,
    device: Option<PathBuf>,
}

/// A file with so many bytes that are all there.
fn file(path: &Path, len: u64) -> Outcome<()> {
    let file = std::fs::File::create(path)?;
    Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)?)
}

/// A server's command line.
fn command(
    coreplane: &Path,
    name: &str,
    medium: Medium,
    directory: &Path,
    len: u64,
) -> Outcome<Command> {
    let (base, variant) = name.split_once('+').unwrap_or((name, ""));
    let (socket, store) = (directory.join("socket"), directory.join("store"));
    let command = match base {
        "coreplane" => {
            let mut command = Command::new(coreplane);
            let media = if medium == Medium::File { "file" } else { "auto" };
            command.args(["nbd", "serve", "--size", &len.to_string(), "--media", media]);
            command.args(["--driver", if variant.is_empty() { "multi" } else { variant }]);
            command.arg("--pool").arg(&store).arg("--unixsocket").arg(&socket);
            command
        }
        "nbdkit" => {
            let mut command = Command::new("nbdkit");
            command.args(["--exit-with-parent", "--foreground", "--unix"]).arg(&socket);
            if medium == Medium::File {
                file(&store, len)?;
                command.arg("file").arg(&store);
            } else {
                command.args(["memory", &len.to_string()]);
            }
            if !variant.is_empty() {
                command.arg(format!("allocator={variant}"));
            }
            command
        }
        "floor" => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("floor-disk").arg(&socket).arg(len.to_string());
            command
        }
        _ => return Err(format!("no such contender: {name}").into()),
    };
    Ok(command)
}

/// Where servers and clients run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placing {
    /// Where the kernel puts them.
    Free,
    /// A server on this processor, the last one, and clients on those before it.
    Apart(usize),
    /// Both on this processor, the last one.
    Together(usize),
}

/// `free`, `apart`, `together`.
impl std::str::FromStr for Placing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        match text {
            "free" => Ok(Self::Free),
            "apart" if all > 1 => Ok(Self::Apart(all - 1)),
            "together" => Ok(Self::Together(all - 1)),
            _ => Err("none of free, together, and, with several processors, apart".to_owned()),
        }
    }
}

impl Placing {
    /// Keeps this thread, and those that it starts, to the clients' processors.
    pub(super) fn place_clients(self) -> Outcome<()> {
        let mut clients = rustix::thread::CpuSet::new();
        match self {
            Self::Free => return Ok(()),
            Self::Apart(server) => (0..server).for_each(|at| clients.set(at)),
            Self::Together(server) => clients.set(server),
        }
        Ok(rustix::thread::sched_setaffinity(None, &clients)?)
    }

    /// A server's command, so that it runs where it is to.
    fn place_server(self, command: Command) -> Command {
        let (Self::Apart(server) | Self::Together(server)) = self else { return command };
        let mut placed = Command::new("taskset");
        placed.args(["--cpu-list", &server.to_string()]).arg(command.get_program());
        placed.args(command.get_args());
        placed
    }
}

impl Contender {
    /// Starts one by its name, over an empty directory.
    pub(super) fn start(
        coreplane: &Path,
        name: &str,
        medium: Medium,
        placing: Placing,
        directory: &Path,
        len: u64,
    ) -> Outcome<Self> {
        if name == "loop" {
            return Self::attach(directory, len);
        }
        let socket = directory.join("socket");
        let mut command = placing.place_server(command(coreplane, name, medium, directory, len)?);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let watchdog = child::Watchdog::over(&child, LIMIT);
        let begun = Instant::now();
        let is_there = loop {
            if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                break Ok(());
            }
            if let Some(status) = child.try_wait()? {
                break Err(format!("{name} has ended: {status}"));
            }
            if begun.elapsed() > Duration::from_secs(60) {
                break Err(format!("{name} does not answer"));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let export = if name.starts_with("coreplane") { "disk" } else { "" };
        let (access, child) = (Access::Socket(socket, export), Some((child, watchdog)));
        let contender = Self { access, child, device: None };
        is_there?;
        Ok(contender)
    }

    fn attach(directory: &Path, len: u64) -> Outcome<Self> {
        let store = directory.join("store");
        file(&store, len)?;
        let with = |direct: &str| {
            let mut losetup = child::limited("losetup", 20);
            losetup.args(["--find", "--show", "--sector-size", "4096", direct]);
            child::output(losetup.arg(&store))
        };
        let device = with("--direct-io=on").or_else(|_| with("--direct-io=off"))?;
        let device = PathBuf::from(device.trim());
        Ok(Self { access: Access::Device(device.clone()), child: None, device: Some(device) })
    }

    /// Seconds of processor time that its process has used; none of one without a process.
    pub(super) fn processor_seconds(&self) -> Option<f64> {
        let (child, _) = self.child.as_ref()?;
        child::processor_seconds(child.id()).ok()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some((mut child, watchdog)) = self.child.take() {
            // It may have ended by itself.
            let _killed = child.kill().is_ok();
            let _ended = child.wait().is_ok();
            drop(watchdog);
        }
        if let Some(device) = &self.device {
            let mut losetup = child::limited("losetup", 20);
            if let Err(error) = child::output(losetup.arg("--detach").arg(device)) {
                eprintln!("measure: {} is left behind: {error}", device.display());
            }
        }
    }
}

/// Detaches loop devices over files in this directory, which a killed run has left.
pub(super) fn detach_stale(directory: &Path) -> Outcome<()> {
    let mut losetup = child::limited("losetup", 20);
    losetup.args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    for line in child::output(&mut losetup)?.lines() {
        let Some((name, file)) = line.split_once(' ') else { continue };
        if Path::new(file.trim()).starts_with(directory) {
            child::output(child::limited("losetup", 20).arg("--detach").arg(name))?;
        }
    }
    Ok(())
}
