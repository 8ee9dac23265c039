//! Every peer and floor does every workload, in both settings, and finds what it wrote.

use coreplane_bench::record::{write_key, write_value};
use coreplane_bench::{Distribution, Plan, Result, Step, Workload, run};
use coreplane_bench_peers::{NAMES, Safety, open};
use std::path::Path;

#[test]
fn every_peer_does_every_workload() -> Result<()> {
    let plan = |safety| {
        // Syncs may be those of a disk.
        let records = if safety == Safety::Power { 100 } else { 2000 };
        Plan { records, operations: records, threads: 2, scan: Some(10), ..Plan::default() }
    };
    let workloads = [
        Workload::Fill,
        Workload::Load,
        Workload::A,
        Workload::B,
        Workload::C,
        Workload::E,
        Workload::E,
        Workload::F,
        Workload::Mget,
        Workload::Overwrite,
    ];
    let steps = workloads
        .map(|workload| Step { distribution: Some(Distribution::Uniform), ..workload.into() });
    for name in NAMES {
        for safety in [Safety::Kill, Safety::Power] {
            let plan = plan(safety);
            let place = tempfile::tempdir().expect("a directory");
            let peer = open(name, place.path(), safety, &plan, &steps)?;
            for (step, plan) in Step::plans(&steps, &plan) {
                let report = run(&*peer, &plan, step.workload)?;
                use Workload::{Fill, Load, Overwrite};
                let reads = !matches!(step.workload, Fill | Load | Overwrite);
                assert_eq!(report.hits_verified > 0, reads, "{report:?}");
                if step.workload == Workload::E {
                    // Ten records each, but at the end of all.
                    assert!(report.hits_verified > plan.operations * 8, "{report:?}");
                }
                assert_eq!(report.engine, name);
                let floor = name.starts_with("floor");
                if step.workload == Workload::Load && !floor {
                    let syncs = if safety == Safety::Power { plan.records / 10 } else { 0 };
                    assert_eq!(report.fences, syncs, "{report:?}");
                }
            }
            assert!(peer.settings().as_object().is_some_and(|settings| !settings.is_empty()));
        }
    }
    Ok(())
}

/// Tells the child of the test below which peer, where.
const VICTIM: &str = "COREPLANE_PEER_VICTIM";
const RECORDS: u64 = 500;

fn key_and_value(number: u64) -> ([u8; 16], [u8; 100]) {
    let (mut key, mut value) = ([0; 16], [0; 100]);
    write_key(number, &mut key);
    write_value(number, 7, &mut value);
    (key, value)
}

/// As a child it writes, and ends without a word to the peer; as the parent it looks what is there.
#[test]
fn what_was_written_survives_a_process_that_ends_at_once() -> Result<()> {
    let plan = Plan { records: RECORDS, ..Plan::default() };
    let reopen = |name: &str, place: &Path| {
        open(name, place, Safety::Kill, &plan, &[Step::from(Workload::Load)])
    };
    if let Ok(victim) = std::env::var(VICTIM) {
        let (name, place) = victim.split_once('@').expect("a name and a place");
        let peer = reopen(name, Path::new(place))?;
        let mut session = peer.session()?;
        for number in 0..RECORDS {
            let (key, value) = key_and_value(number);
            session.put(&key, &value)?;
        }
        std::process::abort();
    }
    for name in NAMES.into_iter().filter(|name| !name.starts_with("floor")) {
        let place = tempfile::tempdir().expect("a directory");
        let this = std::env::current_exe().expect("this test");
        let status = std::process::Command::new(this)
            .args(["--exact", "what_was_written_survives_a_process_that_ends_at_once"])
            .env(VICTIM, format!("{name}@{}", place.path().display()))
            .output()
            .expect("the child runs")
            .status;
        assert!(status.code().is_none(), "{name}: the child was to abort, but: {status}");
        let peer = reopen(name, place.path())?;
        let mut session = peer.session()?;
        for number in 0..RECORDS {
            let (key, value) = key_and_value(number);
            let mut same = false;
            session.get(&key, &mut |found| same = found == value)?;
            assert!(same, "{name} has lost record {number}");
        }
    }
    Ok(())
}

#[test]
fn strangers_and_plans_that_cannot_be_are_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let plan = Plan::default();
    assert!(open("nosuchdb", place.path(), Safety::Kill, &plan, &[]).is_err());
    let none = Plan { records: 0, ..plan };
    assert!(open("redb", place.path(), Safety::Kill, &none, &[]).is_err());
}
