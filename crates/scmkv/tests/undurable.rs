//! Records that were not durable when a process was killed.

mod home;
mod tiny;

use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Model, Sim};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use home::{early, options, write};
use tiny::{big, fill_key, simulated_as};

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
