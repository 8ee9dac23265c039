//! The parts of the machine: QEMU, a kernel and tools, from the distribution, fetched once and kept under
//! `target/vm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::programs::{apt_install, apt_update, have, quiet};

/// A kernel and the drivers of persistent memory that go with it.
pub(crate) struct Kernel {
    /// The kernel's image.
    pub(crate) image: PathBuf,
    /// Module files, in the order in which they must be loaded.
    pub(crate) modules: Vec<PathBuf>,
}

/// Modules in the order of their dependencies, below `kernel/drivers`.
const MODULES: [&str; 4] =
    ["nvdimm/libnvdimm.ko", "acpi/nfit/nfit.ko", "nvdimm/nd_btt.ko", "nvdimm/nd_pmem.ko"];

/// Compressions of a kernel image: the first bytes of the payload, and the program that unpacks it.
const PAYLOADS: [(&[u8], &[&str]); 3] = [
    (b"\x02\x21\x4c\x18", &["lz4", "-dcq"]),
    (b"\x28\xb5\x2f\xfd", &["zstd", "-dcq"]),
    (b"\xfd7zXZ\0", &["xz", "-dcq"]),
];

/// Installs and fetches everything needed; the inner error says why something is not available.
pub(crate) fn prepare(place: &Path) -> Outcome<Result<Kernel, String>> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Err("it needs an x86-64 Linux host".to_owned()));
    }
    let wanted =
        [("qemu-system-x86_64", "qemu-system-x86"), ("mkfs.ext4", "e2fsprogs"), ("lz4", "lz4")];
    let absent: Vec<&str> =
        wanted.iter().filter(|(program, _)| !have(program)).map(|(_, package)| *package).collect();
    if let Err(why) = apt_install(&absent) {
        return Ok(Err(format!("cannot install {}: {why}", absent.join(", "))));
    }
    if let Some((program, _)) = wanted.iter().find(|(program, _)| !have(program)) {
        return Ok(Err(format!("{program} is still absent")));
    }
    if let Some(kernel) = found(place) {
        return Ok(Ok(kernel));
    }
    if let Err(why) = fetch_kernel(place) {
        return Ok(Err(format!("no kernel: {why}")));
    }
    Ok(found(place).ok_or_else(|| "the kernel package has no such drivers".to_owned()))
}

/// The kernel of an earlier run.
fn found(place: &Path) -> Option<Kernel> {
    let unpacked = place.join("kernel");
    let versions = fs::read_dir(unpacked.join("lib/modules")).ok()?;
    let drivers = versions
        .filter_map(Result::ok)
        .map(|version| version.path().join("kernel/drivers"))
        .find(|drivers| drivers.is_dir())?;
    let modules: Vec<PathBuf> = MODULES.iter().map(|name| drivers.join(name)).collect();
    let image = unpacked.join("image");
    (image.is_file() && modules.iter().all(|module| module.is_file()))
        .then_some(Kernel { image, modules })
}

fn fetch_kernel(place: &Path) -> Outcome<()> {
    let unpacked = place.join("kernel");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    let fetched = tempfile_dir(place)?;
    let name = kernel_package()?;
    println!("vm: fetching {name}");
    quiet(Command::new("apt-get").args(["download", "-qq", &name]).current_dir(&fetched))?;
    let archive = fs::read_dir(&fetched)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or("apt-get download left no package")?;
    quiet(Command::new("dpkg-deb").arg("-x").args([&archive, &unpacked]))?;
    fs::remove_dir_all(&fetched)?;
    let compressed = fs::read_dir(unpacked.join("boot"))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        })
        .ok_or("the package has no kernel")?;
    let image = fs::read(&compressed)?;
    // If it is unpacked here, the kernel need not unpack itself under emulation.
    let unpacked_image =
        PAYLOADS.iter().find_map(|(magic, command)| unpack(&image, magic, command));
    fs::write(unpacked.join("image"), unpacked_image.unwrap_or(image))?;
    Ok(())
}

fn tempfile_dir(place: &Path) -> Outcome<PathBuf> {
    let fetched = place.join("fetched");
    if fetched.exists() {
        fs::remove_dir_all(&fetched)?;
    }
    fs::create_dir_all(&fetched)?;
    Ok(fetched)
}

/// The package behind the distribution's name for "a kernel for virtual machines".
fn kernel_package() -> Outcome<String> {
    let ask = || -> Outcome<Option<String>> {
        let output = Command::new("apt-cache")
            .args(["depends", "linux-image-cloud-amd64"])
            .stderr(Stdio::null())
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .map(str::to_owned))
    };
    if let Some(name) = ask()? {
        return Ok(name);
    }
    apt_update()?;
    ask()?.ok_or_else(|| "no package linux-image-cloud-amd64".into())
}

/// The payload that begins with `magic`, unpacked by `command`, if it is a kernel.
fn unpack(image: &[u8], magic: &[u8], command: &[&str]) -> Option<Vec<u8>> {
    let start = image.windows(magic.len()).position(|window| window == magic)?;
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take()?;
    let payload = image[start..].to_vec();
    // Bytes behind the payload make the unpacker stop reading: not an error here.
    let feeder =
        std::thread::spawn(move || std::io::Write::write_all(&mut input, &payload).is_ok());
    let output = child.wait_with_output().ok()?.stdout;
    feeder.join().ok()?;
    (output.starts_with(b"\x7fELF") && output.len() > image.len()).then_some(output)
}
