//! Power cuts while the held tombstones change: a reader of the changes misses no delete.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, Error, Replicated, WriteOptions};
use coreplane_pmem::media::sim::{History, Run, SimOptions, Standing, Subject, explore};
use coreplane_pmem::{MediaChoice, Space};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KEYS: u64 = 5;
const OPERATIONS: u64 = 90;
const HOLDS: u64 = 14;

/// Above all sequences that callers give, and below all that the engine gives by itself.
const UNKNOWN: u64 = 1 << 20;

#[derive(Debug, Clone)]
enum Op {
    Create,
    /// A key, its sequence, and whether it is there afterwards.
    Write(u64, u64, bool),
    Hold(u64),
}

/// One thread writes, one changes the held tombstones.
struct Follower {
    seed: u64,
    /// Deletes that had to be among the changes after a cut.
    told: AtomicU64,
    rewrites: AtomicU64,
}

#[derive(Debug)]
struct Changes {
    /// The sequence from which on changes are known.
    horizon: u64,
    /// The sequence of each key, and whether the key is there.
    newest: BTreeMap<Vec<u8>, (u64, bool)>,
}

/// A hold in flight may count for one recovery and not for the next, until the first has written the root: two
/// states are equal if they agree above both horizons.
impl PartialEq for Changes {
    fn eq(&self, other: &Self) -> bool {
        let horizon = self.horizon.max(other.horizon);
        let above = |it: &Self| {
            let newest = it.newest.clone().into_iter();
            newest.filter(|(_, (sequence, _))| *sequence > horizon).collect::<Vec<_>>()
        };
        above(self) == above(other)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

impl Follower {
    fn write(&self, run: &Run<'_, Op>, store: &Bptree, newest: &AtomicU64) {
        for sequence in 1..=OPERATIONS {
            let number = (sequence * 7 + self.seed) % KEYS;
            let is_there = !(sequence + self.seed).is_multiple_of(3);
            let options = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
            run.acknowledged(Op::Write(number, sequence, is_there), || {
                let written = if is_there {
                    store.put(&key(number), &[sequence as u8; 700], &options)
                } else {
                    store.delete(&key(number), &options)
                };
                let _outcome = written.expect("a write");
            });
            newest.store(sequence, Ordering::Release);
        }
    }

    fn hold(&self, run: &Run<'_, Op>, store: &Bptree, newest: &AtomicU64) {
        for round in 0..HOLDS {
            let newest = newest.load(Ordering::Acquire);
            // Mostly more tombstones are forgotten, sometimes fewer.
            let held = if (round + self.seed).is_multiple_of(4) { newest / 2 } else { newest };
            run.acknowledged(Op::Hold(held), || store.hold_tombstones(held).expect("hold"));
        }
    }
}

impl Subject for Follower {
    type Op = Op;
    type Store = Option<Bptree>;
    type Contents = Option<Changes>;

    fn work(&self, run: &Run<'_, Op>) {
        let store = run.acknowledged(Op::Create, || {
            Bptree::simulated_create(Arc::clone(run.space()), &Options::default()).expect("create")
        });
        run.acknowledged(Op::Hold(0), || store.hold_tombstones(0).expect("hold"));
        let newest = AtomicU64::new(0);
        run.threads(|threads| {
            threads.spawn(|| self.write(run, &store, &newest));
            threads.spawn(|| self.hold(run, &store, &newest));
        });
        let rewrites = store.stats().figure("leaves_rewritten").expect("a figure");
        self.rewrites.fetch_add(rewrites, Ordering::Relaxed);
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Bptree>, String> {
        match Bptree::simulated_open(Arc::clone(space), &Options::default()) {
            Ok(store) => Ok(Some(store)),
            // `check` tells these errors apart.
            Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, store: &Option<Bptree>) -> Result<Option<Changes>, String> {
        let Some(store) = store else { return Ok(None) };
        let horizon = store.tombstone_horizon();
        let mut newest = BTreeMap::new();
        let shown = store.changes_since(horizon, &mut |entry| {
            newest.insert(entry.key.to_vec(), (entry.sequence, entry.record.is_some()));
        });
        shown.map_err(|error| error.to_string())?;
        Ok(Some(Changes { horizon: horizon.min(UNKNOWN), newest }))
    }

    fn check(&self, contents: &Option<Changes>, history: &History<'_, Op>) -> Result<(), String> {
        let Some(Changes { horizon, newest }) = contents else {
            let is_created = history.acknowledged().next().is_some();
            return if is_created { Err("the store is lost".to_owned()) } else { Ok(()) };
        };
        let operations = history.operations();
        let held = operations.iter().filter_map(|(op, standing)| match op {
            Op::Hold(held) => Some((*held, *standing == Standing::Acknowledged)),
            _ => None,
        });
        let held: Vec<_> = held.collect();
        let most = held.iter().map(|(held, _)| *held).max().unwrap_or(0);
        if held.iter().any(|it| it.1) && *horizon > most {
            return Err(format!("from {horizon} on, and {most} was asked for"));
        }
        let mut last = BTreeMap::new();
        for (op, standing) in &operations {
            if let Op::Write(number, sequence, is_there) = op {
                last.insert(*number, (*sequence, *is_there, *standing));
            }
        }
        for (number, (sequence, is_there, standing)) in last {
            if standing != Standing::Acknowledged || sequence <= *horizon {
                continue;
            }
            self.told.fetch_add(u64::from(!is_there), Ordering::Relaxed);
            let found = newest.get(&key(number));
            if found != Some(&(sequence, is_there)) {
                let what = if is_there { "put" } else { "delete" };
                return Err(format!(
                    "from {horizon} on key {number} is {found:?}, after the {what} {sequence}"
                ));
            }
        }
        Ok(())
    }
}

#[test]
fn no_delete_is_missing_above_the_horizon_after_a_power_cut() {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let (mut told, mut rewrites) = (0, 0);
    for seed in 1..=if is_full { 60 } else { 8 } {
        let follower = Follower { seed, told: AtomicU64::new(0), rewrites: AtomicU64::new(0) };
        let options = SimOptions {
            len: 256 << 10,
            max_len: 256 << 10,
            page_size: 4096,
            seed,
            images_per_cut: 4,
            recovery_cut_in: 60,
            images_per_recovery_cut: 2,
            checkers: 2,
            non_temporal: seed.is_multiple_of(2),
            ..SimOptions::default()
        };
        let report = explore(&options, &follower);
        let messages: Vec<_> = report.violations.iter().map(|it| &it.message).collect();
        assert!(messages.is_empty(), "seed {seed}: {messages:.300?}");
        told += follower.told.into_inner();
        rewrites += follower.rewrites.into_inner();
    }
    assert!(told > 1000 && rewrites > 30, "{told} {rewrites}");
}

/// A tombstone is forgotten after the look at the horizon, and before its leaf is read.
#[test]
fn a_delete_that_is_forgotten_while_changes_are_shown_is_told() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 4 << 20, 4096, MediaChoice::Auto, &Options::default());
    let store = store.expect("create");
    store.hold_tombstones(0).expect("hold");
    let (key, wait) =
        (|number: u64| format!("key {number:03}").into_bytes(), WriteOptions::default());
    for number in 0..200 {
        let _outcome = store.put(&key(number), &[1; 100], &wait).expect("put");
    }
    let line = store.advance_sequence().expect("a sequence");
    let _outcome = store.delete(&key(199), &wait).expect("delete");
    let mut shown = Vec::new();
    let told = store.changes_since(0, &mut |entry| {
        if shown.is_empty() {
            store.hold_tombstones(u64::MAX).expect("hold");
            // Until the last leaf is rewritten.
            while store.tombstone_horizon() <= line {
                let _outcome = store.put(&key(198), &[2; 100], &wait).expect("put");
            }
        }
        shown.push(entry.key.to_vec());
    });
    assert!(shown.contains(&key(198)) && !shown.contains(&key(199)), "{}", shown.len());
    let horizon = store.tombstone_horizon();
    assert!(
        matches!(told, Err(Error::HistoryGone { asked: 0, horizon: said }) if said == horizon),
        "{told:?}"
    );
}

/// The tombstones that an earlier life has forgotten are unknown: a caller that asks for changes newer than the
/// deletes is told so.
#[test]
fn a_delete_that_was_forgotten_before_a_kill_is_told() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let (key, wait) = (|number: u64| number.to_be_bytes(), WriteOptions::default());
    let options = Options { background: false, ..Options::default() };
    let store = Bptree::create(&path, 4 << 20, 4096, MediaChoice::Auto, &options).expect("create");
    for number in 0..20 {
        let _outcome = store.put(&key(number), &[1; 100], &wait).expect("put");
    }
    let line = store.advance_sequence().expect("a sequence");
    let _outcome = store.delete(&key(7), &wait).expect("delete");
    // Until the leaf is rewritten.
    while store.tombstone_horizon() <= line {
        let _outcome = store.put(&key(8), &[2; 100], &wait).expect("put");
    }
    drop(store);
    let store = Bptree::open(&path, MediaChoice::Auto, &options, &|_| {}).expect("open");
    let mut is_shown = false;
    let told = store.changes_since(line, &mut |entry| is_shown |= entry.key == key(7));
    assert!(!is_shown && matches!(told, Err(Error::HistoryGone { .. })), "{told:?}");
}
