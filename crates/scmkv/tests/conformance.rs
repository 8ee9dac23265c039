//! The conformance suite, on every medium and both placements of the index.

mod home;

use coreplane_conformance::model::ManualClock;
use coreplane_conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::{StorageEngine, UnixMillis};
use coreplane_scmkv::{Options, Placement};
use home::{Home, New};
use std::sync::Arc;

fn options(clock: &ManualClock) -> Options {
    Options { time: Some(clock.as_clock()), ..home::options(true) }
}

/// Restarts a store: closes it (or, for a kill, just drops it) and opens its pool again.
fn reopen(home: Arc<Home>, clock: ManualClock) -> Reopen {
    Box::new(move |engine: Arc<dyn StorageEngine>, how| {
        match how {
            Restart::Clean => engine.close().expect("close"),
            Restart::Kill => {}
            // Power cuts are for the simulator: see `cuts.rs`.
            Restart::PowerCut => return None,
        }
        drop(engine);
        Some(Arc::new(home.open(options(&clock))) as Arc<dyn StorageEngine>)
    })
}

fn fixture(home: Home, new: New, scale: Scale) -> Fixture {
    let (home, clock) = (Arc::new(home), ManualClock::starting_at(UnixMillis(1_800_000_000_000)));
    let store = home.create(new.with(options(&clock)));
    Fixture::new(Arc::new(store))
        .with_clock(clock.clone())
        .with_reopen(reopen(Arc::clone(&home), clock))
        .with_scale(scale)
        .keeping(Box::new(home))
}

mod emulated_index_in_pool {
    use super::*;
    fn fresh() -> Fixture {
        let new = New::of_size(64 << 20).placed(Placement::Pool);
        fixture(Home::in_memory(), new, Scale::USUAL)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod emulated_index_in_dram {
    use super::*;
    fn fresh() -> Fixture {
        let new = New::of_size(64 << 20).placed(Placement::Dram);
        fixture(Home::in_memory(), new, Scale::USUAL)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod tiny_pages {
    use super::*;
    fn fresh() -> Fixture {
        fixture(Home::in_memory(), New::tiny(128), Scale::TINY)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod file {
    use super::*;
    fn fresh() -> Fixture {
        fixture(Home::on_disk(), New::of_size(64 << 20), Scale::SYNCED)
    }
    coreplane_conformance::conformance_suite!(fresh);
}
