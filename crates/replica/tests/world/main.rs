//! A cluster in one thread: a clock, a network that loses, repeats and delays, nodes whose power fails at any fence.
//!
//! A seed is a story. It determines all events, and the same seed does the same in another process: the printed line
//! of a failure is enough to see it again (`COREPLANE_WORLD=seed`, or several separated by commas, which also prints
//! the result of each).
//!
//! Checked after every step and at the end:
//!
//! - one leader of a term, and one vote of a node in a term;
//! - the same entry at the same index, on every node that has applied it;
//! - an acknowledged write is never lost, and a read that was begun after it sees it, or a later one.
//!
//! `COREPLANE_TEST_SCALE=full` runs ten thousand seeds.

mod cluster;
mod draw;
mod history;
mod network;
mod seat;
mod troubles;

use cluster::{Faults, Report, World};
use coreplane_mvcc::MapKind;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The variable that names the seeds.
const NAMED: &str = "COREPLANE_WORLD";

/// Each fault, each medium and each size of the ring is among these.
const REPLAYED: std::ops::Range<u64> = 0..12;

/// One test at a time: the effects of a second thread do not depend on the seed.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The seeds that the user has asked for.
fn named() -> Option<Vec<u64>> {
    let named = std::env::var(NAMED).ok()?;
    let seed = |text: &str| text.parse().expect("COREPLANE_WORLD has seeds");
    Some(named.split(',').map(seed).collect())
}

fn seeds() -> Vec<u64> {
    named().unwrap_or_else(|| match std::env::var("COREPLANE_TEST_SCALE").as_deref() {
        Ok("full") => (0..10_000).collect(),
        _ => (0..1_000).collect(),
    })
}

/// The printed line of a story: its result, with the hash of all messages in it.
fn line(seed: u64, kind: MapKind, report: &Report) -> String {
    format!("seed {seed} of {kind:?}: {report:?}")
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

#[test]
fn clusters_keep_what_they_acknowledge() {
    let _alone = alone();
    let (mut acknowledged, mut reads, mut elections) = (0, 0, 0);
    let (mut installed, mut lost) = (0, 0);
    for seed in seeds() {
        for kind in MapKind::ALL {
            let report = World::new(kind, seed, faults(seed)).run();
            if seed % 20 == 7 {
                let again = World::new(kind, seed, faults(seed)).run();
                assert_eq!(report, again, "seed {seed} of {kind:?} is not the same twice");
            }
            if named().is_some() {
                println!("{}", line(seed, kind, &report));
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
    if named().is_none() {
        assert!(installed > 0, "no follower was ever so far behind");
        assert!(lost > 0, "no pool was ever lost");
    }
}

/// This program, started again, prints the same result for a seed as here.
#[test]
fn seeds_are_the_same_in_a_fresh_process() {
    let _alone = alone();
    let seeds = named().unwrap_or_else(|| REPLAYED.collect());
    let names: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let fresh = Command::new(std::env::current_exe().expect("the path of this program"))
        .args(["clusters_keep_what_they_acknowledge", "--exact", "--nocapture"])
        .env(NAMED, names.join(","))
        .output()
        .expect("this program, started again");
    let said = String::from_utf8_lossy(&fresh.stdout);
    let complaint = String::from_utf8_lossy(&fresh.stderr);
    assert!(fresh.status.success(), "the fresh process fails:\n{said}{complaint}");
    // The test harness may print its own text before on the same line.
    let found: Vec<&str> =
        said.lines().filter_map(|it| it.find("seed ").and_then(|at| it.get(at..))).collect();
    let mut expected = Vec::new();
    for seed in seeds {
        for kind in MapKind::ALL {
            let report = World::new(kind, seed, faults(seed)).run();
            expected.push(line(seed, kind, &report));
        }
    }
    assert_eq!(found, expected, "a seed is another story in a fresh process");
}
