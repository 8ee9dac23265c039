//! Stores of small pages that are soon full, and what tests do with them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use coreplane_engine::{Completion, Durability, Engine, Error, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::media::sim::{Image, Sim, SimOptions};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// Bytes in a page of a tiny store.
pub(crate) const PAGE: u64 = 4096;

/// Options without or with a background thread.
pub(crate) fn options(background: bool) -> Options {
    Options { background, ..Options::default() }
}

/// A store whose writes are `relaxed`, with a window that does not end by itself.
pub(crate) fn relaxed() -> Options {
    let window = Duration::from_secs(10);
    Options { durability: Durability::Relaxed { window_bytes: 1 << 20, window }, ..options(false) }
}

pub(crate) fn write() -> WriteOptions {
    WriteOptions::default()
}

pub(crate) fn strict() -> WriteOptions {
    WriteOptions { durability: Some(Durability::Strict), ..write() }
}

pub(crate) fn early() -> WriteOptions {
    WriteOptions { completion: Completion::Early, ..write() }
}

/// A directory with a pool in it.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    /// In memory: a fence is an instruction.
    pub(crate) fn in_memory() -> Self {
        Self { directory: tempfile::tempdir_in("/dev/shm").expect("directory") }
    }

    /// On a file system: a fence is a sync.
    pub(crate) fn on_disk() -> Self {
        Self { directory: tempfile::tempdir().expect("directory") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    /// A store of so many tiny pages.
    pub(crate) fn create(&self, pages: u64, placement: Placement, background: bool) -> Scmkv {
        let (size, options) = (pages * PAGE, options(background));
        let (path, media) = (self.path(), MediaChoice::Auto);
        Scmkv::create_with(&path, size, Geometry::TINY, media, placement, options).expect("create")
    }

    /// A store with pages of the usual size, on `file` media.
    pub(crate) fn create_on_file(&self) -> Scmkv {
        let (path, geometry) = (self.path(), Geometry::default());
        let (media, placement) = (MediaChoice::File, Placement::Dram);
        Scmkv::create_with(&path, 64 << 20, geometry, media, placement, options(false))
            .expect("create")
    }

    pub(crate) fn open(&self, background: bool) -> Scmkv {
        Scmkv::open(&self.path(), MediaChoice::Auto, options(background)).expect("open")
    }
}

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

/// Puts records with values of `len` bytes, numbered from `from` on, until the store takes no
/// more; the number of the first that it refused.
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
    let len = pages * PAGE;
    let page_size = PAGE as u32;
    let options = SimOptions { len, max_len: 2 * len, page_size, ..SimOptions::default() };
    Sim::new(&options).expect("sim")
}

/// The store as the crash left it.
pub(crate) fn recovered(image: &Image) -> (Sim, Scmkv) {
    let sim = image.reopen().expect("reopen");
    let store = Scmkv::simulated_open(sim.space().clone(), options(false)).expect("open");
    (sim, store)
}
