//! Power cuts at every fence and every return, and in recovery: acknowledged writes are there.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

mod story;

use coreplane_pmem::media::sim::{Fault, Model, SimOptions, explore};
use story::{KINDS, Story, explored, is_full_scale, options};

/// Each story with so many seeds, in a pool of so many pages: half of them in a quick test, and three times as many
/// at the full scale.
fn explore_all(
    seeds: std::ops::Range<u64>,
    pages: u64,
    models: &[Model],
    story: impl Fn(Story) -> Story,
) -> usize {
    let count = seeds.end - seeds.start;
    let end = seeds.start + if is_full_scale() { 3 * count } else { count.div_ceil(2) };
    let mut images = 0;
    for kind in KINDS {
        for seed in seeds.start..end {
            for model in models.iter().copied() {
                let story = story(Story::new(kind, seed, 80));
                images += explored(&story, &SimOptions { model, ..options(seed, pages << 12) });
            }
        }
    }
    images
}

const BOTH: [Model; 2] = [Model::X86, Model::File];

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut() {
    let images = explore_all(1..4, 128, &BOTH, |story| story);
    assert!(images > 1000, "{images}");
}

/// Groups of several pages.
#[test]
fn batches_are_whole() {
    let images = explore_all(11..14, 128, &BOTH, |story| Story { batch_in: 2, ..story });
    assert!(images > 500, "{images}");
}

#[test]
fn large_values_are_whole() {
    let story = |story| Story { large_in: 2, keys: 8, operations: 60, ..story };
    assert!(explore_all(21..23, 192, &BOTH, story) > 500);
}

/// Many writes share a fence or a sync; some are requested while others are not durable.
#[test]
fn where_many_writes_share_a_commit() {
    let story = |story| Story { waits_for: 9, batch_in: 3, ..story };
    assert!(explore_all(31..34, 128, &BOTH, story) > 500);
}

#[test]
fn where_most_writes_are_relaxed() {
    let story = |story: Story| Story { strict_in: 2 + story.seed % 5, batch_in: 3, ..story };
    assert!(explore_all(41..45, 128, &[Model::File], story) > 500);
}

#[test]
fn a_store_is_emptied_at_once_or_not_at_all() {
    let story = |story| Story { clears_in: 13, threads: 1, pins_in: 0, ..story };
    assert!(explore_all(51..53, 96, &BOTH, story) > 300);
}

#[test]
fn nobody_is_told_otherwise_of_what_has_expired() {
    let story = |story| Story { expires_in: 3, threads: 1, large_in: 0, ..story };
    assert!(explore_all(61..63, 96, &BOTH, story) > 300);
}

/// The cleaner works all the time.
#[test]
fn where_pages_come_round() {
    let story = |story| Story { keys: 8, large_in: 0, operations: 250, ..story };
    assert!(explore_all(71..73, 26, &BOTH, story) > 1000);
}

#[test]
fn where_pages_come_round_and_writes_share_a_commit() {
    let story = |story| Story { keys: 8, large_in: 30, operations: 250, waits_for: 12, ..story };
    assert!(explore_all(81..84, 34, &BOTH, story) > 1000);
}

#[test]
fn where_pages_come_round_and_writes_are_relaxed() {
    let story = |story| Story { keys: 8, large_in: 0, operations: 250, strict_in: 5, ..story };
    assert!(explore_all(91..94, 26, &[Model::File], story) > 500);
}

/// Most records are tombstones, which stay as long as an older page does.
#[test]
fn where_most_writes_are_deletes() {
    let story = |story| Story { deletes: 6, keys: 12, large_in: 0, operations: 250, ..story };
    assert!(explore_all(101..103, 26, &BOTH, story) > 1000);
    let story = |it| Story { holds: true, ..story(it) };
    assert!(explore_all(104..105, 26, &BOTH, story) > 500);
}

#[test]
fn where_snapshots_are_pinned() {
    let story = |story| Story { pins_in: 9, keys: 8, large_in: 30, operations: 200, ..story };
    assert!(explore_all(111..113, 40, &BOTH, story) > 1000);
    let cleared = |it| Story { clears_in: 30, threads: 1, ..story(it) };
    assert!(explore_all(114..116, 40, &BOTH, cleared) > 500);
    // The versions that pins see stand behind records that are not durable yet.
    let early = |it| Story { waits_for: 11, pins_in: 6, ..story(it) };
    assert!(explore_all(116..118, 40, &BOTH, early) > 500);
}

#[test]
fn where_there_is_hardly_any_room() {
    let story = |story| Story { is_full: true, keys: 150, large_in: 0, operations: 140, ..story };
    assert!(explore_all(121..122, 20, &BOTH, story) > 500);
    let story = |it| Story { waits_for: 7, deletes: 4, ..story(it) };
    assert!(explore_all(123..124, 20, &BOTH, story) > 500);
}

/// A missing flush or fence may be harmless here and there. Most are not.
#[test]
fn a_flush_or_a_fence_that_is_missing_is_found() {
    let (step, least) = if is_full_scale() { (5, 10) } else { (20, 2) };
    let places = (60..160).step_by(step);
    let faults: [(&str, Vec<Fault>, usize); 4] = [
        ("all flushes", vec![Fault::DropEveryFlush], 1),
        ("all fences", vec![Fault::DropEveryFence], 1),
        ("a flush", places.clone().map(Fault::DropFlush).collect(), least),
        ("a fence", places.map(Fault::DropFence).collect(), least),
    ];
    for (what, faults, least) in faults {
        let caught = faults.into_iter().filter(|fault| {
            let options = SimOptions {
                fault: Some(fault.clone()),
                recovery_cut_in: 0,
                max_violations: 1,
                shrink: false,
                non_temporal: false,
                ..options(2, 128 << 12)
            };
            !explore(&options, &Story::new(KINDS[0], 2, 120)).violations.is_empty()
        });
        let caught = caught.count();
        assert!(caught >= least, "{what} missing: found at {caught} places");
    }
}
