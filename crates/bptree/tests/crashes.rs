//! Power cuts at every fence and every return, and in recovery: acknowledged writes are there.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

mod story;

use coreplane_pmem::media::sim::{Fault, Model, SimOptions, explore};
use story::{Story, explored, long_key, options};

fn is_full_scale() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut() {
    let (mut images, mut splits, mut merges) = (0, 0, 0);
    let (seeds, least) =
        if is_full_scale() { (12, [10_000, 35, 30]) } else { (7, [5_000, 20, 15]) };
    for seed in 1..=seeds {
        let story = Story::new(seed, 1 + (seed % 2) as u16, 120);
        images += explored(&story, &options(seed));
        splits += story.splits.into_inner();
        merges += story.merges.into_inner();
    }
    let found = [images, splits as usize, merges as usize];
    assert!(found.iter().zip(least).all(|(found, least)| *found > least), "{found:?}");
}

#[test]
fn a_store_is_emptied_at_once_or_not_at_all() {
    for seed in 1..=4 {
        let story = Story { clears_in: 17, large_in: 6, ..Story::new(seed, 1, 90) };
        let model = if seed == 3 { Model::File } else { Model::X86 };
        explored(&story, &SimOptions { model, images_per_cut: 6, ..options(seed) });
    }
}

/// The new leaf must be flushed, and fenced before the root states that the others do not count.
#[test]
fn a_flush_or_the_fence_of_a_clear_that_is_missing_is_found() {
    let few = || Story { clears_in: 8, closes: false, ..Story::new(2, 1, 8) };
    let sim = SimOptions {
        images_per_cut: 300,
        recovery_cut_in: 0,
        shrink: false,
        max_violations: 50,
        non_temporal: false,
        ..options(2)
    };
    let story = few();
    explored(&story, &sim);
    let clear = story.done.into_inner().unwrap().expect("a clear");
    let caught = |fault: Fault| {
        let report = explore(&SimOptions { fault: Some(fault), ..sim.clone() }, &few());
        report.violations.iter().any(|it| it.message.contains("keys from"))
    };
    assert_eq!(clear.pages.len(), 1, "one leaf");
    assert!(caught(Fault::DropFlushOf(clear.pages[0].clone())));
    assert!(clear.fences.into_iter().any(|number| caught(Fault::DropFence(number))));
}

#[test]
fn where_a_fence_is_a_sync_too() {
    for seed in 1..=4 {
        let story = Story::new(seed, 1, 120);
        let options = SimOptions { model: Model::File, images_per_cut: 6, ..options(seed) };
        explored(&story, &options);
    }
}

/// A `relaxed` write in a file may be lost, until a sync; a strict write may not, even if it is behind the relaxed
/// one in the same leaf, or has replaced it.
#[test]
fn where_most_writes_are_relaxed() {
    let (mut images, mut splits) = (0, 0);
    for seed in 1..=if is_full_scale() { 24 } else { 4 } {
        let threads = 1 + (seed % 2) as u16;
        let story = Story { strict_in: 2 + seed % 5, ..Story::new(seed, threads, 120) };
        images += explored(&story, &SimOptions { model: Model::File, ..options(seed) });
        splits += story.splits.into_inner();
    }
    assert!(images > 1000 && splits > 10, "{images} {splits}");
}

/// Keys of which a record has a part: the rest is in pages of its own that are durable before the record is, that
/// later records of the key name too, and that are freed with the last of them.
#[test]
fn where_keys_are_long() {
    let is_full = is_full_scale();
    let (mut images, mut splits, mut merges) = (0, 0, 0);
    for seed in 1..=if is_full { 40 } else { 4 } {
        let model = if seed % 4 == 3 { Model::File } else { Model::X86 };
        let waits_for = if seed % 8 == 7 { 9 } else { 1 };
        let threads = 1 + (seed % 2) as u16;
        let clears_in = if seed % 4 == 2 { 25 } else { 0 };
        let len = 1 << 20;
        let base = Story::new(seed, threads, if is_full { 70 } else { 60 });
        let story = Story { keys: 14, key: long_key, large_in: 20, waits_for, clears_in, ..base };
        images += explored(
            &story,
            &SimOptions { model, images_per_cut: 4, len, max_len: len, ..options(seed) },
        );
        splits += story.splits.into_inner();
        merges += story.merges.into_inner();
    }
    assert!(images > 1000 && splits > 15 && merges > 3, "{images} {splits} {merges}");
}

/// Where a fence is a sync, many writes share one, and readers see what it does not cover yet.
#[test]
fn where_many_writes_share_a_sync() {
    let mut images = 0;
    let (seeds, least) = if is_full_scale() { (8, 3000) } else { (5, 2000) };
    for seed in 1..=seeds {
        let story = Story { waits_for: 9, ..Story::new(seed, 1 + (seed % 2) as u16, 120) };
        let options = SimOptions { model: Model::File, images_per_cut: 14, ..options(seed) };
        images += explored(&story, &options);
    }
    assert!(images > least, "{images}");
}

/// As before, where a page is soon reused.
#[test]
fn where_pages_come_round_before_the_sync() {
    for seed in 21..=if is_full_scale() { 26 } else { 24 } {
        let story = Story { waits_for: 40, keys: 6, large_in: 2, ..Story::new(seed, 1, 200) };
        let len = 96 << 10;
        let model = Model::File;
        let tight = SimOptions { model, len, max_len: len, images_per_cut: 30, ..options(seed) };
        explored(&story, &tight);
    }
}

/// A missing flush or fence may be harmless in places: if the data is flushed again, or if nothing depends on it.
/// Most are not.
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
                ..options(2)
            };
            !explore(&options, &Story::new(2, 1, 120)).violations.is_empty()
        });
        let caught = caught.count();
        assert!(caught >= least, "{what} missing: found at {caught} places");
    }
}
