//! Stores of tiny pages that are soon full, and simulated machines for them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::home::{PAGE, options, write};
use coreplane_engine::{Engine, Error};
use coreplane_pmem::media::sim::{Image, Model, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::sync::mpsc;
use std::time::Duration;

/// Fails in place of hanging.
pub(crate) fn ends<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || drop(send.send(work())));
    match receive.recv_timeout(Duration::from_secs(100)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("it panicked"),
    }
}

/// A value of so many bytes, unlike that of another serial.
pub(crate) fn big(serial: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (serial * 31 + at / 7) as u8).collect()
}

/// The keys that [`fill`] writes.
pub(crate) fn fill_key(number: u32) -> Vec<u8> {
    format!("f{number:06}").into_bytes()
}

/// Puts records with values of `len` bytes, numbered from `from` on, until the store takes no more;
/// returns the number of the first that it refused.
pub(crate) fn fill(store: &Scmkv, len: usize, from: u32) -> u32 {
    let mut number = from;
    loop {
        match store.put(&fill_key(number), &vec![7; len], &write()) {
            Ok(_) => number += 1,
            Err(Error::NoSpace { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
        assert!(number < 1_000_000, "the store is never full");
    }
}

/// A simulated machine with room for so many tiny pages.
pub(crate) fn simulated(pages: u64) -> Sim {
    simulated_as(Model::X86, pages)
}

/// The same, on a medium of this model.
pub(crate) fn simulated_as(model: Model, pages: u64) -> Sim {
    let len = pages * PAGE;
    let page_size = PAGE as u32;
    let options = SimOptions { len, max_len: 2 * len, page_size, model, ..SimOptions::default() };
    Sim::new(&options).expect("sim")
}

/// A store on it, its index in the pool.
pub(crate) fn created(sim: &Sim, options: Options) -> Scmkv {
    Scmkv::simulated_create(sim.space().clone(), Geometry::TINY, Placement::Pool, options)
        .expect("create")
}

/// The store as the crash left it.
pub(crate) fn recovered(image: &Image) -> (Sim, Scmkv) {
    let sim = image.reopen().expect("reopen");
    let store = Scmkv::simulated_open(sim.space().clone(), options(false)).expect("open");
    (sim, store)
}
