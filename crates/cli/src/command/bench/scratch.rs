//! Pools that exist for one measurement only.

use crate::arguments::Bench;
use crate::failure::{self, Failure};
use crate::pool::with;
use coreplane::{Store, StoreConfig};
use std::path::PathBuf;

/// The default size of a pool in bytes.
const SIZE: u64 = 1 << 30;

/// The place of such a pool: beside the pool that is named.
pub(super) struct Scratch<'b> {
    bench: &'b Bench,
    path: PathBuf,
}

impl<'b> Scratch<'b> {
    /// Pools whose name says their purpose.
    pub(super) fn new(bench: &'b Bench, what: &str) -> Self {
        let beside = bench.pool.pool.clone().unwrap_or_else(|| PathBuf::from("/dev/shm/coreplane"));
        let mut name = beside.into_os_string();
        name.push(format!(".{what}-{}", std::process::id()));
        Self { bench, path: PathBuf::from(name) }
    }

    /// The size of a pool in bytes, as the command line says.
    pub(super) fn size(&self) -> u64 {
        self.bench.size.unwrap_or(SIZE)
    }

    /// Runs the work in a pool of `size` bytes that is created before and removed afterwards.
    pub(super) fn with<T>(
        &self,
        size: u64,
        work: impl FnOnce(&Store) -> coreplane_bench::Result<T>,
    ) -> Result<T, Failure> {
        let Self { bench, path } = self;
        let config = StoreConfig::at(path)
            .media(bench.pool.media.clone())
            .size(size)
            .placement(bench.index)
            .durability(bench.durability)
            .check_reads(!bench.no_check_reads);
        let config = with(config, bench.engine, StoreConfig::engine);
        let config = bench.geometry.of(config);
        let store = config.create().map_err(|error| Failure::of_pool(&error, path))?;
        let done = work(&store);
        store.close()?;
        std::fs::remove_file(path).map_err(|error| {
            Failure::new(failure::FAILED, format!("{}: {error}", path.display()))
        })?;
        Ok(done?)
    }
}
