//! Logs over pools in files or in the simulator, which are opened again after a kill or a cut: no log is ended.

use super::{Log, Recovered};
use crate::error::{Error, Result};
use crate::pages::{Pages, Role, Use};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_pmem::{MediaChoice, OpenOptions, Pool};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: u32 = 1024;
const PAGES: u64 = 40;

fn made(path: &Path) -> Pages {
    let size = PAGES * u64::from(PAGE);
    let options = Pages::options((1, 0, 1), size, PAGE, MediaChoice::Auto);
    Pages::open(Pool::create(path, &options).expect("a pool"), true).expect("pages").0
}

/// Finds a log again: its records, and its damage.
fn found(path: &Path, role: Role) -> Result<(Vec<Vec<u8>>, Vec<String>)> {
    found_in(Pool::open(path, &OpenOptions { media: MediaChoice::Auto })?, role)
}

fn found_in(pool: Pool, role: Role) -> Result<(Vec<Vec<u8>>, Vec<String>)> {
    let (pages, used) = Pages::open(pool, false)?;
    let mut recovery = pages.space().recovery().expect("the first");
    let its = used.iter().filter(|(_, used)| used.role == role);
    let list = its.map(|(page, used)| (used.number, *page)).collect();
    let mut records = Vec::new();
    let mut visit = |bytes: &[u8]| {
        records.push(bytes.to_vec());
        Ok(())
    };
    let Recovered { damage, .. } =
        Log::recover((&pages, &mut recovery), role, list, 0, &mut visit)?;
    Ok((records, damage))
}

fn record(at: u8) -> Vec<u8> {
    vec![at; 200]
}

fn pool_in(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("pool")
}

#[test]
fn a_checkpoint_for_which_there_is_no_page_changes_nothing() {
    for behind in 1..4 {
        let directory = tempfile::tempdir().expect("a directory");
        let path = pool_in(&directory);
        let pages = made(&path);
        let mut log = Log::new(Role::Catalogue);
        log.commit(&pages, &record(0), 0).expect("room");
        let mut others = Vec::new();
        for number in 0.. {
            let Some(page) = pages.begin(Use { role: Role::Segment, number }, 1) else { break };
            others.push(page);
        }
        let last = pages.begin(Use { role: Role::Segment, number: 1000 }, 0).expect("the last");
        let full = log.checkpoint(&pages, || std::iter::once(record(9)), 0);
        assert!(matches!(full, Ok(false)), "{full:?}");
        let page = last.page();
        drop(last);
        pages.give_back(&[page]);
        for at in 1..=behind {
            log.commit(&pages, &record(at), 0).expect("room");
        }
        drop((others, log, pages));
        let (records, damage) = found(&path, Role::Catalogue).expect("found");
        assert_eq!((records.len(), damage), (1 + behind as usize, Vec::new()));
    }
}

/// A later change tries the checkpoint again, and so on: none of them takes a page for good.
#[test]
fn a_checkpoint_for_which_there_are_too_few_pages_takes_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = pool_in(&directory);
    let pages = made(&path);
    let mut log = Log::new(Role::Catalogue);
    (0..10).for_each(|at| log.commit(&pages, &record(at), 0).expect("room"));
    let mut others = Vec::new();
    for number in 0.. {
        let Some(page) = pages.begin(Use { role: Role::Segment, number }, 2) else { break };
        others.push(page);
    }
    let before = log.page_count();
    for at in 0..20 {
        let full = log.checkpoint(&pages, || (0..10).map(record), 0);
        assert!(matches!(full, Ok(false)), "{full:?}");
        assert_eq!(pages.free_count() + log.page_count(), before + 2);
        log.commit(&pages, &[at; 8], 0).expect("room");
    }
    assert!(log.page_count() <= before + 1, "{} of {before}", log.page_count());
    drop((others, log, pages));
    let (records, damage) = found(&path, Role::Catalogue).expect("found");
    assert_eq!((records.len(), damage), (30, Vec::new()));
}

/// Each sync of a checkpoint fails, and the cut behind it takes any of the stores that no sync has covered.
#[test]
fn a_checkpoint_whose_sync_has_failed_counts_or_not() {
    let len = PAGES * u64::from(PAGE);
    let mut failures = 0;
    for sync in 1.. {
        let options = SimOptions {
            len,
            max_len: len,
            page_size: PAGE,
            model: Model::File,
            failing_sync: Some(sync),
            ..SimOptions::default()
        };
        let sim = Sim::new(&options).expect("memory");
        let made = || -> Result<Pages> {
            let options = Pages::options((1, 0, 1), len, PAGE, MediaChoice::Auto);
            let pool = Pool::simulated_create(Arc::clone(sim.space()), &options)?;
            Ok(Pages::open(pool, true)?.0)
        };
        let mut log = Log::new(Role::Manifest);
        let Ok(pages) = made() else { continue };
        if (0..9).any(|at| log.commit(&pages, &record(at), 0).is_err()) {
            continue;
        }
        let Err(error) = log.checkpoint(&pages, || (10..27).map(record), 0) else { break };
        assert!(matches!(error, Error::Sync(_)), "{error}");
        failures += 1;
        for seed in 0..200 {
            let cut = sim.crash(Eviction::Seeded(seed)).reopen().expect("memory");
            let pool = Pool::simulated_open(Arc::clone(cut.space())).expect("a pool");
            let (records, damage) = found_in(pool, Role::Manifest).expect("a log");
            let is_whole = records.len() == 9 || records.len() == 17;
            assert!(is_whole && damage.is_empty(), "sync {sync}, {seed}: {damage:?} {records:?}");
        }
    }
    assert!(failures > 1, "{failures}");
}

#[test]
fn a_record_that_is_too_long_takes_no_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let pages = made(&pool_in(&directory));
    let mut log = Log::new(Role::Catalogue);
    log.commit(&pages, &record(0), 0).expect("room");
    let long = vec![7; Log::record_max(&pages) + 1];
    for _ in 0..3 {
        assert!(matches!(log.commit(&pages, &long, 0), Err(Error::Input(_))));
    }
    assert_eq!(log.page_count(), 1);
}

/// When the log is killed it begins with its checkpoint, and no later record states that the checkpoint is durable.
#[test]
fn a_flipped_bit_in_a_checkpoint_is_said_each_time_and_loses_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = pool_in(&directory);
    let pages = made(&path);
    let mut log = Log::new(Role::Manifest);
    (0..9).for_each(|at| log.commit(&pages, &record(at), 0).expect("room"));
    assert!(log.checkpoint(&pages, || (10..17).map(record), 0).expect("written"));
    let its: Vec<u32> = log.page_list().collect();
    assert!(its.len() > 1);
    drop((log, pages));
    let whole = std::fs::read(&path).expect("a pool");
    for page in its {
        let start = page as usize * PAGE as usize;
        let written = (start..start + PAGE as usize).filter(|at| at % 29 == 0);
        for at in written {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).expect("written");
            for _ in 0..2 {
                match found(&path, Role::Manifest) {
                    Ok((records, damage)) => {
                        assert!(records.len() == 7 || !damage.is_empty(), "byte {at} {records:?}");
                    }
                    Err(error) => assert!(matches!(error, Error::Damage(_)), "{error}"),
                }
            }
        }
    }
}

/// The log is killed behind a mark, which states that the last record is whole.
#[test]
fn a_flipped_bit_in_the_last_commit_before_a_kill_is_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = pool_in(&directory);
    let pages = made(&path);
    let mut log = Log::new(Role::Manifest);
    (0..3).for_each(|at| log.commit(&pages, &record(at), 0).expect("room"));
    drop((log, pages));
    let whole = std::fs::read(&path).expect("a pool");
    let start = whole.windows(200).position(|it| it == record(2)).expect("the last");
    for at in (start - 24..start + 200).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).expect("a pool");
        let found = found(&path, Role::Manifest);
        assert!(matches!(found, Err(Error::Damage(_))), "byte {at}: {found:?}");
    }
    std::fs::write(&path, whole).expect("a pool");
    let (records, damage) = found(&path, Role::Manifest).expect("found");
    assert_eq!((records.len(), damage), (3, Vec::new()));
}

/// A query that ends gives pages back while the pages of a checkpoint are counted.
#[test]
fn a_checkpoint_is_not_begun_though_pages_come_back_meanwhile() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = pool_in(&directory);
    let pages = made(&path);
    let mut log = Log::new(Role::Catalogue);
    (0..10).for_each(|at| log.commit(&pages, &record(at), 0).expect("room"));
    let others = std::cell::RefCell::new(Vec::new());
    for number in 0.. {
        let Some(page) = pages.begin(Use { role: Role::Segment, number }, 2) else { break };
        others.borrow_mut().push(page.page());
    }
    let (its, free) = (&others, &pages);
    let records = || {
        (0..20).map(move |at| {
            free.give_back(&its.take());
            record(at)
        })
    };
    let full = log.checkpoint(&pages, records, 0);
    assert!(matches!(full, Ok(false)), "{full:?}");
    log.commit(&pages, &record(99), 0).expect("room");
    drop((others, log, pages));
    let (records, damage) = found(&path, Role::Catalogue).expect("found");
    assert_eq!((records.len(), damage), (11, Vec::new()));
}
