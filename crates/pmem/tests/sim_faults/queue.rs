//! A queue: entries of a line each, and their count.

use super::*;
use coreplane_pmem::media::sim::{Fault, History, Model, Run};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Right,
    EntryNotFlushed,
    NoFenceBetween,
    CountFirst,
    CountNotFlushed,
    NoLastFence,
}

/// A version, and the words of an entry: 8 for a line, 64 for a sector.
struct Queue(Version, u64);

fn of_lines(version: Version) -> Queue {
    Queue(version, 8)
}

fn of_sectors(version: Version) -> Queue {
    Queue(version, 64)
}

fn on_a_file(seed: u64) -> SimOptions {
    SimOptions { model: Model::File, ..options(seed) }
}

const APPENDS: u64 = 4;

impl Queue {
    fn append(&self, space: &Space, number: u64, value: u64) {
        let first = self.1 * (number + 1);
        if self.0 == Version::CountFirst {
            persist(space, 0, number + 1);
        }
        store(space, first, value);
        store(space, first + 1, !value);
        if self.0 != Version::EntryNotFlushed {
            flush(space, first);
        }
        if self.0 != Version::NoFenceBetween {
            fence(space);
        }
        if self.0 == Version::CountFirst {
            return;
        }
        store(space, 0, number + 1);
        if self.0 != Version::CountNotFlushed {
            flush(space, 0);
        }
        if self.0 != Version::NoLastFence {
            fence(space);
        }
    }
}

impl Subject for Queue {
    type Op = u64;
    type Store = Arc<Space>;
    type Contents = Vec<u64>;

    fn work(&self, run: &Run<'_, u64>) {
        claim(run.space(), Claim::WordsAsStored);
        for number in 0..APPENDS {
            let value = 0x1111 * (number + 1);
            run.acknowledged(value, || self.append(run.space(), number, value));
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
        claim(space, Claim::WordsAsStored);
        let count = load(space, 0);
        // Cleans up what lies behind the end, so that there is something to cut.
        for number in count..APPENDS {
            persist(space, self.1 * (number + 1), 0);
            persist(space, self.1 * (number + 1) + 1, 0);
        }
        Ok(space.clone())
    }

    fn contents(&self, space: &Arc<Space>) -> Result<Vec<u64>, String> {
        (0..load(space, 0))
            .map(|number| {
                let first = self.1 * (number + 1);
                let value = load(space, first);
                if load(space, first + 1) == !value {
                    Ok(value)
                } else {
                    Err(format!("entry {number} is torn"))
                }
            })
            .collect()
    }

    fn check(&self, contents: &Vec<u64>, history: &History<'_, u64>) -> Result<(), String> {
        let acknowledged: Vec<u64> = history.acknowledged().copied().collect();
        let with_in_flight: Vec<u64> =
            acknowledged.iter().chain(history.in_flight()).copied().collect();
        if contents.starts_with(&acknowledged) && with_in_flight.starts_with(contents) {
            return Ok(());
        }
        Err(format!("acknowledged {acknowledged:?}, found {contents:?}"))
    }
}

#[test]
fn the_right_one_loses_nothing() {
    for seed in 0..4 {
        assert_right(&options(seed), &of_lines(Version::Right));
        assert_right(&on_a_file(seed), &of_sectors(Version::Right));
    }
}

#[test]
fn a_missing_flush_is_caught() {
    assert_caught(&options(1), &of_lines(Version::EntryNotFlushed), "torn");
    assert_caught(&options(1), &of_lines(Version::CountNotFlushed), "acknowledged");
}

#[test]
fn a_missing_fence_is_caught() {
    assert_caught(&options(1), &of_lines(Version::NoFenceBetween), "torn");
    assert_caught(&options(1), &of_lines(Version::NoLastFence), "acknowledged");
}

#[test]
fn swapped_order_is_caught() {
    assert_caught(&options(1), &of_lines(Version::CountFirst), "torn");
}

#[test]
fn swapped_order_is_caught_on_a_file_too() {
    assert_caught(&on_a_file(1), &of_sectors(Version::CountFirst), "torn");
    assert_caught(&on_a_file(1), &of_sectors(Version::EntryNotFlushed), "torn");
    assert_caught(&on_a_file(1), &of_sectors(Version::NoFenceBetween), "torn");
}

/// Each flush, each fence and each store is necessary: a fault in any of them is caught.
#[test]
fn every_fault_in_the_trace_of_the_right_one_is_caught() {
    let with = |fault| SimOptions { fault: Some(fault), ..options(1) };
    for number in 0..2 * APPENDS {
        assert_caught(&with(Fault::DropFlush(number)), &of_lines(Version::Right), "");
        assert_caught(&with(Fault::DropFence(number)), &of_lines(Version::Right), "");
    }
    for number in 0..3 * APPENDS {
        assert_caught(&with(Fault::DelayStore(number)), &of_lines(Version::Right), "");
    }
    assert_caught(&with(Fault::DropEveryFlush), &of_lines(Version::Right), "");
    assert_caught(&with(Fault::DropEveryFence), &of_lines(Version::Right), "");
    assert_caught(&with(Fault::DropFlushOf(64..128)), &of_lines(Version::Right), "");
    assert_caught(&with(Fault::DelayStoresOf(64..128)), &of_lines(Version::Right), "");
}

/// A harmless swap or tear is not reported: the entry's two words may be stored in any order, and
/// so may their halves.
#[test]
fn what_is_harmless_is_not_reported() {
    let with = |fault| SimOptions { fault: Some(fault), ..options(1) };
    assert_right(&with(Fault::SwapStores(0)), &of_lines(Version::Right));
    assert_right(&with(Fault::TearStoresOf(64..128)), &of_lines(Version::Right));
}

#[test]
fn the_story_names_the_one_line_that_matters() {
    let report = assert_caught(&options(1), &of_lines(Version::EntryNotFlushed), "torn");
    let violation = &report.violations[0];
    assert!(violation.story.contains("0x40:"), "{violation}");
    assert_eq!(violation.story.matches("0x").count(), 1, "{violation}");
}

#[test]
fn a_failed_sync_acknowledges_nothing_more() {
    struct Failing;
    impl Subject for Failing {
        type Op = u64;
        type Store = Arc<Space>;
        type Contents = u64;

        fn work(&self, run: &Run<'_, u64>) {
            claim(run.space(), Claim::WordsAsStored);
            for value in 1..6 {
                let call = run.began(value);
                store(run.space(), 0, value);
                flush(run.space(), 0);
                if run.space().fence().is_ok() {
                    call.returned();
                }
            }
        }

        fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
            claim(space, Claim::WordsAsStored);
            Ok(space.clone())
        }

        fn contents(&self, space: &Arc<Space>) -> Result<u64, String> {
            Ok(load(space, 0))
        }

        fn check(&self, contents: &u64, history: &History<'_, u64>) -> Result<(), String> {
            let least = history.acknowledged().last().copied().unwrap_or(0);
            if *contents < least || least > 2 {
                return Err(format!("{contents}, and {least} is acknowledged"));
            }
            Ok(())
        }
    }
    let failing =
        SimOptions { model: Model::File, failing_sync: Some(3), recovery_cut_in: 0, ..options(1) };
    let report = explore(&failing, &Failing);
    assert!(report.is_clean(), "{report}");
    let working = SimOptions { failing_sync: None, ..failing };
    // Which violations are found first depends on the checkers, which run concurrently.
    assert_caught(&working, &Failing, " is acknowledged");
}
