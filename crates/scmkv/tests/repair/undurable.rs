//! Records, and words of the index, that were not durable when a process was killed.

use crate::home::{early, options, write};
use crate::kill::{killed_at, undurable_at};
use crate::tiny::{big, fill_key, simulated_as};
use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Model, Sim};
use coreplane_scmkv::{Geometry, Placement, Scmkv};

fn created(sim: &Sim, placement: Placement) -> Scmkv {
    let (space, geometry) = (sim.space().clone(), Geometry::TINY);
    Scmkv::simulated_create(space, geometry, placement, options(false)).expect("a store")
}

fn opened(sim: &Sim) -> Scmkv {
    Scmkv::simulated_open(sim.space().clone(), options(false)).expect("opened")
}

fn put(store: &Scmkv, key: &[u8], value: &[u8], options: &WriteOptions) {
    assert!(store.put(key, value, options).expect("put").is_written());
}

/// A process is killed and leaves records in the caches; the next one shows them, and then the power fails.
#[test]
fn what_a_killed_process_has_left_is_durable_once_it_is_shown() {
    let all = [
        (Model::X86, Placement::Pool),
        (Model::X86, Placement::Dram),
        (Model::File, Placement::Dram),
    ];
    for (model, placement) in all {
        for records in [1, 2, 7, 40] {
            let sim = simulated_as(model, 64);
            let store = created(&sim, placement);
            put(&store, b"k", b"acknowledged", &write());
            for number in 0..records {
                put(&store, b"k", format!("later {number}").as_bytes(), &early());
                put(&store, format!("other {number}").as_bytes(), b"v", &early());
            }
            drop(store);
            let sim = sim.killed().expect("memory");
            let store = opened(&sim);
            let shown = store.get(b"k").expect("a value").expect("it is there");
            let len = store.len().expect("a count");
            assert_eq!(shown, format!("later {}", records - 1).as_bytes());
            let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
            let store = opened(&cut);
            let what = format!("{model:?}, {placement:?}, {records} records");
            assert_eq!(store.get(b"k").expect("a value"), Some(shown), "{what}");
            assert_eq!(store.len().expect("a count"), len, "{what}");
            assert!(store.verify(&mut |_| ()).expect("verified").is_sound(), "{what}");
        }
    }
}

/// The last write of a key to a process that is killed.
type Last<'a> = (&'a str, &'a dyn Fn(&Scmkv));

/// A process is killed and leaves the last record of a key in the caches. Its record before that is in a page that no
/// recovery reads again. The power fails while the next process recovers: any of its stores may be durable.
#[test]
fn a_cut_in_the_recovery_of_what_a_killed_process_has_left_loses_no_acknowledged_write() {
    let lasts: [Last<'_>; 3] = [
        ("a put", &|store| put(store, b"k", &big(9, 150), &early())),
        ("a delete", &|store| {
            assert!(store.delete(b"k", &early()).expect("delete").is_written());
        }),
        ("a put behind others", &|store| {
            (0..10).for_each(|number| put(store, &fill_key(number), b"later", &early()));
            put(store, b"k", b"later", &early());
        }),
    ];
    for (what, last) in lasts {
        let sim = simulated_as(Model::X86, 64);
        let store = created(&sim, Placement::Pool);
        put(&store, b"k", b"acknowledged", &write());
        // Two pages of them.
        (0..40).for_each(|number| put(&store, &fill_key(number), &big(1, 150), &write()));
        last(&store);
        drop(store);
        let sim = sim.killed().expect("memory");
        let before = sim.events();
        let shown = opened(&sim).get(b"k").expect("a value");
        let acknowledged = Some(b"acknowledged".to_vec());
        assert_ne!(shown, acknowledged, "{what}");
        for fences in 0..=sim.fences_since(before) {
            for seed in 0..64 {
                let image = sim.crash_at_fence(before, fences, Eviction::Seeded(seed));
                let store = opened(&image.reopen().expect("memory"));
                let what = format!("{what}, {fences} fences, seed {seed}");
                let found = store.get(b"k").expect("a value");
                assert!(found == acknowledged || found == shown, "{what}: {found:?}");
                let is_there = u64::from(found.is_some());
                assert_eq!(store.len().expect("a count"), 40 + is_there, "{what}");
                let report = store.verify(&mut |_| ()).expect("verified");
                assert!(report.is_sound(), "{what}: {report:?}");
            }
        }
    }
}

fn put_small(store: &Scmkv, number: u32) {
    put(store, &fill_key(number), &number.to_le_bytes(), &write());
}

/// The keys that are lost, and the first damage.
fn lost(sim: &Sim, numbers: std::ops::Range<u32>) -> (Vec<u32>, Option<String>) {
    let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
    let store = match Scmkv::simulated_open(cut.space().clone(), options(false)) {
        Ok(store) => store,
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let is_there = |number: &u32| {
        let found = store.get(&fill_key(*number)).ok().flatten();
        found.as_deref() == Some(&number.to_le_bytes()[..])
    };
    let report = store.verify(&mut |_| ()).expect("verified");
    let damage = report.damages.first().map(|damage| damage.what.clone());
    (numbers.filter(|number| !is_there(number)).collect(), damage)
}

/// A process is killed when it has removed the slot of a tombstone, and this is in the caches alone. The next process
/// cleans the page of the tombstone and uses it again, and the power fails.
#[test]
fn a_slot_that_a_killed_process_has_removed_does_not_come_back() {
    for deleted in 0..12_u8 {
        let sim = simulated_as(Model::X86, 64);
        let store = created(&sim, Placement::Pool);
        put(&store, &[b'd', deleted], b"v", &write());
        assert!(store.delete(&[b'd', deleted], &write()).expect("delete").is_written());
        // They fill the page of the tombstone, and it has no live records.
        (0..20).for_each(|_| put(&store, b"hot", &big(1, 300), &write()));
        (0..200).for_each(|number| put_small(&store, number));
        let events = sim.events();
        let is_removed = |at: &usize| {
            let left = undurable_at(&sim, *at);
            left.iter().any(|(_, durable, cached)| *durable > 1 && *cached <= 1)
        };
        let at = loop {
            assert!(store.clean().expect("clean"), "the tombstone was not dropped");
            if let Some(at) = (events..sim.events()).find(is_removed) {
                break at;
            }
        };
        drop(store);
        let sim = killed_at(&sim, at);
        let store = opened(&sim);
        for round in 0..40 {
            (0..10).for_each(|_| put(&store, b"hot", &big(round, 300), &write()));
            store.clean().expect("clean");
        }
        assert_eq!(store.get(&[b'd', deleted]).expect("get"), None);
        assert_eq!(lost(&sim, 0..200), (Vec::new(), None), "{deleted}");
    }
}
