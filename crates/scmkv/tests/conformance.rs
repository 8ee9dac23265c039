//! The conformance suite, on every medium and both placements of the index.

use coreplane_engine::conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::model::ManualClock;
use coreplane_engine::{Engine, UnixMillis};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()), ..Options::default() }
}

/// Closes (or, for a kill, just drops) the store and opens its pool again.
fn reopen(path: PathBuf, clock: ManualClock) -> Reopen {
    Box::new(move |engine: Arc<dyn Engine>, how| {
        match how {
            Restart::Clean => engine.close().expect("close"),
            Restart::Kill => {}
            // A power cut is the simulator's business: see `crashes.rs`.
            Restart::PowerCut => return None,
        }
        drop(engine);
        let opened = Scmkv::open(&path, MediaChoice::Auto, options(&clock)).expect("open");
        Some(Arc::new(opened) as Arc<dyn Engine>)
    })
}

struct Setting {
    size: u64,
    geometry: Geometry,
    placement: Placement,
    scale: Scale,
}

fn fixture(home: &Path, setting: Setting) -> Fixture {
    let directory = tempfile::tempdir_in(home).expect("a directory");
    let path = directory.path().join("pool");
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let Setting { size, geometry, placement, scale } = setting;
    let store =
        Scmkv::create_with(&path, size, geometry, MediaChoice::Auto, placement, options(&clock))
            .expect("create");
    Fixture::new(Arc::new(store))
        .with_clock(clock.clone())
        .with_reopen(reopen(path, clock))
        .with_scale(scale)
        .keeping(Box::new(directory))
}

mod emulated_index_in_pool {
    use super::*;
    fn fresh() -> Fixture {
        let setting = Setting {
            size: 128 << 20,
            geometry: Geometry::default(),
            placement: Placement::Pool,
            scale: Scale::USUAL,
        };
        fixture(Path::new("/dev/shm"), setting)
    }
    coreplane_engine::conformance_suite!(fresh);
}

mod emulated_index_in_dram {
    use super::*;
    fn fresh() -> Fixture {
        let setting = Setting {
            size: 128 << 20,
            geometry: Geometry::default(),
            placement: Placement::Dram,
            scale: Scale::USUAL,
        };
        fixture(Path::new("/dev/shm"), setting)
    }
    coreplane_engine::conformance_suite!(fresh);
}

mod tiny_pages {
    use super::*;
    fn fresh() -> Fixture {
        let setting = Setting {
            size: 512 << 10,
            geometry: Geometry::TINY,
            placement: Placement::Pool,
            scale: Scale::TINY,
        };
        fixture(Path::new("/dev/shm"), setting)
    }
    coreplane_engine::conformance_suite!(fresh);
}

mod file {
    use super::*;
    fn fresh() -> Fixture {
        let setting = Setting {
            size: 64 << 20,
            geometry: Geometry::default(),
            placement: Placement::Auto,
            scale: Scale::SYNCED,
        };
        fixture(&std::env::temp_dir(), setting)
    }
    coreplane_engine::conformance_suite!(fresh);
}
