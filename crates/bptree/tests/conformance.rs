//! The conformance suite, on every medium.

use coreplane_bptree::{Bptree, Options};
use coreplane_conformance::model::ManualClock;
use coreplane_conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::{StorageEngine, UnixMillis};
use coreplane_pmem::MediaChoice;
use std::path::PathBuf;
use std::sync::Arc;

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()), check_reads: true, ..Options::default() }
}

/// Closes (or, for a kill, just drops) the store and opens its pool again.
fn reopen(path: PathBuf, media: MediaChoice, clock: ManualClock) -> Reopen {
    Box::new(move |engine: Arc<dyn StorageEngine>, how| {
        match how {
            Restart::Clean => engine.close().expect("close"),
            Restart::Kill => {}
            // The simulator covers power cuts: see `crashes.rs`.
            Restart::PowerCut => return None,
        }
        drop(engine);
        let opened = Bptree::open(&path, media.clone(), &options(&clock), &|_| {});
        Some(Arc::new(opened.expect("open")) as Arc<dyn StorageEngine>)
    })
}

fn fixture(
    directory: tempfile::TempDir,
    size: u64,
    page_size: u32,
    media: MediaChoice,
    scale: Scale,
) -> Fixture {
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, size, page_size, media.clone(), &options(&clock));
    Fixture::new(Arc::new(store.expect("create")))
        .with_clock(clock.clone())
        .with_reopen(reopen(path, media, clock))
        .with_scale(scale)
        .keeping(Box::new(directory))
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// As large as the suite prefers it.
mod in_memory {
    use super::*;

    fn fresh() -> Fixture {
        fixture(in_memory(), 64 << 20, 8192, MediaChoice::Auto, Scale::USUAL)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

/// The smallest leaves, and a pool that can be filled.
mod tiny {
    use super::*;

    fn fresh() -> Fixture {
        fixture(in_memory(), 1 << 20, 4096, MediaChoice::Auto, Scale::TINY).filled_by(1 << 20)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

/// On a disk every fence is a sync.
mod on_disk {
    use super::*;

    fn fresh() -> Fixture {
        let directory = tempfile::tempdir().expect("a directory");
        fixture(directory, 64 << 20, 8192, MediaChoice::Auto, Scale::SYNCED)
    }
    coreplane_conformance::conformance_suite!(fresh);
}
