//! `relaxed` writes to a file: the records that they replace stay until they are durable.

use crate::home::{Home, New, relaxed, strict, write};
use crate::tiny::{ends, recovered, simulated_as};
use coreplane_engine::Engine;
use coreplane_pmem::media::sim::{Eviction, Model, Sim};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};

fn file() -> (Sim, Scmkv) {
    let sim = simulated_as(Model::File, 64);
    let space = sim.space().clone();
    let store = Scmkv::simulated_create(space, Geometry::TINY, Placement::Dram, relaxed());
    (sim, store.expect("create"))
}

#[test]
fn what_a_relaxed_write_replaced_stays_until_it_is_durable() {
    let (sim, store) = file();
    let _outcome = store.put(b"k", b"strict", &strict()).expect("put");
    for number in 0..30_u32 {
        let _outcome = store.put(&number.to_le_bytes(), &[1; 200], &strict()).expect("put");
    }
    let _outcome = store.put(b"k", b"relaxed", &write()).expect("put");
    let mut cleaned = 0;
    while store.clean().expect("clean") {
        cleaned += 1;
    }
    assert!(cleaned > 0, "the replaced record was cleaned");
    let (_sim, store) = recovered(&sim.crash(Eviction::Nothing));
    assert!(store.get(b"k").expect("get").is_some(), "neither the old nor the new value");
}

#[test]
fn a_relaxed_write_does_not_undo_the_delete_before_it() {
    let (sim, store) = file();
    let _outcome = store.put(b"k", b"deleted", &strict()).expect("put");
    for number in 0..20_u32 {
        let _outcome = store.put(&number.to_le_bytes(), &[1; 200], &strict()).expect("put");
    }
    let _outcome = store.delete(b"k", &strict()).expect("delete");
    for number in 0..40_u32 {
        let _outcome = store.put(b"churn", &[number as u8; 200], &strict()).expect("put");
    }
    let _outcome = store.put(b"k", b"relaxed", &write()).expect("put");
    let mut cleaned = 0;
    while store.clean().expect("clean") {
        cleaned += 1;
        let (_sim, store) = recovered(&sim.crash(Eviction::Nothing));
        let value = store.get(b"k").expect("get");
        assert_ne!(value.as_deref(), Some(&b"deleted"[..]), "after {cleaned} pages cleaned");
    }
    assert!(cleaned > 0);
}

/// Each of the writers waits, holding its log, for pages that wait for the others' logs.
#[test]
fn relaxed_writers_that_need_space_do_not_wait_for_each_other() {
    for background in [false, true] {
        ends(move || {
            let home = Home::file_in_memory();
            let options = Options { background, ..relaxed() };
            let store = home.create(New::tiny(100).placed(Placement::Dram).with(options));
            std::thread::scope(|scope| {
                for thread in 0..3_u32 {
                    let store = &store;
                    scope.spawn(move || {
                        for round in 0..10_000_u32 {
                            let key = [thread as u8, (round % 50) as u8];
                            let put = store.put(&key, &[round as u8; 60], &write()).map(drop);
                            assert!(put.is_ok(), "thread {thread}, round {round}: {put:?}");
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn a_sync_covers_relaxed_writes_among_strict_ones() {
    let (sim, store) = file();
    for number in 0..200_u32 {
        let _outcome =
            store.put(format!("relaxed-{number}").as_bytes(), &[1; 20], &write()).expect("put");
        let _outcome =
            store.put(format!("strict-{number}").as_bytes(), &[2; 20], &strict()).expect("put");
    }
    store.sync().expect("sync");
    let (_sim, store) = recovered(&sim.crash(Eviction::Nothing));
    for number in 0..200_u32 {
        for kind in ["relaxed", "strict"] {
            let key = format!("{kind}-{number}");
            assert!(store.get(key.as_bytes()).expect("get").is_some(), "{key} is lost");
        }
    }
}
