//! An open store.

use crate::admin_job::MatrixStore;
use crate::config::{EngineChoice, StoreConfig};
use crate::geometry::{check_nodes, check_pages, create_map};
use crate::matrix::{self, Directory, MatrixShape};
use coreplane_bptree::Bptree;
use coreplane_engine::{Durability, Engine, Error, Result, Stats, StorageEngine};
use coreplane_mkvs::{Matrix, Options, Prototype, Shape};
use coreplane_mvcc::MapEngine;
use coreplane_pmem::{Medium, Pool};
use coreplane_scmkv::{Placement, Scmkv};
use std::path::Path;
use std::sync::Arc;

/// An open store: the engine, and the facts about its medium and its index.
pub struct Store {
    engine: Arc<dyn StorageEngine>,
    pooled: Option<Pooled>,
    matrix: Option<Arc<MatrixStore>>,
    medium: Medium,
    index: &'static str,
    durability: Durability,
    is_copy: bool,
}

/// An engine with a pool.
#[derive(Clone)]
pub(crate) enum Pooled {
    Scmkv(Arc<Scmkv>),
    Bptree(Arc<Bptree>),
    Map(Arc<MapEngine>),
}

impl Pooled {
    /// Makes a pool at `path`; none for an engine without one.
    pub(crate) fn create(
        config: &StoreConfig,
        engine: EngineChoice,
        path: &Path,
        options: &coreplane_record::Options,
    ) -> Result<Option<Self>> {
        let (size, media) = (config.size, config.media.clone());
        Ok(Some(match engine {
            EngineChoice::Scmkv => {
                check_pages(config)?;
                let made = Scmkv::create(path, size, media, config.placement, options.clone())?;
                Self::Scmkv(Arc::new(made))
            }
            EngineChoice::Bptree => {
                check_nodes(config, coreplane_bptree::KIND)?;
                let page_size = config.page_size.unwrap_or(coreplane_bptree::PAGE_SIZE);
                Self::Bptree(Arc::new(Bptree::create(path, size, page_size, media, options)?))
            }
            EngineChoice::Map(kind) => {
                Self::Map(Arc::new(create_map(kind, path, config, options)?))
            }
            EngineChoice::Model => return Ok(None),
        }))
    }

    /// Opens the pool at `path`; none for an engine without one.
    pub(crate) fn open(
        config: &StoreConfig,
        engine: EngineChoice,
        path: &Path,
        options: &coreplane_record::Options,
    ) -> Result<Option<Self>> {
        let media = config.media.clone();
        Ok(Some(match engine {
            EngineChoice::Scmkv => {
                Self::Scmkv(Arc::new(Scmkv::open(path, media, options.clone())?))
            }
            EngineChoice::Bptree => {
                Self::Bptree(Arc::new(Bptree::open(path, media, options, &|_| {})?))
            }
            EngineChoice::Map(kind) => {
                Self::Map(Arc::new(MapEngine::open(kind, path, media, options, &|_| {})?))
            }
            EngineChoice::Model => return Ok(None),
        }))
    }

    /// The engine, its medium, and the place of its index.
    pub(crate) fn parts(&self) -> (Arc<dyn StorageEngine>, Medium, &'static str) {
        match self {
            Self::Scmkv(engine) => (engine.clone(), engine.medium(), index_of(engine.placement())),
            Self::Bptree(engine) => (engine.clone(), engine.medium(), index_of(Placement::Dram)),
            Self::Map(engine) => (engine.clone(), engine.medium(), index_of(Placement::Dram)),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("engine", &self.engine.name())
            .field("medium", &self.medium)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn create(config: &StoreConfig) -> Result<Self> {
        // This prototype is one device, whatever shape was given.
        let alone = config.prototype.filter(|it| *it == Prototype::Ekv);
        let alone = alone.map(|_| MatrixShape { groups: 1, devices: 1 });
        if let Some(shape) = alone.or(config.matrix) {
            return Self::create_matrix(config, shape);
        }
        check_single(config)?;
        let engine = config.engine.unwrap_or_default();
        if engine != EngineChoice::Model {
            check_directory(&config.path)?;
        }
        let made = Pooled::create(config, engine, &config.path, &engine_options(config))?;
        made.map_or_else(|| Self::model(config), |made| Ok(Self::pooled(config, made)))
    }

    pub(crate) fn open(config: &StoreConfig) -> Result<Self> {
        if config.path.is_dir() {
            if !matrix::is_matrix(&config.path) {
                let what = format!("{} holds no device of a matrix", config.path.display());
                return Err(Error::Unusable(what));
            }
            let rack = Directory::new(config);
            let options = matrix_options(config);
            let matrix = Matrix::open(&rack, &options, &|_| {})?;
            if let Err(error) = check_asked(config, &matrix) {
                matrix.close()?;
                return Err(error);
            }
            return Ok(Self::of_matrix(config, matrix, &rack));
        }
        check_single(config)?;
        let engine = Self::engine_at(config);
        let found = Pooled::open(config, engine, &config.path, &engine_options(config))?;
        found.map_or_else(|| Self::model(config), |found| Ok(Self::pooled(config, found)))
    }

    fn create_matrix(config: &StoreConfig, shape: MatrixShape) -> Result<Self> {
        let context = || format!("make the directory {}", config.path.display());
        if matrix::is_matrix(&config.path) {
            let what = format!("{} holds a matrix already", config.path.display());
            return Err(Error::Unusable(what));
        }
        if config.path.is_file() {
            let what = format!("{} is a file: a matrix lies in a directory", config.path.display());
            return Err(Error::Unusable(what));
        }
        let is_new = !config.path.exists();
        if is_new {
            check_directory(&config.path)?;
            std::fs::create_dir(&config.path)
                .map_err(|source| Error::Io { context: context(), source })?;
        }
        let made = Self::create_devices(config, shape);
        if made.is_err() && is_new {
            // The devices made so far are removed. If the directory cannot be removed, it does no harm.
            let _removed = std::fs::remove_dir(&config.path).is_ok();
        }
        made
    }

    fn create_devices(config: &StoreConfig, shape: MatrixShape) -> Result<Self> {
        check_space(config, shape)?;
        let rack = Directory::new(config);
        let MatrixShape { groups, devices } = shape;
        let ack = config.ack.unwrap_or_default();
        let prototype = config.prototype.unwrap_or_default();
        let shape = Shape { groups, devices, ack, prototype };
        let made = Matrix::create(&rack, shape, &matrix_options(config));
        if made.is_err() {
            rack.remove_created();
        }
        Ok(Self::of_matrix(config, made?, &rack))
    }

    fn of_matrix(config: &StoreConfig, matrix: Matrix, rack: &Directory<'_>) -> Self {
        let (medium, index) = (rack.medium(), rack.index());
        let matrix = MatrixStore::new(Arc::new(matrix), config.clone());
        Self {
            engine: matrix.matrix().clone(),
            pooled: None,
            matrix: Some(Arc::new(matrix)),
            medium: medium.unwrap_or_else(dram),
            index,
            durability: config.durability,
            is_copy: config.is_copy,
        }
    }

    /// The engine to open a pool with: the one that was asked for, else the one in the pool. If that is unknown, the
    /// open of the usual one reports why.
    pub(crate) fn engine_at(config: &StoreConfig) -> EngineChoice {
        config.engine.or_else(|| pool_engine(&config.path)).unwrap_or_default()
    }

    pub(crate) fn pooled(config: &StoreConfig, pooled: Pooled) -> Self {
        let (engine, medium, index) = pooled.parts();
        let StoreConfig { durability, is_copy, .. } = *config;
        Self { engine, medium, index, pooled: Some(pooled), matrix: None, durability, is_copy }
    }

    #[cfg(not(feature = "model"))]
    pub(crate) fn model(_config: &StoreConfig) -> Result<Self> {
        Err(Error::Unusable(
            "the model is in builds for tests alone: scmkv, bptree, list or cow-tree".to_owned(),
        ))
    }

    #[cfg(feature = "model")]
    pub(crate) fn model(config: &StoreConfig) -> Result<Self> {
        Ok(Self {
            engine: Arc::new(coreplane_conformance::model::ModelEngine::new()),
            pooled: None,
            matrix: None,
            medium: dram(),
            index: index_of(Placement::Dram),
            durability: config.durability,
            is_copy: false,
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn StorageEngine> {
        &self.engine
    }

    /// The matrix, for maintenance; none for any other store.
    pub fn matrix(&self) -> Option<&Arc<MatrixStore>> {
        self.matrix.as_ref()
    }

    /// The medium of the store.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// The durability that it was opened with.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The place of its index: `pmem` or `dram`; `dram and pmem` if devices of a matrix differ.
    pub fn index(&self) -> &'static str {
        self.index
    }

    /// What a power cut would lose of the writes that returned, in words: the losses of the medium, or, if it has
    /// none, those that the durability allows.
    pub fn power_cut_loses(&self) -> String {
        if !self.medium.power_safe {
            return self.medium.power_cut_loses.clone();
        }
        match self.durability {
            Durability::Strict | Durability::Group { .. } => self.medium.power_cut_loses.clone(),
            Durability::Relaxed { window_bytes, window } => format!(
                "the writes of the last {} ms, at most {} KiB a log",
                window.as_millis(),
                window_bytes >> 10
            ),
        }
    }

    /// The number of records, and the counters. First counts everything, which is otherwise done in the background
    /// after an open; it takes as long as a look at the index of each device.
    ///
    /// # Errors
    /// As the engine's.
    pub fn counted(&self) -> Result<(u64, Stats)> {
        self.engine.count()?;
        Ok((self.engine.len()?, self.engine.stats()))
    }

    /// Grows the pool to `size` bytes while it is in use; for a matrix, each device that is present. Does nothing if
    /// it is that large already.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Io`]; [`Error::Unsupported`] by an engine without a pool.
    pub fn grow(&self, size: u64) -> Result<()> {
        self.engine.grow(size)
    }

    /// True if it is a single device of a matrix, which must not be written to by itself: its peers would not have
    /// the write. Some of its records are the matrix's own ([`is_own_key`](crate::admin::is_own_key)).
    pub fn is_device(&self) -> bool {
        self.pooled.is_some() && coreplane_mkvs::is_device(&*self.engine)
    }

    /// Stops background work and leaves a clean store behind; a copy is discarded.
    ///
    /// # Errors
    /// As [`Engine::close`].
    pub fn close(&self) -> Result<()> {
        self.interrupt();
        if self.is_copy {
            return Ok(());
        }
        self.engine.close()
    }

    fn interrupt(&self) {
        self.matrix.iter().for_each(|matrix| matrix.interrupt());
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Otherwise background work would keep the pools open.
        self.interrupt();
    }
}

fn matrix_options(config: &StoreConfig) -> Options {
    Options {
        accept_loss: config.accept_loss,
        durability: config.durability,
        looks_only: config.is_copy,
        answers_within: config.answers_within,
        read_path: config.read_path,
        ..Options::default()
    }
}

/// The name of an index's place.
fn index_of(placement: Placement) -> &'static str {
    if placement == Placement::Pool { "pmem" } else { "dram" }
}

/// # Errors
/// If a matrix differs from the configuration.
fn check_asked(config: &StoreConfig, matrix: &Matrix) -> Result<()> {
    let differs = |what: &str, is: &dyn std::fmt::Debug, asked: &dyn std::fmt::Debug| {
        let (is, asked) = (format!("{is:?}").to_lowercase(), format!("{asked:?}").to_lowercase());
        let path = config.path.display();
        Err(Error::Unusable(format!(
            "{path}: the {what} of this matrix is {is}, not {asked}; it was created so, and stays so"
        )))
    };
    match config.ack {
        Some(ack) if ack != matrix.ack() => return differs("ack", &matrix.ack(), &ack),
        _ => {}
    }
    let is = matrix.prototype();
    if let Some(asked) = config.prototype.filter(|asked| *asked != is) {
        return differs("prototype", &format_args!("{is}"), &format_args!("{asked}"));
    }
    let engines = matrix.engines();
    let asked = config.engine.map(EngineChoice::name);
    match engines.iter().find(|(_, engine)| asked.is_some_and(|asked| asked != *engine)) {
        Some((place, engine)) => {
            let what = format!("engine of {place}");
            differs(
                &what,
                &format_args!("{engine}"),
                &format_args!("{}", asked.unwrap_or_default()),
            )
        }
        None => Ok(()),
    }
}

/// A mistyped path is reported, and does not become a directory.
///
/// # Errors
/// If there is no directory for the store at `path`.
fn check_directory(path: &Path) -> Result<()> {
    let above = match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => return Ok(()),
    };
    let found = std::fs::metadata(above).and_then(|found| match found.is_dir() {
        true => Ok(()),
        false => Err(std::io::ErrorKind::NotADirectory.into()),
    });
    let context = || format!("the directory {}, in which it is to be made", above.display());
    found.map_err(|source| Error::Io { context: context(), source })
}

/// Devices are made one after the other, and filling a whole memory file system may be more than the machine
/// survives.
///
/// # Errors
/// If the file system has no space for all of them.
fn check_space(config: &StoreConfig, MatrixShape { groups, devices }: MatrixShape) -> Result<()> {
    // Links in the directory mean more than one file system.
    let is_linked =
        std::fs::read_dir(&config.path).is_ok_and(|mut entries| entries.next().is_some());
    let all = config.size.saturating_mul(u64::from(groups)).saturating_mul(u64::from(devices));
    match coreplane_pmem::pool::space_at(&config.path) {
        Some(free) if all > free && !is_linked => Err(Error::Io {
            context: format!(
                "{groups} x {devices} devices of {} bytes are {all} bytes, and {} has {free} free",
                config.size,
                config.path.display()
            ),
            source: std::io::ErrorKind::StorageFull.into(),
        }),
        _ => Ok(()),
    }
}

/// # Errors
/// If a single pool is given settings that only a matrix has.
fn check_single(config: &StoreConfig) -> Result<()> {
    if config.ack.is_some() || config.prototype.is_some() {
        let path = config.path.display();
        let what = match config.path.exists() {
            true => format!("{path} is a single pool: ack and prototype are of a matrix"),
            false => format!(
                "ack and prototype are of a matrix, say 2x2, and {path} is to be a single pool"
            ),
        };
        return Err(Error::Unusable(what));
    }
    Ok(())
}

/// The medium of a store without a pool.
fn dram() -> Medium {
    Medium {
        name: "dram".to_owned(),
        power_safe: false,
        power_cut_loses: "everything".to_owned(),
        persists_by: "nothing".to_owned(),
    }
}

/// The engine of the pool at `path`, if it can be read.
pub fn pool_engine(path: &Path) -> Option<EngineChoice> {
    Pool::kind_at(path).ok()?.parse().ok()
}

/// The options of an engine with a pool.
pub(crate) fn engine_options(config: &StoreConfig) -> coreplane_record::Options {
    coreplane_record::Options {
        durability: config.durability,
        background: config.background,
        check_reads: config.check_reads,
        is_copy: config.is_copy,
        ..Default::default()
    }
}
