//! A workload of the crash simulator in which checkpoints are taken, by threads with logs of
//! their own.

use crate::story::{self, Draw, Durable, Map, Op};
use coreplane_engine::{Durability, Engine, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Run, SimOptions, Subject};
use coreplane_scmkv::{Options, Placement, Scmkv};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A workload drawn from a seed.
#[derive(Debug)]
pub(crate) struct Story {
    seed: u64,
    durable: Durable,
    /// Images that were opened with a checkpoint.
    with_checkpoint: AtomicU64,
    /// The number of the first fence in the first checkpoint, plus one.
    first_fence: AtomicU64,
}

impl Story {
    pub(crate) fn new(seed: u64, durable: Durable) -> Self {
        Self { seed, durable, with_checkpoint: AtomicU64::new(0), first_fence: AtomicU64::new(0) }
    }

    pub(crate) fn opened_with_checkpoint(&self) -> u64 {
        self.with_checkpoint.load(Ordering::Relaxed)
    }

    pub(crate) fn fence_of_first_checkpoint(&self) -> Option<u64> {
        self.first_fence.load(Ordering::Relaxed).checked_sub(1)
    }

    fn options(&self) -> Options {
        let durability = match self.durable {
            Durable::AtReturn => Durability::Strict,
            Durable::AtSync => {
                Durability::Relaxed { window: Duration::from_secs(3600), window_bytes: 1 << 40 }
            }
        };
        Options { durability, ..story::options() }
    }

    fn step(&self, draw: &mut Draw, serial: usize) -> Op {
        let keys = 0..story::keys(self.seed);
        match draw.next(20) {
            0..=11 => Op::Write(draw.changes(1, &keys, serial)),
            12..=14 if self.durable == Durable::AtReturn => {
                let count = 2 + draw.next(4);
                Op::Write(draw.changes(count, &keys, serial))
            }
            12..=14 => Op::Sync,
            15..=17 => Op::Upkeep,
            _ => Op::Checkpoint,
        }
    }

    fn perform(&self, run: &Run<'_, Op>, store: &Scmkv, op: &Op) {
        if *op == Op::Checkpoint {
            let (_, fences) = run.space().flushes_and_fences();
            if store.checkpoint().expect("checkpoint") {
                let first = Ordering::Relaxed;
                let _kept = self.first_fence.compare_exchange(0, fences + 1, first, first);
            }
            return;
        }
        if *op == Op::Upkeep && self.durable == Durable::AtSync {
            store.sync().expect("sync");
        }
        op.perform(store, &WriteOptions::default()).expect("the operation");
    }
}

impl Subject for Story {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = story::created(run, Placement::Dram, self.options());
        let mut draw = Draw(self.seed);
        for serial in 0..110 {
            let op = self.step(&mut draw, serial);
            run.acknowledged(op.clone(), || {
                // A thread of its own has a log of its own, in turn.
                run.threads(|threads| threads.spawn(|| self.perform(run, &store, &op)));
            });
        }
        run.acknowledged(Op::Close, || self.perform(run, &store, &Op::Close));
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        story::recover(space, self.options())
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<Option<Map>, String> {
        if let Some(store) = store {
            if store.stats().figure("checkpoints_damaged") > Some(0) {
                return Err("the root names a checkpoint that is not whole".to_owned());
            }
            let with = u64::from(store.stats().figure("checkpoint") > Some(0));
            self.with_checkpoint.fetch_add(with, Ordering::Relaxed);
        }
        story::contents(store, false)
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        story::check(contents, history, self.durable)
    }
}

pub(crate) fn sim_options(seed: u64) -> SimOptions {
    SimOptions {
        len: 192 << 10,
        max_len: 192 << 10,
        images_per_cut: 25,
        recovery_cut_in: 40,
        non_temporal: false,
        ..story::sim_options(seed)
    }
}
