//! The store that a command line names.

use crate::arguments::{NewPool, Paths, PoolPlace};
use crate::failure::Failure;
use crate::message;
use crate::terms;
use coreplane::admin::Position;
use coreplane::{Store, StoreConfig};
use std::path::{Path, PathBuf};

impl PoolPlace {
    /// The path of the store.
    pub(crate) fn path(&self) -> PathBuf {
        self.pool.clone().unwrap_or_else(terms::default_pool)
    }

    /// Fails if there is no directory for a pool that is to be created. If no pool is named, the user's data
    /// directory is created.
    pub(crate) fn expect_directory(&self) -> Result<(), Failure> {
        let path = self.path();
        let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) else {
            return Ok(());
        };
        let done = match self.pool {
            None => std::fs::create_dir_all(above),
            Some(_) => std::fs::metadata(above).map(drop),
        };
        let what =
            |error| format!("{}: the directory {}: {error}", path.display(), above.display());
        done.map_err(|error| Failure::new(crate::failure::UNUSABLE, what(error)))
    }

    /// The configuration for opening or creating it.
    pub(crate) fn config(&self) -> StoreConfig {
        let within = std::time::Duration::from_secs(self.answers_within);
        StoreConfig::at(self.path())
            .media(self.media.clone())
            .accept_loss(self.accept_loss)
            .answers_within((!within.is_zero()).then_some(within))
    }

    /// Opens it for reading as it is: nothing in it changes, even if it must be recovered first or a device is
    /// missing, and no permission to write is needed. Writes of the recovery go to memory.
    pub(crate) fn look(&self) -> Result<Store, Failure> {
        open(&self.config().background(false).check_reads(true).copy(true))
    }

    /// Opens it to be read whole. A matrix is opened as in normal use, which heals damage on the way, unless some of
    /// its devices cannot be written: then a copy that is healed in memory alone would be reported as sound.
    pub(crate) fn open_to_verify(&self) -> Result<Store, Failure> {
        let path = self.path();
        if path.is_dir() && has_writable_devices(&path) { self.open() } else { self.look() }
    }

    /// Opens it for a few calls from one thread, with checked reads.
    pub(crate) fn open(&self) -> Result<Store, Failure> {
        open(&self.config().background(false).check_reads(true))
    }

    /// As [`Self::open`], to write.
    pub(crate) fn open_to_write(&self) -> Result<Store, Failure> {
        let store = self.open()?;
        refuse_device(&store, &self.path())?;
        Ok(store)
    }
}

/// True if all devices of the matrix in a directory may be written.
fn has_writable_devices(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_device = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.parse::<Position>().is_ok()) && path.is_file()
    };
    let mut devices = entries.map(|entry| entry.path()).filter(is_device);
    devices.all(|path| std::fs::File::options().write(true).open(path).is_ok())
}

/// Refuses a device of a matrix, whatever its file is called: its peers would not have what is written to it.
pub(crate) fn refuse_device(store: &Store, path: &Path) -> Result<(), Failure> {
    if !store.is_device() {
        return Ok(());
    }
    store.close()?;
    let device = path.display();
    let message =
        format!("{device} is a device of a matrix: write to the matrix, by `--pool DIRECTORY`");
    Err(Failure::new(crate::failure::UNUSABLE, message))
}

impl Paths {
    /// `config` with the path that was given.
    pub(crate) fn of(&self, config: StoreConfig) -> StoreConfig {
        config.read_path(self.reads)
    }
}

impl NewPool {
    /// The configuration for opening `pool`, or for creating it if it does not exist.
    pub(crate) fn config(&self, pool: &PoolPlace) -> StoreConfig {
        let config = pool.config().size(self.size).placement(self.index);
        let config = self.geometry.of(config);
        let config = with(config, self.engine, StoreConfig::engine);
        let config = with(config, self.matrix, StoreConfig::matrix);
        let config = with(config, self.ack, StoreConfig::ack);
        with(config, self.prototype, StoreConfig::prototype)
    }
}

/// `config` with this value, if it is given.
pub(crate) fn with<T>(
    config: StoreConfig,
    value: Option<T>,
    set: fn(StoreConfig, T) -> StoreConfig,
) -> StoreConfig {
    match value {
        Some(value) => set(config, value),
        None => config,
    }
}

/// Opens a store that must exist.
pub(crate) fn open(config: &StoreConfig) -> Result<Store, Failure> {
    expect_pool(config)?;
    let store = config.open().map_err(|error| Failure::of_pool(&error, config.path()))?;
    warn(&store);
    Ok(store)
}

/// Shows warnings about a store to its user.
pub(crate) fn warn(store: &Store) {
    for warning in store.matrix().iter().flat_map(|matrix| matrix.warnings()) {
        message::tell(warning);
    }
}

/// Fails if there is no store.
pub(crate) fn expect_pool(config: &StoreConfig) -> Result<(), Failure> {
    if !config.path().exists() {
        let message = format!(
            "{}: there is no pool; `coreplane create --pool {0}` makes one",
            config.path().display()
        );
        return Err(Failure::new(crate::failure::UNUSABLE, message));
    }
    Ok(())
}
