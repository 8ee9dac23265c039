//! Large values beside other writers of their keys, step by step.

use crate::read::Reader;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::write::overflow::{Progress, RestsOn};
use crate::write::{Attempt, Plan};
use coreplane_engine::{Ticket, WriteOptions};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::media::sim::{Model, Sim, SimOptions};
use coreplane_pmem::spin::Patience;
use coreplane_pmem::{MediaChoice, Pool};
use coreplane_record::View;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

const KEY: &[u8] = b"key";

fn with_store(model: Model, work: impl FnOnce(&Sim, &Store)) {
    let len = 128 << 12;
    let non_temporal = model == Model::X86;
    let options = SimOptions { len, max_len: len, model, non_temporal, ..SimOptions::default() };
    let sim = Sim::new(&options).expect("memory");
    let create = create_options(len, Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(Arc::clone(sim.space()), &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    work(&sim, &store);
}

/// How often a value was decided on, and written without the lock of its group and under it.
#[derive(Debug, Default, PartialEq)]
struct Laps {
    decisions: usize,
    unlocked: usize,
    locked: usize,
}

/// Puts a value through log `log`, step by step; `beside` runs before it is written.
fn put(
    (sim, store): (&Sim, &Store),
    (log, rests_on): (usize, RestsOn),
    value: &[u8],
    beside: &dyn Fn(),
) -> Laps {
    let options = WriteOptions::default();
    let write = store.check(KEY, &options).expect("a write");
    let (mut log, mut progress) = (store.logs[log].lock(), Progress::new(rests_on));
    let mut laps = Laps::default();
    loop {
        let events = sim.events();
        let mut decide = |_: &Reader, _: &Guard, _: Option<&View<'_>>| {
            laps.decisions += 1;
            Ok(Plan::Put { value: Cow::Borrowed(value), expires_at: None })
        };
        let attempt = store.attempt(&mut log, &write, &mut progress, &mut decide);
        let attempt = attempt.expect("an attempt");
        assert!(laps.decisions < 10, "it never ends");
        let is_synced = !store.space.fences_at_once() && sim.fences_since(events) > 0;
        assert!(!is_synced, "a sync under the lock of a group");
        // Pages that are retired now come back before the value is written.
        let (stamp, mut patience) = (epoch::stamp(), Patience::new(Duration::from_secs(60)));
        while !epoch::has_passed(stamp) {
            assert!(patience.wait(), "the thread has an epoch pinned");
        }
        if let Attempt::NeedOverflow(_, held) = &attempt {
            assert_eq!(store.index.is_locked(write.place), held.is_some());
            *(if held.is_some() { &mut laps.locked } else { &mut laps.unlocked }) += 1;
            if held.is_none() {
                beside();
            }
        }
        if store.go_on(&mut log, &write, &mut progress, attempt).expect("a step").is_some() {
            log.give_back(store);
            return laps;
        }
    }
}

fn assert_value(store: &Store, value: &[u8]) {
    let guard = epoch::pin();
    let held = store.index.lock(store.place(KEY));
    let standing = store.look(&guard, &held, KEY, store.place(KEY)).expect("look");
    let view = standing.and_then(|it| it.old).expect("a record");
    let is_it = store.show(&guard, &view, Ticket::DURABLE, |record| record.value.equals(value));
    assert!(is_it.expect("a value"));
}

#[test]
fn a_large_value_is_written_without_a_lock_unless_another_writer_came_first() {
    for model in [Model::X86, Model::File] {
        with_store(model, |sim, store| {
            let (sim_store, value) = ((sim, store), vec![7; 20_000]);
            let beside = || {
                let _laps = put(sim_store, (1, RestsOn::Nothing), b"small", &|| ());
            };
            for rests_on in [RestsOn::Old, RestsOn::Nothing] {
                let laps = put(sim_store, (0, rests_on), &value, &|| ());
                assert_eq!(laps, Laps { decisions: 1, unlocked: 1, locked: 0 });
                assert_value(store, &value);
            }
            let laps = put(sim_store, (0, RestsOn::Nothing), &value, &beside);
            assert_eq!(laps, Laps { decisions: 1, unlocked: 1, locked: 0 });
            let laps = put(sim_store, (0, RestsOn::Old), &value, &beside);
            // Once without pages, too.
            assert_eq!(laps, Laps { decisions: 3, unlocked: 1, locked: 1 });
            assert_value(store, &value);
            assert!(store.verify(&mut |_| ()).expect("verified").is_sound());
        });
    }
}

/// A value that fits the open page needs no free one.
#[test]
fn no_page_is_set_aside_whatever_is_free() {
    with_store(Model::X86, |_, store| {
        let mut log = store.logs[0].lock();
        assert!(log.set_aside(store, 0, 1 << 20) && !log.set_aside(store, 1, 1 << 20));
    });
}
