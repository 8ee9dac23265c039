//! Stores drawn from a seed, with either index, closed or killed, and damage of all sorts anywhere
//! in them: bytes, blocks, pages, pages in the place of others, several at once. The store after a
//! repair is sound, accepts writes, and differs from the original only as the repair has reported.
//! `COREPLANE_WRECKS=n` draws n stores, from seed `COREPLANE_WRECKS_FROM` on.

use crate::home;
use crate::scale;
use crate::wreck::{self, Draw, Pool, Wreck, options, write_one};
use coreplane_engine::{Engine, Repairable};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Fate, Finding, Scmkv};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The report of a repair.
struct Said {
    fates: BTreeMap<Vec<u8>, BTreeSet<&'static str>>,
    /// Something is lost that is not named.
    is_unnamed: bool,
    findings: Vec<Finding>,
}

impl Said {
    fn of(findings: Vec<Finding>) -> Self {
        let mut fates: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (key, fate) in findings.iter().flat_map(|finding| &finding.keys) {
            fates.entry(key.clone()).or_default().insert(fate.text());
        }
        let tells = |it: &Finding| ["cannot be", "absent now"].iter().any(|s| it.what.contains(s));
        Self { fates, is_unnamed: findings.iter().any(tells), findings }
    }

    fn has(&self, key: &[u8], fate: Fate) -> bool {
        self.fates.get(key).is_some_and(|fates| fates.contains(fate.text()))
    }
}

fn repair(path: &Path) -> Result<(Scmkv, Vec<Finding>), String> {
    let repaired = Scmkv::repair(path, MediaChoice::Auto, options(), &mut |_| {});
    let (store, repair) = repaired.map_err(|error| error.to_string())?;
    let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
    if report.is_sound() {
        Ok((store, repair.findings))
    } else {
        Err(format!("not sound: {:?} after {:#?}", report.damages, repair.findings))
    }
}

/// Repairs `bytes`; returns what is wrong.
fn try_out(path: &Path, pool: &Pool, bytes: &[u8], ranges: &[Range<usize>]) -> Result<(), String> {
    std::fs::write(path, bytes).expect("the copy");
    let (store, findings) = match repair(path) {
        Ok(repaired) => repaired,
        Err(error) if ranges.iter().any(|range| pool.is_metadata(range)) => {
            return if error.contains("not sound") { Err(error) } else { Ok(()) };
        }
        Err(error) => return Err(error),
    };
    let said = Said::of(findings);
    let mut wrong = compare(pool, &store, &said, ranges);
    store.close().map_err(|error| format!("close: {error}"))?;
    drop(store);
    let (store, again) = repair(path).map_err(|error| format!("again: {error}"))?;
    if !again.is_empty() {
        wrong.push(format!("again: {again:?}"));
    }
    for number in 0..20 {
        let key = wreck::key(number * 7);
        let _outcome = store
            .put(&key, b"afterwards", &home::write())
            .map_err(|error| format!("put: {error}"))?;
        assert_eq!(store.get(&key).expect("get").as_deref(), Some(&b"afterwards"[..]));
    }
    store.close().map_err(|error| format!("close: {error}"))?;
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?} after {:#?}", said.findings)) }
}

fn compare(pool: &Pool, store: &Scmkv, said: &Said, ranges: &[Range<usize>]) -> Vec<String> {
    let mut found = home::contents(store).expect("iterate");
    let mut wrong = Vec::new();
    let hits_index = |range: &Range<usize>| {
        (range.start / wreck::PAGE..=(range.end - 1) / wreck::PAGE).any(|page| pool.kind(page) == 4)
    };
    let is_exact =
        pool.is_in_pool && !ranges.iter().any(|it| hits_index(it) || pool.is_metadata(it));
    let excused = if is_exact { BTreeSet::new() } else { pool.unprovable(ranges) };
    for (key, past) in &pool.past {
        let (was, now) = (past.last().cloned().flatten(), found.remove(key));
        let name = String::from_utf8_lossy(key);
        let mut note =
            |what: &str| wrong.push(format!("{name}: {what}, {:?}", said.fates.get(key)));
        if was == now {
            if said.has(key, Fate::Lost) && was.is_some() {
                note("is said to be lost");
            }
        } else if excused.contains(key) {
        } else if let Some(now) = now {
            if !past.contains(&Some(now)) {
                note("what it never was");
            } else if !said.has(key, Fate::Uncertain) && (is_exact || !said.is_unnamed) {
                note("an older value");
            }
        } else if !said.is_unnamed
            && ![Fate::Lost, Fate::Uncertain].iter().any(|it| said.has(key, *it))
        {
            note("lost in silence");
        }
    }
    wrong.extend(found.keys().map(|key| format!("{}: new", String::from_utf8_lossy(key))));
    wrong
}

/// Draws a store and damages it in `draws` ways; returns what went wrong.
fn try_seed(path: &Path, seed: u64, draws: u64) -> Vec<String> {
    let pool = write_one(seed);
    let mut failures = Vec::new();
    for number in 0..draws {
        let mut draw = Draw(seed << 20 | number << 1 | 1);
        let mut bytes = pool.bytes.clone();
        let places = [0, 1, 1, 1, 1, 2, 3, 5][draw.below(8)];
        let wrecks: Vec<(Wreck, Vec<Range<usize>>)> =
            (0..places).map(|_| wreck::wreck(&pool, &mut bytes, &mut draw)).collect();
        let ranges: Vec<Range<usize>> = wrecks.iter().flat_map(|it| it.1.clone()).collect();
        let tried = catch_unwind(AssertUnwindSafe(|| try_out(path, &pool, &bytes, &ranges)));
        let tried = tried.unwrap_or_else(|_| Err("panic".to_owned()));
        if let Err(what) = tried {
            let of = (pool.is_in_pool, pool.is_closed);
            let on: Vec<u64> = ranges.iter().map(|it| pool.kind(it.start / wreck::PAGE)).collect();
            failures.push(format!(
                "seed {seed}, draw {number}, in the pool, closed {of:?}, {wrecks:x?} {on:?}: {what}"
            ));
        }
    }
    failures
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(usual)
}

#[test]
fn a_repair_tells_all_that_it_cannot_keep() {
    let seeds = number("COREPLANE_WRECKS", scale::scaled(200, 4000));
    let first = number("COREPLANE_WRECKS_FROM", 0);
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
                let path = directory.path().join("pool");
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let failed = try_seed(&path, seed, 20);
                    failures.lock().expect("lock").extend(failed);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("lock");
    let few: Vec<_> = failures.iter().take(5).collect();
    if let Ok(path) = std::env::var("COREPLANE_WRECKS_LOG") {
        std::fs::write(path, failures.join("\n\n")).expect("the list");
    }
    assert!(failures.is_empty(), "{} of {}: {few:#?}", failures.len(), seeds * 20);
}
