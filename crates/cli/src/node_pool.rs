//! The pool of a node of a cluster, while the node does not run.

use crate::arguments::Pool;
use crate::failure::Failure;
use coreplane::EngineChoice;
use coreplane_mvcc::{Geometry, LogMap, MapKind, Options};
use coreplane_replica::map_options;
use std::path::Path;

/// Opens it; with `is_copy` only to be read, without changing anything in it. None if the pool is no node's.
pub(crate) fn open(pool: &Pool, is_copy: bool) -> Option<Result<LogMap, Failure>> {
    let path = pool.path();
    let kind = kind_at(&path)?;
    let options = map_options(&Options { background: false, is_copy, ..Options::default() });
    let map = LogMap::open(kind, &path, pool.media.clone(), &options, &|_| {});
    Some(map.map_err(|error| Failure::of_pool(&error, &path)))
}

/// True if the pool of a node is at this path.
pub(crate) fn is_at(path: &Path) -> bool {
    kind_at(path).is_some()
}

fn kind_at(path: &Path) -> Option<MapKind> {
    match coreplane::admin::engine_at(path) {
        Some(EngineChoice::Map(kind)) if Geometry::has_log_at(path) => Some(kind),
        _ => None,
    }
}
