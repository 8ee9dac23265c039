//! The permanent sizes of a pool: the choices at its creation, and the sizes that it states.

use crate::config::StoreConfig;
use coreplane_engine::{Error, Result};
use coreplane_mvcc::{Geometry, MapEngine, MapKind};
use coreplane_pmem::Pool;
use std::path::Path;

/// Bytes of a page of the pool at `path` (of a leaf, if it is a tree), if it can be read.
pub fn pool_page_size(path: &Path) -> Option<u32> {
    Pool::page_size_at(path).ok()
}

/// The most entries of a node of the pool at `path`, if it is a cow-tree.
pub fn pool_fan_out(path: &Path) -> Option<u32> {
    let is_tree = Pool::kind_at(path).is_ok_and(|kind| kind == MapKind::CowTree.name());
    is_tree.then(|| Pool::parameters_at(path).ok()).flatten().and_then(Geometry::fan_out_of)
}

/// # Errors
/// If a page size is chosen for an engine that has none to choose.
pub(crate) fn check_pages(config: &StoreConfig) -> Result<()> {
    match config.page_size {
        Some(_) => {
            let operation = "choosing the size of pages: the ordered engines can";
            Err(Error::Unsupported { engine: coreplane_scmkv::KIND, operation })
        }
        None => check_nodes(config, coreplane_scmkv::KIND),
    }
}

/// # Errors
/// If a number of entries is chosen for an engine without such nodes.
pub(crate) fn check_nodes(config: &StoreConfig, engine: &'static str) -> Result<()> {
    match config.fan_out {
        Some(_) => {
            let operation = "choosing the entries of a node: cow-tree can";
            Err(Error::Unsupported { engine, operation })
        }
        None => Ok(()),
    }
}

/// Makes a pool for a map.
pub(crate) fn create_map(
    kind: MapKind,
    path: &Path,
    config: &StoreConfig,
    options: &coreplane_mvcc::Options,
) -> Result<MapEngine> {
    if kind == MapKind::List {
        check_nodes(config, kind.name())?;
    }
    let usual = Geometry::default();
    let geometry = Geometry {
        page_size: config.page_size.unwrap_or(usual.page_size),
        fan_out: config.fan_out.unwrap_or(usual.fan_out),
    };
    MapEngine::create(kind, path, config.size, geometry, config.media.clone(), options)
}
