//! A matrix in a directory: one file for each device, `g0d0` and so on.

use crate::config::{EngineChoice, StoreConfig};
use crate::store::{Pooled, engine_options, pool_engine};
use coreplane_engine::{Batch, ChangeRef, Error, Result, StorageEngine};
use coreplane_mkvs::{DEVICES_MAX, GROUPS_MAX, OWN_KEY_PREFIX, Position, Rack, TimeSource};
use coreplane_pmem::Medium;
use coreplane_record::Options;
use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The number of groups of a matrix, and of devices in each: `2x2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Groups.
    pub groups: u16,
    /// Devices in each.
    pub devices: u8,
}

/// `2x2`.
impl std::fmt::Display for MatrixShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.groups, self.devices)
    }
}

/// `GROUPSxDEVICES`.
impl FromStr for MatrixShape {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let shape = || {
            let (groups, devices) = text.split_once('x')?;
            Some(Self { groups: groups.parse().ok()?, devices: devices.parse().ok()? })
        };
        let shape = shape().ok_or_else(|| format!("`{text}` is no matrix; 2x2 is one"))?;
        let is_possible = (1..=GROUPS_MAX).contains(&shape.groups)
            && (1..=DEVICES_MAX).contains(&usize::from(shape.devices));
        if is_possible {
            return Ok(shape);
        }
        Err(format!(
            "a matrix has 1 to {GROUPS_MAX} groups of 1 to {DEVICES_MAX} devices, not {text}"
        ))
    }
}

/// The files of a directory as devices.
pub(crate) struct Directory<'a> {
    config: &'a StoreConfig,
    /// The medium of the devices: the one that promises least.
    medium: Mutex<Option<Medium>>,
    /// The places of their indexes, each once.
    indexes: Mutex<Vec<&'static str>>,
    created: Mutex<Vec<PathBuf>>,
}

impl<'a> Directory<'a> {
    pub(crate) fn new(config: &'a StoreConfig) -> Self {
        let (medium, indexes) = (Mutex::new(None), Mutex::default());
        Self { config, medium, indexes, created: Mutex::default() }
    }

    /// The medium of the devices.
    pub(crate) fn medium(&self) -> Option<Medium> {
        self.medium.lock().clone()
    }

    /// The place of the devices' indexes.
    pub(crate) fn index(&self) -> &'static str {
        match self.indexes.lock()[..] {
            [one] => one,
            _ => "dram and pmem",
        }
    }

    /// Removes the created files: they are no matrix yet.
    pub(crate) fn remove_created(&self) {
        for path in self.created.lock().drain(..) {
            // A file that cannot be removed is reported by an open.
            let _removed = std::fs::remove_file(path).is_ok();
        }
    }

    fn path(&self, place: Position) -> PathBuf {
        self.config.path.join(place.to_string())
    }

    /// The place where a device is made: a link may lead to another place, perhaps on another disk.
    fn home(&self, place: Position) -> PathBuf {
        let path = self.path(place);
        std::fs::read_link(&path).map_or(path, |to| self.config.path.join(to))
    }

    /// The options of a device.
    fn options(&self, time: &TimeSource) -> Options {
        // Its peers have the same records.
        let outlives_medium = true;
        Options { time: Some(Arc::clone(time)), outlives_medium, ..engine_options(self.config) }
    }

    /// The engine of a device. The medium of the whole is that of the device that promises least.
    fn note(&self, device: Option<Pooled>) -> Result<Arc<dyn StorageEngine>> {
        let operation = "being a device: it has no pool";
        let device = device.ok_or(Error::Unsupported { engine: "model", operation })?;
        let (engine, medium, index) = device.parts();
        let mut indexes = self.indexes.lock();
        if !indexes.contains(&index) {
            indexes.push(index);
        }
        let mut known = self.medium.lock();
        if known.as_ref().is_none_or(|known| known.power_safe && !medium.power_safe) {
            *known = Some(medium);
        }
        Ok(engine)
    }
}

/// True if there are devices in the directory, or remains of some.
pub(crate) fn is_matrix(path: &Path) -> bool {
    places(path).is_ok_and(|places| !places.is_empty())
}

/// The places that have a file. A link without a target does not count: its disk may be away, or no device was made
/// there yet.
pub(crate) fn places(path: &Path) -> std::io::Result<Vec<Position>> {
    let mut places = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let place = entry.file_name().to_str().and_then(|name| name.parse::<Position>().ok());
        places.extend(place.filter(|_| entry.path().exists()));
    }
    Ok(places)
}

/// Checks the key of a write: with a record of one of a matrix's own keys a pool would be taken for a device.
///
/// # Errors
/// [`Error::Unsupported`] for such a key, of any store.
#[inline]
pub fn check_key(key: &[u8]) -> Result<()> {
    if coreplane_mkvs::is_own_key(key) {
        let operation = "a key that begins with the matrix's own name";
        return Err(Error::Unsupported { engine: coreplane_mkvs::NAME, operation });
    }
    Ok(())
}

/// As [`check_key`], for the keys that a batch writes.
///
/// # Errors
/// As [`check_key`].
pub fn check_batch(batch: &Batch) -> Result<()> {
    let put = |change| match change {
        ChangeRef::Put { key, .. } => Some(key),
        ChangeRef::Delete { .. } => None,
    };
    batch.changes().filter_map(put).try_for_each(check_key)
}

/// True if the file at `path` is a device of a matrix, wherever it lies and however it is called: one of the matrix's
/// own keys is found in its bytes. It may be damaged, cut short, or open elsewhere. A pool with a value that has such
/// a key in it is taken for a device, too.
pub fn is_device_at(path: &Path) -> bool {
    const PIECE: usize = 64 << 10;
    // The open of a pipe would wait for a writer.
    if !path.is_file() {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let len = file.metadata().map_or(0, |found| found.len());
    // A key may begin at the end of a piece.
    let mut bytes = vec![0; PIECE + OWN_KEY_PREFIX.len() - 1];
    let has_key = |at| {
        // What cannot be read is passed over: the device may have its own records in other places.
        let filled = file.read_at(&mut bytes, at).unwrap_or(0);
        let mut found = bytes[..filled].windows(OWN_KEY_PREFIX.len());
        // The second byte tells zeroes apart.
        found.any(|found| found[1] == OWN_KEY_PREFIX[1] && found == OWN_KEY_PREFIX)
    };
    (0..len).step_by(PIECE).any(has_key)
}

impl Rack for Directory<'_> {
    fn present(&self) -> Result<Vec<Position>> {
        places(&self.config.path).map_err(|source| Error::Io {
            context: format!("read the directory {}", self.config.path.display()),
            source,
        })
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        let (path, engine) = (self.home(place), self.config.engine.unwrap_or(EngineChoice::Bptree));
        let engine = self.note(Pooled::create(self.config, engine, &path, &self.options(time))?)?;
        self.created.lock().push(path);
        Ok(engine)
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        // Each device has its own engine.
        let path = self.path(place);
        let engine = pool_engine(&path).unwrap_or_default();
        self.note(Pooled::open(self.config, engine, &path, &self.options(time))?)
    }

    fn remove(&self, place: Position) -> Result<()> {
        let path = self.home(place);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { context: format!("remove {}", path.display()), source })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_places() {
        let place = Position { group: 12, device: 3 };
        assert_eq!(place.to_string().parse(), Ok(place));
        for name in ["", "g1", "d1", "g1d", "gd", "g1d999", "x1d1", "g1d1.old"] {
            assert!(name.parse::<Position>().is_err(), "{name}");
        }
        assert_eq!("3x2".parse(), Ok(MatrixShape { groups: 3, devices: 2 }));
        for text in ["", "2", "x", "2x", "2x-1", "2x2x2", "0x2", "2x0", "9x9", "257x2"] {
            assert!(text.parse::<MatrixShape>().is_err(), "{text}");
        }
    }
}
