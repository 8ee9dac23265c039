//! The work of an operating system's user space before the first program: mounts, drivers, and the conversion of the
//! NVDIMM into a DAX device, all through sysfs (no `ndctl` in the image).

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::system::{RebootCommand, finit_module, reboot};

use crate::Outcome;

const DEVICE: &str = "/dev/pmem0";
const MOUNT_POINT: &str = "/mnt";
/// Two mebibytes: the alignment of DAX huge pages, and the offset at which the host put the file system.
const ALIGNMENT: &str = "2097152";

/// Mounts proc, sysfs and devtmpfs, and a tmpfs on /run.
pub(crate) fn mount_kernel_files() -> Outcome<()> {
    for (kind, at) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run")]
    {
        mount(kind, at, kind, MountFlags::empty(), None)
            .map_err(|error| format!("mount {at}: {error}"))?;
    }
    // IFF_UP | IFF_LOOPBACK | IFF_RUNNING; without it 127.0.0.1 cannot be bound.
    write("/sys/class/net/lo/flags", "0x49")
}

/// The `coreplane.NAME=VALUE` words of the kernel's command line.
pub(crate) fn options() -> Outcome<HashMap<String, String>> {
    let line = fs::read_to_string("/proc/cmdline")?;
    Ok(line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("coreplane."))
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// Loads the modules that the host put into the image, in its order.
pub(crate) fn load_drivers() -> Outcome<()> {
    for name in fs::read_to_string("/lib/order")?.lines() {
        let module = fs::File::open(format!("/lib/{name}"))?;
        finit_module(&module, c"", 0).map_err(|error| format!("module {name}: {error}"))?;
    }
    Ok(())
}

/// Turns the raw namespace into `fsdax`: a page structure in DRAM for every page of the medium,
/// recorded in an information block in the medium's first two mebibytes.
pub(crate) fn provision() -> Outcome<()> {
    wait_for("/sys/bus/nd/drivers/nd_pmem/namespace0.0")?;
    let devices = "/sys/bus/nd/devices";
    write("/sys/bus/nd/drivers/nd_pmem/unbind", "namespace0.0")?;
    let seed = fs::read_to_string(format!("{devices}/region0/pfn_seed"))?;
    let seed = seed.trim();
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    for (attribute, value) in [
        ("mode", "ram"),
        ("align", ALIGNMENT),
        ("uuid", uuid.trim()),
        ("namespace", "namespace0.0"),
    ] {
        write(&format!("{devices}/{seed}/{attribute}"), value)?;
    }
    write("/sys/bus/nd/drivers/nd_pmem/bind", seed)
}

/// Mounts the ext4 of the medium with `dax=MODE`.
pub(crate) fn mount_dax(mode: &str) -> Outcome<()> {
    wait_for(DEVICE)?;
    let options = std::ffi::CString::new(format!("dax={mode}"))?;
    mount(DEVICE, MOUNT_POINT, "ext4", MountFlags::empty(), options.as_c_str())
        .map_err(|error| format!("mount {DEVICE} -o dax={mode}: {error}").into())
}

/// The reverse of [`mount_dax`].
pub(crate) fn unmount_dax() -> Outcome<()> {
    unmount(MOUNT_POINT, UnmountFlags::empty())
        .map_err(|error| format!("unmount {MOUNT_POINT}: {error}").into())
}

/// Tells the host the machine's progress and what it found.
pub(crate) fn report() -> Outcome<()> {
    let up = fs::read_to_string("/proc/uptime")?;
    let up = up.split_whitespace().next().unwrap_or("?").to_owned();
    let domain = fs::read_to_string("/sys/bus/nd/devices/region0/persistence_domain")?;
    let dax = fs::read_to_string("/sys/block/pmem0/queue/dax")?;
    println!("@@ up {up}");
    println!("@@ persistence-domain {}", domain.trim());
    println!("@@ dax {}", dax.trim());
    Ok(())
}

/// Runs `dax_probe` (an example of `crates/pmem`), whose lines go to the host.
pub(crate) fn probe(step: &str, path: &str) -> Outcome<()> {
    let output = Command::new("/bin/dax_probe").args([step, path]).output()?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        println!("@@ probe {line}");
    }
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(format!("dax_probe {step} {path}: {}: {complaint}", output.status).into())
}

/// Powers the machine off; a process 1 that returned would make the kernel panic.
pub(crate) fn power_off() {
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        println!("@@ failed power off: {error}");
    }
    loop {
        thread::park();
    }
}

fn write(path: &str, value: &str) -> Outcome<()> {
    fs::write(path, value).map_err(|error| format!("{value:?} to {path}: {error}").into())
}

fn wait_for(path: &str) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !Path::new(path).exists() {
        if Instant::now() > deadline {
            return Err(format!("{path} did not appear").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
