//! Process 1 of the virtual machine that `cargo xtask vm` boots.
//!
//! The host cannot give a process real persistent memory, but QEMU can emulate an NVDIMM: a file
//! of the host that the guest's kernel sees as a persistent-memory region. This program is the
//! guest's whole user space. It loads the drivers, turns the region into a DAX block device,
//! mounts ext4 on it, starts `coreplane`, and then either
//!
//! - `write`: drives it with pipelined writes and reports the acknowledgements
//!   on the serial line, until the host kills the machine; or
//! - `check`: starts it again on the same memory and compares every key with the
//!   acknowledgements that the host saw.
//!
//! Lines for the host begin with `@@ `; everything else on the serial line is the kernel's.
#![allow(clippy::print_stdout, reason = "standard output is the serial line to the host")]

mod check;
mod client;
mod drive;
mod machine;
mod script;
mod server;

use std::collections::HashMap;

/// Any failure, as one line for the host.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() {
    let outcome = machine::mount_kernel_files().and_then(|()| run());
    match outcome {
        Ok(()) => println!("@@ done"),
        Err(error) => println!("@@ failed {error}"),
    }
    machine::power_off();
}

fn run() -> Outcome<()> {
    let options = machine::options()?;
    let step = options.get("step").map_or("", String::as_str).to_owned();
    machine::load_drivers()?;
    if options.contains_key("provision") {
        machine::provision()?;
    }
    machine::mount_dax("always")?;
    machine::report()?;
    match step.as_str() {
        "probe" => probe(),
        "write" => write(&options),
        "check" => check(&options),
        other => Err(format!("no such step: {other:?}").into()),
    }
}

/// Detection alone: the classification of this machine's file systems by `crates/pmem`.
fn probe() -> Outcome<()> {
    machine::probe("sync", "/mnt/probe")?;
    machine::probe("verify", "/mnt/probe")?;
    machine::probe("pool", "/mnt/small")?;
    machine::probe("refuse", "/mnt/plain")?;
    machine::unmount_dax()?;
    machine::mount_dax("never")?;
    machine::probe("without", "/mnt/without")
}

fn write(options: &HashMap<String, String>) -> Outcome<()> {
    machine::probe("sync", "/mnt/probe")?;
    machine::probe("pool", "/mnt/small")?;
    let size = options.get("size").map_or("64MiB", String::as_str);
    server::coreplane(&["create", "--pool", server::POOL, "--size", size])?;
    server::coreplane(&["info", "--pool", server::POOL])?;
    let _server = server::start()?;
    drive::drive()
}

fn check(options: &HashMap<String, String>) -> Outcome<()> {
    let acknowledged = options.get("acked").ok_or("the host named no `acked`")?;
    machine::probe("verify", "/mnt/probe")?;
    let mut server = server::start()?;
    check::check(acknowledged)?;
    server.shut_down()?;
    server::coreplane(&["verify", "--pool", server::POOL])?;
    machine::probe("pool", "/mnt/small")?;
    machine::probe("refuse", "/mnt/plain")?;
    machine::unmount_dax()?;
    machine::mount_dax("never")?;
    machine::probe("without", "/mnt/without")?;
    server::coreplane(&["info", "--pool", server::POOL])?;
    machine::unmount_dax()
}
