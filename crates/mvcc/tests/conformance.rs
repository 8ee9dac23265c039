//! The conformance suite, for every kind of map, on every medium.

use coreplane_conformance::model::ManualClock;
use coreplane_conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::{StorageEngine, UnixMillis};
use coreplane_mvcc::{Geometry, MapEngine, MapKind, Options};
use coreplane_pmem::MediaChoice;
use std::path::PathBuf;
use std::sync::Arc;

/// The subject of the suite.
#[derive(Clone, Copy)]
struct Subject {
    kind: MapKind,
    fan_out: u32,
}

impl Subject {
    fn of(kind: MapKind) -> Self {
        Self { kind, fan_out: Geometry::default().fan_out }
    }
}

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()), check_reads: true, ..Options::default() }
}

/// Closes (or, for a kill, just drops) the store and opens its pool again.
fn reopen(kind: MapKind, path: PathBuf, clock: ManualClock) -> Reopen {
    Box::new(move |engine: Arc<dyn StorageEngine>, how| {
        match how {
            Restart::Clean => engine.close().expect("close"),
            Restart::Kill => {}
            // Power cuts are simulated elsewhere: see `crashes.rs`.
            Restart::PowerCut => return None,
        }
        drop(engine);
        let opened = MapEngine::open(kind, &path, MediaChoice::Auto, &options(&clock), &|_| {});
        Some(Arc::new(opened.expect("open")) as Arc<dyn StorageEngine>)
    })
}

fn fixture(subject: Subject, directory: tempfile::TempDir, size: u64, scale: Scale) -> Fixture {
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let path = directory.path().join("pool");
    let options = options(&clock);
    let Subject { kind, fan_out } = subject;
    let geometry = Geometry { fan_out, ..Geometry::default() };
    let store = MapEngine::create(kind, &path, size, geometry, MediaChoice::Auto, &options);
    Fixture::new(Arc::new(store.expect("create")))
        .with_clock(clock.clone())
        .with_reopen(reopen(kind, path, clock))
        .with_scale(scale)
        .keeping(Box::new(directory))
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// The suite over one subject, on every medium.
macro_rules! suite_of {
    ($subject:expr, $size:expr, $scale:expr) => {
        use super::*;

        /// A pool as large as the suite needs.
        mod in_memory {
            use super::*;

            fn fresh() -> Fixture {
                fixture($subject, super::super::in_memory(), $size, $scale)
            }
            coreplane_conformance::conformance_suite!(fresh);
        }

        /// A pool that can be filled.
        mod tiny {
            use super::*;

            fn fresh() -> Fixture {
                let directory = super::super::in_memory();
                fixture($subject, directory, 1 << 20, Scale::TINY).filled_by(1 << 20)
            }
            coreplane_conformance::conformance_suite!(fresh);
        }

        /// On a disk every fence is a sync.
        mod on_disk {
            use super::*;

            fn fresh() -> Fixture {
                let directory = tempfile::tempdir().expect("a directory");
                fixture($subject, directory, 16 << 20, Scale::SYNCED.small())
            }
            coreplane_conformance::conformance_suite!(fresh);
        }
    };
}

mod list {
    suite_of!(Subject::of(MapKind::List), 64 << 20, Scale::USUAL);
}

mod cow_tree {
    suite_of!(Subject::of(MapKind::CowTree), 64 << 20, Scale::USUAL);
}

mod cow_tree_of_wide_nodes {
    const SUBJECT: Subject = Subject { kind: MapKind::CowTree, fan_out: 64 };
    suite_of!(SUBJECT, 16 << 20, Scale::USUAL.small());
}
