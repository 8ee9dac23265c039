//! Every workload on the reference engine, the floors, and stores that lie.

use coreplane_bench::{
    Costs, Distribution, EngineTarget, Error, Floor, FloorIndex, Plan, Result, Session, Step,
    Target, Workload, run,
};
use coreplane_conformance::model::ModelEngine;
use coreplane_engine::{Engine, WriteOptions};
use coreplane_pmem::MediaChoice;

const ALL: [Workload; 9] = [
    Workload::Load,
    Workload::A,
    Workload::B,
    Workload::C,
    Workload::D,
    Workload::E,
    Workload::F,
    Workload::Mget,
    Workload::Overwrite,
];

fn plan(threads: usize) -> Plan {
    Plan { records: 1000, operations: 5003, threads, ..Plan::default() }
}

#[test]
fn every_workload_hits_what_was_loaded() -> Result<()> {
    for threads in [1, 3] {
        for distribution in [
            None,
            Some(Distribution::Uniform),
            Some(Distribution::Zipfian),
            Some(Distribution::Latest),
        ] {
            let engine = ModelEngine::new();
            for workload in ALL {
                let plan = Plan { distribution, ..plan(threads) };
                let report = run(&EngineTarget(&engine), &plan, workload)?;
                let operations = if workload == Workload::Load { 1000 } else { 5003 };
                assert_eq!(report.operations, operations, "{report:?}");
                let reads = !matches!(workload, Workload::Load | Workload::Overwrite);
                assert_eq!(report.hits_verified > 0, reads, "{report:?}");
                assert!(report.seconds > 0.0 && report.p50_ns <= report.p999_ns);
            }
            assert!(engine.len()? > 1000, "d and e insert");
        }
    }
    Ok(())
}

#[test]
fn the_same_plan_makes_the_same_operations() -> Result<()> {
    let stores = [ModelEngine::new(), ModelEngine::new()];
    let mut contents = Vec::new();
    for store in &stores {
        for workload in [Workload::Load, Workload::A, Workload::D, Workload::F] {
            run(&EngineTarget(store), &plan(1), workload)?;
        }
        let mut all = Vec::new();
        store.iterate(0, usize::MAX, &mut |entry| {
            all.push((entry.key.to_vec(), entry.record.map(|record| record.value.to_vec())));
        })?;
        contents.push(all);
    }
    assert_eq!(contents[0], contents[1]);
    let other = ModelEngine::new();
    run(&EngineTarget(&other), &Plan { seed: 2, ..plan(1) }, Workload::Overwrite)?;
    assert_ne!(other.len()?, 1000, "another seed, and nothing loaded: other records");
    Ok(())
}

#[test]
fn a_report_has_the_names_that_scripts_rely_on() -> Result<()> {
    let engine = ModelEngine::new();
    let report = run(&EngineTarget(&engine), &plan(1), Workload::Load)?;
    let json = serde_json::to_value(&report).map_err(|error| Error::Plan(error.to_string()))?;
    for name in [
        "phase",
        "engine",
        "threads",
        "operations",
        "seconds",
        "ops_per_s",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "read_mean_ns",
        "write_mean_ns",
        "flushes",
        "fences",
        "dram_bytes",
    ] {
        assert!(json.get(name).is_some(), "{name} is missing in {json}");
    }
    Ok(())
}

#[test]
fn floors_find_every_record_at_one_fence_a_put() -> Result<()> {
    for (index, lines) in [(FloorIndex::Dram, 0), (FloorIndex::Pmem, 1)] {
        let place = tempfile::tempdir().map_err(|error| Error::Plan(error.to_string()))?;
        let plan = plan(2);
        let floor = Floor::new(&place.path().join("floor"), MediaChoice::Auto, &plan, index)?;
        assert!(!place.path().join("floor").exists());
        let reports = floor.run(&plan)?;
        let phases: Vec<_> = reports.iter().map(|report| report.phase.as_str()).collect();
        assert_eq!(phases, ["floor-put", "floor-overwrite", "floor-get", "floor-mget"]);
        for report in &reports[..2] {
            assert_eq!(report.fences, report.operations, "{report:?}");
            // Records of 144 bytes one after the other: each touches three lines.
            assert_eq!(report.flushes, report.operations * (3 + lines), "{report:?}");
        }
        for report in &reports[2..] {
            assert_eq!(report.hits_verified, 5003, "{report:?}");
            assert_eq!((report.flushes, report.fences), (0, 0), "{report:?}");
        }
        // What it inserts was loaded: there is no room for more.
        let scanned = Plan { records: 700, operations: 1000, scan: Some(5), ..plan };
        let report = run(&floor, &scanned, Workload::E)?;
        // Five records each, but where a thread's log ends; and one operation in twenty inserts.
        let scans = report.hits_verified / 5;
        assert!((900..980).contains(&scans), "{report:?}");
        let file = place.path().join("seen");
        let reports = Floor::new(&file, MediaChoice::Auto, &plan, index)?.seen(true).run(&plan)?;
        let phases: Vec<_> = reports.iter().map(|report| report.phase.as_str()).collect();
        assert_eq!(phases, ["floor-put-seen", "floor-overwrite-seen"]);
        for report in &reports {
            assert_eq!(report.fences, report.operations, "{report:?}");
        }
    }
    Ok(())
}

/// Answers every read with the value that was written last, whatever its key.
struct Forgetful {
    last: std::sync::Mutex<Vec<u8>>,
}

struct ForgetfulSession<'a>(&'a Forgetful);

impl Target for Forgetful {
    fn name(&self) -> String {
        "forgetful".to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(ForgetfulSession(self)))
    }

    fn costs(&self) -> Costs {
        Costs::default()
    }
}

impl Session for ForgetfulSession<'_> {
    fn get(&mut self, _key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let last = self.0.last.lock().map_err(|_| Error::Panicked)?;
        visit(&last);
        Ok(true)
    }

    fn put(&mut self, _key: &[u8], value: &[u8]) -> Result<()> {
        *self.0.last.lock().map_err(|_| Error::Panicked)? = value.to_vec();
        Ok(())
    }
}

#[test]
fn a_store_that_lies_is_found_out() -> Result<()> {
    let store = Forgetful { last: std::sync::Mutex::default() };
    run(&store, &plan(1), Workload::Load)?;
    for workload in [Workload::A, Workload::C, Workload::F, Workload::Mget] {
        let found = run(&store, &plan(1), workload);
        assert!(matches!(found, Err(Error::WrongValue { .. })), "{found:?}");
    }
    assert!(matches!(run(&store, &plan(1), Workload::E), Err(Error::Plan(_))));
    Ok(())
}

/// The reference engine, whose scans are wrong in the way that is asked for.
struct Jumbled<'a> {
    engine: EngineTarget<'a>,
    /// Shows the last record first; else one more than it was asked for.
    is_reversed: bool,
}

impl Target for Jumbled<'_> {
    fn name(&self) -> String {
        "jumbled".to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(JumbledSession(self, self.engine)))
    }

    fn costs(&self) -> Costs {
        Costs::default()
    }

    fn is_ordered(&self) -> bool {
        true
    }
}

struct JumbledSession<'a>(&'a Jumbled<'a>, EngineTarget<'a>);

impl Session for JumbledSession<'_> {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.1.get(key, visit)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.1.put(key, value)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut shown = Vec::new();
        let limit = limit + usize::from(!self.0.is_reversed);
        self.1.scan(start, limit, &mut |key, value| shown.push((key.to_vec(), value.to_vec())))?;
        if self.0.is_reversed {
            shown.reverse();
        }
        shown.iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}

#[test]
fn a_record_that_is_not_found_ends_the_run() -> Result<()> {
    for workload in [Workload::C, Workload::Mget, Workload::F, Workload::E] {
        let engine = ModelEngine::new();
        run(&EngineTarget(&engine), &plan(1), Workload::Load)?;
        let mut keys = Vec::new();
        engine.iterate(0, usize::MAX, &mut |entry| keys.push(entry.key.to_vec()))?;
        // Scans show the next record instead, unless there is none.
        let forgotten = if workload == Workload::E { 1 } else { 10 };
        for key in keys.iter().step_by(forgotten) {
            let _outcome = engine.delete(key, &WriteOptions::default())?;
        }
        let found = run(&EngineTarget(&engine), &plan(1), workload);
        assert!(
            matches!(found, Err(Error::WrongValue { what: "it is not there", .. })),
            "{workload:?}: {found:?}"
        );
    }
    Ok(())
}

#[test]
fn scans_out_of_order_and_too_long_ones_are_found_out() -> Result<()> {
    for (is_reversed, what) in [(true, "out of order"), (false, "too many")] {
        let engine = ModelEngine::new();
        let store = Jumbled { engine: EngineTarget(&engine), is_reversed };
        run(&store, &plan(1), Workload::Load)?;
        let found = run(&store, &plan(1), Workload::E);
        assert!(
            matches!(found, Err(Error::WrongValue { what: said, .. }) if said.contains(what)),
            "{found:?}"
        );
    }
    Ok(())
}

#[test]
fn a_scan_has_the_length_of_the_plan_and_a_second_e_inserts_anew() -> Result<()> {
    let engine = ModelEngine::new();
    let plan = Plan { scan: Some(1), ..plan(2) };
    let steps = [Workload::Fill, Workload::Load, Workload::E, Workload::E].map(Step::from);
    let mut lens = Vec::new();
    for (step, plan) in Step::plans(&steps, &plan) {
        let report = run(&EngineTarget(&engine), &plan, step.workload)?;
        lens.push(engine.len()?);
        if step.workload == Workload::E {
            assert!(report.hits_verified < report.operations);
        }
    }
    assert_eq!(lens[..2], [900, 1000], "the load leaves out what is there");
    assert!(lens[2] > 1200 && lens[3] > lens[2] + 200, "{lens:?}");
    Ok(())
}
