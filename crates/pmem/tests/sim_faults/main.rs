//! Small persistent structures, right and wrong: the simulator finds nothing in the right ones
//! and something in each wrong one.
//!
//! The wrong versions have the classic faults: a flush or a fence that is missing, two stores in
//! the wrong order, an update of several words that can tear, a value that is shown before it is
//! durable, a recovery that cannot be repeated, a block that is lost, a block that is freed twice.

mod blocks;
mod early;
mod journal;
mod pair;
mod queue;
mod shown;

use coreplane_pmem::media::sim::{Report, SimOptions, Subject, explore, replay};
use coreplane_pmem::{Claim, Durable, Space};

fn options(seed: u64) -> SimOptions {
    SimOptions { seed, cut_at_stores: true, recovery_cut_in: 2, ..SimOptions::default() }
}

fn claim(space: &Space, claim: Claim) {
    assert!(space.claim_words(0, claim));
}

/// Word `number` of page 0.
fn load(space: &Space, number: u64) -> u64 {
    space.word::<Durable>(number * 8).unwrap().load()
}

fn store(space: &Space, number: u64, value: u64) {
    space.word::<Durable>(number * 8).unwrap().store(value);
}

fn flush(space: &Space, number: u64) {
    space.flush(number * 8, 8);
}

fn fence(space: &Space) {
    space.fence().unwrap();
}

fn persist(space: &Space, number: u64, value: u64) {
    store(space, number, value);
    flush(space, number);
    fence(space);
}

/// Asserts that nothing is wrong, and that enough images were checked.
fn assert_right<S: Subject>(options: &SimOptions, subject: &S) -> Report {
    let report = explore(options, subject);
    assert!(report.is_clean(), "{report}");
    assert!(report.images > 20 && report.recovery_images > 5, "{report}");
    report
}

/// Asserts that a violation with the message `what` is found, and found again by a replay.
fn assert_caught<S: Subject>(options: &SimOptions, subject: &S, what: &str) -> Report {
    let report = explore(options, subject);
    assert!(!report.violations.is_empty(), "not caught: {report}");
    for violation in &report.violations {
        assert!(violation.message.contains(what), "{violation}");
        let again = replay(options, subject, &violation.token);
        assert_eq!(again, Err(violation.message.clone()), "{violation}");
    }
    report
}
