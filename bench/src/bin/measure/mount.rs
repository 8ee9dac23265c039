//! Where the stores lie: a tmpfs of our own, so that nobody else's files are on it and its pages
//! have the size that the record says.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};

use super::flags::Flags;
use crate::Outcome;

/// A place for stores, empty at first; nothing is left of it when it is dropped.
#[derive(Debug)]
pub(super) struct Mount {
    path: PathBuf,
    mounted: bool,
    described: String,
}

impl Mount {
    /// What `--mount` says: `huge`, `4k`, or a directory.
    pub(super) fn make(root: &Path, flags: &Flags) -> Outcome<Self> {
        let kind: String = flags.get("mount", "huge".to_owned(), "huge".to_owned())?;
        let place = root.join("target/measure");
        fs::create_dir_all(&place)?;
        remove_stale(&place)?;
        let name = format!("mount-{}", std::process::id());
        let huge = match kind.as_str() {
            "huge" => "always",
            "4k" => "never",
            directory => {
                let path = Path::new(directory).join(format!("coreplane-{name}"));
                fs::create_dir_all(&path)?;
                let described = format!("directory {directory} ({})", file_system(&path));
                return Ok(Self { path: path.canonicalize()?, mounted: false, described });
            }
        };
        let size: u64 = flags.get("mount-size", 16, 6)?;
        let path = place.join(name);
        fs::create_dir(&path)?;
        let options = std::ffi::CString::new(format!("size={size}g,huge={huge},mode=700"))?;
        if let Err(error) = mount(
            "coreplane-measure",
            &path,
            "tmpfs",
            MountFlags::empty(),
            Some(options.as_c_str()),
        ) {
            fs::remove_dir(&path)?;
            return Err(format!(
                "tmpfs with huge={huge} cannot be mounted ({error}); as root it can, or give a \
                 directory: --mount /dev/shm"
            )
            .into());
        }
        let pages =
            if kind == "huge" { "2 MiB pages (huge=always)" } else { "4 KiB pages (huge=never)" };
        let described = format!("tmpfs of its own, {pages}, {size} GiB at most");
        Ok(Self { path, mounted: true, described })
    }

    /// What it is, for the record.
    pub(super) fn described(&self) -> &str {
        &self.described
    }

    /// A path on it where nothing is.
    pub(super) fn fresh(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.path.join(name);
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        } else if path.exists() {
            fs::remove_file(&path)?;
        }
        Ok(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let gone = if self.mounted {
            unmount(&self.path, UnmountFlags::DETACH)
                .map_err(std::io::Error::from)
                .and_then(|()| fs::remove_dir(&self.path))
        } else {
            fs::remove_dir_all(&self.path)
        };
        if let Err(error) = gone {
            eprintln!("measure: {} is left behind: {error}", self.path.display());
        }
    }
}

/// Unmounts what runs have left that were broken off.
fn remove_stale(place: &Path) -> Outcome<()> {
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix("mount-") else {
            continue;
        };
        if !Path::new("/proc").join(process).exists() {
            // Not mounted any more is as good.
            let _unmounted = unmount(entry.path(), UnmountFlags::DETACH).is_ok();
            fs::remove_dir(entry.path())?;
        }
    }
    Ok(())
}

/// The type of the file system that `path` is on.
pub(super) fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((PathBuf::from(words.next()?), words.next()?))
        })
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.components().count())
        .map_or_else(|| "unknown file system".to_owned(), |(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_used_and_emptied() {
        let root = tempfile::tempdir().unwrap();
        let given = root.path().to_string_lossy().into_owned();
        let flags = Flags::parse(&["--mount".to_owned(), given], &[]).unwrap();
        let mount = Mount::make(root.path(), &flags).unwrap();
        let store = mount.fresh("store").unwrap();
        fs::write(&store, "full").unwrap();
        assert!(!mount.fresh("store").unwrap().exists());
        let at = mount.path.clone();
        drop(mount);
        assert!(!at.exists());
        assert_eq!(file_system(Path::new("/proc")), "proc");
    }
}
