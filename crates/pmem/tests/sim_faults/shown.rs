//! A counter for many threads under a lock, and a reader that acts on the value it reads.

use super::*;
use coreplane_pmem::Volatile;
use coreplane_pmem::media::sim::{Fault, History, Run};
use coreplane_pmem::spin::{Backoff, lock};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Right,
    /// The lock is released before the new count is durable.
    ShownEarly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// A word of the space.
    Word,
    /// A mutex, locked by [`lock`].
    Mutex,
    /// A mutex, locked without the simulator's knowledge.
    Plain,
}

struct Counter(Version, Lock);

/// The value that was seen and acted on.
type Seen = u64;

const TURNS: usize = 4;
const LOCK: u64 = 256;
const COUNT: u64 = 0;

impl Counter {
    /// Calls `inside` with the lock held; `after` without it.
    fn locked(&self, space: &Space, mutex: &parking_lot::Mutex<()>, inside: impl FnOnce()) {
        match self.1 {
            Lock::Word => {
                let word = space.word::<Volatile>(LOCK * 8).unwrap();
                let mut backoff = Backoff::new();
                while word.compare_exchange(0, 1).is_err() {
                    backoff.wait();
                }
                inside();
                word.store(0);
            }
            Lock::Mutex => {
                let _guard = lock(mutex);
                inside();
            }
            Lock::Plain => {
                let _guard = mutex.lock();
                inside();
            }
        }
    }

    fn add(&self, run: &Run<'_, Seen>, mutex: &parking_lot::Mutex<()>) {
        let space = run.space();
        self.locked(space, mutex, || {
            let count = load(space, COUNT) + 1;
            store(space, COUNT, count);
            flush(space, COUNT);
            if self.0 == Version::Right {
                fence(space);
            }
        });
        if self.0 == Version::ShownEarly {
            fence(space);
        }
    }

    fn look(&self, run: &Run<'_, Seen>, mutex: &parking_lot::Mutex<()>) {
        let mut seen = 0;
        self.locked(run.space(), mutex, || seen = load(run.space(), COUNT));
        // A value that a caller has seen counts as acknowledged.
        run.began(seen).returned();
    }
}

impl Subject for Counter {
    type Op = Seen;
    type Store = Arc<Space>;
    type Contents = u64;

    fn work(&self, run: &Run<'_, Seen>) {
        claim(run.space(), Claim::WordsAsStored);
        let mutex = parking_lot::Mutex::new(());
        run.threads(|threads| {
            let mutex = &mutex;
            for _ in 0..2 {
                threads.spawn(move || (0..TURNS).for_each(|_| self.add(run, mutex)));
            }
            threads.spawn(move || (0..TURNS).for_each(|_| self.look(run, mutex)));
        });
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
        claim(space, Claim::WordsAsStored);
        persist(space, LOCK, 0);
        Ok(space.clone())
    }

    fn contents(&self, space: &Arc<Space>) -> Result<u64, String> {
        Ok(load(space, COUNT))
    }

    fn check(&self, contents: &u64, history: &History<'_, Seen>) -> Result<(), String> {
        let seen = history.acknowledged().max().copied().unwrap_or(0);
        if *contents >= seen && *contents <= 2 * TURNS as u64 {
            return Ok(());
        }
        Err(format!("{seen} was seen, {contents} is there"))
    }
}

#[test]
fn the_right_one_shows_what_is_durable() {
    for kind in [Lock::Word, Lock::Mutex, Lock::Plain] {
        let mut sum = Report::default();
        for seed in 0..12 {
            let report = explore(&options(seed), &Counter(Version::Right, kind));
            assert!(report.is_clean(), "{report}");
            sum.merge(report);
        }
        assert!(sum.images > 100 && sum.recovery_images > 10, "{sum}");
        assert_eq!(sum.forced_switches > 0, kind == Lock::Plain, "{sum}");
    }
}

#[test]
fn a_value_that_is_shown_before_it_is_durable_is_caught() {
    for kind in [Lock::Word, Lock::Mutex] {
        let reports: Vec<Report> = (0..12)
            .map(|seed| explore(&options(seed), &Counter(Version::ShownEarly, kind)))
            .collect();
        assert!(reports.iter().any(|it| !it.early_reads.is_empty()), "{reports:#?}");
        let wrong: Vec<_> = reports.iter().flat_map(|report| &report.violations).collect();
        assert!(wrong.iter().any(|it| it.message.contains("was seen")), "{reports:#?}");
        for violation in wrong {
            let counter = Counter(Version::ShownEarly, kind);
            let again = replay(&options(violation.seed), &counter, &violation.token);
            assert_eq!(again, Err(violation.message.clone()), "{violation}");
        }
        let allowed = SimOptions {
            early_reads_allowed: vec![0..8, LOCK * 8..LOCK * 8 + 8],
            max_violations: 0,
            ..options(1)
        };
        let report = explore(&allowed, &Counter(Version::ShownEarly, kind));
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn a_fence_that_is_missing_in_one_of_many_threads_is_caught() {
    let caught = (0..8).any(|seed| {
        let faulty = SimOptions { fault: Some(Fault::DropEveryFence), ..options(seed) };
        let report = explore(&faulty, &Counter(Version::Right, Lock::Word));
        !report.violations.is_empty() && !report.early_reads.is_empty()
    });
    assert!(caught);
}

/// The same seed gives the same run, another seed another one.
#[test]
fn a_seed_decides_the_order_of_threads() {
    for kind in [Lock::Word, Lock::Mutex] {
        let counts = |seed| {
            let report = explore(&options(seed), &Counter(Version::Right, kind));
            assert_eq!(report.forced_switches, 0, "{report}");
            (report.events, report.cuts, report.images)
        };
        let first: Vec<_> = (0..6).map(counts).collect();
        let second: Vec<_> = (0..6).map(counts).collect();
        assert_eq!(first, second);
        assert!(first.iter().any(|it| *it != first[0]), "{first:?}");
    }
}
