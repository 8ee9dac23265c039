//! Whoever reads what is not durable yet is told so, wherever the cleaner has moved it since.

use coreplane_engine::{
    Completion, Deferred, Durability, Engine, Horizon, Visibility, WriteOptions,
};
use coreplane_mvcc::{MapEngine, MapKind, Options};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const KINDS: [MapKind; 1] = [MapKind::List];

fn options() -> Options {
    Options { background: false, check_reads: true, ..Options::default() }
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// What a reader is told is durable is there after a cut that takes all the rest; how often he was told that it is
/// not.
fn told(kind: MapKind, model: Model, seed: u64) -> u32 {
    let len = 30 << 12;
    let sim =
        SimOptions { len, max_len: len, page_size: 4096, model, seed, ..SimOptions::default() };
    let sim = Sim::new(&sim).expect("memory");
    let store = MapEngine::simulated_create(kind, Arc::clone(sim.space()), &options());
    let store = store.expect("create");
    let (mut draw, mut newest, mut early) = (Draw(seed), BTreeMap::new(), 0);
    let unhurried = Durability::Relaxed { window_bytes: 1 << 40, window: Duration::from_hours(1) };
    for serial in 0..700_u64 {
        let is_strict = draw.next(8) == 0;
        let number = draw.next(4) + if is_strict { 0 } else { 4 };
        let durability = Some(if is_strict { Durability::Strict } else { unhurried });
        let options =
            WriteOptions { durability, completion: Completion::Early, ..WriteOptions::default() };
        let value = vec![serial as u8; 60 + draw.next(500) as usize];
        store.put(&[number as u8], &value, &options).map(drop).expect("put");
        if is_strict {
            newest.insert(number as u8, value);
        }
        let Some((number, value)) = newest.iter().nth(draw.next(4) as usize) else { continue };
        let mut ticket = None;
        let mut take = |record: coreplane_engine::Record<'_>| {
            assert!(record.value.equals(value));
            ticket = Some(record.ticket);
        };
        let found = store.get_with(&[*number], Visibility::Early, &mut take).expect("get");
        assert_eq!(ticket, Some(found.ticket));
        if !store.is_durable(&Horizon::from(found.ticket)).expect("durable") {
            early += 1;
            continue;
        }
        let image = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let after = MapEngine::simulated_open(kind, Arc::clone(image.space()), &self::options());
        let after = after.expect("open").get(&[*number]).expect("get");
        assert!(
            after.as_ref() == Some(value),
            "{model:?}, seed {seed}, {serial}: {number} is lost"
        );
    }
    early
}

#[test]
fn what_a_reader_is_told_is_durable_is() {
    for kind in KINDS {
        for seed in 0..12 {
            told(kind, Model::X86, seed);
            let early = told(kind, Model::File, seed);
            assert!(early > 20, "{early}");
        }
    }
}
