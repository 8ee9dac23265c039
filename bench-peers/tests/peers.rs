//! Every peer and floor does every workload, in both settings, and finds what it wrote.

use coreplane_bench::{Distribution, Plan, Result, Step, Workload, run};
use coreplane_bench_peers::{NAMES, Safety, open};

#[test]
fn every_peer_does_every_workload() -> Result<()> {
    let plan = Plan { records: 2000, operations: 3000, threads: 2, ..Plan::default() };
    let workloads = [
        Workload::Load,
        Workload::A,
        Workload::B,
        Workload::C,
        Workload::F,
        Workload::Mget,
        Workload::Overwrite,
    ];
    let steps =
        workloads.map(|workload| Step { workload, distribution: Some(Distribution::Uniform) });
    for name in NAMES {
        for safety in [Safety::Kill, Safety::Power] {
            let place = tempfile::tempdir().expect("a directory");
            let peer = open(name, place.path(), safety, &plan, &steps)?;
            for step in steps {
                let report = run(&*peer, &step.applied_to(&plan), step.workload)?;
                assert_eq!(report.misses, 0, "{report:?}");
                let reads = !matches!(step.workload, Workload::Load | Workload::Overwrite);
                assert_eq!(report.hits_verified > 0, reads, "{report:?}");
                assert_eq!(report.engine, name);
                let floor = name.starts_with("floor");
                if step.workload == Workload::Load && !floor {
                    let syncs = if safety == Safety::Power { plan.records } else { 0 };
                    assert_eq!(report.fences, syncs, "{report:?}");
                }
            }
            assert!(peer.settings().as_object().is_some_and(|settings| !settings.is_empty()));
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
