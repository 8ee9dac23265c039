//! Power cuts while a full store grows: a writer that lacks room takes the new pages at once.

use crate::story::{self, Durable, LEN_MAX, Map, Op, created, key, options, sim_options};
use coreplane_engine::{Engine, Error, Visibility, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Model, Run, SimOptions, Subject, explore};
use coreplane_scmkv::{Placement, Scmkv};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thread fills the last pages of a store, another makes it larger.
struct Filling {
    seed: u64,
    placement: Placement,
    /// Writes that found the store full until it had grown.
    waited: AtomicU64,
}

/// The growth has returned.
const GROWN: u64 = 1;

impl Filling {
    /// Puts key `number`; false if there is no room.
    fn put(run: &Run<'_, Op>, store: &Scmkv, number: u8, len: usize) -> bool {
        let op = Op::Write(vec![(number, Some(vec![number; len]))]);
        let call = run.began(op.clone());
        match op.perform(store, &WriteOptions::default()) {
            Ok(_) => call.returned(),
            Err(Error::NoSpace { .. }) => return false,
            Err(error) => panic!("{error}"),
        }
        true
    }
}

impl Subject for Filling {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = created(run, self.placement, options());
        // Until the last page that a writer may open has been opened, and a little more.
        let mut first = 0;
        while store.stats().free_bytes > 3 * 4096 {
            assert!(Self::put(run, &store, first, 200), "{first} keys");
            first += 1;
        }
        for _ in 0..self.seed % 12 {
            Self::put(run, &store, first, 200);
            first += 1;
        }
        let state = AtomicU64::new(0);
        let (store, state) = (&store, &state);
        let fill = || {
            // Nearly a page each: the three remaining old pages are filled first.
            for number in first..first + 8 {
                let before = state.load(Ordering::Relaxed);
                let is_put = Self::put(run, store, number, 3000);
                if is_put && before < GROWN && state.load(Ordering::Relaxed) == GROWN {
                    self.waited.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let grow = || {
            for _ in 0..self.seed / 12 % 4 {
                store.get_with(&key(0), Visibility::Durable, &mut |_| {}).expect("get");
            }
            run.acknowledged(Op::Grow(LEN_MAX), || store.grow(LEN_MAX).expect("grow"));
            state.store(GROWN, Ordering::Relaxed);
        };
        run.threads(|threads| {
            threads.spawn(fill);
            threads.spawn(grow);
        });
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        story::recover(space, options())
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<Option<Map>, String> {
        story::contents(store, false)
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        story::check(contents, history, Durable::AtReturn)
    }
}

#[test]
fn what_is_written_while_a_full_store_grows_is_there_after_a_power_cut() {
    let mut waited = 0;
    for seed in 1..=48 {
        let (placement, model) = match seed % 2 {
            0 => (Placement::Dram, Model::File),
            _ => (Placement::Pool, Model::X86),
        };
        let subject = Filling { seed, placement, waited: AtomicU64::new(0) };
        let few = SimOptions { images_per_cut: 2, recovery_cut_in: 0, ..sim_options(seed) };
        let options = SimOptions { len: 64 << 10, model, shrink: false, max_violations: 1, ..few };
        let report = explore(&options, &subject);
        let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
        assert!(messages.is_empty(), "seed {seed}: {messages:.200?}");
        waited += subject.waited.into_inner();
    }
    assert!(waited > 20, "only {waited} writes have waited for room");
}
