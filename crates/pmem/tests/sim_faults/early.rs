//! Two writers on a file that do not wait for their syncs, like an event loop.
//!
//! Each fills its own sectors with increasing numbers, draws the generation of the sync that will cover the last one,
//! requests it some time later, and goes on; an entry is acknowledged when its generation is reported as done. Now
//! and then a writer waits for the last generation that it has drawn.

use super::*;
use coreplane_pmem::media::sim::{Call, Fault, History, Model, Run};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Right,
    /// The generation is drawn before the flush that it is to cover.
    DrawsTooSoon,
    /// An entry is acknowledged when its sync is requested.
    AcknowledgesRequests,
    /// An entry is acknowledged with the generation of the entry before.
    TakesThatBefore,
}

struct Writers {
    version: Version,
    /// Entries acknowledged so far, in all runs.
    acknowledged: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    writer: u64,
    number: u64,
}

const WRITERS: u64 = 2;
const ENTRIES: u64 = 12;

/// The words of a sector.
const SECTOR: u64 = 64;

/// The entries that a writer has written and not acknowledged.
struct Outstanding<'a> {
    space: &'a Space,
    calls: VecDeque<(Call<'a, Entry>, u64)>,
    acknowledged: &'a AtomicU64,
}

impl Outstanding<'_> {
    /// Acknowledges durable entries; false if no further entry can become durable.
    fn acknowledge(&mut self) -> bool {
        while let Some((_, generation)) = self.calls.front() {
            match self.space.sync_is_done(*generation) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
            self.acknowledge_first();
        }
        true
    }

    fn acknowledge_first(&mut self) {
        if let Some((call, _)) = self.calls.pop_front() {
            call.returned();
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn writers(version: Version) -> Writers {
    Writers { version, acknowledged: AtomicU64::new(0) }
}

impl Writers {
    fn add(&self, space: &Space, writer: u64, number: u64, before: u64) -> u64 {
        let word = SECTOR * (1 + writer * ENTRIES + number);
        let too_soon = self.version == Version::DrawsTooSoon;
        store(space, word, number + 1);
        let drawn = if too_soon { space.sync_generation() } else { 0 };
        flush(space, word);
        match self.version {
            Version::DrawsTooSoon => drawn,
            Version::TakesThatBefore => {
                space.sync_generation();
                before
            }
            _ => space.sync_generation(),
        }
    }

    fn write(&self, run: &Run<'_, Entry>, writer: u64) {
        let space: &Space = run.space();
        let mut outstanding =
            Outstanding { space, calls: VecDeque::new(), acknowledged: &self.acknowledged };
        let mut last = 0;
        for number in 0..ENTRIES {
            let call = run.began(Entry { writer, number });
            last = self.add(space, writer, number, last);
            outstanding.calls.push_back((call, last));
            if number % 3 == 2 {
                space.sync_request(last);
                if self.version == Version::AcknowledgesRequests {
                    (0..3).for_each(|_| outstanding.acknowledge_first());
                }
            }
            if number % 8 == 7 && space.fence().is_err() || !outstanding.acknowledge() {
                return;
            }
        }
        space.sync_request(last);
        while !outstanding.calls.is_empty() && outstanding.acknowledge() {}
    }
}

impl Subject for Writers {
    type Op = Entry;
    type Store = Arc<Space>;
    type Contents = Vec<Vec<u64>>;

    fn work(&self, run: &Run<'_, Entry>) {
        claim_all(run.space());
        run.threads(|threads| {
            (0..WRITERS).for_each(|writer| threads.spawn(move || self.write(run, writer)));
        });
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
        claim_all(space);
        Ok(space.clone())
    }

    fn contents(&self, space: &Arc<Space>) -> Result<Vec<Vec<u64>>, String> {
        let of_writer = |writer| {
            let word = |number| SECTOR * (1 + writer * ENTRIES + number);
            (0..ENTRIES).map(|number| load(space, word(number))).collect()
        };
        Ok((0..WRITERS).map(of_writer).collect())
    }

    fn check(&self, contents: &Vec<Vec<u64>>, history: &History<'_, Entry>) -> Result<(), String> {
        for entry in history.acknowledged() {
            if contents[entry.writer as usize][entry.number as usize] != entry.number + 1 {
                return Err(format!("{entry:?} was acknowledged and is lost"));
            }
        }
        Ok(())
    }
}

fn claim_all(space: &Space) {
    (0..space.pages()).for_each(|page| assert!(space.claim_words(page, Claim::WordsAsStored)));
}

fn on_a_file(seed: u64) -> SimOptions {
    SimOptions { model: Model::File, cut_at_stores: false, recovery_cut_in: 0, ..options(seed) }
}

const SEEDS: u64 = 24;

/// Asserts that one of the seeds finds a violation, and that a replay finds it again.
fn assert_caught_somewhere(fault: Option<&Fault>, version: Version) {
    let caught = (0..SEEDS).any(|seed| {
        let options = SimOptions { fault: fault.cloned(), ..on_a_file(seed) };
        let report = explore(&options, &writers(version));
        for violation in &report.violations {
            assert!(violation.message.contains("is lost"), "{violation}");
            let again = replay(&options, &writers(version), &violation.token);
            assert_eq!(again, Err(violation.message.clone()), "{violation}");
        }
        !report.violations.is_empty()
    });
    assert!(caught, "{version:?} with {fault:?} was not caught");
}

#[test]
fn the_right_one_loses_nothing_and_is_cut_in_every_state_of_a_sync() {
    let mut sum = Report::default();
    for seed in 0..SEEDS {
        let report = explore(&on_a_file(seed), &writers(Version::Right));
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.forced_switches, 0, "{report}");
        sum.merge(report);
    }
    assert!(sum.images > 1000, "{sum}");
    assert!(sum.sync_cuts.are_all_there(), "{:?}", sum.sync_cuts);
}

#[test]
fn a_generation_drawn_before_the_flush_is_caught() {
    assert_caught_somewhere(None, Version::DrawsTooSoon);
}

#[test]
fn an_acknowledgement_of_what_is_only_asked_for_is_caught() {
    assert_caught_somewhere(None, Version::AcknowledgesRequests);
}

#[test]
fn cover_by_the_generation_before_is_caught() {
    assert_caught_somewhere(None, Version::TakesThatBefore);
}

#[test]
fn a_medium_that_tells_of_syncs_which_have_not_ended_is_caught() {
    for fault in [Fault::DoneWhenDrawn, Fault::DoneWhenRequested, Fault::CoveredByOlder] {
        assert_caught_somewhere(Some(&fault), Version::Right);
    }
}

#[test]
fn after_a_sync_that_was_asked_for_has_failed_nothing_is_acknowledged() {
    for failing in 1..6 {
        let right = writers(Version::Right);
        for seed in 0..SEEDS {
            let options = SimOptions { failing_sync: Some(failing), ..on_a_file(seed) };
            let report = explore(&options, &right);
            assert!(report.is_clean(), "{report}");
        }
        let acknowledged = right.acknowledged.into_inner();
        assert_eq!(acknowledged > 0, failing > 1, "{acknowledged} before sync {failing} failed");
        assert!(acknowledged < SEEDS * WRITERS * ENTRIES, "sync {failing} never failed");
    }
}

#[test]
fn a_failed_sync_that_is_said_to_be_done_is_caught() {
    let caught = (0..SEEDS).any(|seed| {
        let fault = Some(Fault::DoneWhenRequested);
        let options = SimOptions { failing_sync: Some(1), fault, ..on_a_file(seed) };
        !explore(&options, &writers(Version::Right)).violations.is_empty()
    });
    assert!(caught);
}

/// With the same seed, syncs begin and end at the same places.
#[test]
fn a_seed_decides_when_syncs_happen() {
    let counts = |seed| {
        let report = explore(&on_a_file(seed), &writers(Version::Right));
        (report.events, report.images, report.sync_cuts)
    };
    let first: Vec<_> = (0..6).map(counts).collect();
    assert_eq!(first, (0..6).map(counts).collect::<Vec<_>>());
    assert!(first.iter().any(|it| *it != first[0]), "{first:?}");
}
