//! Power cuts at every fence and every return: acknowledged writes are there, others are there
//! wholly or not at all, and the store that is left passes `verify`.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

use crate::scale::scaled;
use crate::story::{self, Draw, Durable, LEN_MAX, Map, Op, created, options, sim_options};
use coreplane_engine::WriteOptions;
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{
    Fault, History, Model, Report, Run, SimOptions, Subject, explore,
};
use coreplane_scmkv::{Placement, Scmkv};
use std::sync::Arc;

/// A workload drawn from a seed.
struct Workload {
    seed: u64,
    ops: usize,
    keys: u8,
    placement: Placement,
    /// Threads, each with keys of its own.
    threads: u8,
    /// Bytes to which the store grows on the way.
    len_max: u64,
}

impl Workload {
    /// Whether some records have expired: until the cleaner finds them they count as records.
    fn expires(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    fn step(&self, draw: &mut Draw, serial: usize, thread: u8) -> Op {
        let mine = thread * self.keys..(thread + 1) * self.keys;
        let number = draw.key(&mine);
        // Beside other writers the cleaner is at work more often.
        match draw.next(if self.threads == 1 { 21 } else { 27 }) {
            0..=7 => Op::Write(vec![(number, Some(draw.value(serial)))]),
            8 if self.expires() => Op::PutExpired(number, draw.value(serial)),
            8..=9 => Op::PutExpiring(number, draw.value(serial)),
            10..=13 => Op::Write(vec![(number, None)]),
            kind @ 14..=17 => {
                let count = 2 + draw.next(if self.threads == 1 { 4 } else { 2 });
                let changes = draw.changes(count, &mine, serial);
                if kind < 16 { Op::Write(changes) } else { Op::Group(changes) }
            }
            _ => Op::Upkeep,
        }
    }
}

fn perform(store: &Scmkv, op: &Op) {
    let horizon = op.perform(store, &WriteOptions::default()).expect("the operation");
    // On a file a single write waits too.
    assert!(horizon.is_empty(), "{op:?} has returned and is not durable");
}

impl Subject for Workload {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = created(run, self.placement, options());
        let store = &store;
        let work = |thread: u8| {
            let mut draw = Draw(self.seed << 8 | u64::from(thread));
            for serial in 0..self.ops {
                let op = match (thread, serial) {
                    (0, serial) if serial == self.ops / 2 => Op::Grow(self.len_max),
                    _ => self.step(&mut draw, serial, thread),
                };
                run.acknowledged(op.clone(), || perform(store, &op));
            }
        };
        if self.threads == 1 {
            work(0);
        } else {
            run.threads(|threads| {
                (0..self.threads).for_each(|thread| threads.spawn(move || work(thread)));
            });
        }
        run.acknowledged(Op::Close, || perform(store, &Op::Close));
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        story::recover(space, options())
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<Option<Map>, String> {
        story::contents(store, self.expires())
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        story::check(contents, history, Durable::AtReturn)
    }
}

fn seeds() -> u64 {
    scaled(6, 60)
}

/// A workload and its images.
fn explored(placement: Placement, threads: u8, options: &SimOptions) -> Report {
    let keys = story::keys(options.seed) / threads;
    let ops = 110 / usize::from(threads);
    let (seed, len_max) = (options.seed, options.max_len);
    explore(options, &Workload { seed, ops, keys, placement, threads, len_max })
}

fn explore_all(
    placement: Placement,
    threads: u8,
    first: u64,
    options: fn(u64) -> SimOptions,
) -> Report {
    let mut sum = Report::default();
    for seed in first..first + seeds() {
        let report = explored(placement, threads, &options(seed));
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        sum.merge(report);
    }
    eprintln!("{} crash images, 0 violations", sum.images);
    assert!(sum.images > 1000 * seeds(), "only {} images", sum.images);
    sum
}

#[test]
fn nothing_acknowledged_is_lost_with_the_index_in_the_pool() {
    explore_all(Placement::Pool, 1, 1, sim_options);
}

#[test]
fn nothing_acknowledged_is_lost_with_the_index_in_dram() {
    explore_all(Placement::Dram, 1, 101, sim_options);
}

#[test]
fn nothing_acknowledged_is_lost_by_several_threads() {
    explore_all(Placement::Pool, 3, 201, sim_options);
    explore_all(Placement::Dram, 2, 301, sim_options);
}

/// Two writers leave a page each, with so many bytes that two threads read the logs, where the machine has two
/// processors; each fences the slots that it has put into the index.
#[test]
fn nothing_acknowledged_is_lost_where_several_threads_read_the_logs() {
    const PAGE: u64 = 64 << 10;
    let mut sum = Report::default();
    for seed in 602..602 + scaled(2, 20) {
        for placement in [Placement::Pool, Placement::Dram] {
            let options = SimOptions {
                len: 32 * PAGE,
                max_len: 33 * PAGE,
                page_size: PAGE as u32,
                images_per_cut: 3,
                recovery_cut_in: 4,
                ..sim_options(seed)
            };
            let report = explored(placement, 2, &options);
            assert!(report.violations.is_empty(), "{placement:?}, seed {seed}: {report:#?}");
            sum.merge(report);
        }
    }
    eprintln!("{} crash images, {} of recoveries", sum.images, sum.recovery_images);
    assert!(sum.images > 2000 && sum.recovery_images > 500, "{sum:?}");
}

/// A writer replaces a record that the cleaner is copying, and its slot is not durable when the old
/// page is freed: seldom, so this runs longer and looks at fewer images a cut.
#[test]
fn no_slot_falls_back_into_a_page_that_the_cleaner_freed() {
    let mut images = 0;
    for seed in 5000..5000 + seeds() {
        let (ops, keys) = (350, 40);
        let placement = Placement::Pool;
        let workload = Workload { seed, ops, keys, placement, threads: 2, len_max: LEN_MAX };
        let options = SimOptions {
            len: 112 << 10,
            images_per_cut: 4,
            recovery_cut_in: 0,
            early_reads: false,
            ..sim_options(seed)
        };
        let report = explore(&options, &workload);
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        images += report.images;
    }
    eprintln!("{images} crash images, 0 violations");
}

#[test]
fn nothing_acknowledged_is_lost_where_a_fence_is_a_sync() {
    let options =
        |seed| SimOptions { model: Model::File, non_temporal: false, ..sim_options(seed) };
    for (threads, first) in [(1, 401), (2, 501)] {
        let sum = explore_all(Placement::Dram, threads, first, options);
        // A write is visible before its sync, which an expiry asks for and others wait for.
        assert!(sum.sync_cuts.are_all_there(), "{:?}", sum.sync_cuts);
    }
}

#[test]
fn without_fences_or_flushes_the_simulator_finds_losses() {
    for fault in [Fault::DropEveryFence, Fault::DropEveryFlush] {
        let options = SimOptions { fault: Some(fault.clone()), ..sim_options(1) };
        let report = explored(Placement::Pool, 1, &options);
        assert!(!report.violations.is_empty(), "{fault:?} was not caught");
    }
}

/// The classic faults one by one, each at many places of a run: a place may be harmless (a line
/// that is flushed again, a fence behind which nothing waits), but not all are. Two stores between
/// the same fences may change places anywhere; across a fence that is a store after its fence.
#[test]
fn each_classic_fault_is_found_in_the_engine() {
    let places = (40..400).step_by(40);
    let everywhere = Fault::TearStoresOf(0..LEN_MAX);
    let faults: [(&str, Vec<Fault>); 4] = [
        ("a missing flush", places.clone().map(Fault::DropFlush).collect()),
        ("a missing fence", places.clone().map(Fault::DropFence).collect()),
        ("a store after its fence", places.map(Fault::DelayStore).collect()),
        ("torn words", vec![everywhere]),
    ];
    for (what, faults) in faults {
        let (places, mut caught) = (faults.len(), 0);
        for fault in faults {
            let options = SimOptions {
                fault: Some(fault),
                recovery_cut_in: 0,
                images_per_cut: 16,
                max_violations: 1,
                shrink: false,
                non_temporal: false,
                ..sim_options(1)
            };
            caught += usize::from(!explored(Placement::Pool, 1, &options).violations.is_empty());
        }
        eprintln!("{what}: found at {caught} of {places} places");
        assert!(caught > 0, "{what} was never found");
    }
}
