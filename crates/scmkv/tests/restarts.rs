//! What an earlier life of a store leaves to the next.

use coreplane_engine::{Batch, Durability, Engine, Error, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Image, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

fn options(background: bool) -> Options {
    Options { background, ..Options::default() }
}

fn write() -> WriteOptions {
    WriteOptions::default()
}

/// A directory for one pool.
struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn shm() -> Self {
        Self { directory: tempfile::tempdir_in("/dev/shm").expect("directory") }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    fn tiny(&self, pages: u64, placement: Placement, background: bool) -> Scmkv {
        let size = pages * 4096;
        let options = options(background);
        let media = MediaChoice::Auto;
        Scmkv::create_with(&self.path(), size, Geometry::TINY, media, placement, options)
            .expect("create")
    }

    fn open(&self, background: bool) -> Scmkv {
        Scmkv::open(&self.path(), MediaChoice::Auto, options(background)).expect("open")
    }
}

fn sim(pages: u64) -> Sim {
    let len = pages * 4096;
    let options = SimOptions { len, max_len: 2 * len, page_size: 4096, ..Default::default() };
    Sim::new(&options).expect("sim")
}

fn relaxed() -> Options {
    Options {
        durability: Durability::Relaxed { window_bytes: 1 << 20, window: Duration::from_secs(10) },
        ..options(false)
    }
}

fn recovered(image: &Image) -> (Sim, Scmkv) {
    let sim = image.reopen().expect("reopen");
    let store = Scmkv::simulated_open(sim.space().clone(), options(false)).expect("open");
    (sim, store)
}

#[test]
fn a_batch_outlives_the_cleaning_of_one_of_its_pages() {
    let home = Home::shm();
    let store = home.tiny(64, Placement::Dram, false);
    let mut batch = Batch::new();
    for number in 0..60_u8 {
        batch.put(&[b'k', number], &[number; 200]);
    }
    store.apply(&batch, &write()).expect("apply");
    for number in 0..20_u8 {
        store.put(&[b'k', number], &[9; 200], &write()).expect("put");
    }
    for _ in 0..3 {
        store.clean().expect("clean");
    }
    store.close().expect("close");
    drop(store);
    let store = home.open(false);
    let lost: Vec<u8> =
        (0..60).filter(|number| store.get(&[b'k', *number]).expect("get").is_none()).collect();
    assert!(lost.is_empty(), "lost after a clean close: {lost:?}");
}

#[test]
fn a_crash_while_the_pool_grows() {
    let home = Home::shm();
    let store = home.tiny(32, Placement::Pool, false);
    store.put(b"k", b"v", &write()).expect("put");
    store.close().expect("close");
    drop(store);
    // As far as `grow` is when its crash comes after the new size is durable.
    let pool = Pool::open(&home.path(), &OpenOptions { media: MediaChoice::Auto }).expect("pool");
    pool.grow(64 * 4096).expect("grow");
    drop(pool);
    let store = Scmkv::open(&home.path(), MediaChoice::Auto, options(false)).expect("open");
    assert!(store.get(b"k").expect("get").is_some());
}

#[test]
fn noflush_store_with_a_strict_override_does_not_panic() {
    let home = Home::shm();
    let options = Options { durability: Durability::NoFlush, ..options(false) };
    let store = Scmkv::create_with(
        &home.path(),
        64 * 4096,
        Geometry::TINY,
        MediaChoice::Auto,
        Placement::Pool,
        options,
    )
    .expect("create");
    let strict = WriteOptions { durability: Some(Durability::Strict), ..write() };
    for number in 0..2000_u32 {
        let key = (number % 20).to_le_bytes();
        store.put(&key, &[1; 100], &write()).expect("put");
        store.put(&key, &[1; 100], &write()).expect("put");
        if number % 40 == 39 {
            store.put(&key, &[1; 100], &strict).expect("put");
        }
    }
}

#[test]
fn a_drawn_sequence_is_above_all_writes_before_it() {
    let home = Home::shm();
    let store = home.tiny(64, Placement::Pool, false);
    let given = WriteOptions { sequence: Some(1 << 60), ..write() };
    store.put(b"given", b"v", &given).expect("put");
    let written = store.put(b"other", b"v", &write()).expect("put").written().expect("written");
    let drawn = store.advance_sequence().expect("advance");
    assert!(written.sequence <= drawn, "{:#x} was before {drawn:#x}", written.sequence);
}

#[test]
fn a_slot_of_another_thread_is_durable_after_a_clean_close() {
    let sim = sim(31);
    let space = sim.space().clone();
    let store =
        Scmkv::simulated_create(space, Geometry::TINY, Placement::Pool, relaxed()).expect("create");
    std::thread::scope(|scope| {
        scope.spawn(|| store.put(b"theirs", b"v", &write()).map(drop)).join().expect("join")
    })
    .expect("put");
    store.put(b"mine", b"v", &write()).expect("put");
    store.sync().expect("sync");
    store.close().expect("close");
    let (_sim, store) = recovered(&sim.crash(Eviction::Nothing));
    assert!(store.get(b"mine").expect("get").is_some());
    assert!(store.get(b"theirs").expect("get").is_some(), "closed cleanly, and lost");
}

#[test]
fn no_key_has_two_slots_after_a_crash() {
    let mut twice = Vec::new();
    for fill in 8..28_u32 {
        for variant in 0..40_u32 {
            let sim = sim(64);
            let space = sim.space().clone();
            let store =
                Scmkv::simulated_create(space, Geometry::TINY, Placement::Pool, options(false))
                    .expect("create");
            std::thread::scope(|scope| {
                let (go, goes) = mpsc::channel::<()>();
                let (ready, is_ready) = mpsc::channel::<()>();
                let store = &store;
                let other = scope.spawn(move || {
                    store.put(b"warm", b"v", &write()).expect("put");
                    ready.send(()).expect("send");
                    goes.recv().expect("recv");
                    store.put(format!("y{variant}").as_bytes(), b"v", &write()).expect("put");
                });
                is_ready.recv().expect("recv");
                for number in 0..fill {
                    let key = format!("f{number}-{variant}");
                    store.put(key.as_bytes(), b"v", &write()).expect("put");
                }
                // Its slot is unfenced by this thread for ever.
                store.put(format!("x{variant}").as_bytes(), b"v", &write()).expect("put");
                go.send(()).expect("send");
                other.join().expect("join");
            });
            for image in sim.crashes(8) {
                let (_sim, store) = recovered(&image);
                let len = store.len().expect("len");
                if len != u64::from(fill) + 3 {
                    twice.push((fill, variant, len));
                    // What comes of it: the key is deleted, and comes back.
                    let key = format!("y{variant}");
                    store.delete(key.as_bytes(), &write()).expect("delete");
                    let mut shown = false;
                    store
                        .iterate(0, 1000, &mut |entry| shown |= entry.key == key.as_bytes())
                        .expect("iterate");
                    assert!(!shown, "{key} is deleted, and SCAN shows it");
                }
            }
        }
    }
    assert!(twice.is_empty(), "(fill, variant, len): {twice:?}");
}

#[test]
fn a_flipped_bit_in_an_open_page_is_not_taken_for_the_end_of_the_log() {
    let home = Home::shm();
    let store = home.tiny(32, Placement::Dram, false);
    for number in 0..5_u8 {
        store.put(&[number; 16], &[0xa0 + number; 40], &write()).expect("put");
    }
    drop(store);
    let mut bytes = std::fs::read(home.path()).expect("read");
    let at = bytes.windows(40).position(|window| window == [0xa1; 40]).expect("the second value");
    bytes[at + 3] ^= 4;
    std::fs::write(home.path(), &bytes).expect("write");
    let error = Scmkv::open(&home.path(), MediaChoice::Auto, options(false));
    let is_told = matches!(&error, Err(Error::Corrupt { what, .. }) if what.contains("checksum"));
    assert!(is_told, "{error:?}");
    // The last record alone cannot be told from one that a crash has cut off.
    bytes[at + 3] ^= 4;
    let at = bytes.windows(40).position(|window| window == [0xa4; 40]).expect("the last value");
    bytes[at + 3] ^= 4;
    std::fs::write(home.path(), &bytes).expect("write");
    let store = home.open(false);
    assert!(store.get(&[3; 16]).expect("get").is_some());
    assert!(store.get(&[4; 16]).expect("get").is_none());
}
