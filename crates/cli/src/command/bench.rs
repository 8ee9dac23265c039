//! Measuring.

use crate::arguments::Bench;
use crate::failure::{self, Failure, Outcome};
use crate::json;
use crate::message;
use crate::pool;
use crate::terms;
use coreplane::{EngineChoice, Placement, Store, StoreConfig};
use coreplane_bench::record::{check_value, mix, write_key, write_value};
use coreplane_bench::{
    EngineTarget, Error, FilterReport, Floor, FloorIndex, OverwriteReport, Plan, Report, Step,
    Target, Workload, overwrite_for, run as drive, run_filter,
};
use coreplane_server::administration::matrix_facts;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

mod competition;
mod maps;
mod occupancy;
mod ownership;
mod resync;
mod scratch;

pub(crate) fn run(bench: Bench) -> Outcome {
    let plan = bench.plan;
    plan.check()?;
    let works: Vec<Work<'_>> =
        bench.workload.iter().map(|name| Work::of(name)).collect::<Result<_, _>>()?;
    // A pool that is made for the first step has room for all.
    let step = |work: &Work<'_>| if let Work::Step(step) = work { Some(*step) } else { None };
    let steps: Vec<Step> = works.iter().filter_map(step).collect();
    let mut code = 0;
    let is_step = |work: &Work<'_>| matches!(work, Work::Step(_));
    for works in works.chunk_by(|one, next| is_step(one) && is_step(next)) {
        if let [Work::Special(name)] = works {
            code = code.max(special(name, &bench, &plan)?);
            continue;
        }
        let these: Vec<Step> = works.iter().filter_map(step).collect();
        let store = open(&bench, &plan, &steps)?;
        let measured = measure(&bench, &plan, &these, &store);
        store.close()?;
        measured?;
    }
    Ok(code)
}

/// The work that a name stands for.
enum Work<'n> {
    /// It works on the pool, which neighbouring steps share.
    Step(Step),
    /// It opens what it needs.
    Special(&'n str),
}

const SPECIALS: [&str; 9] = [
    "open",
    "floor",
    "filter",
    "competition",
    "occupancy",
    "commits",
    "turnover",
    "interference",
    "resync",
];

impl<'n> Work<'n> {
    fn of(name: &'n str) -> Result<Self, Failure> {
        if SPECIALS.contains(&name) {
            return Ok(Self::Special(name));
        }
        let refuse =
            |what| Failure::new(failure::USAGE, format!("{what}, {}", SPECIALS.join(", ")));
        name.parse().map(Self::Step).map_err(refuse)
    }
}

fn special(name: &str, bench: &Bench, plan: &Plan) -> Outcome {
    match name {
        "floor" => floor(bench, plan)?,
        "open" => first_operations(bench, plan)?,
        "filter" => filter(bench, plan)?,
        "competition" => competition::run(bench, plan)?,
        "occupancy" => occupancy::run(bench, plan)?,
        "commits" => maps::commits(bench, plan)?,
        "turnover" => maps::turnover(bench, plan)?,
        "interference" => maps::interference(bench, plan)?,
        _ => return resync::run(bench, plan),
    }
    Ok(0)
}

/// Opens, by `open`, a pool that is written to.
fn opened(
    bench: &Bench,
    open: impl FnOnce(&StoreConfig) -> Result<Store, Failure>,
) -> Result<Store, Failure> {
    if bench.pool.pool.is_none() && bench.engine != Some(EngineChoice::Model) {
        // Not the default pool: that one is for data.
        let message = "bench needs --pool, a pool to write to, such as /dev/shm/bench.pool";
        return Err(Failure::new(failure::USAGE, message));
    }
    let config = bench.pool.config().check_reads(!bench.no_check_reads);
    let config = config.durability(bench.durability);
    let config = pool::with(config, bench.engine, StoreConfig::engine);
    let store = open(&config)?;
    pool::refuse_device(&store, config.path())?;
    Ok(store)
}

fn open(bench: &Bench, plan: &Plan, steps: &[Step]) -> Result<Store, Failure> {
    let records = Step::plans(steps, plan).map(|(step, plan)| plan.records_after(step.workload));
    let records = records.max().unwrap_or(0);
    // Each record with its header; twice, so that cleaning does not dominate the measurement.
    let data = records.saturating_mul(2 * (plan.key_size + plan.value_size + 48) as u64);
    let size = bench.size.unwrap_or(data.saturating_add(256 << 20));
    let path = bench.pool.path();
    let is_there = path.exists();
    let store = opened(bench, |config| {
        let config = bench.geometry.of(config.clone().size(size).placement(bench.index));
        let store = bench.paths.of(config).open_or_create();
        let store = store.map_err(|error| Failure::of_pool(&error, &path))?;
        pool::warn(&store);
        Ok(store)
    })?;
    if is_there && !bench.beside_others {
        close_if_refused(&store, ownership::check(&store, &path))?;
    }
    let engine = store.engine();
    if steps.iter().any(|step| step.workload == Workload::E) && engine.ordered().is_none() {
        let engine = engine.name();
        store.close()?;
        return Err(Error::Plan(format!(
            "workload e scans records in order of their keys; engine {engine} has no order"
        ))
        .into());
    }
    Ok(store)
}

/// Closes a pool that is not to be measured.
fn close_if_refused(store: &Store, checked: Result<(), Failure>) -> Result<(), Failure> {
    if checked.is_err() {
        store.close()?;
    }
    checked
}

fn measure(bench: &Bench, plan: &Plan, steps: &[Step], store: &Store) -> Result<(), Failure> {
    let target = EngineTarget(&**store.engine());
    let mut context = json!({
        "durability": terms::durability_name(bench.durability),
        "check_reads": !bench.no_check_reads,
        "medium": store.medium().name,
        "index": store.index(),
    });
    if let Some(bytes) = bench.pool.pool.as_deref().and_then(coreplane::admin::page_size_at) {
        context["page_bytes"] = bytes.into();
    }
    if let Some(entries) = bench.pool.pool.as_deref().and_then(coreplane::admin::fan_out_at) {
        context["fan_out"] = entries.into();
    }
    if let Some(matrix) = store.matrix() {
        context["matrix"] = Value::Object(matrix_facts(matrix));
    }
    for (step, plan) in Step::plans(steps, plan) {
        let is_load = matches!(step.workload, Workload::Fill | Workload::Load);
        if !is_load && !is_loaded(store, &target, &plan)? {
            show(bench, &drive(&target, &plan, Workload::Load)?, &context)?;
        }
        // A phase is silent until it ends; the line tells a waiting user which phase runs.
        message::tell(format_args!("{} begins", step.workload.name()));
        show(bench, &drive(&target, &plan, step.workload)?, &context)?;
    }
    Ok(())
}

/// True if the pool has the records that are to be read. It may have as many others: of other users, or with keys of
/// another length.
fn is_loaded(store: &Store, target: &EngineTarget<'_>, plan: &Plan) -> Result<bool, Failure> {
    let mut is_there = store.engine().len()? >= plan.records;
    let (mut session, mut key) = (target.session()?, vec![0; plan.key_size]);
    for number in [0, plan.records.saturating_sub(1)] {
        write_key(number, &mut key);
        is_there = is_there && session.get(&key, &mut |_| {})?;
    }
    Ok(is_there)
}

/// Opens a loaded pool, reads one record and rewrites it; a line with the time of each, all from the beginning of the
/// open.
fn first_operations(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let started = Instant::now();
    let milliseconds = || started.elapsed().as_secs_f64() * 1e3;
    let mut open_ms = 0.0;
    let store = opened(bench, |config| {
        let store = pool::open(config)?;
        open_ms = milliseconds();
        Ok(store)
    })?;
    let target = EngineTarget(&**store.engine());
    let number = mix(plan.seed) % plan.records;
    let (mut key, mut value) = (vec![0; plan.key_size], vec![0; plan.value_size]);
    write_key(number, &mut key);
    let mut checked = Ok(0);
    let mut session = target.session()?;
    let visit = &mut |value: &[u8]| checked = check_value(number, value, plan.value_size);
    let found = session.get(&key, visit)?;
    let version = checked.map_err(|what| Error::WrongValue { number, what })?;
    let read = milliseconds();
    if !found && !bench.beside_others {
        close_if_refused(&store, ownership::check(&store, &bench.pool.path()))?;
    }
    write_value(number, version + 1, &mut value);
    session.put(&key, &value)?;
    let written = milliseconds();
    drop(session);
    if bench.pool.json {
        let line = json!({
            "phase": "open", "engine": target.name(), "index": store.index(), "threads": 1,
            "check_reads": !bench.no_check_reads,
            "operations": 2, "records": plan.records, "misses": u64::from(!found),
            "open_ms": open_ms, "first_get_ms": read, "first_put_ms": written,
        });
        json::write_line(&mut io::stdout().lock(), &line)?;
    } else {
        let found = if found { "" } else { " (found nothing)" };
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "open             opened after {open_ms:.2} ms, read{found} after {read:.2} ms, written \
             after {written:.2} ms"
        )?;
    }
    if bench.then_ms > 0 {
        // A program that times the process reads the line before, so it must be there by now.
        io::stdout().flush()?;
        let time = Duration::from_millis(bench.then_ms);
        let report = overwrite_for(&**store.engine(), plan, time)?;
        let OverwriteReport { puts_per_s, max_ns, refused_puts, .. } = report;
        let line = format!(
            "afterwards       puts {puts_per_s:.0}/s  max {max_ns} ns  refused {refused_puts}"
        );
        show_report(bench, &report, &line)?;
    }
    Ok(store.close()?)
}

fn floor(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    // Beside the pool, so that both are on one mount; removed as soon as it is open.
    let path = match &bench.pool.pool {
        Some(pool) => {
            let mut name = pool.as_os_str().to_owned();
            name.push(format!(".floor-{}", std::process::id()));
            PathBuf::from(name)
        }
        None => PathBuf::from(format!("/dev/shm/coreplane-floor-{}", std::process::id())),
    };
    let placements: &[FloorIndex] = match bench.index {
        Placement::Auto => &[FloorIndex::Pmem, FloorIndex::Dram],
        Placement::Pool => &[FloorIndex::Pmem],
        Placement::Dram => &[FloorIndex::Dram],
    };
    let each = placements.iter().flat_map(|placement| [(placement, false), (placement, true)]);
    for (placement, is_seen) in each {
        let floor = Floor::new(&path, bench.pool.media.clone(), plan, *placement)?.seen(is_seen);
        let index = if *placement == FloorIndex::Pmem { "pmem" } else { "dram" };
        let context =
            json!({"durability": "strict", "medium": floor.medium().name, "index": index});
        for report in floor.run(plan)? {
            show(bench, &report, &context)?;
        }
    }
    Ok(())
}

/// The filter of a matrix's group by itself, without a pool.
fn filter(bench: &Bench, plan: &Plan) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    run_filter(plan, &mut |report| {
        if bench.pool.json {
            return json::write_line(&mut out, &serde_json::to_value(&report)?);
        }
        let counted = |count: Option<u64>, what: &str| match count {
            Some(count) => format!("   {count} false \"{what}\""),
            None => String::new(),
        };
        let FilterReport { phase, keys, operations, ns_per_operation, bits_per_key, .. } = report;
        writeln!(
            out,
            "{phase:<20} {keys:>10} keys {operations:>11} operations {ns_per_operation:>7.1} ns   \
             {bits_per_key:.1} bits a key   made anew {} times{}{}",
            report.rebuilds,
            counted(report.false_positives, "perhaps"),
            counted(report.false_negatives, "surely not"),
        )?;
        Ok(())
    })
}

/// Writes a report as a line of JSON, with the option that holds for all reads of stores.
fn write_report(
    out: &mut impl Write,
    bench: &Bench,
    report: &impl Serialize,
) -> Result<(), Failure> {
    let mut line = serde_json::to_value(report)?;
    line["check_reads"] = (!bench.no_check_reads).into();
    json::write_line(out, &line)
}

/// Shows a report: as JSON, or as this line.
fn show_report(bench: &Bench, report: &impl Serialize, line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if bench.pool.json {
        return write_report(&mut out, bench, report);
    }
    Ok(writeln!(out, "{line}")?)
}

/// Writes a line for a phase.
fn show(bench: &Bench, report: &Report, context: &Value) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if bench.pool.json {
        let mut line = serde_json::to_value(report)?;
        if let (Some(line), Some(context)) = (line.as_object_mut(), context.as_object()) {
            line.extend(context.clone());
        }
        return json::write_line(&mut out, &line);
    }
    let each = |count: u64| count as f64 / report.operations.max(1) as f64;
    writeln!(
        out,
        "{:<16} {:<10} {:>3} threads {:>12.0} ops/s   p50 {:>7} ns  p99 {:>7} ns  p99.9 {:>8} ns   \
         flushes/op {:.2}  fences/op {:.2}  DRAM {}",
        report.phase,
        report.engine,
        report.threads,
        report.ops_per_s,
        report.p50_ns,
        report.p99_ns,
        report.p999_ns,
        each(report.flushes),
        each(report.fences),
        terms::human(report.dram_bytes),
    )?;
    Ok(())
}
