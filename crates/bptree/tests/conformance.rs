//! The conformance suite, on every medium.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::model::ManualClock;
use coreplane_engine::{Engine, UnixMillis};
use coreplane_pmem::MediaChoice;
use std::path::PathBuf;
use std::sync::Arc;

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()) }
}

/// Closes (or, for a kill, just drops) the store and opens its pool again.
fn reopen(path: PathBuf, media: MediaChoice, clock: ManualClock) -> Reopen {
    Box::new(move |engine: Arc<dyn Engine>, how| {
        match how {
            Restart::Clean => engine.close().expect("close"),
            Restart::Kill => {}
            // A power cut is the simulator's business: see `crashes.rs`.
            Restart::PowerCut => return None,
        }
        drop(engine);
        let opened = Bptree::open(&path, media.clone(), &options(&clock), &|_| {});
        Some(Arc::new(opened.expect("open")) as Arc<dyn Engine>)
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

#[test]
fn what_holds_already() {
    let fresh = || fixture(in_memory(), 64 << 20, 8192, MediaChoice::Auto, Scale::USUAL);
    let mut missing: Vec<_> = coreplane_engine::conformance::violations(&fresh);
    for (name, what) in &mut missing {
        what.truncate(150);
        eprintln!("{name}: {what}");
    }
    assert!(missing.is_empty());
}
