//! Small stores, the same in every process: made in the simulator, whose pools all have one uuid.

use crate::{options, reseal};
use coreplane_engine::{Batch, Engine, UnixMillis, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::sync::{Arc, OnceLock};

/// The key of this number.
pub fn key(number: usize) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

/// The images: index in the pool and in DRAM, closed and not.
pub fn all() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let mut images = Vec::new();
        for placement in [Placement::Pool, Placement::Dram] {
            for is_closed in [true, false] {
                images.push(make(placement, is_closed));
            }
        }
        images
    })
}

fn make(placement: Placement, is_closed: bool) -> Vec<u8> {
    let len = 192 << 10;
    let sim = SimOptions { len, max_len: len, page_size: 4096, ..SimOptions::default() };
    let sim = Sim::new(&sim).expect("a simulator");
    let space = Arc::clone(sim.space());
    let store = Scmkv::simulated_create(space, Geometry::TINY, placement, options());
    let store = store.expect("create");
    let write = WriteOptions::default();
    for number in 0..120 {
        let len = if number % 40 == 39 { 1300 } else { 8 + number % 50 };
        let _outcome = store.put(&key(number), &vec![number as u8; len], &write).expect("put");
    }
    for number in (0..120).step_by(3) {
        let _outcome = store.put(&key(number), b"anew", &write).expect("put");
    }
    for number in (0..120).step_by(7) {
        let _outcome = store.delete(&key(number), &write).expect("delete");
    }
    let lasting = WriteOptions { expires_at: Some(UnixMillis(1_900_000_000_000)), ..write };
    let over = WriteOptions { expires_at: Some(UnixMillis(1_700_000_000_000)), ..write };
    let _outcome = store.put(b"lasting", b"x", &lasting).expect("put");
    let _outcome = store.put(b"over", b"x", &over).expect("put");
    for first in [40, 50] {
        let mut batch = Batch::new();
        for number in first..first + 5 {
            batch.put(&key(number), &[9; 60]);
        }
        store.apply(&batch, &write).expect("apply");
    }
    store.clean().expect("clean");
    store.clean().expect("clean");
    let _outcome = store.put(b"last", b"of all", &write).expect("put");
    if is_closed {
        store.close().expect("close");
    }
    let bytes = sim.crash(Eviction::Everything).bytes().to_vec();
    let mut sealed = bytes.clone();
    reseal::all(&mut sealed, &bytes);
    assert!(sealed == bytes, "the format has changed: reseal.rs must follow it");
    let value = bytes.windows(6).position(|bytes| bytes == b"of all").expect("the last value");
    sealed[value] ^= 1;
    let broken = sealed.clone();
    reseal::all(&mut sealed, &bytes);
    let healed = sealed.iter().zip(&broken).filter(|(a, b)| a != b).count();
    assert!((1..=4).contains(&healed), "reseal.rs does not find the records: {healed}");
    bytes
}
