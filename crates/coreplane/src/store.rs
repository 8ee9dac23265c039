//! What comes back.

use crate::config::{EngineChoice, StoreConfig};
use coreplane_engine::model::ModelEngine;
use coreplane_engine::{Durability, Engine, Error, Result};
use coreplane_pmem::Medium;
use coreplane_scmkv::{Options, Placement, Repair, Scmkv, Tell};
use std::sync::Arc;

/// An open store: the engine, and the facts about what it rests on.
pub struct Store {
    engine: Arc<dyn Engine>,
    pooled: Option<Arc<Scmkv>>,
    medium: Medium,
    durability: Durability,
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
        if config.engine == EngineChoice::Model {
            return Ok(Self::model(config));
        }
        if let Some(above) = config.path.parent() {
            std::fs::create_dir_all(above).map_err(|source| Error::Io {
                context: format!("make the directory {}", above.display()),
                source,
            })?;
        }
        let made = Scmkv::create(
            &config.path,
            config.size,
            config.media.clone(),
            config.placement,
            options(config),
        )?;
        Ok(Self::pooled(config, made))
    }

    pub(crate) fn open(config: &StoreConfig) -> Result<Self> {
        if config.engine == EngineChoice::Model {
            return Ok(Self::model(config));
        }
        let found = Scmkv::open(&config.path, config.media.clone(), options(config))?;
        Ok(Self::pooled(config, found))
    }

    pub(crate) fn repair(config: &StoreConfig, tell: Tell<'_>) -> Result<(Self, Repair)> {
        if config.engine == EngineChoice::Model {
            return Ok((Self::model(config), Repair::default()));
        }
        let media = config.media.clone();
        let (found, repair) = Scmkv::repair(&config.path, media, options(config), tell)?;
        Ok((Self::pooled(config, found), repair))
    }

    fn pooled(config: &StoreConfig, engine: Scmkv) -> Self {
        let engine = Arc::new(engine);
        Self {
            engine: engine.clone(),
            medium: engine.medium(),
            pooled: Some(engine),
            durability: config.durability,
        }
    }

    fn model(config: &StoreConfig) -> Self {
        Self {
            engine: Arc::new(ModelEngine::new()),
            pooled: None,
            medium: Medium {
                name: "dram".to_owned(),
                power_safe: false,
                power_cut_loses: "everything".to_owned(),
                persists_by: "nothing".to_owned(),
            },
            durability: config.durability,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// What the store rests on.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// The durability that it was opened with.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Where its index lies: `pmem` or `dram`.
    pub fn index(&self) -> &'static str {
        match self.pooled.as_ref().map(|engine| engine.placement()) {
            Some(Placement::Pool) => "pmem",
            Some(Placement::Auto | Placement::Dram) | None => "dram",
        }
    }

    /// What a power cut would lose of the writes that returned, in words: what the medium loses,
    /// or, where that is nothing, what the durability leaves open.
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
            Durability::NoFlush => {
                "whatever the processor's caches had not written back".to_owned()
            }
        }
    }

    /// Grows the pool to `size` bytes while it is in use; nothing to do if it is that large.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Io`]; [`Error::Unsupported`] of an engine without a pool.
    pub fn grow(&self, size: u64) -> Result<()> {
        match &self.pooled {
            Some(engine) => engine.grow(size),
            None => {
                Err(Error::Unsupported { engine: self.engine.name(), operation: "growing a pool" })
            }
        }
    }

    /// Stops background work and leaves a clean store behind.
    ///
    /// # Errors
    /// As [`Engine::close`].
    pub fn close(&self) -> Result<()> {
        self.engine.close()
    }
}

fn options(config: &StoreConfig) -> Options {
    Options {
        durability: config.durability,
        background: config.background,
        check_reads: config.check_reads,
        ..Options::default()
    }
}
