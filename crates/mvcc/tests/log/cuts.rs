//! Short lives, cut at every fence and every return, and in their recoveries.

use crate::model::State;
use crate::ops::{Driver, Op, World, options, sim_options};
use crate::worlds::{FILE, WORLD};
use coreplane_engine::Error;
use coreplane_mvcc::{LogMap, MapKind};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Run, SimOptions, Standing, Subject, explore};
use std::sync::Arc;

/// The state of the log after an operation; a commit is acknowledged when it has made it durable.
#[derive(Debug, Clone)]
struct Made {
    state: State,
    is_durable: bool,
}

#[derive(Debug)]
struct Story {
    world: World,
    seed: u64,
    operations: u64,
}

impl Subject for Story {
    type Op = Made;
    type Store = Option<LogMap>;
    type Contents = Option<State>;

    fn work(&self, run: &Run<'_, Made>) {
        let made = Made { state: State::default(), is_durable: true };
        let log = run.acknowledged(made, || {
            let space = Arc::clone(run.space());
            LogMap::simulated_create(self.world.kind, space, &options()).expect("create")
        });
        let mut driver = Driver::new(self.world, self.seed);
        for _ in 0..self.operations {
            let op = driver.op();
            let is_durable = matches!(op, Op::Commit);
            let mut state = driver.state.clone();
            state.make(&op);
            let call = run.began(Made { state, is_durable });
            match driver.run(&log, &op) {
                true => call.returned(),
                false => call.refused(),
            }
        }
        driver.look(&log);
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<LogMap>, String> {
        match LogMap::simulated_open(self.world.kind, Arc::clone(space), &options()) {
            Ok(log) => Ok(Some(log)),
            // Distinguished by `check`: only before the creation is acknowledged may there be none.
            Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, log: &Option<LogMap>) -> Result<Option<State>, String> {
        let Some(log) = log else { return Ok(None) };
        log.audit()?;
        Ok(Some(State::of(log)))
    }

    fn check(&self, contents: &Option<State>, history: &History<'_, Made>) -> Result<(), String> {
        let Some(found) = contents else {
            let is_created = history.acknowledged().next().is_some();
            return if is_created { Err("the log is lost".to_owned()) } else { Ok(()) };
        };
        let operations = history.operations();
        let is_last = |(made, standing): &(&Made, Standing)| {
            made.is_durable && *standing == Standing::Acknowledged
        };
        let first = operations.iter().rposition(is_last).unwrap_or(0);
        let mut may_be = operations.iter().skip(first).filter(|it| it.1 != Standing::Refused);
        if may_be.any(|(made, _)| made.state == *found) || operations.is_empty() {
            return Ok(());
        }
        let may_be: Vec<_> = operations.iter().skip(first).map(|it| &it.0.state).collect();
        Err(format!("{found:?} is none of {may_be:?}"))
    }
}

/// Each world with so many seeds, three times as many at the full scale.
fn explored(of: impl Fn(World) -> World, operations: u64, seeds: std::ops::Range<u64>) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let end = seeds.start + if is_full { 3 } else { 1 } * (seeds.end - seeds.start);
    let kinds = MapKind::ALL.map(|kind| [WORLD, FILE].map(|world| of(World { kind, ..world })));
    for world in kinds.into_iter().flatten() {
        let mut images = 0;
        for seed in seeds.start..end {
            let story = Story { world, seed, operations };
            let options = SimOptions {
                images_per_cut: if is_full { 8 } else { 3 },
                recovery_cut_in: 20,
                images_per_recovery_cut: 3,
                checkers: 2,
                ..sim_options(&world, seed)
            };
            let report = explore(&options, &story);
            let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
            assert!(messages.is_empty(), "{story:?}: {messages:.900?}");
            images += report.images;
        }
        assert!(images > 200, "{world:?}: {images} images");
    }
}

#[test]
fn entries_are_there_in_order_or_not_at_all() {
    explored(|world| world, 100, 1..4);
}

#[test]
fn many_pages_share_a_commit() {
    let rare = |world| World { page_size: 1024, pages: 200, commit_in: 15, ..world };
    explored(rare, 100, 11..14);
    // More pages than are kept ahead.
    let rarer = |world| World { pages: 260, commit_in: 60, large_in: 0, ..rare(world) };
    explored(rarer, 140, 15..17);
}

#[test]
fn pages_come_round() {
    let few = |world| World { keys: 6, pages: 26, large_in: 0, roll_back_in: 6, ..world };
    explored(few, 250, 21..23);
}

#[test]
fn snapshots_come_and_go() {
    let installed = |world| World { install_in: 12, pin_in: 12, keys: 12, pages: 48, ..world };
    explored(installed, 150, 31..34);
}
