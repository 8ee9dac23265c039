//! A store of each kind, in memory.

use coreplane::{Db, EngineChoice, MapKind, MatrixShape, StoreConfig};
use std::path::Path;
use tempfile::TempDir;

const SIZE: u64 = 16 << 20;

/// Engines, and for a matrix the shape of its devices.
const KINDS: [(&str, EngineChoice, Option<MatrixShape>); 7] = [
    ("scmkv", EngineChoice::Scmkv, None),
    ("bptree", EngineChoice::Bptree, None),
    ("list", EngineChoice::Map(MapKind::List), None),
    ("cow-tree", EngineChoice::Map(MapKind::CowTree), None),
    ("matrix of bptree", EngineChoice::Bptree, Some(MatrixShape { groups: 2, devices: 2 })),
    ("matrix of cow-tree", EngineChoice::Map(MapKind::CowTree), Some(ONE)),
    ("matrix of scmkv", EngineChoice::Scmkv, Some(ONE)),
];

const ONE: MatrixShape = MatrixShape { groups: 1, devices: 2 };

pub(crate) fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

fn config(path: &Path, engine: EngineChoice, matrix: Option<MatrixShape>) -> StoreConfig {
    let config = StoreConfig::at(path).engine(engine).size(SIZE);
    match matrix {
        Some(shape) => config.matrix(shape),
        None => config,
    }
}

/// Calls `check` with the configuration of each kind.
pub(crate) fn each_config(check: impl Fn(&str, &StoreConfig)) {
    for (name, engine, matrix) in KINDS {
        let directory = in_memory();
        check(name, &config(&directory.path().join("store"), engine, matrix));
    }
}

/// An empty store of each kind.
pub(crate) fn each(check: impl Fn(&str, &Db)) {
    each_config(|name, config| check(name, &config.create_db().expect(name)));
}

/// An empty store of each kind that has its keys in order; checks that their number is as expected.
pub(crate) fn each_ordered(check: impl Fn(&str, &Db)) {
    let seen = std::cell::Cell::new(0);
    each(|name, db| {
        if db.is_ordered() {
            seen.set(seen.get() + 1);
            check(name, db);
        }
    });
    assert_eq!(seen.get(), 5, "scmkv alone has no order");
}
