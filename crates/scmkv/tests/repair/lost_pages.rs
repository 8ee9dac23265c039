//! Pages that the medium has lost: a search for damage names them, and is not ended by a signal;
//! and lost records are never taken for absent ones.

use crate::home::{Home, New, PAGE, options, write};
use coreplane_engine::{Engine, Error, Repairable, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Fate, Options, Placement, Scmkv};
use std::fs::OpenOptions;
use std::path::Path;

const POOL_BYTES: u64 = 96 << 20;
/// The bytes behind this are lost.
const KEPT_BYTES: u64 = 40 << 20;

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(250)
}

#[test]
fn verify_names_what_is_lost_and_goes_on() {
    for placement in [Placement::Pool, Placement::Dram] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("directory");
        let path = directory.path().join("pool");
        let options = Options { background: false, ..Options::default() };
        let store = Scmkv::create(&path, POOL_BYTES, MediaChoice::Auto, placement, options);
        let store = store.expect("create");
        for number in 0..60_000_u32 {
            let key = number.to_le_bytes();
            let _outcome = store.put(&key, &value(number), &WriteOptions::default()).expect("put");
        }
        let sound = store.verify(&mut |_| {}).expect("verify");
        assert!(sound.is_sound() && sound.records == 60_000, "{sound:?}");
        // A load from behind the end of a mapped file is a SIGBUS, as one from a poisoned page.
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(KEPT_BYTES).expect("cut");
        let report = store.verify(&mut |_| {}).expect("verify");
        assert!(!report.is_sound(), "{placement:?}: nothing was missed");
        let beyond = report.damages.iter().filter(|damage| damage.offset >= KEPT_BYTES).count();
        assert_eq!(beyond, report.damages.len(), "{placement:?}: what was kept is sound");
        assert!(report.damages[0].what.contains("poisoned"), "{}", report.damages[0].what);
        assert!(report.records > 0 && report.records < 60_000, "{} records", report.records);
        file.set_len(POOL_BYTES).expect("restore");
    }
}

/// The log pages that have no length yet, as `docs/media-format.md` has them.
fn open_pages(bytes: &[u8]) -> Vec<usize> {
    let element = |page: usize| &bytes[2048 + 32 * page..][..32];
    (1..bytes.len() / PAGE as usize)
        .filter(|page| element(*page)[0] & 0xf == 3 && element(*page)[8..16] == [0; 8])
        .collect()
}

/// The state of a lost page's bytes.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Zeroes,
    Noise,
}

const LOSSES: [Loss; 2] = [Loss::Zeroes, Loss::Noise];

fn lose(bytes: &mut [u8], loss: Loss) {
    let mut draw = 12345_u32;
    for byte in bytes {
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = match loss {
            Loss::Zeroes => 0,
            Loss::Noise => (draw >> 24) as u8,
        };
    }
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("read");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("write");
}

/// The one page that is open in a store that was killed, wholly lost.
fn lose_open_page(path: &Path, loss: Loss) -> usize {
    let mut lost = 0;
    change(path, |bytes| {
        let pages = open_pages(bytes);
        assert_eq!(pages.len(), 1, "{pages:?}");
        lost = pages[0];
        lose(&mut bytes[lost * PAGE as usize..][..PAGE as usize], loss);
    });
    lost
}

/// A page that was being written, with some records in it. With an index from the logs the open
/// reports that they are lost; with the index in the pool their keys are errors. After a repair no
/// older record stands in for them where the index can tell.
#[test]
fn an_open_page_that_is_wholly_lost_is_told() {
    for placement in [Placement::Pool, Placement::Dram] {
        for loss in LOSSES {
            let home = Home::in_memory();
            let store = home.create(New::tiny(32).placed(placement));
            let _outcome = store.put(b"overwritten", b"the old value", &write()).expect("put");
            // Enough that the page is full, and the next one is begun.
            for number in 0..80_u32 {
                let _outcome = store.put(&number.to_le_bytes(), &[1; 40], &write()).expect("put");
            }
            let _outcome = store.put(b"overwritten", b"the new value", &write()).expect("put");
            let _outcome = store.put(b"last", b"value", &write()).expect("put");
            let _outcome = store.put(b"very last", b"value", &write()).expect("put");
            drop(store);
            let page = lose_open_page(&home.path(), loss);
            assert!(page > 1);
            let opened = Scmkv::open(&home.path(), MediaChoice::Auto, options(false));
            let said = match (placement, opened) {
                (Placement::Dram, Err(error)) => {
                    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                    error.to_string()
                }
                (Placement::Pool, Ok(store)) => {
                    for key in [&b"overwritten"[..], b"last", b"very last"] {
                        assert!(is_corrupt(&store, key), "{loss:?}");
                    }
                    let damages = store.verify(&mut |_| {}).expect("verify").damages;
                    damages.iter().map(|it| &*it.what).collect::<Vec<_>>().join("; ")
                }
                (_, opened) => panic!("{placement:?}, {loss:?}: {opened:?}"),
            };
            assert!(said.contains(&format!("log page {page}")), "{said}");
            assert!(said.contains("none can be read"), "{said}");
            let repaired =
                Scmkv::repair(&home.path(), MediaChoice::Auto, options(false), &mut |_| {});
            let (store, repair) = repaired.expect("repair");
            assert!(repair.findings.iter().any(|it| it.page as usize == page), "{repair:#?}");
            assert_eq!(store.get(b"last").expect("get"), None);
            let overwritten = store.get(b"overwritten").expect("get");
            if placement == Placement::Pool {
                let keys: Vec<_> = repair.findings.iter().flat_map(|it| &it.keys).collect();
                assert!(keys.contains(&&(b"overwritten".to_vec(), Fate::Lost)), "{repair:#?}");
                assert_eq!(overwritten, None, "{loss:?}");
            }
            assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
            store.close().expect("close");
            drop(store);
            assert!(home.open(options(false)).verify(&mut |_| {}).expect("verify").is_sound());
        }
    }
}

/// An older record lies where the slot would point if one bit of it were another: it is not taken
/// for the one that was lost.
#[test]
fn an_older_record_that_is_near_by_chance_does_not_stand_in() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(32).placed(Placement::Pool));
    // Always at the start of a page: records of 64 bytes.
    for page in 0..5_u32 {
        for number in 0..PAGE as u32 / 64 {
            let key = if number == 0 { u32::MAX } else { page * 1000 + number };
            let _outcome = store.put(&key.to_le_bytes(), &[page as u8; 40], &write()).expect("put");
            if page == 4 && number == 3 {
                break;
            }
        }
    }
    drop(store);
    let bytes = std::fs::read(home.path()).expect("read");
    let page = open_pages(&bytes)[0];
    let key_at = |page: usize| &bytes[page * PAGE as usize + 20..][..4];
    assert_eq!(key_at(page), [0xff; 4]);
    let twin = (0..5).map(|bit| page ^ 1 << bit).find(|twin| key_at(*twin) == [0xff; 4]);
    assert!(twin.is_some(), "no older record is one bit away from page {page}");
    lose_open_page(&home.path(), Loss::Zeroes);
    let repaired = Scmkv::repair(&home.path(), MediaChoice::Auto, options(false), &mut |_| {});
    let (store, repair) = repaired.expect("repair");
    let keys: Vec<_> = repair.findings.iter().flat_map(|finding| &finding.keys).collect();
    assert!(keys.contains(&&([0xff; 4].to_vec(), Fate::Lost)), "{repair:#?}");
    assert_eq!(store.get(&[0xff; 4]).expect("get"), None);
}

fn is_corrupt(store: &Scmkv, key: &[u8]) -> bool {
    matches!(store.get(key), Err(Error::Corrupt { .. }))
}

/// Writes and cleans until every page that can be reused has been.
fn churn(store: &Scmkv) {
    for round in 0..12_u32 {
        for number in 0..60_u32 {
            let value = [round as u8; 60];
            let _outcome = store.put(&number.to_be_bytes(), &value, &write()).expect("put");
        }
        for _ in 0..10 {
            store.clean().expect("clean");
        }
    }
}

/// With a single record in it a page has no proof that there was one. A slot tells all the same:
/// the key is an error, however much is written and cleaned, and never an absence.
#[test]
fn what_a_slot_points_at_is_never_taken_for_absent() {
    for loss in LOSSES {
        let home = Home::in_memory();
        let store = home.create(New::tiny(24).placed(Placement::Pool));
        let _outcome = store.put(b"lost", b"value", &write()).expect("put");
        drop(store);
        lose_open_page(&home.path(), loss);
        for _ in 0..3 {
            let store = home.open(options(false));
            assert!(is_corrupt(&store, b"lost"), "{loss:?}");
            churn(&store);
            assert!(is_corrupt(&store, b"lost"), "{loss:?}");
            let damaged = store.stats().more.into_iter().find(|(name, _)| *name == "damaged_pages");
            assert_eq!(damaged, Some(("damaged_pages", 1)));
            assert!(!store.verify(&mut |_| {}).expect("verify").is_sound());
            store.close().expect("close");
        }
        let repaired = Scmkv::repair(&home.path(), MediaChoice::Auto, options(false), &mut |_| {});
        let (store, repair) = repaired.expect("repair");
        assert!(
            repair.findings.iter().any(|it| it.what.contains("cannot be named")),
            "{repair:#?}"
        );
        assert_eq!(store.get(b"lost").expect("get"), None);
        assert_eq!(store.len().expect("len"), 60);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// The lost end of an open page, with the last records in it: recovery ends the log before it, and
/// keys whose slots point behind that stay errors.
#[test]
fn the_lost_end_of_an_open_page_is_never_taken_for_absent() {
    for loss in LOSSES {
        let home = Home::in_memory();
        let store = home.create(New::tiny(24).placed(Placement::Pool));
        for number in 0..10_u8 {
            let _outcome = store.put(&[b'k', number], &[number; 40], &write()).expect("put");
        }
        drop(store);
        change(&home.path(), |bytes| {
            let start = open_pages(bytes)[0] * PAGE as usize;
            // Records of 64 bytes each.
            lose(&mut bytes[start + 7 * 64..][..PAGE as usize - 7 * 64], loss);
        });
        for _ in 0..2 {
            let store = home.open(options(false));
            // The rest of the page is not needed any more: the cleaner would take it.
            for number in 0..7_u8 {
                let _outcome = store.put(&[b'k', number], &[number; 41], &write()).expect("put");
            }
            churn(&store);
            for number in 0..10_u8 {
                let key = [b'k', number];
                match number {
                    0..7 => assert_eq!(store.get(&key).expect("get"), Some(vec![number; 41])),
                    _ => assert!(is_corrupt(&store, &key), "{loss:?}, {number}"),
                }
            }
            store.close().expect("close");
        }
        let repaired = Scmkv::repair(&home.path(), MediaChoice::Auto, options(false), &mut |_| {});
        let (store, repair) = repaired.expect("repair");
        assert!(repair.findings.iter().any(|it| it.what.contains("3 keys")), "{repair:#?}");
        assert_eq!(store.len().expect("len"), 67);
    }
}

/// A page that a crash has left empty is free again, once the slots have been seen.
#[test]
fn a_page_that_nothing_points_into_is_free_again() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(24).placed(Placement::Pool));
    let _outcome = store.put(b"key", b"value", &write()).expect("put");
    drop(store);
    lose_open_page(&home.path(), Loss::Zeroes);
    // As if the crash had come before the slot was stored.
    change(&home.path(), |bytes| {
        let is_index = |page: &usize| bytes[2048 + 32 * page] & 0xf == 4;
        let index: Vec<usize> = (1..24).filter(is_index).collect();
        assert!(!index.is_empty());
        for page in index {
            let start = page * PAGE as usize;
            bytes[start + 256..start + PAGE as usize].fill(0);
        }
    });
    let store = home.open(options(false));
    let before = store.stats().free_bytes;
    assert_eq!(store.get(b"key").expect("get"), None);
    assert_eq!(store.len().expect("len"), 0);
    // Until readers have let go of their pages; readers of other tests may be active.
    while store.stats().free_bytes == before {
        assert!(!store.clean().expect("clean"));
    }
    assert_eq!(store.stats().free_bytes, before + PAGE);
    assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    store.close().expect("close");
    assert!(open_pages(&std::fs::read(home.path()).expect("read")).is_empty());
}
