//! Pools with pages smaller than a system page, and no larger than the pool's header.

use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_pmem::pool::{HEADER_LEN, first_page};
use coreplane_pmem::{
    Claim, CreateOptions, Durable, MediaChoice, OpenOptions, PageWriter, Pool, PoolError,
    Preparation, Space, epoch,
};
use std::path::Path;
use std::sync::Arc;

const SIZES: [u32; 2] = [1 << 10, 2 << 10];

fn options(page_size: u32, pages: u64, media: MediaChoice) -> CreateOptions {
    let size = pages * u64::from(page_size) + 17;
    CreateOptions { size, media, page_size, kind: "test".to_owned(), parameters: [5; 8] }
}

/// The media for pools, each with a directory.
fn places() -> [(MediaChoice, tempfile::TempDir); 3] {
    let memory = || tempfile::tempdir_in("/dev/shm").unwrap();
    let target = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    [
        (MediaChoice::Emulated("none".to_owned()), memory()),
        (MediaChoice::File, memory()),
        (MediaChoice::File, target),
    ]
}

fn open(path: &Path, media: &MediaChoice) -> Pool {
    Pool::open(path, &OpenOptions { media: media.clone() }).unwrap()
}

/// The contents of page `number`.
fn pattern(number: u32, page_size: u32) -> Vec<u8> {
    (0..page_size).map(|at| (number.wrapping_mul(31) ^ at) as u8).collect()
}

fn fill(space: &Arc<Space>, page: u32) -> PageWriter {
    let mut writer = space.claim_log(page).unwrap();
    let start = writer.append(&[&pattern(page, space.page_size())]).unwrap();
    assert_eq!(start, space.start_of(page));
    writer.flush_from(start);
    space.fence().unwrap();
    writer.publish();
    writer
}

fn is_filled(space: &Space, page: u32) -> bool {
    let guard = epoch::pin();
    let bytes = space.bytes(&guard, space.start_of(page), u64::from(space.page_size()));
    bytes == Some(pattern(page, space.page_size()).as_slice())
}

#[test]
fn the_header_takes_as_many_pages_as_it_needs() {
    assert_eq!([1 << 10, 2 << 10, 4 << 10, 1 << 30].map(first_page), [2, 1, 1, 1]);
    for page_size in SIZES {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("p");
        let create = |pages| Pool::create(&path, &options(page_size, pages, MediaChoice::Auto));
        let least = u64::from(first_page(page_size));
        assert!(matches!(create(least - 1), Err(PoolError::Geometry(_))));
        let pool = create(least).unwrap();
        assert_eq!(pool.space().len(), HEADER_LEN);
        pool.grow(HEADER_LEN + u64::from(page_size)).unwrap();
        let space = pool.space();
        for page in 0..pool.first_page() {
            assert!(!space.claim_words(page, Claim::Words), "page {page} has the header");
            assert!(space.word::<Durable>(space.start_of(page)).is_some());
        }
        assert!(space.claim_words(pool.first_page(), Claim::Words));
        assert_eq!(pool.first_page() + 1, space.pages());
    }
}

/// Grown by one page at a time: within a system page, up to its end and beyond it.
#[test]
fn a_pool_is_found_again_as_it_was_left_whatever_it_was_grown_to() {
    for (media, directory) in places() {
        for page_size in SIZES {
            let path = directory.path().join(format!("{page_size}"));
            let pool = Pool::create(&path, &options(page_size, 3, media.clone())).unwrap();
            let first = pool.first_page();
            let writers: Vec<_> = (3..24)
                .map(|pages| {
                    let space = pool.space();
                    assert_eq!(space.pages(), pages);
                    let writer = fill(space, pages - 1);
                    pool.set_root([u64::from(pages); 8]).unwrap();
                    pool.grow(u64::from(pages + 1) * u64::from(page_size)).unwrap();
                    assert!((first.max(2)..pages).all(|page| is_filled(space, page)));
                    writer
                })
                .collect();
            assert!(writers.iter().all(|writer| writer.remaining() == 0));
            pool.check().unwrap();
            drop((writers, pool));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 24 * u64::from(page_size));
            let pool = open(&path, &media);
            assert_eq!((pool.root(), pool.parameters()), ([23; 8], [5; 8]));
            let space = pool.space();
            assert_eq!((space.pages(), space.page_size()), (24, page_size));
            assert!((2..23).all(|page| space.adopt_log(page, page_size) && is_filled(space, page)));
            pool.grow(33 * u64::from(page_size)).unwrap();
            assert_eq!(space.pages(), 33);
            fill(space, 32);
            assert!((2..23).all(|page| is_filled(space, page)));
            pool.fault_in();
        }
    }
}

/// Calls to the kernel for one page do not affect the others in its system page.
#[test]
fn neighbours_of_a_page_stay_as_they_are() {
    for (media, directory) in places() {
        for page_size in SIZES {
            let path = directory.path().join(format!("{page_size}"));
            let pool = Pool::create(&path, &options(page_size, 9, media.clone())).unwrap();
            let space = pool.space();
            assert!(!space.is_preparable());
            let writers: Vec<_> = [2, 3, 5, 7].map(|page| fill(space, page)).into();
            let free = [4, 6, 8];
            for page in free {
                for preparation in [Preparation::First, Preparation::Again] {
                    assert!(space.prepare(page, preparation).unwrap());
                }
            }
            assert!(!space.prepare(5, Preparation::First).unwrap(), "it is in use");
            assert!(space.claim_words(4, Claim::Words));
            for page in 0..9 {
                space.probe(page).unwrap();
                space.probe_loads(page).unwrap();
                assert!(space.can_load(page..page + 1) && space.can_load(page..9));
                assert!(space.heal(page).unwrap().is_empty(), "nothing is lost");
            }
            assert!(space.probe(9).is_err() && !space.can_load(8..10) && space.heal(9).is_err());
            assert!([2, 3, 5, 7].iter().all(|page| is_filled(space, *page)));
            drop(writers);
            pool.check().unwrap();
        }
    }
}

/// The file is truncated at a system page, since a medium loses whole system pages.
#[test]
fn what_is_lost_is_healed_with_its_neighbours_or_not_at_all() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    let pool = Pool::create(&path, &options(1 << 10, 9, MediaChoice::Auto)).unwrap();
    let space = pool.space();
    drop([3, 5, 8].map(|page| fill(space, page)));
    assert!(space.claim_words(7, Claim::Words));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    for (page, lost) in [(3, None), (4, Some(4096)), (6, Some(4096)), (8, Some(8192))] {
        assert_eq!(space.probe(page).err().map(|it| it.offset), lost, "page {page}");
        assert_eq!(space.can_load(page..page + 1), lost.is_none(), "page {page}");
    }
    for page in [4, 5, 6, 7, 8] {
        assert!(space.heal(page).is_err(), "somebody may have a slice of page 5 or 8");
    }
    assert!(space.claim_log(4).is_some_and(|writer| {
        writer.abandon();
        true
    }));
    assert!(space.retire(5) && space.retire(8));
    while space.retired_len() > 0 {
        space.reclaim_all(|_| {});
        std::thread::yield_now();
    }
    assert_eq!(space.heal(6).unwrap(), [4096]);
    assert!((4..8).all(|page| space.probe(page).is_ok() && space.heal(page).unwrap().is_empty()));
    assert_eq!(space.heal(8).unwrap(), [8192]);
    assert_eq!(file.metadata().unwrap().len(), 9 << 10, "no longer than the pool");
    assert!(is_filled(space, 3) && space.claim_log(6).is_some());
    pool.check().unwrap();
}

/// A store to a small page is as durable as one to a large page, and no more; sectors and lines keep
/// their size.
#[test]
fn a_simulated_pool_with_small_pages_is_cut_grown_and_opened_again() {
    for model in [Model::X86, Model::File] {
        for page_size in SIZES {
            let page = u64::from(page_size);
            let (len, max_len) = (5 * page, 9 * page);
            let simulated = SimOptions { len, max_len, page_size, model, ..SimOptions::default() };
            let sim = Sim::new(&simulated).unwrap();
            let create = options(page_size, 5, MediaChoice::Auto);
            let pool = Pool::simulated_create(sim.space().clone(), &create).unwrap();
            drop(fill(pool.space(), 2));
            pool.grow(8 * page).unwrap();
            drop(fill(pool.space(), 7));
            pool.set_root([9; 8]).unwrap();
            let mut writer = pool.space().claim_log(6).unwrap();
            writer.append(&[&pattern(6, page_size)]).unwrap();
            assert!(pool.grow(10 * page).is_err(), "the medium has no room");

            let left = |eviction| sim.crash(eviction).reopen().unwrap();
            for (eviction, is_kept) in [(Eviction::Nothing, false), (Eviction::Everything, true)] {
                let again = left(eviction);
                let pool = Pool::simulated_open(again.space().clone()).unwrap();
                assert_eq!((pool.root(), pool.space().pages()), ([9; 8], 8));
                let space = pool.space();
                assert!([2, 6, 7].iter().all(|page| space.adopt_log(*page, page_size)));
                assert!(is_filled(space, 2) && is_filled(space, 7));
                assert_eq!(is_filled(space, 6), is_kept);
                pool.grow(9 * page).unwrap();
                fill(space, 8);
            }
            let torn: Vec<_> = (0..64)
                .map(|seed| {
                    let image = sim.crash(Eviction::Seeded(seed));
                    image.bytes()[6 * page_size as usize..7 * page_size as usize].to_vec()
                })
                .filter(|bytes| *bytes != pattern(6, page_size))
                .collect();
            let unit = if model == Model::File { 512 } else { 64 };
            let has_whole = |bytes: &Vec<u8>| {
                let all = pattern(6, page_size);
                bytes.chunks(unit).zip(all.chunks(unit)).any(|(some, all)| some == all)
            };
            assert!(torn.iter().any(has_whole), "a part of a page is kept");
        }
    }
}

#[test]
fn another_page_size_than_the_pools_own_is_refused() {
    let sim = Sim::new(&SimOptions { page_size: 1024, ..SimOptions::default() }).unwrap();
    let create = options(1024, 64, MediaChoice::Auto);
    drop(Pool::simulated_create(sim.space().clone(), &create).unwrap());
    for page_size in [2048, 4096] {
        let other = SimOptions { page_size, ..SimOptions::default() };
        let sim = Sim::after(sim.space(), &other).unwrap();
        let opened = Pool::simulated_open(sim.space().clone());
        assert!(matches!(opened, Err(PoolError::Geometry(_))), "{opened:?}");
    }
}
