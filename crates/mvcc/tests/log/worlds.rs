//! The properties of logs.

use crate::ops::World;
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;

pub(crate) const WORLD: World = World {
    kind: MapKind::List,
    model: Model::X86,
    keys: 40,
    pages: 64,
    page_size: 4096,
    large_in: 20,
    commit_in: 4,
    install_in: 0,
    pin_in: 0,
    roll_back_in: 12,
    is_full: false,
};

pub(crate) const FILE: World = World { model: Model::File, ..WORLD };
