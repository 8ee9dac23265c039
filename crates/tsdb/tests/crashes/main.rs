//! Power cuts at every fence and every return, and in recovery: each acknowledged point is there, once, and dropped
//! points do not come back.
//!
//! `COREPLANE_TEST_SCALE=full` runs more seeds.

mod cuts;
mod story;

use coreplane_pmem::media::sim::{Model, explore};
use story::{BOTH, Story, is_full_scale};

fn explored(story: &Story, model: Model) -> u64 {
    let report = explore(&story.sim_options(model), story);
    assert!(report.is_clean(), "{story:?} {model:?}: {report}");
    report.images
}

fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    first..first + if is_full_scale() { 10 * count } else { count }
}

#[test]
fn an_acknowledged_point_is_there() {
    let mut images = 0;
    for seed in seeds(1, 3) {
        for model in BOTH {
            images += explored(&Story::new(seed, 1 + seed as u32 % 3), model);
        }
    }
    assert!(images > 500, "{images}");
}

#[test]
fn what_was_dropped_does_not_come_back() {
    for seed in seeds(21, 2) {
        for model in BOTH {
            let story = Story { drop_in: 9, seal_in: 7, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn a_shard_that_is_over_is_gone_in_all_sets_at_once() {
    for seed in seeds(41, 2) {
        for model in BOTH {
            let story = Story { expire_in: 6, seal_in: 9, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 100);
        }
    }
}

/// Heads and segments come and go until every page has changed its use.
#[test]
fn pages_come_round() {
    for seed in seeds(61, 2) {
        for model in BOTH {
            let story =
                Story { rounds: 150, seal_in: 5, drop_in: 25, pages: 160, ..Story::new(seed, 1) };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn writers_side_by_side_lose_nothing() {
    for seed in seeds(81, 2) {
        for model in BOTH {
            let story = Story { threads: 3, rounds: 12, seal_in: 8, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 100);
        }
    }
}

#[test]
fn what_was_seen_is_there() {
    for seed in seeds(101, 3) {
        for model in BOTH {
            let story = Story { threads: 2, rounds: 8, is_watched: true, ..Story::new(seed, 2) };
            assert!(explored(&story, model) > 50);
        }
    }
}
