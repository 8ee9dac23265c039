//! Damage, and the result of `repair`: the store opens again with either index, `verify` finds it
//! sound, and no key is other than it was unless the repair has reported it.

use crate::home::{self, Home, New, PAGE, write};
use crate::image::{Area, Expected, Image, images, options};
use crate::tiny;
use coreplane_engine::{Batch, Engine, Repairable};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Fate, Finding, Placement, Scmkv};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn repair(path: &Path) -> Result<Vec<Finding>, String> {
    let mut told = Vec::new();
    let tell = &mut |finding: &Finding| told.push(finding.clone());
    let repaired = Scmkv::repair(path, MediaChoice::Auto, options(), tell);
    let (store, repair) = repaired.map_err(|error| error.to_string())?;
    assert_eq!(repair.findings, told);
    let report = store.verify(&mut |_| {}).expect("verify");
    assert!(report.is_sound(), "{:?} after {told:#?}", report.damages);
    store.close().expect("close");
    Ok(told)
}

/// All keys, as `get` and `iterate` show them.
fn contents(store: &Scmkv) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let found = home::contents(store).expect("iterate");
    for (key, value) in &found {
        assert_eq!(store.get(key).expect("get").as_ref(), Some(value));
    }
    found
}

/// The fates that were reported of each key; and whether something was lost that could not be
/// named.
fn said(findings: &[Finding]) -> (BTreeMap<Vec<u8>, BTreeSet<&'static str>>, bool) {
    let mut keys: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (key, fate) in findings.iter().flat_map(|finding| &finding.keys) {
        keys.entry(key.clone()).or_default().insert(fate.text());
    }
    (keys, findings.iter().any(|finding| finding.what.contains("cannot be named")))
}

/// Repairs `bytes`; returns what is wrong. It suffices that an unnamed loss is reported; with
/// `is_exact` a key that has its former value must be named.
fn try_out(path: &Path, bytes: &[u8], image: &Image, is_exact: bool) -> Result<(), String> {
    std::fs::write(path, bytes).expect("the copy");
    let findings = repair(path)?;
    if bytes == image.bytes && !findings.is_empty() {
        return Err(format!("{findings:?} in a sound store"));
    }
    let again = repair(path)?;
    if !again.is_empty() {
        return Err(format!("{again:?} after a repair of {findings:?}"));
    }
    let store = Scmkv::open(path, MediaChoice::Auto, options()).expect("open");
    let mut found = contents(&store);
    let (named, is_unnamed) = said(&findings);
    let mut wrong = Vec::new();
    for (key, value) in &image.expected {
        let (now, name) = (found.remove(key), String::from_utf8_lossy(key));
        let fates = named.get(key);
        let is_lost = fates.is_some_and(|fates| fates.contains(Fate::Lost.text()));
        let is_right = match (value, &now) {
            (was, now) if was == now => !is_lost,
            // The last record of a log that was open at a kill proves nothing.
            _ if image.last == Some(&*name) => true,
            (Some(_), None) => is_lost || is_unnamed,
            (Some(_) | None, _) => {
                let is_told = fates.is_some_and(|it| it.contains(Fate::Uncertain.text()));
                is_told || is_unnamed && !is_exact
            }
        };
        if !is_right {
            wrong.push(format!("{name}: {fates:?}, {} bytes now", now.map_or(0, |it| it.len())));
        }
    }
    wrong.extend(found.keys().map(|key| format!("{}: new", String::from_utf8_lossy(key))));
    store.close().expect("close");
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?} after {findings:#?}")) }
}

/// True if the index in the image shows which records are current.
fn is_exact(image: &Image) -> bool {
    image.name.contains("pool")
}

fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

fn judge(failures: &[String], tried: usize) {
    let few: Vec<_> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} of {tried}: {few:#?}", failures.len());
    assert!(tried > 100, "only {tried} tried");
}

/// True if nothing is left behind `end` of the records of its page, which was open at a kill: then
/// they cannot be told from records that a crash has cut off, unless slots point at them.
fn ends_a_log(image: &Image, end: usize) -> bool {
    let page = (end - 1) / PAGE as usize;
    let length = 2048 + 32 * page + 8;
    let areas = image.areas();
    let is_open = image.bytes[length..length + 8] == [0; 8];
    let rest = &areas[end - 1..(page + 1) * PAGE as usize];
    let begins = |pair: &[Area]| pair[0] != Area::RecordHead && pair[1] == Area::RecordHead;
    is_open && !is_exact(image) && !rest.windows(2).any(begins)
}

/// Tries `damage` out at every place of the images that `step` picks among `areas`; it returns
/// where it ends.
fn try_everywhere(
    areas: &[Area],
    step: usize,
    damage: &(dyn Fn(&mut [u8], usize) -> usize + Sync),
) {
    let images = images();
    let jobs: Vec<(&Image, usize)> = images
        .iter()
        .flat_map(|image| {
            let is_meant = |(_, area): &(usize, Area)| areas.contains(area);
            let places = image.areas().into_iter().enumerate().filter(is_meant);
            let step = if is_full_scale() { 1.max(step / 16) } else { step };
            places.step_by(step).map(move |(at, _)| (image, at))
        })
        .collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
                let path = directory.path().join("pool");
                while let Some((image, at)) =
                    jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let mut bytes = image.bytes.clone();
                    let end = damage(&mut bytes, *at);
                    if ends_a_log(image, end) {
                        continue;
                    }
                    let tried = try_out(&path, &bytes, image, is_exact(image));
                    if let Err(what) = tried {
                        let mut failures = failures.lock().expect("lock");
                        failures.push(format!("{}, {at:#x}: {what}", image.name));
                    }
                }
            });
        }
    });
    judge(&failures.into_inner().expect("lock"), jobs.len());
}

#[test]
fn a_sound_store_is_left_as_it_is() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("pool");
    for image in images() {
        try_out(&path, &image.bytes, &image, true).expect(image.name);
    }
}

/// One changed byte of a record: nothing else is lost, and no older value is shown in silence.
#[test]
fn a_changed_byte_costs_its_record_and_no_more() {
    let areas = [Area::RecordHead, Area::RecordValue];
    try_everywhere(&areas, 37, &|bytes, at| {
        bytes[at] ^= 0x21 | (at as u8 & 0x40);
        at + 1
    });
}

/// A block of zeroes over some records: unnamed losses are reported, and with the index in the pool
/// nothing older is shown.
#[test]
fn a_lost_block_costs_what_was_in_it() {
    for len in [64, 512] {
        try_everywhere(&[Area::RecordHead], 83, &|bytes, at| {
            bytes[at / len * len..][..len].fill(0);
            at / len * len + len
        });
    }
}

/// The same with noise, at any place.
#[test]
fn noise_over_records_costs_what_was_in_it() {
    try_everywhere(&[Area::RecordHead], 97, &|bytes, at| {
        let mut draw = at as u32 | 1;
        let end = (at + 300).min(at.next_multiple_of(4096));
        for byte in &mut bytes[at..end] {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (draw >> 24) as u8;
        }
        end
    });
}

/// One changed byte in some places of an area costs nothing at all.
fn costs_nothing(meant: Area, step: usize) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("pool");
    let step = if is_full_scale() { 1.max(step / 16) } else { step };
    let mut tried = 0;
    for image in images() {
        let areas = image.areas();
        let used = |at: usize| areas[at] == meant && image.bytes[at / 8 * 8..][..8] != [0; 8];
        for at in (0..areas.len()).filter(|at| used(*at)).step_by(step) {
            let mut bytes = image.bytes.clone();
            bytes[at] ^= 0x24 | (at as u8 & 0x41);
            std::fs::write(&path, &bytes).expect("the copy");
            let findings = repair(&path).expect("repair");
            let store = Scmkv::open(&path, MediaChoice::Auto, options()).expect("open");
            let (mut found, mut expected) = (contents(&store), live(&image.expected));
            // The last record of a log that was open at a kill proves nothing.
            if let Some(last) = image.last {
                found.remove(last.as_bytes());
                expected.remove(last.as_bytes());
            }
            assert!(found == expected, "{}, {at:#x}: {findings:#?}", image.name);
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried} tried");
}

/// The logs have all of it.
#[test]
fn a_damaged_index_is_made_anew() {
    costs_nothing(Area::Index, 29);
}

/// The lost word of an element follows from the others and from the page itself.
#[test]
fn a_damaged_table_is_made_good() {
    costs_nothing(Area::Table, 5);
}

fn live(expected: &Expected) -> BTreeMap<Vec<u8>, Vec<u8>> {
    expected.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("read");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("write");
}

/// The place of `what` in the pool; it must be there once.
fn place_of(path: &Path, what: &[u8]) -> usize {
    let bytes = std::fs::read(path).expect("read");
    let mut found = bytes.windows(what.len()).enumerate().filter(|(_, bytes)| bytes == &what);
    let place = found.next().expect("it is there").0;
    assert!(found.next().is_none(), "{what:?} is there twice");
    place
}

/// An older record and the tombstone of its key lie in the same log: neither may come back where
/// the index can tell, nor without a report.
#[test]
fn nothing_older_comes_back() {
    for placement in [Placement::Pool, Placement::Dram] {
        for is_closed in [false, true] {
            let home = Home::in_memory();
            let store = home.create(New::tiny(32).placed(placement));
            let _outcome = store.put(b"written twice", b"the first value", &write()).expect("put");
            let _outcome = store.put(b"deleted", b"a deleted value", &write()).expect("put");
            let _outcome = store.put(b"written twice", b"the second value", &write()).expect("put");
            let _outcome = store.delete(b"deleted", &write()).expect("delete");
            for number in 0..200_u32 {
                let _outcome = store.put(&number.to_le_bytes(), &[5; 40], &write()).expect("put");
            }
            if is_closed {
                store.close().expect("close");
            }
            drop(store);
            let path = home.path();
            let second = place_of(&path, b"the second value");
            // The tombstone follows; its key is the second of its kind in the log.
            let tombstone = second + 16 + 20;
            let (open, at) = (std::fs::read(&path).expect("read"), tombstone);
            assert!(open[at..at + 24].windows(7).any(|bytes| bytes == b"deleted"), "{placement:?}");
            change(&path, |bytes| {
                bytes[second] ^= 1;
                bytes[tombstone + 12] ^= 1;
            });
            // After a close a checkpoint saves the reading of the log.
            if placement == Placement::Dram && !is_closed {
                let error = Scmkv::open(&path, MediaChoice::Auto, options()).expect_err("damage");
                assert!(error.to_string().contains("log page"), "{error}");
            }
            let findings = repair(&path).expect("repair");
            let (named, _) = said(&findings);
            let fates = |key: &[u8]| named.get(key).cloned().unwrap_or_default();
            if placement == Placement::Dram {
                // The logs have the older ones. In the tombstone the key itself is damaged.
                let is_told = findings[0].what.contains("hold what they held before");
                assert!(is_told && findings[0].len == 96, "{findings:#?}");
                assert!(fates(b"written twice").contains(Fate::Uncertain.text()), "{findings:#?}");
                continue;
            }
            assert!(fates(b"written twice").contains(Fate::Lost.text()), "{findings:#?}");
            assert!(fates(b"deleted").contains(Fate::Deleted.text()), "{findings:#?}");
            let store = home.open(home::options(false));
            assert_eq!(store.get(b"written twice").expect("get"), None);
            assert_eq!(store.get(b"deleted").expect("get"), None);
            assert_eq!(store.len().expect("len"), 200);
        }
    }
}

/// The commit record of a batch: its members were acknowledged, and are there.
#[test]
fn a_batch_outlives_its_commit_record() {
    for placement in [Placement::Pool, Placement::Dram] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(32).placed(placement));
        let mut batch = Batch::new();
        for number in 0..5_u8 {
            batch.put(&[b'b', number], &[number; 30]);
        }
        store.apply(&batch, &write()).expect("apply");
        let _outcome = store.put(b"what follows", b"the batch", &write()).expect("put");
        let _outcome = store.put(b"what follows", b"that", &write()).expect("put");
        drop(store);
        let commit = place_of(&home.path(), b"what followsthe batch") - 20 - 40;
        change(&home.path(), |bytes| bytes[commit + 24] ^= 0x10);
        let findings = repair(&home.path()).expect("repair");
        assert_eq!(findings.len(), 1, "{findings:#?}");
        let store = home.open(home::options(false));
        for number in 0..5_u8 {
            let value = store.get(&[b'b', number]).expect("get");
            assert_eq!(value, Some(vec![number; 30]), "{placement:?}");
        }
        assert_eq!(store.get(b"what follows").expect("get"), Some(b"that".to_vec()));
    }
}

/// A repair in a pool that is full to its reserve.
#[test]
fn a_full_pool_is_repaired_too() {
    for placement in [Placement::Pool, Placement::Dram] {
        let home = Home::in_memory();
        let store = home.create(New::tiny(24).placed(placement));
        let count = tiny::fill(&store, 100, 0);
        drop(store);
        let victim = 20 + 7 + 3;
        let key = tiny::fill_key(count / 2);
        let place = place_of(&home.path(), &key);
        change(&home.path(), |bytes| bytes[place - 20 + victim] ^= 0x80);
        let findings = repair(&home.path()).expect("repair");
        let fates = &said(&findings).0[&key];
        let fate = if placement == Placement::Pool { Fate::Lost } else { Fate::Uncertain };
        assert!(fates.contains(fate.text()), "{findings:#?}");
        assert_eq!(findings[0].page, (place as u64 / PAGE) as u32);
        let store = home.open(home::options(false));
        assert_eq!(store.get(&key).expect("get"), None);
        assert_eq!(store.len().expect("len"), u64::from(count) - 1);
        // The tombstone has taken a page of the reserve.
        store.grow(28 * PAGE).expect("grow");
        let _outcome = store.put(&key, b"again", &write()).expect("put");
    }
}
