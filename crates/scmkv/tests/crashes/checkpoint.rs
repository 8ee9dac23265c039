//! Checkpoints of an index in DRAM: a power cut at any moment of one leaves the old one or the new
//! one whole, an open with one finds the same as an open without one, and damage only costs time.

use crate::checkpoint_story::{Story, sim_options};
use crate::home::{Home, New, options};
use crate::scale::scaled;
use crate::story::Durable;
use coreplane_engine::{Engine, Error, Repairable, WriteOptions};
use coreplane_pmem::media::sim::{Fault, Model, Report, SimOptions, explore};
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn explored(story: &Story, options: &SimOptions) -> Report {
    let report = explore(options, story);
    assert!(report.violations.is_empty(), "seed {}: {report}", options.seed);
    report
}

/// Explores stories; returns the number of images, and of those that a checkpoint was in.
fn explore_all(model: Model, durable: Durable) -> (u64, u64) {
    let (mut images, mut with) = (0, 0);
    for seed in 1..=scaled(6, 30) {
        let story = Story::new(seed, durable);
        let options = SimOptions { model, non_temporal: seed % 2 == 0, ..sim_options(seed) };
        images += explored(&story, &options).images;
        with += story.opened_with_checkpoint();
    }
    eprintln!("{images} crash images, {with} opened with a checkpoint, 0 violations");
    (images, with)
}

#[test]
fn a_power_cut_around_a_checkpoint_loses_nothing() {
    let (images, with) = explore_all(Model::X86, Durable::AtReturn);
    assert!(
        images > scaled(6_000, 10_000) && with > scaled(3_000, 5_000),
        "{images} images, {with} with a checkpoint"
    );
}

#[test]
fn a_power_cut_around_a_checkpoint_loses_nothing_on_a_file() {
    let (images, with) = explore_all(Model::File, Durable::AtReturn);
    assert!(
        images > scaled(6_000, 10_000) && with > scaled(3_000, 5_000),
        "{images} images, {with} with a checkpoint"
    );
}

#[test]
fn a_checkpoint_never_names_what_relaxed_writers_have_not_made_durable() {
    // On other media `relaxed` is `strict`.
    let (images, with) = explore_all(Model::File, Durable::AtSync);
    assert!(images > 2_000 && with > 1_000, "{images} images, {with} with a checkpoint");
}

#[test]
fn without_the_fence_before_the_root_a_checkpoint_is_named_that_is_not_whole() {
    let seed = 1;
    let story = Story::new(seed, Durable::AtReturn);
    explored(&story, &SimOptions { images_per_cut: 1, ..sim_options(seed) });
    let fence = story.fence_of_first_checkpoint().expect("a checkpoint");
    let fault = Some(Fault::DropFence(fence));
    let report = explore(&SimOptions { fault, ..sim_options(seed) }, &story);
    let caught = report.violations.iter().any(|it| it.message.contains("not whole"));
    assert!(caught, "{report}");
}

const SMALL: Geometry = Geometry { page_size: 16 << 10, groups: 4, buckets: 4, depth: 0 };
const POOL: u64 = 4 << 20;

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    (0..20 + number % 60).map(|at| (number * 7 + version * 31 + at) as u8).collect()
}

/// A small store, its index in DRAM.
fn small() -> New {
    let placement = Placement::Dram;
    New { size: POOL, geometry: SMALL, placement, options: options(false) }
}

/// The statistic `name`, which the store has.
fn stat(store: &Scmkv, name: &str) -> u64 {
    store.stats().figure(name).expect("the statistic")
}

fn put_all(store: &Scmkv, records: u64, version: u64) {
    for number in 0..records {
        let put = store.put(&key(number), &value(number, version), &WriteOptions::default());
        let _outcome = put.expect("put");
    }
}

fn check(store: &Scmkv, records: u64, version: impl Fn(u64) -> u64) {
    for number in 0..records {
        let found = store.get(&key(number)).expect("get");
        assert_eq!(found, Some(value(number, version(number))), "record {number}");
    }
    assert_eq!(store.len().expect("len"), records);
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?}", report.damages);
}

#[test]
fn an_open_reads_only_what_was_written_since() {
    let home = Home::in_memory();
    let store = home.create(small());
    put_all(&store, 10_000, 0);
    assert!(store.checkpoint().expect("checkpoint"));
    put_all(&store, 100, 1);
    let written = store.stats().log_bytes_written;
    drop(store);
    let store = home.open(options(false));
    assert_eq!(stat(&store, "checkpoint"), 1);
    let read = stat(&store, "checkpoint_replay_bytes");
    assert!(read > 0 && read < written / 5, "{read} of {written} bytes were read");
    check(&store, 10_000, |number| u64::from(number < 100));
    put_all(&store, 10_000, 2);
    store.close().expect("close");
    drop(store);
    let store = home.open(options(false));
    assert_eq!(stat(&store, "checkpoint"), 2, "a close takes one where it is worth it");
    assert_eq!(stat(&store, "checkpoint_replay_bytes"), 0);
    check(&store, 10_000, |_| 2);
}

/// The pages of the pool whose element says that they are of a checkpoint.
fn checkpoint_pages(pool: &[u8]) -> Vec<usize> {
    let kind = |page: usize| pool[2048 + 32 * page] & 0xf;
    (0..pool.len() / SMALL.page_size as usize).filter(|page| kind(*page) == 5).collect()
}

#[test]
fn a_damaged_checkpoint_costs_time_alone() {
    let home = Home::in_memory();
    let store = home.create(small());
    put_all(&store, 3000, 0);
    store.close().expect("close");
    drop(store);
    let sound = home.bytes();
    let pages = checkpoint_pages(&sound);
    assert!(pages.len() > 1, "{pages:?}");
    let places = [0, 5, 9, 17, 21, 25, 33, 41, 45, 65, 3000];
    for (page, place) in pages.iter().flat_map(|page| places.map(|place| (page, place))) {
        let mut damaged = sound.clone();
        damaged[page * SMALL.page_size as usize + place] ^= 4;
        home.put_bytes(&damaged);
        let store = home.open(options(false));
        assert_eq!(stat(&store, "checkpoints_damaged"), 1, "page {page}, byte {place}");
        check(&store, 3000, |_| 0);
        store.close().expect("close");
        drop(store);
        let store = home.open(options(false));
        assert_eq!(stat(&store, "checkpoint"), 1, "another one was taken at the close");
        check(&store, 3000, |_| 0);
    }
    let pages_then = checkpoint_pages(&home.bytes()).len();
    assert_eq!(pages_then, pages.len(), "the damaged ones were given back");
}

#[test]
fn damage_to_a_checkpoint_is_found_by_verify() {
    let home = Home::in_memory();
    let store = home.create(small());
    put_all(&store, 3000, 0);
    assert!(store.checkpoint().expect("checkpoint"));
    let pool = home.bytes();
    let at = checkpoint_pages(&pool)[1] as u64 * u64::from(SMALL.page_size) + 100;
    let file = std::fs::OpenOptions::new().write(true).open(home.path()).expect("open the file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[pool[at as usize] ^ 1], at).expect("write");
    let report = store.verify(&mut |_| {}).expect("verify");
    assert_eq!(report.damages.len(), 1, "{:?}", report.damages);
}

/// Puts records until the store takes no more; returns how many it took.
fn fill(store: &Scmkv, checkpoint_every: u64) -> u64 {
    for number in 0.. {
        match store.put(&key(number), &value(number, 0), &WriteOptions::default()) {
            Ok(_) => {}
            Err(Error::NoSpace { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
        if number % checkpoint_every == checkpoint_every - 1 {
            store.checkpoint().expect("checkpoint");
        }
    }
    0
}

#[test]
fn a_checkpoint_makes_way_for_records() {
    let plain = fill(&Home::in_memory().create(small()), u64::MAX);
    let home = Home::in_memory();
    let store = home.create(small());
    let filled = fill(&store, 1000);
    assert!(stat(&store, "checkpoints_taken") > 5);
    assert!(stat(&store, "checkpoints_skipped") > 0, "the pool was too full at last");
    assert_eq!(stat(&store, "checkpoint"), 0, "it was given up");
    // Whether the last record fits depends on how the hashes fall.
    assert!(filled.abs_diff(plain) < 100, "{plain} records without checkpoints, {filled} with");
    store.close().expect("close");
    drop(store);
    let store = home.open(options(false));
    check(&store, filled, |_| 0);
}

/// Writers, checkpoints and the cleaner at the same time; then a kill; again and again.
#[test]
fn writers_and_checkpoints_go_on_side_by_side() {
    const WRITERS: u64 = 2;
    const KEYS: u64 = 4000;
    let home = Home::in_memory();
    drop(home.create(small()));
    let versions: Vec<AtomicU64> = (0..WRITERS * KEYS).map(|_| AtomicU64::new(0)).collect();
    for round in 1..=6_u64 {
        let store = home.open(options(false));
        // The cleaner depends on the counts.
        assert_eq!(store.len().expect("len"), if round == 1 { 0 } else { WRITERS * KEYS });
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let checkpoints = scope.spawn(|| {
                let (since, mut taken) = (Instant::now(), 0);
                let waits = || since.elapsed() < Duration::from_secs(60);
                while !ended.load(Ordering::Acquire) || taken == 0 && waits() {
                    taken += u64::from(store.checkpoint().expect("checkpoint"));
                }
                taken
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (store, versions) = (&store, &versions);
                    scope.spawn(move || {
                        let mut state = round * 77 + writer;
                        for step in 0..3 * KEYS {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let first = round == 1 && step < KEYS;
                            let at = if first { step } else { (state >> 33) % KEYS };
                            let number = writer * KEYS + at;
                            let next = versions[number as usize].load(Ordering::Relaxed) + 1;
                            let put = store.put(
                                &key(number),
                                &value(number, next),
                                &WriteOptions::default(),
                            );
                            let _outcome = put.expect("put");
                            versions[number as usize].store(next, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().expect("a writer");
            }
            ended.store(true, Ordering::Release);
            assert!(checkpoints.join().expect("checkpoints") > 0);
        });
        // A crash.
        drop(store);
        let store = home.open(options(false));
        assert!(stat(&store, "checkpoint") > 0);
        check(&store, WRITERS * KEYS, |number| versions[number as usize].load(Ordering::Relaxed));
    }
}
