//! The page information table: read while it is written, torn by a power cut, and left in the caches by a kill.

use super::kill::{killed_at, undurable_at};
use crate::engine::Scmkv;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Verdict;
use crate::table::page::Kind;
use coreplane_engine::{Engine, Repairable, TimeSource, UnixMillis, Visibility, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool, spin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn an_element_is_read_while_its_page_is_sealed_and_used_again() {
    let sim = Sim::new(&SimOptions::default()).expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    let page = store.pages.pop_free(0).expect("a free page");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                store.pages.write_element(page, Kind::Log, 1, 7, 9).expect("open");
                store.pages.seal(page, 64, 0).expect("seal");
            }
        });
        let (mut opened, mut sealed, mut matches) = (false, false, true);
        // The writer may have to wait for a processor.
        for _ in 0..1000 {
            let elements: Vec<_> = (0..200_000).map(|_| store.pages.element(page)).collect();
            matches &= elements.iter().flatten().count() == elements.len();
            for element in elements.iter().flatten() {
                opened |= element.length.is_none();
                sealed |= element.length == Some(64);
            }
            if !matches || opened && sealed {
                break;
            }
        }
        stop.store(true, Ordering::Release);
        assert!(matches, "an element did not match its check");
        assert!(opened && sealed, "nothing changed");
    });
}

/// A page that a checkpoint names is freed, used again, and freed again: the slots of the checkpoint do not count,
/// whatever a power cut leaves of the last freeing.
#[test]
fn a_page_that_was_being_freed_is_none_that_an_old_checkpoint_names() {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let create = create_options(space.len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    const KEYS: u8 = 10;
    let put_all = |len: usize| {
        for number in 0..KEYS {
            let value = vec![number; len];
            let outcome = store.put(&[b'k', number], &value, &WriteOptions::default());
            assert!(outcome.expect("put").is_written());
        }
    };
    let clean = || {
        let mut state = spin::lock(&store.cleaner_state);
        assert!(store.clean_one(&mut state, 1).expect("clean").is_some(), "nothing is dead");
    };
    put_all(200);
    let slot = store.index.find(store.place(&[b'k', 0]), |_| Verdict::Mine).expect("find");
    let page = store.space.page_of(slot.expect("a slot").offset());
    let cell = store.pages.cell(page);
    let generation = cell.generation();
    assert!(store.take_checkpoint().expect("a checkpoint"));
    while cell.generation() == generation || cell.length.load(Ordering::Acquire) == 0 {
        put_all(330);
        if cell.generation() == generation {
            clean();
        }
    }
    put_all(330);
    while cell.kind() == Some(Kind::Log) {
        clean();
    }
    // The last step was to free the page.
    let end = sim.events();
    for at in end - 8..=end {
        for seed in 0..8 {
            let cut = sim.crash_at(at, Eviction::Seeded(seed)).reopen().expect("memory");
            let store = Scmkv::simulated_open(Arc::clone(cut.space()), options.clone());
            let store = store.expect("opened");
            let what = format!("cut at {at}, seed {seed}");
            for number in 0..KEYS {
                let found = store.get(&[b'k', number]).expect(&what);
                assert_eq!(found, Some(vec![number; 330]), "{what}: {number}");
            }
            let report = store.verify(&mut |_| {}).expect("verify");
            assert!(report.is_sound(), "{what}: {:?}", report.damages);
        }
    }
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// A store of 64 tiny pages.
fn created(placement: Placement, options: &Options) -> (Sim, Store) {
    let sim = Sim::new(&SimOptions { len: 64 << 12, max_len: 64 << 12, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let create = create_options(sim.space().len(), Geometry::TINY, MediaChoice::Auto);
    let pool = Pool::simulated_create(Arc::clone(sim.space()), &create).expect("a pool");
    let store = Store::format(pool, placement, options).expect("a store");
    (sim, store)
}

fn opened(sim: &Sim, options: &Options) -> Store {
    let pool = Pool::simulated_open(Arc::clone(sim.space())).expect("a pool");
    Store::open(pool, options, &|_| {}).expect("opened")
}

fn put(store: &Store, key: &[u8], len: usize) {
    let outcome = store.put(key, &vec![7; len], &WriteOptions::default()).expect("put");
    assert!(outcome.is_written());
}

fn is_there(store: &Store, key: &[u8]) -> bool {
    store.get_with(key, Visibility::Durable, &mut |_| ()).expect("get").hit
}

/// The first moment from `events` on at which the word at `offset` is stored, and durably another one.
fn undurable_from(sim: &Sim, events: usize, offset: u64) -> usize {
    let is_left = |at: &usize| undurable_at(sim, *at).iter().any(|(word, ..)| *word == offset);
    (events..sim.events()).find(is_left).expect("the word was stored")
}

/// A process is killed when it has opened a page for the index, and this is in the caches alone. The next process
/// splits a segment into that page, and the power fails.
#[test]
fn an_index_page_that_a_killed_process_has_opened_stays_one() {
    let (sim, store) = created(Placement::Pool, &options());
    let index_pages = |store: &Store| {
        let is_index = |page: &u32| store.pages.cell(*page).kind() == Some(Kind::Index);
        (0..store.pages.len()).filter(is_index).collect::<Vec<u32>>()
    };
    // No page that is used next shares a line of the table with the one before.
    let mut free = store.pages.take(store.pages.refresh_free(), 0).expect("the free pages");
    free.sort_by_key(|page| (page % 2, *page));
    store.pages.put_back(&mut free);
    let (mut known, mut kills) = (index_pages(&store), Vec::new());
    for number in 0..2000_u32 {
        let events = sim.events();
        put(&store, &number.to_le_bytes(), 5);
        for page in index_pages(&store).into_iter().filter(|page| !known.contains(page)) {
            kills.push((number, undurable_from(&sim, events, store.pages.element_offset(page))));
        }
        known = index_pages(&store);
    }
    assert!(kills.len() > 1, "{kills:?}");
    for (number, at) in kills {
        let sim = killed_at(&sim, at);
        let store = opened(&sim, &options());
        let before = store.index.leaf(store.place(&number.to_le_bytes()));
        let is_split = || store.index.leaf(store.place(&number.to_le_bytes())) != before;
        let mut end = number;
        while !is_split() {
            put(&store, &end.to_le_bytes(), 5);
            end += 1;
        }
        let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
        let store = opened(&cut, &options());
        for number in 0..end {
            assert!(is_there(&store, &number.to_le_bytes()), "killed at {at}: {number} is lost");
        }
    }
}

/// A process is killed when it has freed a page, and this is in the caches alone. The next process drops the tombstone
/// of a key of which that page had a record, and the power fails.
#[test]
fn a_page_that_a_killed_process_has_freed_does_not_come_back_after_its_tombstones() {
    let (sim, store) = created(Placement::Dram, &options());
    let page_of = |key: &[u8]| {
        let slot = store.index.find(store.place(key), |_| Verdict::Mine).expect("find");
        store.space.page_of(slot.expect("a slot").offset())
    };
    let seal = || store.logs.iter().for_each(|log| log.lock().seal(&store).expect("sealed"));
    put(&store, b"k", 100);
    let victim = page_of(b"k");
    seal();
    assert!(store.erase(b"k", &WriteOptions::default()).expect("delete").is_written());
    let tombstone = page_of(b"k");
    let events = sim.events();
    store.clean_page(&mut spin::lock(&store.cleaner_state), victim).expect("cleaned");
    let at = undurable_from(&sim, events, store.pages.element_offset(victim));
    let sim = killed_at(&sim, at);
    let store = opened(&sim, &options());
    // The cleaner uses another page for its copies.
    assert_eq!(store.pages.pop_free(0), Some(victim));
    store.clean_page(&mut spin::lock(&store.cleaner_state), tombstone).expect("cleaned");
    assert_eq!(store.pages.cell(tombstone).kind(), Some(Kind::Free), "the tombstone is dropped");
    let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
    assert!(!is_there(&opened(&cut, &options()), b"k"), "it has come back");
}

/// A process is killed when it has noted that a record has expired, and this is in the caches alone. The next process
/// shows the absence, the power fails, and the clock is set back.
#[test]
fn a_record_that_had_expired_for_a_killed_process_does_not_come_back() {
    let now = Arc::new(AtomicU64::new(500));
    let time = Arc::clone(&now);
    let time: TimeSource = Arc::new(move || UnixMillis(time.load(Ordering::Relaxed)));
    let options = Options { time: Some(time), ..options() };
    let (sim, store) = created(Placement::Pool, &options);
    let expiring = WriteOptions { expires_at: Some(UnixMillis(1000)), ..WriteOptions::default() };
    assert!(store.put(b"k", b"v", &expiring).expect("put").is_written());
    now.store(2000, Ordering::Relaxed);
    let events = sim.events();
    assert!(!is_there(&store, b"k"));
    let sim = killed_at(&sim, undurable_from(&sim, events, store.pages.clock_offset()));
    assert!(!is_there(&opened(&sim, &options), b"k"));
    now.store(500, Ordering::Relaxed);
    let cut = sim.crash(Eviction::Nothing).reopen().expect("memory");
    assert!(!is_there(&opened(&cut, &options), b"k"), "it has come back");
}
