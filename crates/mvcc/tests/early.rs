//! A reader of a record that is not durable yet is told so, wherever the cleaner has moved it since.

use coreplane_engine::{
    Completion, Deferred, Durability, Engine, Error, Horizon, Ordered, Outcome, Visibility,
    WriteOptions,
};
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::sync::Arc;
use std::time::Duration;

const KINDS: [MapKind; 2] = MapKind::ALL;

fn options() -> Options {
    Options { background: false, check_reads: true, ..Options::default() }
}

/// A put that no caller has asked to be durable, among writes for which the cleaner moves it: what a reader is told
/// about its durability is compared with what a power cut leaves. Returns how often it was moved before it was
/// durable.
fn told(kind: MapKind, model: Model, seed: u64) -> u64 {
    let len = 62 << 12;
    let sim =
        SimOptions { len, max_len: len, page_size: 4096, model, seed, ..SimOptions::default() };
    let sim = Sim::new(&sim).expect("memory");
    let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
    let store = store.expect("create");
    let window = Duration::from_hours(1);
    let unhurried = Durability::Relaxed { window_bytes: 1 << 40, window };
    let of = |durability| WriteOptions {
        durability: Some(durability),
        completion: Completion::Early,
        ..WriteOptions::default()
    };
    for key in [b"early".as_slice(), &[b'h', 0], &[b'h', 1], &[b'h', 2], &[b'h', 3]] {
        store.put(key, b"", &of(unhurried)).map(drop).expect("put");
    }
    // Live records leave so little room that the cleaner works.
    let mut cold = 0_u32;
    while store.put(&cold.to_be_bytes(), &[1; 1000], &of(unhurried)).is_ok() {
        cold += 1;
    }
    let mut early = 0;
    for round in 0..30_u8 {
        store.sync().expect("sync");
        let moved = store.stats().cleaner_bytes_copied;
        let value = vec![round; 200 + usize::from(round) * 10];
        store.put(b"early", &value, &of(Durability::Strict)).map(drop).expect("put");
        for number in 0..24_u64 {
            let hot = [b'h', (number % 4) as u8];
            match store.put(
                &hot,
                &vec![round; 500 + (seed * 31 + number * 17) as usize % 300],
                &of(unhurried),
            ) {
                Ok(_) | Err(Error::NoSpace { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let found = store.get_with(b"early", Visibility::Early, &mut |record| {
                assert!(record.value.equals(&value));
            });
            let found = found.expect("get");
            if !store.is_durable(&Horizon::from(found.ticket)).expect("durable") {
                early += u64::from(store.stats().cleaner_bytes_copied > moved);
                continue;
            }
            let image = sim.crash(Eviction::Nothing).reopen().expect("memory");
            let after = MapEngine::simulated_open(kind, Arc::clone(image.space()), &options());
            let after = after.expect("open").get(b"early").expect("get");
            assert!(after.as_ref() == Some(&value), "{model:?}, seed {seed}, {round}, {number}");
            break;
        }
    }
    early
}

#[test]
fn what_a_reader_is_told_is_durable_is() {
    for kind in KINDS {
        for seed in 0..10 {
            told(kind, Model::X86, seed);
            let early = told(kind, Model::File, seed);
            // A tree's cleaner does not move a record that a caller waits for.
            assert!(early > 20 || kind == MapKind::CowTree, "{early}");
        }
    }
}

/// Deletes that no caller has asked to be durable, each read in another way: a key that was seen to be absent must be
/// absent after a power cut.
#[test]
fn what_is_seen_not_to_be_there_is_durable() {
    let unhurried = || WriteOptions {
        durability: Some(Durability::Group {
            max_ops: 1 << 20,
            max_delay: Duration::from_hours(1),
        }),
        completion: Completion::Early,
        ..WriteOptions::default()
    };
    type Look = fn(&MapEngine) -> bool;
    let looks: [Look; 5] = [
        |store| store.get(b"key 3").expect("get").is_some(),
        |store| {
            let mut is_there = false;
            let keys = [b"key 1".as_slice(), b"key 3"];
            let _found = store.multi_get(&keys, Visibility::Early, &mut |at, record| {
                is_there |= at == 1 && record.is_some();
            });
            is_there
        },
        |store| {
            let mut is_there = false;
            let mut see = |entry: coreplane_engine::Entry<'_>| {
                is_there |= entry.key == b"key 3";
                true
            };
            store.scan(b"key 2", None, false, 10, &mut see).expect("scan");
            is_there
        },
        |store| {
            let outcome = store.update(b"key 3", b"other", &WriteOptions::default());
            !matches!(outcome.expect("update"), Outcome::Missing(_))
        },
        |store| {
            // An insert finds its place free, which does not depend on its own commit.
            let outcome = store.delete(b"key 3", &WriteOptions::default()).expect("delete");
            !matches!(outcome, Outcome::Missing(_))
        },
    ];
    for kind in KINDS {
        for (number, look) in looks.iter().enumerate() {
            let len = 62 << 12;
            let sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
            let sim = Sim::new(&sim).expect("memory");
            let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
            let store = store.expect("create");
            for key in 0..6 {
                let key = format!("key {key}").into_bytes();
                store.put(&key, b"value", &WriteOptions::default()).map(drop).expect("put");
            }
            store.delete(b"key 3", &unhurried()).map(drop).expect("delete");
            assert!(!look(&store), "{kind:?}, {number}");
            let image = sim.crash(Eviction::Nothing).reopen().expect("memory");
            let after = MapEngine::simulated_open(kind, Arc::clone(image.space()), &options());
            let after = after.expect("open").get(b"key 3").expect("get");
            assert!(after.is_none(), "{kind:?}, {number}: back after a cut");
        }
    }
}
