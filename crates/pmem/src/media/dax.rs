//! Properties of persistent memory, as reported by the kernel.
//!
//! A flushed line is safe only if the file system has also recorded durably which blocks of the
//! device belong to the file. With `MAP_SYNC` the kernel guarantees this, and only an attempt shows
//! whether it is supported: a kernel, file system or file without it refuses the mapping
//! (`MAP_SHARED_VALIDATE` makes unknown flags an error). A plain mapping of a file on a DAX file
//! system succeeds and guarantees nothing: its metadata may never be journalled.
//!
//! Further properties are in sysfs. The device of the file lies in a *region*
//! (`…/ndbus0/region0/namespace0.0/block/pmem0`), whose `persistence_domain` says whether the CPU
//! caches are drained at a power cut (eADR: `cpu_cache`), and whose DIMMs count the shutdowns at
//! which draining failed (`nmem*/nfit/dirty_shutdown`). The domain is never inferred from the
//! processor: it is a property of the platform's energy store.

use rustix::fs::{major, minor};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maps the first page of `file` with `MAP_SYNC` and unmaps it again.
pub(crate) fn try_map_sync(file: &File) -> io::Result<()> {
    const LEN: usize = 4096;
    // SAFETY: a fresh mapping at an address that the kernel chooses, accessed by no thread,
    // unmapped at once.
    unsafe {
        let at = rustix::mm::mmap(
            std::ptr::null_mut(),
            LEN,
            // Reading is enough, so that a read-only file works, too.
            ProtFlags::READ,
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            file,
            0,
        )?;
        rustix::mm::munmap(at, LEN)?;
    }
    Ok(())
}

/// The persistence domain: data that is drained to the medium when the power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Domain {
    /// The CPU caches too (eADR): no flush is needed.
    Caches,
    /// Only data that has reached the memory controller: lines must be flushed.
    MemoryController,
}

/// The persistent-memory region beneath a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    /// None: the kernel reports nothing, or another value; then lines must be flushed.
    pub(crate) domain: Option<Domain>,
    /// The sum over its DIMMs; none if the kernel does not report it.
    pub(crate) unsafe_shutdowns: Option<u64>,
}

impl Region {
    /// The region of the device that `file` is on.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let device = file.metadata().ok()?.dev();
        Self::in_sysfs(Path::new("/sys"), major(device), minor(device))
    }

    fn in_sysfs(sys: &Path, major: u32, minor: u32) -> Option<Self> {
        let device = sys.join(format!("dev/block/{major}:{minor}")).canonicalize().ok()?;
        let region = device.ancestors().find(|path| is_numbered(path, "region"))?;
        let domain = match read(&region.join("persistence_domain")).as_deref() {
            Some("cpu_cache") => Some(Domain::Caches),
            Some("memory_controller") => Some(Domain::MemoryController),
            _ => None,
        };
        Some(Self { domain, unsafe_shutdowns: unsafe_shutdowns(sys, region) })
    }
}

/// `mapping0`, `mapping1`, … of a region read `nmem0,0,17179869184,0`.
fn unsafe_shutdowns(sys: &Path, region: &Path) -> Option<u64> {
    let mut sum = None;
    for number in 0.. {
        let Some(mapping) = read(&region.join(format!("mapping{number}"))) else {
            break;
        };
        let dimm = mapping.split(',').next()?;
        let dimm: PathBuf = sys.join("bus/nd/devices").join(dimm);
        let count: u64 = ["nfit/dirty_shutdown", "papr/dirty_shutdown", "cxl/dirty_shutdown"]
            .iter()
            .find_map(|attribute| read(&dimm.join(attribute)))?
            .parse()
            .ok()?;
        sum = Some(sum.unwrap_or(0_u64).wrapping_add(count));
    }
    sum
}

fn is_numbered(path: &Path, prefix: &str) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix(prefix))
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn read(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A sysfs with `/dev/pmem0p1` (259:1) in region3, which consists of the given DIMMs.
    fn sysfs(domain: Option<&str>, dirty: &[Option<&str>]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let bus = sys.path().join("devices/LNXSYSTM:00/ACPI0012:00/ndbus0");
        let region = bus.join("region3");
        let device = region.join("namespace3.0/block/pmem0/pmem0p1");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        std::os::unix::fs::symlink(&device, sys.path().join("dev/block/259:1")).unwrap();
        if let Some(domain) = domain {
            fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
        }
        for (number, dirty) in dirty.iter().enumerate() {
            let mapping = format!("nmem{number},0,1073741824,0\n");
            fs::write(region.join(format!("mapping{number}")), mapping).unwrap();
            let dimm = sys.path().join(format!("bus/nd/devices/nmem{number}/nfit"));
            fs::create_dir_all(&dimm).unwrap();
            if let Some(dirty) = dirty {
                fs::write(dimm.join("dirty_shutdown"), format!("{dirty}\n")).unwrap();
            }
        }
        sys
    }

    #[test]
    fn the_region_is_found_beneath_a_partition() {
        let sys = sysfs(Some("cpu_cache"), &[Some("3"), Some("4")]);
        assert_eq!(
            Region::in_sysfs(sys.path(), 259, 1),
            Some(Region { domain: Some(Domain::Caches), unsafe_shutdowns: Some(7) })
        );
        assert_eq!(Region::in_sysfs(sys.path(), 259, 2), None);
    }

    #[test]
    fn caches_persist_only_where_the_kernel_says_so() {
        for (said, domain) in [
            (Some("memory_controller"), Some(Domain::MemoryController)),
            (Some("unknown"), None),
            (None, None),
        ] {
            let sys = sysfs(said, &[]);
            let region = Region::in_sysfs(sys.path(), 259, 1).unwrap();
            assert_eq!(region, Region { domain, unsafe_shutdowns: None });
        }
    }

    #[test]
    fn a_dimm_that_does_not_count_leaves_the_sum_unknown() {
        let sys = sysfs(None, &[Some("3"), None]);
        assert_eq!(Region::in_sysfs(sys.path(), 259, 1).unwrap().unsafe_shutdowns, None);
    }

    #[test]
    fn a_file_on_a_disk_is_in_no_region_and_cannot_be_mapped_so() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        if try_map_sync(&file).is_err() {
            assert_eq!(Region::of(&file), None);
        }
    }
}
