//! Power cuts of whole matrices, at every fence and every return, and while they are opened again:
//! acknowledged writes are there.
//!
//! `COREPLANE_TEST_SCALE=full` runs more and longer stories, with more images of each; `COREPLANE_STORIES=n`
//! runs n of each kind, from `COREPLANE_STORY=number` on: the seed of a story is ten times its number, plus
//! the number of its matrix's ack level.

use crate::scale::scaled;
use crate::shelf::Kind;
use crate::shelf::sample::at;
use crate::story::{Aftermath, Change, Story};
use coreplane_mkvs::{Ack, Shape};
use coreplane_pmem::media::sim::{Fault, Model, Report, SimOptions, explore};

const ACKS: [Ack; 3] = [Ack::All, Ack::Majority, Ack::First];

fn shape(groups: u16, devices: u8, ack: Ack) -> Shape {
    Shape { groups, devices, ack, ..Shape::default() }
}

/// Every image at every cut is right; returns the report.
fn explored(story: &Story, options: &SimOptions) -> Report {
    let begun = std::time::Instant::now();
    let report = explore(options, story);
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    let (seed, kind, shape) = (story.seed, story.kind, story.shape);
    let Shape { groups, devices, ack, .. } = shape;
    let told = format!("seed {seed}, {kind:?}, {groups}x{devices} at {ack:?}");
    eprintln!("{told}: {} images at {} cuts, {:?}", report.images, report.cuts, begun.elapsed());
    assert!(violations.is_empty(), "{told}: {}", violations.join("\n"));
    report
}

/// The rounds of stories: by the environment, or so many at full scale.
fn rounds(full: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("COREPLANE_STORY").unwrap_or(1);
    first..first + number("COREPLANE_STORIES").unwrap_or(scaled(1, full))
}

/// Runs stories of both engines at every ack level; `change` adapts each. A quick test runs one at each
/// level, the engines by turns.
fn tell_all(seeds: u64, change: impl Fn(Story) -> Story) -> (Report, u64) {
    let (mut sum, mut refused) = (Report::default(), 0);
    let is_quick = scaled(true, false);
    for (number, ack) in (0..).zip(ACKS) {
        for (kind, turn) in [(Kind::Bptree, 0), (Kind::Scmkv, 1)] {
            for seed in rounds(seeds).map(|round| round * 10 + number) {
                if is_quick && turn != number % 2 {
                    continue;
                }
                let groups = if seed / 10 % 2 == 1 { 2 } else { 3 };
                let threads = 1 + (seed / 20 % 2) as u16;
                let operations = scaled(10, 44) / u64::from(threads);
                let story = Story::new(seed, kind, shape(groups, 2, ack));
                let story = change(Story { threads, operations, ..story });
                sum.merge(explored(&story, &story.options()));
                refused += story.refused.into_inner();
            }
        }
    }
    eprintln!("{} images at {} cuts, {refused} refused", sum.images, sum.cuts);
    (sum, refused)
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut() {
    let (sum, _) = tell_all(8, |story| story);
    assert!(sum.images > 300 && sum.recovery_images > 30, "{sum}");
}

/// A group of one device: nothing follows its puts.
#[test]
fn what_one_device_has_acknowledged_is_there_after_a_power_cut() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        for seed in rounds(4) {
            let story = Story::new(seed, kind, shape(1 + (seed % 2) as u16, 1, Ack::All));
            let story = Story { operations: scaled(20, 44), ..story };
            let report = explored(&story, &story.options());
            assert!(report.cuts > 20, "{report}");
        }
    }
}

/// Without one device no write that waited for all is lost; a possible loss is refused.
#[test]
fn one_device_is_missing_after_the_power_cut() {
    tell_all(3, |story| {
        let missing = at((story.seed % 2) as u16, (story.seed / 10 % 2) as u8);
        Story { aftermath: Aftermath::Without(vec![missing]), ..story }
    });
}

#[test]
fn a_device_that_was_missing_comes_back() {
    tell_all(3, |story| {
        let position = at((story.seed % 2) as u16, (story.seed / 10 % 2) as u8);
        Story { aftermath: Aftermath::Returned(position), ..story }
    });
}

/// The device is back after the cut, and must not count.
#[test]
fn a_device_is_pulled_out_before_the_power_cut() {
    tell_all(3, |story| {
        let position = at((story.seed % 2) as u16, (story.seed / 10 % 2) as u8);
        Story { pulls: Some(position), ..story }
    });
}

/// A device comes back, or a new one takes its place, beside writers.
#[test]
fn a_device_is_replaced_before_the_power_cut() {
    tell_all(3, |story| {
        let position = at((story.seed % 2) as u16, (story.seed / 10 % 2) as u8);
        let change = Change::Replaced { is_fresh: story.kind == Kind::Scmkv };
        Story { pulls: Some(position), change, ..story }
    });
}

/// In a quick test only at `all`. Its slots move in many steps, which are alike: a part of their cuts is
/// checked.
#[test]
fn a_group_is_added_before_the_power_cut() {
    if scaled(false, true) {
        tell_all(2, |story| Story { change: Change::GroupAdded, cut_in: 4, ..story });
        return;
    }
    let story = Story::new(12, Kind::Scmkv, shape(1, 2, Ack::All));
    let story = Story { change: Change::GroupAdded, operations: 8, cut_in: 8, ..story };
    let report = explored(&story, &SimOptions { images_per_cut: 1, ..story.options() });
    let in_the_run = report.images - report.recovery_images;
    assert!(report.cuts > 500 && in_the_run > 300 && report.recovery_images > 500, "{report}");
}

/// Writes are refused for lack of space, on one device sooner than on another.
#[test]
fn devices_are_full() {
    let (_, refused) = tell_all(8, |story| {
        let (len, large_in) = (if story.kind == Kind::Bptree { 48 } else { 80 } << 10, 1);
        Story { len, large_in, keys: 60, is_tight: true, ..story }
    });
    assert!(refused > 0, "no device was full");
}

/// One device of a group has no space and the other has, or none has: a write is made on all of them or on none.
#[test]
fn devices_have_no_space_now_and_then() {
    let (_, refused) = tell_all(3, |story| Story { fills: true, ..story });
    assert!(refused > 0, "no device was full");
}

/// A batch of one group has no intent: when a device refuses it, it is there as a whole or not at all, too.
#[test]
fn a_batch_that_the_only_group_refuses_is_there_as_a_whole_or_not_at_all() {
    let mut refused = 0;
    for (kind, ack) in [(Kind::Bptree, Ack::All), (Kind::Scmkv, Ack::Majority)] {
        for seed in rounds(6) {
            let story = Story::new(seed, kind, shape(1, 2, ack));
            let story = Story { fills: true, batches: true, operations: scaled(24, 44), ..story };
            explored(&story, &story.options());
            refused += story.refused.into_inner();
        }
    }
    assert!(refused > 0, "no device was full");
}

/// Relaxed writes are there once their tickets say so.
#[test]
fn what_a_ticket_calls_durable_is_there() {
    tell_all(3, |story| Story { is_relaxed: true, ..story });
}

/// The same where a fence is a sync: only there is a `relaxed` write not durable when it returns.
#[test]
fn what_a_ticket_calls_durable_is_there_on_files() {
    tell_all(3, |story| Story { is_relaxed: true, model: Model::File, ..story });
}

/// Everything is removed, or nothing, on any number of devices; one may be missing afterwards.
#[test]
fn a_matrix_is_emptied_at_once_or_not_at_all() {
    let clears = |story: Story| Story { clears: true, threads: 1, ..story };
    tell_all(3, clears);
    let without = Aftermath::Without(vec![at(0, 1)]);
    let story = clears(Story::new(2, Kind::Bptree, shape(2, 2, Ack::All)));
    let story = Story { aftermath: without, operations: scaled(10, 44), ..story };
    explored(&story, &story.options());
    let alone = clears(Story::new(3, Kind::Bptree, shape(1, 1, Ack::All)));
    let story = Story { operations: scaled(10, 44), ..alone };
    explored(&story, &story.options());
}

/// Filters that a close has kept are used once, and not after a crash: no existing key is denied.
#[test]
fn kept_filters_deny_nothing() {
    for (seed, kind) in [(3, Kind::Bptree), (6, Kind::Scmkv)] {
        for aftermath in [Aftermath::Opened, Aftermath::Returned(at(0, 1))] {
            let story = Story::new(seed, kind, shape(2, 2, Ack::All));
            let (len, operations) = (story.len + (96 << 10), scaled(4, 44));
            let story =
                Story { len, operations, closes: true, keeps_filters: true, aftermath, ..story };
            let (images_per_cut, recovery_cut_in) = (1, scaled(200, 40));
            explored(&story, &SimOptions { images_per_cut, recovery_cut_in, ..story.options() });
        }
    }
}

fn is_found(story: &Story, fault: Option<Fault>) -> bool {
    let options = SimOptions { fault, recovery_cut_in: 0, max_violations: 1, ..story.options() };
    !explore(&options, story).violations.is_empty()
}

/// The stories can fail: they do without fences, flushes or intents.
#[test]
fn what_is_left_out_is_found() {
    let two_by_two = shape(2, 2, Ack::All);
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let story = Story::new(2, kind, two_by_two);
        for fault in [Fault::DropEveryFence, Fault::DropEveryFlush] {
            assert!(is_found(&story, Some(fault.clone())), "{kind:?}: {fault:?}");
        }
        // A ticket that is reported as durable too soon.
        let of_files =
            Story { is_relaxed: true, model: Model::File, ..Story::new(2, kind, two_by_two) };
        assert!(is_found(&of_files, Some(Fault::CoveredByOlder)), "{kind:?}: an older sync");
        let story = Story { forgets_intents: true, ..Story::new(2, kind, two_by_two) };
        assert!(is_found(&story, None), "{kind:?}: batches without an intent");
    }
}
