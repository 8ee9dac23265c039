//! The page: what is promised first.

use serde_json::Value;

use super::Plan;
use super::cell::{Cell, Part};
use super::walk::Kind;
use crate::Rounds;
use crate::record::Record;
use crate::table::{Table, figure};

/// What a part is called in the results.
pub(super) fn label(cell: &Cell) -> String {
    let threads = cell.threads;
    match &cell.part {
        Part::Single => format!("single points, {threads} threads"),
        Part::Batch { is_sorted: true } => format!("batches, {threads} threads"),
        Part::Batch { is_sorted: false } => {
            format!("batches, {threads} threads, tags as TSBS has them")
        }
        Part::Space(Kind::Integers) => "space, integers".to_owned(),
        Part::Space(Kind::Decimals) => "space, decimals".to_owned(),
        Part::Series { has_two_tags: false } => "series".to_owned(),
        Part::Series { has_two_tags: true } => "series, two tags".to_owned(),
        Part::Fill => "fill".to_owned(),
        Part::Reopen { .. } => "reopen".to_owned(),
    }
}

/// Takes the figures of a part in.
pub(super) fn take(results: &mut Rounds, label: &str, line: &Value) {
    let figures = line.as_object().into_iter().flatten();
    for (name, value) in figures.filter_map(|(name, value)| Some((name, value.as_f64()?))) {
        results.add(name, label, value);
    }
}

/// A value that must not be greater than a goal: value, goal, verdict.
fn at_most(value: Option<f64>, goal: f64) -> [String; 3] {
    let verdict = match value {
        Some(value) if value <= goal => "met",
        Some(_) => "**missed**",
        None => "not measured",
    };
    [figure(value), format!("≤ {goal}"), verdict.to_owned()]
}

fn goals(results: &Rounds, plan: &Plan) -> String {
    let mut table = Table::new(["what", "is", "goal", "verdict"]);
    let mut row = |what: String, name: &str, of: &str, scale: f64, goal: f64| {
        let value = results.median(name, &format!("memory, {of}")).map(|it| it * scale);
        table.row([what].into_iter().chain(at_most(value, goal)));
    };
    let bytes = |what: &str| format!("bytes a point in sealed chunks, {what}");
    row(bytes("TSBS's integers"), "sealed_bytes_each", "space, integers", 1.0, 1.5);
    row(bytes("floats of four decimals"), "sealed_bytes_each", "space, decimals", 1.0, 3.5);
    let series = plan.series as f64;
    let gib = (1_u64 << 30) as f64;
    let what = format!("GiB of DRAM of {series} series");
    row(what, "dram_bytes", "series", 1.0 / gib, series / 1e6);
    let million = plan.reopen_points as f64 / 1e6;
    let what = format!("seconds until the first right answer, {million} M points, not closed");
    row(what, "seconds", "reopen", 1.0, 1.0);
    table.finish()
}

fn of(results: &Rounds, rows: &[String], columns: &[(&str, &str, f64)]) -> String {
    let headings = columns.iter().map(|(_, heading, _)| (*heading).to_owned());
    let mut table = Table::new(["".to_owned()].into_iter().chain(headings));
    for row in rows {
        let cells = columns
            .iter()
            .map(|(name, _, scale)| figure(results.median(name, row).map(|found| found * scale)));
        table.row([row.clone()].into_iter().chain(cells));
    }
    table.finish()
}

/// All of it.
pub(super) fn sections(record: &mut Record, results: &Rounds, plan: &Plan) {
    record.section("Goals", &goals(results, plan));
    let rows = |what: &[&str]| -> Vec<String> {
        let places = ["memory", "disk"];
        let all = places.iter().flat_map(|place| {
            what.iter().flat_map(move |what| {
                let of =
                    |threads: &u64| format!("{place}, {}", what.replace('N', &threads.to_string()));
                plan.threads.iter().map(of).collect::<Vec<String>>()
            })
        });
        all.filter(|row| results.median("points", row).is_some()).collect()
    };
    let single = [
        ("per_second", "points a second", 1.0),
        ("mean_us", "mean µs", 1.0),
        ("p50_us", "p50 µs", 1.0),
        ("p99_us", "p99 µs", 1.0),
        ("processor_us", "processor µs a point", 1.0),
        ("fences", "fences a point", 1.0),
        ("flushes", "flushes a point", 1.0),
    ];
    record.section(
        "Single points, each durable before the next one of its thread",
        &of(results, &rows(&["single points, N threads"]), &single),
    );
    let batch = [
        ("points_per_second", "thousand points a second", 1e-3),
        ("lines_per_second", "thousand lines a second", 1e-3),
        ("parse_ns", "parse, ns a point and thread", 1.0),
        ("write_ns", "write, ns a point and thread", 1.0),
        ("processor_ns", "processor ns a point", 1.0),
        ("batch_p50_us", "batch, p50 µs", 1.0),
        ("batch_p99_us", "batch, p99 µs", 1.0),
    ];
    let names = ["batches, N threads", "batches, N threads, tags as TSBS has them"];
    record
        .section("Batches of 5,000 lines, parsed and written", &of(results, &rows(&names), &batch));
    let space = [
        ("sealed_bytes_each", "bytes a point in chunks", 1.0),
        ("used_bytes_each", "bytes a point of pages in use", 1.0),
        ("seal_seconds", "seconds of the last sealing", 1.0),
    ];
    let names = ["memory, space, integers", "memory, space, decimals"].map(str::to_owned);
    record.section("Space", &of(results, &names, &space));
    let series = [
        ("per_second", "series made a second", 1.0),
        ("names_bytes_each", "bytes of names, each", 1.0),
        ("dram_unsealed_bytes_each", "bytes of DRAM each, with a point in the head", 1.0),
        ("dram_bytes_each", "bytes of DRAM each, sealed", 1.0),
    ];
    let names = ["memory, series", "memory, series, two tags"].map(str::to_owned);
    record.section("Series, each with ten tags, and with two", &of(results, &names, &series));
    let reopen = [
        ("seconds", "seconds to the first right answer", 1.0),
        ("open_seconds", "seconds of the opening", 1.0),
        ("head_points", "points in heads", 1.0),
    ];
    record.section(
        "A store that was not closed",
        &of(results, &["memory, reopen".to_owned()], &reopen),
    );
}
