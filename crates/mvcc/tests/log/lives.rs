//! One pool through dozens of lives, each of which is ended by a cut, behind any store, in recovery too.

use crate::model::State;
use crate::ops::{Driver, Op, World, options, sim_options};
use crate::worlds::{FILE, WORLD};
use coreplane_mvcc::{LogMap, MapKind};
use coreplane_pmem::media::sim::{Eviction, Image, Sim};
use std::sync::Arc;

/// The state of the log, and the events of the medium when it had become so.
struct Step {
    state: State,
    events: usize,
    is_commit: bool,
}

fn open(world: &World, sim: &Sim, what: &str) -> LogMap {
    LogMap::simulated_open(world.kind, Arc::clone(sim.space()), &options())
        .unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Runs a life; returns what a power cut leaves of it, and the number of operations.
fn live(driver: &mut Driver, image: Option<&Image>, (seed, life): (u64, u64)) -> (Image, usize) {
    let world = driver.world;
    let what = format!("{world:?}, seed {seed}, life {life}");
    let (mut sim, mut log) = match image {
        None => {
            let sim = Sim::new(&sim_options(&world, seed)).expect("memory");
            let space = Arc::clone(sim.space());
            let log = LogMap::simulated_create(world.kind, space, &options()).expect("create");
            (sim, log)
        }
        Some(image) => {
            let sim = image.reopen().expect("memory");
            let log = open(&world, &sim, &what);
            (sim, log)
        }
    };
    driver.look(&log);
    let mut first = if image.is_some() { 0 } else { sim.events() };
    let start = |driver: &Driver, events| {
        vec![Step { state: driver.state.clone(), events, is_commit: true }]
    };
    let (mut steps, mut count) = (start(driver, first), 0);
    for _ in 0..5 + driver.draw.next(90) {
        let op = driver.op();
        count += 1;
        driver.run(&log, &op);
        let is_commit = matches!(op, Op::Commit);
        steps.push(Step { state: driver.state.clone(), events: sim.events(), is_commit });
        if driver.draw.next(90) == 0 {
            let closes = driver.draw.next(2) == 0;
            if closes {
                log.close().expect("close");
            }
            // Or killed: everything that was stored is there, and a cut takes what was not flushed.
            driver.forget_pins();
            drop(log);
            let end = sim.events();
            sim = sim.killed().expect("memory");
            let what = format!("{what}, killed");
            log = open(&world, &sim, &what);
            driver.begin(left_by_kill(&log, &steps, closes || world.kind == MapKind::List, &what));
            driver.look(&log);
            // A cut before that belongs to the life before.
            first = if closes { end } else { sim.events() };
            steps = start(driver, first);
        }
    }
    driver.look(&log);
    driver.forget_pins();
    let end = sim.events();
    let at = first + driver.draw.next((end - first) as u64 + 1) as usize;
    let eviction = match driver.draw.next(5) {
        0 => Eviction::Nothing,
        1 => Eviction::Everything,
        seed => Eviction::Seeded(seed + (life << 8)),
    };
    let cut = sim.crash_at(at, eviction);
    drop(log);
    let what = format!("{what}, cut at {at} of {end}, {eviction:?}");
    (go_on(driver, cut, (&steps, at), (life, &what)), count)
}

/// The state after a close, or after a kill, which keeps everything that was stored: a tree loses what it has not
/// written yet.
fn left_by_kill(log: &LogMap, steps: &[Step], is_stored: bool, what: &str) -> State {
    let found = State::of(log);
    let last = steps.iter().rposition(|step| step.is_commit).unwrap_or(0);
    let first = if is_stored { steps.len() - 1 } else { last };
    let is_one = steps[first..].iter().any(|step| step.state == found);
    assert!(is_one, "{what}: {found:?} is none of those since the commit");
    found
}

/// The image with which the next life begins.
fn go_on(
    driver: &mut Driver,
    cut: Image,
    (steps, at): (&[Step], usize),
    (life, what): (u64, &str),
) -> Image {
    let last = steps.iter().rposition(|step| step.is_commit && step.events <= at).unwrap_or(0);
    // Up to the operation in which the cut was.
    let open_at = steps.iter().position(|step| step.events > at).unwrap_or(steps.len() - 1);
    let sim = cut.reopen().expect("memory");
    let log = open(&driver.world, &sim, what);
    let found = State::of(&log);
    let may_be = &steps[last..=open_at.max(last)];
    if !may_be.iter().any(|step| step.state == found) {
        let may_be: Vec<_> = may_be.iter().map(|step| &step.state).collect();
        panic!("{what}:\n{found:?}\nis none of\n{may_be:#?}");
    }
    log.audit().unwrap_or_else(|drift| panic!("{what}: {drift}"));
    let report = log.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{what}: {report:?}");
    drop(log);
    driver.begin(found);
    // The next life begins with this recovery done in full, in part, or not at all.
    match driver.draw.next(3) {
        0 => cut,
        1 => sim.crash(Eviction::Everything),
        _ => {
            let at = driver.draw.next(sim.events() as u64 + 1) as usize;
            sim.crash_at(at, Eviction::Seeded(life))
        }
    }
}

/// Maps of each kind, in memory and in files, with these seeds.
fn all_live(of: impl Fn(World) -> World, seeds: [std::ops::Range<u64>; 2]) {
    for kind in MapKind::ALL {
        let [in_memory, in_file] = seeds.clone();
        lives(of(World { kind, ..WORLD }), in_memory);
        lives(of(World { kind, ..FILE }), in_file);
    }
}

fn lives(world: World, seeds: std::ops::Range<u64>) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let times = if is_full { 20 } else { 1 };
    let seeds = seeds.start..seeds.start + times * (seeds.end - seeds.start);
    for seed in seeds {
        let (mut driver, mut image, mut operations) = (Driver::new(world, seed), None, 0);
        for life in 0..40 {
            let (next, count) = live(&mut driver, image.as_ref(), (seed, life));
            (image, operations) = (Some(next), operations + count);
        }
        assert!(operations > 500, "{operations} operations");
    }
}

#[test]
fn a_log_lives_through_dozens_of_power_cuts() {
    all_live(|world| world, [1..9, 101..109]);
}

/// Pages of one kibibyte, as in the thesis; few commits, each of which makes many pages durable.
#[test]
fn where_pages_are_small_and_commits_are_rare() {
    let small = |world| World { page_size: 1024, pages: 160, commit_in: 25, ..world };
    all_live(small, [201..209, 301..309]);
}

/// The cleaner works all the time.
#[test]
fn where_pages_are_few() {
    let few = |world| World { keys: 8, pages: 36, large_in: 0, ..world };
    all_live(few, [401..409, 501..509]);
    let small = |world| World { page_size: 1024, pages: 80, commit_in: 12, ..few(world) };
    all_live(small, [601..609, 701..709]);
    // More pages share a commit than are kept ahead.
    let rare = |world| World { pages: 100, commit_in: 70, ..small(world) };
    all_live(rare, [721..729, 741..749]);
}

#[test]
fn where_entries_are_often_rolled_back() {
    let back = |world| World { keys: 8, pages: 48, large_in: 40, roll_back_in: 3, ..world };
    all_live(back, [801..809, 901..909]);
}

#[test]
fn where_snapshots_are_pinned() {
    let pinned = |world| World { pin_in: 8, keys: 12, ..world };
    all_live(pinned, [1001..1007, 1101..1107]);
}

#[test]
fn where_snapshots_are_installed() {
    let installed = |world| World { install_in: 15, pin_in: 20, keys: 20, ..world };
    all_live(installed, [1201..1209, 1301..1309]);
}

#[test]
fn where_there_is_no_room() {
    let full = |world| World { keys: 300, pages: 30, large_in: 0, is_full: true, ..world };
    all_live(full, [1401..1407, 1501..1507]);
    let installed = |world| World { install_in: 60, pin_in: 40, ..full(world) };
    all_live(installed, [1601..1605, 1701..1705]);
}
