//! Power cuts of whole matrices, at every fence and every return, and while they are opened again:
//! what was acknowledged is there. `COREPLANE_TEST_SCALE=full` runs more seeds and images.

mod scale;
mod shelf;
mod story;

use coreplane_mkvs::{Ack, Position, Shape};
use coreplane_pmem::media::sim::{Fault, Report, SimOptions, explore};
use scale::scaled;
use shelf::Kind;
use story::{Aftermath, Story};

const ACKS: [Ack; 3] = [Ack::All, Ack::Majority, Ack::First];

fn at(group: u16, device: u8) -> Position {
    Position { group, device }
}

fn shape(groups: u16, devices: u8, ack: Ack) -> Shape {
    Shape { groups, devices, ack }
}

/// What is left at each cut is right; the images.
fn explored(story: &Story, options: &SimOptions) -> Report {
    let report = explore(options, story);
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    let (seed, kind, shape) = (story.seed, story.kind, story.shape);
    assert!(violations.is_empty(), "seed {seed}, {kind:?}, {shape:?}: {}", violations.join("\n"));
    report
}

/// Stories of every way to acknowledge; `change` makes of each what is asked.
fn tell_all(kind: Kind, seeds: u64, change: impl Fn(Story) -> Story) -> Report {
    let mut sum = Report::default();
    for (at, ack) in (0..).zip(ACKS) {
        for seed in (1..=seeds).map(|seed| seed * 10 + at) {
            let groups = if seed / 10 % 2 == 1 { 2 } else { 3 };
            let threads = 1 + (seed / 20 % 2) as u16;
            let story = change(Story {
                threads,
                operations: scaled(24, 44) / u64::from(threads),
                ..Story::new(seed, kind, shape(groups, 2, ack))
            });
            let begun = std::time::Instant::now();
            let report = explored(&story, &story.options());
            eprintln!(
                "{seed} {ack:?}: {} {} {:?} {:?}",
                report.images,
                report.cuts,
                story.refused,
                begun.elapsed()
            );
            sum.merge(report);
        }
    }
    sum
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let sum = tell_all(kind, scaled(2, 20), |story| story);
        assert!(sum.images > 1000 && sum.recovery_images > 100, "{sum}");
    }
}

/// At `all` nothing is lost without one device, or one of each... at the others it is refused.
#[test]
fn one_device_is_missing_after_the_power_cut() {
    for (kind, device) in [(Kind::Bptree, 1), (Kind::Scmkv, 0)] {
        tell_all(kind, scaled(1, 8), |story| {
            let missing = vec![at((story.seed % 2) as u16, device)];
            Story { aftermath: Aftermath::Without(missing), ..story }
        });
    }
}

#[test]
fn a_device_that_was_missing_comes_back() {
    for (kind, device) in [(Kind::Bptree, 0), (Kind::Scmkv, 1)] {
        tell_all(kind, scaled(1, 8), |story| {
            let position = at((story.seed % 2) as u16, device);
            Story { aftermath: Aftermath::Returned(position), ..story }
        });
    }
}

/// It is back after the cut, and must not be believed.
#[test]
fn a_device_is_pulled_out_before_the_power_cut() {
    for (kind, device) in [(Kind::Bptree, 0), (Kind::Scmkv, 1)] {
        tell_all(kind, scaled(1, 8), |story| {
            let position = at((story.seed % 2) as u16, device);
            Story { pulls: Some(position), ..story }
        });
    }
}

/// Writes are refused for lack of space, on one device sooner than on the other.
#[test]
fn devices_are_full() {
    for (kind, len) in [(Kind::Bptree, 64 << 10), (Kind::Scmkv, 96 << 10)] {
        tell_all(kind, scaled(1, 20), |story| {
            let operations = 60 / u64::from(story.threads);
            Story { len, large_in: 1, keys: 60, operations, ..story }
        });
    }
}

fn is_found(story: &Story, fault: Option<Fault>) -> bool {
    let options = SimOptions { fault, recovery_cut_in: 0, max_violations: 1, ..story.options() };
    !explore(&options, story).violations.is_empty()
}

/// The stories can fail: without fences, flushes or intents they do.
#[test]
fn what_is_left_out_is_found() {
    let two_by_two = shape(2, 2, Ack::All);
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let story = Story::new(2, kind, two_by_two);
        for fault in [Fault::DropEveryFence, Fault::DropEveryFlush] {
            assert!(is_found(&story, Some(fault.clone())), "{kind:?}: {fault:?}");
        }
        let story = Story { forgets_intents: true, ..Story::new(2, kind, two_by_two) };
        assert!(is_found(&story, None), "{kind:?}: batches without an intent");
    }
}
