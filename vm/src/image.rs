//! The guest's file system and its NVDIMM.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::archive::Archive;
use crate::packages::Kernel;
use crate::programs::{cargo, quiet};

/// The NVDIMM's size.
pub(crate) const NVDIMM_MIB: u64 = 256;
/// The size of the fsdax information block at its start.
const INFORMATION_MIB: u64 = 2;
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the guest's programs statically and packs them with the drivers.
pub(crate) fn build(root: &Path, place: &Path, kernel: &Kernel) -> Outcome<PathBuf> {
    build_programs(root)?;
    let built = root.join("target").join(TARGET).join("guest");
    let mut archive = Archive::new();
    for directory in ["bin", "dev", "lib", "mnt", "proc", "run", "sys", "tmp"] {
        archive.directory(directory);
    }
    // Process 1's standard streams, before devtmpfs is mounted.
    archive.device("dev/console", 5, 1);
    archive.file("init", &fs::read(built.join("vm-guest"))?);
    archive.file("bin/coreplane", &fs::read(built.join("coreplane"))?);
    let probe = built.join("examples/dax_probe");
    archive.file("bin/dax_probe", &fs::read(probe)?);
    let mut order = String::new();
    for module in &kernel.modules {
        let name = module.file_name().ok_or("a module without a name")?.to_string_lossy();
        archive.file(&format!("lib/{name}"), &fs::read(module)?);
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("lib/order", order.as_bytes());
    let initrd = place.join("initrd");
    fs::write(&initrd, archive.finish())?;
    Ok(initrd)
}

/// A target is named so that only the guest's programs are linked with the static C library, not procedural macros
/// and build scripts, which run on the host.
fn build_programs(root: &Path) -> Outcome<()> {
    let build = |arguments: &[&str]| -> Outcome<()> {
        quiet(
            Command::new(cargo())
                .args(["build", "--quiet", "--profile", "guest", "--target", TARGET])
                .args(arguments)
                .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
                .env_remove("CARGO_TARGET_DIR")
                .current_dir(root),
        )
    };
    build(&["-p", "coreplane-cli", "--bin", "coreplane"])?;
    build(&["-p", "coreplane-vm", "--bin", "vm-guest"])?;
    build(&["-p", "coreplane-pmem", "--example", "dax_probe"])
}

/// Makes an NVDIMM with an empty ext4 at the place where the guest's DAX device will begin.
pub(crate) fn format_nvdimm(place: &Path) -> Outcome<PathBuf> {
    let path = place.join("nvdimm");
    let file = fs::File::create(&path)?;
    file.set_len(NVDIMM_MIB << 20)?;
    quiet(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-E"])
            .arg(format!("offset={}", INFORMATION_MIB << 20))
            .arg(&path)
            .arg(format!("{}m", NVDIMM_MIB - INFORMATION_MIB)),
    )?;
    Ok(path)
}
