//! Records that were not durable when a process was killed.

mod home;
mod tiny;

use coreplane_engine::{Engine, Repairable, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Model, Sim};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use home::{early, options, write};
use tiny::simulated_as;

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
    for placement in [Placement::Pool, Placement::Dram] {
        for records in [1, 2, 7, 40] {
            let sim = simulated_as(Model::X86, 64);
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
            let what = format!("{placement:?}, {records} records");
            assert_eq!(store.get(b"k").expect("a value"), Some(shown), "{what}");
            assert_eq!(store.len().expect("a count"), len, "{what}");
            assert!(store.verify(&mut |_| ()).expect("verified").is_sound(), "{what}");
        }
    }
}
