//! One flipped bit, anywhere in a pool: an error or no harm, never a wrong answer.
//!
//! A small store is written with every kind of content, its file is copied (closed, or as a kill
//! leaves it), one bit of the copy is flipped, and the copy is opened and read as a user would.
//! Three outcomes are right:
//!
//! | open | reads | verify |
//! |---|---|---|
//! | refuses with an error | | |
//! | works | each key right, absent or an error | names damage |
//! | works | all right | sound |
//!
//! The second row has one more case. A read takes one line of the index and one record and verifies
//! no checksum, so that a bit that flips *inside a record* is shown as it is, until `verify` finds
//! it; but `verify` must find it, after any recovery and cleaning in between. Metadata (header,
//! root, page information, index) has no such excuse: there no read may answer wrongly at all.
//!
//! Every byte of the metadata is flipped, and a sample of the rest; all of it, in every bit, at
//! `COREPLANE_TEST_SCALE=full`.

use crate::home::Home;
use crate::image::{Area, Expected, Image, images, options, value};
use crate::scale::scaled;
use coreplane_engine::{Engine, Error, Repairable, WriteOptions};
use coreplane_scmkv::Scmkv;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The result of opening and reading a damaged pool.
#[derive(Debug, Default)]
struct Seen {
    /// The error of an open or a read that reported damage.
    error: Option<String>,
    /// The damage that `verify` named; none if it found the store sound or never ran.
    damage: Option<String>,
    /// Keys that are absent and should not be.
    lost: Vec<String>,
    /// Keys that have a wrong value.
    wrong: Vec<String>,
    panicked: Option<String>,
}

impl Seen {
    fn is_told(&self) -> bool {
        self.error.is_some() || self.damage.is_some()
    }

    fn note(&mut self, what: &str, error: &Error) {
        self.error.get_or_insert_with(|| format!("{what}: {error}"));
    }

    fn compare(&mut self, how: &str, key: &[u8], found: Option<&[u8]>, expected: Option<&[u8]>) {
        if found == expected {
            return;
        }
        let key = String::from_utf8_lossy(key);
        match found {
            None => self.lost.push(format!("{key} by {how}")),
            Some(_) if expected.is_none() => self.wrong.push(format!("{key} by {how}: revived")),
            Some(_) => self.wrong.push(format!("{key} by {how}: another value")),
        }
    }

    /// The violation in this result; none if it is as it should be.
    ///
    /// The last record of a log that was open at a kill proves nothing: a flipped bit in it cannot
    /// be told from a crash that cut it short, before it was acknowledged.
    fn violation(&self, area: Area, last: Option<&str>) -> Option<String> {
        let of_last = |what: &String| last.is_some_and(|last| what.starts_with(last));
        if !area.is_metadata()
            && self.panicked.is_none()
            && self
                .lost
                .iter()
                .chain(&self.wrong)
                .all(|what| of_last(what) || what.starts_with("len says"))
        {
            return None;
        }
        if let Some(panicked) = &self.panicked {
            return Some(format!("panic: {panicked}"));
        }
        let excused = !area.is_metadata() && self.damage.is_some();
        if !self.wrong.is_empty() && !excused {
            let told = if self.is_told() { "though damage is told" } else { "and nobody says so" };
            return Some(format!("wrong, {told}: {:?}", self.wrong));
        }
        if !self.lost.is_empty() && !self.is_told() {
            return Some(format!("lost in silence: {:?}", self.lost));
        }
        None
    }
}

/// Opens the pool and reads all of it.
fn look(home: &Home, expected: &Expected) -> Seen {
    let mut seen = Seen::default();
    match home.try_open(options()) {
        Err(error) => seen.note("open", &error),
        Ok(store) => {
            read_all(&store, expected, &mut seen);
            if !seen.is_told() {
                if let Err(error) = store.close() {
                    seen.note("close", &error);
                }
                drop(store);
                match home.try_open(options()) {
                    Err(error) => seen.wrong.push(format!("a sound pool is refused: {error}")),
                    Ok(store) => read_all(&store, expected, &mut seen),
                }
            }
        }
    }
    seen
}

fn read_all(store: &Scmkv, expected: &Expected, seen: &mut Seen) {
    for (key, value) in expected {
        match store.get(key) {
            Ok(found) => seen.compare("get", key, found.as_deref(), value.as_deref()),
            Err(error) => seen.note("get", &error),
        }
    }
    read_many(store, expected, seen);
    iterate(store, expected, seen);
    match store.len() {
        Ok(len) => {
            // Expired records count until they are removed.
            let live = expected.values().filter(|value| value.is_some()).count() as u64;
            if !(live..live + 5).contains(&len) {
                seen.lost.push(format!("len says {len}, not {live}"));
            }
        }
        Err(error) => seen.note("len", &error),
    }
    match store.verify(&mut |_| {}) {
        Ok(report) => {
            let damage = report.damages.first();
            seen.damage = damage.map(|it| format!("{:#x}: {}", it.offset, it.what));
        }
        Err(error) => seen.damage = Some(error.to_string()),
    }
}

fn read_many(store: &Scmkv, expected: &Expected, seen: &mut Seen) {
    let keys: Vec<&[u8]> = expected.keys().map(Vec::as_slice).collect();
    let mut found = vec![None; keys.len()];
    let visibility = coreplane_engine::Visibility::Durable;
    let read = store.multi_get(&keys, visibility, &mut |at, record| {
        found[at] = record.map(|record| record.value.to_vec());
    });
    match read {
        Ok(_) => {
            for (found, (key, value)) in found.iter().zip(expected) {
                seen.compare("multi_get", key, found.as_deref(), value.as_deref());
            }
        }
        Err(error) => seen.note("multi_get", &error),
    }
}

fn iterate(store: &Scmkv, expected: &Expected, seen: &mut Seen) {
    let mut found = BTreeMap::new();
    let mut cursor = 0;
    loop {
        let step = store.iterate(cursor, 50, &mut |entry| {
            found.insert(entry.key.to_vec(), entry.record.map(|record| record.value.to_vec()));
        });
        match step {
            Ok(0) => break,
            Ok(next) => cursor = next,
            Err(error) => return seen.note("iterate", &error),
        }
    }
    for (key, value) in expected {
        let found = found.remove(key).flatten();
        seen.compare("iterate", key, found.as_deref(), value.as_deref());
    }
    for key in found.keys() {
        seen.wrong.push(format!("{} by iterate: never written", String::from_utf8_lossy(key)));
    }
}

/// Writes into a damaged pool: it does not panic, whatever it answers, and acknowledged writes can
/// be read.
fn write(home: &Home, _expected: &Expected) -> Seen {
    let mut seen = Seen::default();
    let store = match home.try_open(options()) {
        Ok(store) => store,
        Err(error) => {
            seen.note("open", &error);
            return seen;
        }
    };
    let options = WriteOptions::default();
    for number in 0..140 {
        let key = format!("key-{number:03}").into_bytes();
        let written = match number % 5 {
            0 => store.delete(&key, &options).map(|_| None),
            4 => store.put(&key, &value(number, 900), &options).map(|_| Some(value(number, 900))),
            _ => store.put(&key, &value(number, 30), &options).map(|_| Some(value(number, 30))),
        };
        match written {
            Ok(expected) => match store.get(&key) {
                Ok(found) => {
                    seen.compare("get after put", &key, found.as_deref(), expected.as_deref());
                }
                Err(error) => seen.note("get", &error),
            },
            Err(error) => seen.note("write", &error),
        }
    }
    clean_up(&store, &mut seen);
    if let Err(error) = store.close() {
        seen.note("close", &error);
    }
    seen
}

/// Lets the cleaner move damaged records: a copy with a checksum of its own would hide the damage.
fn clean(home: &Home, expected: &Expected) -> Seen {
    let mut seen = Seen::default();
    let store = match home.try_open(options()) {
        Ok(store) => store,
        Err(error) => {
            seen.note("open", &error);
            return seen;
        }
    };
    let mut expected = expected.clone();
    let options = WriteOptions::default();
    // Every page gets some dead records.
    for number in (0..110).step_by(4) {
        let key = format!("key-{number:03}").into_bytes();
        match store.put(&key, b"written anew", &options) {
            Ok(_) => drop(expected.insert(key, Some(b"written anew".to_vec()))),
            Err(error) => seen.note("put", &error),
        }
    }
    clean_up(&store, &mut seen);
    read_all(&store, &expected, &mut seen);
    seen
}

/// Cleans until nothing is left to be cleaned, or damage is found.
fn clean_up(store: &Scmkv, seen: &mut Seen) {
    for _ in 0..200 {
        match store.clean() {
            Ok(true) => {}
            Ok(false) => break,
            // Pages that were freed may wait for the readers of other threads.
            Err(Error::NoSpace { .. }) => std::thread::yield_now(),
            Err(error) => return seen.note("clean", &error),
        }
    }
}

/// A flip and its result.
struct Tried {
    image: &'static str,
    last: Option<&'static str>,
    area: Area,
    at: usize,
    bit: u32,
    seen: Seen,
}

type Probe = fn(&Home, &Expected) -> Seen;

/// Flips `bit` of the byte at `at` in a copy and tries the copy.
fn try_flip(home: &Home, image: &Image, at: usize, bit: u32, probe: Probe) -> Seen {
    let mut bytes = image.bytes.clone();
    bytes[at] ^= 1 << bit;
    home.put_bytes(&bytes);
    catch_unwind(AssertUnwindSafe(|| probe(home, &image.expected))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        Seen { panicked: Some(said.unwrap_or_else(|| "?".to_owned())), ..Seen::default() }
    })
}

/// Which bits of the byte at `at` are flipped: one of each byte of metadata, and of some others.
fn bits(area: Area, at: usize, thinning: usize) -> Vec<u32> {
    if scaled(false, true) {
        return (0..8).collect();
    }
    let step = match area {
        Area::Header | Area::Table | Area::Index => 1,
        Area::RecordHead => 5,
        Area::RecordValue => 29,
        Area::Unused => 211,
    };
    let drawn = (at as u32).wrapping_mul(0x9e37_79b9) >> 29;
    if at.is_multiple_of(step * thinning) { vec![drawn] } else { Vec::new() }
}

/// Every flip of `images`, on all processors; fails if one never ends.
fn try_all(images: Vec<Image>, thinning: usize, probe: Probe) -> Vec<Tried> {
    let images = Arc::new(images);
    let jobs: Arc<Vec<_>> = Arc::new(
        images
            .iter()
            .enumerate()
            .flat_map(|(number, image)| {
                image.areas().into_iter().enumerate().flat_map(move |(at, area)| {
                    bits(area, at, thinning).into_iter().map(move |bit| (number, area, at, bit))
                })
            })
            .collect(),
    );
    let next = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    let mut workers = Vec::new();
    let mut current = Vec::new();
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        let (images, jobs, next) = (Arc::clone(&images), Arc::clone(&jobs), Arc::clone(&next));
        let (tell, doing) = (tell.clone(), Arc::new(AtomicUsize::new(0)));
        current.push(Arc::clone(&doing));
        let home = Home::in_memory();
        workers.push(std::thread::spawn(move || {
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                doing.store(job, Ordering::Relaxed);
                let Some(&(number, area, at, bit)) = jobs.get(job) else { return };
                let image = &images[number];
                let seen = try_flip(&home, image, at, bit, probe);
                let tried = Tried { image: image.name, last: image.last, area, at, bit, seen };
                if tell.send(tried).is_err() {
                    return;
                }
            }
        }));
    }
    let mut tried = Vec::new();
    while tried.len() < jobs.len() {
        let Ok(one) = told.recv_timeout(Duration::from_secs(120)) else {
            let stuck: Vec<_> =
                current.iter().filter_map(|job| jobs.get(job.load(Ordering::Relaxed))).collect();
            panic!("one of these never ends (image, area, byte, bit): {stuck:?}");
        };
        tried.push(one);
    }
    // Nothing is left to do. A thread that outlived the end of the process would be a leak to the
    // address sanitizer.
    for worker in workers {
        worker.join().expect("it has told everything");
    }
    tried
}

/// Prints the results of the flips and fails if any is wrong.
fn judge(tried: &[Tried]) {
    let mut counts: BTreeMap<(&str, Area), [usize; 3]> = BTreeMap::new();
    let mut violations = Vec::new();
    for one in tried {
        let count = counts.entry((one.image, one.area)).or_default();
        count[0] += 1;
        count[1] += usize::from(one.seen.is_told());
        if let Some(violation) = one.seen.violation(one.area, one.last) {
            count[2] += 1;
            let Tried { image, area, at, bit, .. } = one;
            violations.push(format!("{image}: {area:?}, byte {at:#x}, bit {bit}: {violation}"));
        }
    }
    for ((image, area), [flips, told, wrong]) in counts {
        eprintln!("{image:26} {area:12?} {flips:6} flips {told:6} told {wrong:5} wrong");
    }
    if let Some(path) = std::env::var_os("COREPLANE_FLIPS_REPORT") {
        std::fs::write(path, violations.join("\n")).expect("the report");
    }
    let few: Vec<_> = violations.iter().take(20).collect();
    assert!(violations.is_empty(), "{} of {}: {few:#?}", violations.len(), tried.len());
}

#[test]
fn the_images_are_sound_and_hold_everything() {
    let home = Home::in_memory();
    for image in images() {
        home.put_bytes(&image.bytes);
        let seen = look(&home, &image.expected);
        assert_eq!(seen.violation(Area::Header, None), None, "{}", image.name);
        assert!(!seen.is_told(), "{}: {seen:?}", image.name);
        let areas = image.areas();
        let count = |area| areas.iter().filter(|it| **it == area).count();
        assert!(count(Area::RecordHead) > 3000 && count(Area::RecordValue) > 5000);
        assert_eq!(count(Area::Index) > 0, image.name.contains("pool"));
    }
}

#[test]
fn no_flipped_bit_makes_a_read_lie() {
    judge(&try_all(images(), 1, look));
}

#[test]
fn no_flipped_bit_is_hidden_by_the_cleaner() {
    judge(&try_all(images(), 2, clean));
}

#[test]
fn the_other_words_of_a_free_page_do_not_count() {
    let home = Home::in_memory();
    for image in images() {
        let areas = image.areas();
        let is_table = |at: &usize| areas[*at] == Area::Table;
        let state = |at: &usize| image.bytes[*at] & 0xf;
        let elements = (0..image.bytes.len()).step_by(32).filter(is_table);
        let free: Vec<usize> = elements.filter(|at| state(at) == 1).collect();
        assert!(free.len() > 5, "{}", image.name);
        for (at, bit) in
            free.iter().zip(0_u32..).flat_map(|(at, bit)| [(at + 8, bit), (at + 16, bit)])
        {
            let mut bytes = image.bytes.clone();
            bytes[at + bit as usize % 64 / 8] ^= 1 << (bit % 8);
            home.put_bytes(&bytes);
            let seen = look(&home, &image.expected);
            assert!(!seen.is_told() && seen.lost.is_empty(), "{}, {at}: {seen:?}", image.name);
        }
    }
}

#[test]
fn no_flipped_bit_makes_a_write_panic() {
    let mut tried = try_all(images(), 3, write);
    for one in &mut tried {
        // A damaged store may refuse; and where it has reported that, a write may be out of reach.
        if one.seen.is_told() {
            one.seen.lost.clear();
            one.seen.wrong.clear();
        }
    }
    judge(&tried);
}
