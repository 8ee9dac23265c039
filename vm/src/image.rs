//! The guest's file system and its NVDIMM.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::Archive;
use crate::packages::Kernel;
use crate::programs::{cargo, quiet};
use crate::{Build, Outcome};

/// The NVDIMM's size.
pub(crate) const NVDIMM_MIB: u64 = 256;
/// The size of the fsdax information block at its start.
const INFORMATION_MIB: u64 = 2;
/// The guest's programs: their paths there, and below cargo's directory on the host.
const PROGRAMS: [(&str, &str); 3] =
    [("init", "vm-guest"), ("bin/coreplane", "coreplane"), ("bin/dax_probe", "examples/dax_probe")];

/// Builds the guest's programs and packs them with their libraries and the drivers.
pub(crate) fn build(
    root: &Path,
    place: &Path,
    kernel: &Kernel,
    build: &Build<'_>,
) -> Outcome<PathBuf> {
    build_programs(root, build)?;
    let mut archive = Archive::new();
    for directory in ["bin", "dev", "lib", "mnt", "proc", "run", "sys", "tmp"] {
        archive.directory(directory);
    }
    // Process 1's standard streams, before devtmpfs is mounted.
    archive.device("dev/console", 5, 1);
    let mut libraries = BTreeSet::new();
    for (path, name) in PROGRAMS {
        let built = root.join("target").join(build.directory).join(name);
        libraries.extend(libraries_of(&built)?);
        archive.file(path, &without_symbols(&built, place)?);
    }
    add_libraries(&mut archive, &libraries)?;
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

fn build_programs(root: &Path, build: &Build<'_>) -> Outcome<()> {
    quiet(
        Command::new(cargo())
            .args(["build", "--quiet", "--profile", build.profile])
            .args(build.arguments)
            .args(["--bin", "coreplane", "--bin", "vm-guest", "--example", "dax_probe"])
            .env_remove("CARGO_TARGET_DIR")
            .current_dir(root),
    )
}

/// The paths of the shared libraries of a program, and of their loader.
fn libraries_of(program: &Path) -> Outcome<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    paths_of_ldd(&said).filter(|_| output.status.success()).ok_or_else(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        format!("ldd {}: {} {said}{error}", program.display(), output.status).into()
    })
}

/// The absolute paths in ldd's answer, whose lines are `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`; none if it has
/// none, or a library is missing.
fn paths_of_ldd(answer: &str) -> Option<Vec<PathBuf>> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    let paths: Vec<PathBuf> = answer.lines().filter_map(path).collect();
    (!paths.is_empty() && !answer.contains("not found")).then_some(paths)
}

/// The guest's memory holds its files, most of which would be debug information.
fn without_symbols(program: &Path, place: &Path) -> Outcome<Vec<u8>> {
    let path = place.join("program");
    quiet(Command::new("strip").arg("-o").arg(&path).arg(program))?;
    Ok(fs::read(path)?)
}

/// Adds the libraries at the paths that they have on the host.
fn add_libraries(archive: &mut Archive, libraries: &BTreeSet<PathBuf>) -> Outcome<()> {
    let mut made = BTreeSet::from([PathBuf::from("/"), PathBuf::from("/lib")]);
    for library in libraries {
        let directory = library.parent().ok_or("a library without a directory")?;
        let mut parents: Vec<&Path> = directory.ancestors().collect();
        parents.reverse();
        for parent in parents {
            if made.insert(parent.to_owned()) {
                archive.directory(&name_of(parent));
            }
        }
        archive.file(&name_of(library), &fs::read(library)?);
    }
    Ok(())
}

/// The name of an absolute path in an archive.
fn name_of(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_the_answer_of_ldd() {
        let answer = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/a/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        let paths = ["/lib/a/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from);
        assert_eq!(paths_of_ldd(answer).unwrap(), paths);
        assert!(paths_of_ldd("\tstatically linked\n").is_none());
        assert!(paths_of_ldd(&format!("{answer}\tlibx.so => not found\n")).is_none());
    }
}
