//! The suite on the reference engine: as it is, and with commits that come later from a thread.

use coreplane_conformance::model::{ManualClock, ModelEngine};
use coreplane_conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::{StorageEngine, UnixMillis};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A clock as it might stand today.
fn clock() -> ManualClock {
    ManualClock::starting_at(UnixMillis(1_800_000_000_000))
}

/// Makes everything durable every now and then, as long as the engine lives.
fn commit_in_background(engine: &Arc<ModelEngine>) {
    let engine = Arc::downgrade(engine);
    std::thread::spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.make_durable();
            drop(engine);
            std::thread::sleep(Duration::from_micros(200));
        }
    });
}

/// Reopens a model: its state is carried over by `after_kill` or `after_power_cut`.
fn reopen(model: Arc<ModelEngine>, background: bool) -> Reopen {
    let model = Mutex::new(model);
    Box::new(move |engine: Arc<dyn StorageEngine>, how| {
        let mut model = model.lock().unwrap();
        if how == Restart::Clean {
            engine.close().unwrap();
        }
        drop(engine);
        let next = match how {
            Restart::PowerCut => model.after_power_cut(),
            Restart::Clean | Restart::Kill => model.after_kill(),
        };
        *model = Arc::new(next);
        if background {
            commit_in_background(&model);
        }
        Some(Arc::clone(&*model) as Arc<dyn StorageEngine>)
    })
}

fn fixture(model: ModelEngine, background: bool) -> Fixture {
    let model = Arc::new(model);
    if background {
        commit_in_background(&model);
    }
    Fixture::new(Arc::clone(&model) as Arc<dyn StorageEngine>)
        .with_reopen(reopen(model, background))
}

mod durable_at_once {
    fn fresh() -> super::Fixture {
        let clock = super::clock();
        let model = super::ModelEngine::with_clock(clock.as_clock());
        super::fixture(model, false).with_clock(clock)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod durable_later {
    fn fresh() -> super::Fixture {
        let clock = super::clock();
        let model = super::ModelEngine::with_clock(clock.as_clock()).manual_commit();
        super::fixture(model, true).with_clock(clock)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod tiny_on_the_system_clock {
    fn fresh() -> super::Fixture {
        // No property may need more than the scale says.
        let bytes = super::Scale::TINY.bytes;
        let model = super::ModelEngine::new().with_capacity(bytes as u64);
        super::fixture(model, false).with_scale(super::Scale::TINY).filled_by(bytes)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod as_on_a_disk {
    fn fresh() -> super::Fixture {
        let model = super::ModelEngine::new().manual_commit();
        super::fixture(model, true).with_scale(super::Scale::SYNCED)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod mostly_empty_places {
    fn fresh() -> super::Fixture {
        let clock = super::clock();
        let model = super::ModelEngine::with_clock(clock.as_clock()).with_places(12);
        super::fixture(model, false).with_clock(clock)
    }
    coreplane_conformance::conformance_suite!(fresh);
}
