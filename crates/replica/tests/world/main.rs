//! A cluster in one thread: a clock, a network that loses, repeats and delays, nodes whose power goes at any fence.
//!
//! A seed is a story. It says what happens when, and the same seed does the same in another process: what is printed of a
//! failure is enough to see it again (`COREPLANE_WORLD=seed`).
//!
//! What is looked at, after every step and at the end:
//!
//! - one leader of a term, and one vote of a node in a term;
//! - the same entry at the same index, on every node that has applied it;
//! - a write that was acknowledged is there for ever, and a read that was begun after it sees it, or a later one.
//!
//! `COREPLANE_TEST_SCALE=full` runs ten thousand seeds.

mod cluster;
mod draw;
mod history;
mod network;
mod seat;
mod troubles;

use cluster::{Faults, World};
use coreplane_mvcc::MapKind;

fn seeds() -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("COREPLANE_WORLD") {
        let seed = seed.parse().expect("COREPLANE_WORLD is a seed");
        return seed..seed + 1;
    }
    match std::env::var("COREPLANE_TEST_SCALE").as_deref() {
        Ok("full") => 0..10_000,
        _ => 0..1_000,
    }
}

fn faults(seed: u64) -> Faults {
    let all = Faults { loses: true, crashes: true, partitions: true, members: true, pools: true };
    match seed % 6 {
        0 => Faults { members: true, ..Faults::default() },
        1 => Faults { loses: true, ..Faults::default() },
        2 => Faults { crashes: true, pools: true, ..Faults::default() },
        3 => Faults { members: false, ..all },
        _ => all,
    }
}

/// In one test, since what a thread does beside another is no seed's.
#[test]
fn clusters_keep_what_they_acknowledge() {
    let (mut acknowledged, mut reads, mut elections) = (0, 0, 0);
    let (mut installed, mut lost) = (0, 0);
    for seed in seeds() {
        for kind in MapKind::ALL {
            let report = World::new(kind, seed, faults(seed)).run();
            if seed % 20 == 7 {
                let again = World::new(kind, seed, faults(seed)).run();
                assert_eq!(report, again, "seed {seed} of {kind:?} is not the same twice");
            }
            acknowledged += report.acknowledged;
            reads += report.reads;
            elections += report.elections;
            installed += report.installed;
            lost += report.lost;
        }
    }
    println!(
        "{acknowledged} writes acknowledged, {reads} reads, {elections} elections, {installed} snapshots installed, \
         {lost} pools lost"
    );
    assert!(acknowledged > 0 && reads > 0 && elections > 0);
    if seeds().count() > 1 {
        assert!(installed > 0, "no follower was ever so far behind");
        assert!(lost > 0, "no pool was ever lost");
    }
}
