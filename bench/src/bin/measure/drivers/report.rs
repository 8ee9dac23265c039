//! The page: ratios first.

use serde_json::Value;

use super::Plan;
use crate::Rounds;
use crate::table::{Table, figure};

/// What the paced part is called in the results.
pub(super) const PACED: &str = "paced";

const COLUMNS: [&str; 7] =
    ["per_second", "mean_us", "p50_us", "p99_us", "processor_us", "rates_skew", "writes_skew"];

/// What a cell of the busy part is called in the results.
pub(super) fn busy_cell(len: u64, sources: u64) -> String {
    format!("{len} bytes, {sources} sources")
}

/// Takes the figures of a cell in.
pub(super) fn take(results: &mut Rounds, what: &str, whose: &str, line: &Value) {
    for column in COLUMNS {
        if let Some(found) = line[column].as_f64() {
            results.add(&format!("{what} {column}"), whose, found);
        }
    }
}

/// multi against the others, and what each did.
pub(super) fn busy(results: &Rounds, plan: &Plan) -> String {
    let drivers = &plan.drivers;
    let others: Vec<&String> = drivers.iter().filter(|driver| *driver != "multi").collect();
    let first = || ["bytes, sources".to_owned()].into_iter();
    let ratios = others
        .iter()
        .flat_map(|other| ["a second", "mean", "p99"].map(|what| format!("multi/{other}: {what}")));
    let mut ratios = Table::new(first().chain(ratios));
    let shown = drivers.iter().flat_map(|driver| {
        ["thousands a second", "mean µs", "p99 µs", "processor µs"]
            .map(|what| format!("{driver}: {what}"))
    });
    let mut figures = Table::new(first().chain(shown));
    for &len in &plan.lens {
        for &sources in &plan.sources {
            let cell = busy_cell(len, sources);
            let ratio = |column: &str, other: &str| {
                let what = format!("{cell} {column}");
                figure(results.ratio(&what, "multi", (&what, other)))
            };
            let row = others.iter().flat_map(|other| {
                ["per_second", "mean_us", "p99_us"].map(|column| ratio(column, other))
            });
            ratios.row([cell.clone()].into_iter().chain(row));
            let get = |column: &str, driver: &str, scale: f64| {
                let found = results.median(&format!("{cell} {column}"), driver);
                figure(found.map(|found| found * scale))
            };
            let row = drivers.iter().flat_map(|driver| {
                [("per_second", 1e-3), ("mean_us", 1.0), ("p99_us", 1.0), ("processor_us", 1.0)]
                    .map(|(column, scale)| get(column, driver, scale))
            });
            figures.row([cell.clone()].into_iter().chain(row));
        }
    }
    let spreads: Vec<String> = drivers
        .iter()
        .filter_map(|driver| Some(format!("{driver} {}", figure(Some(results.spread(driver)?)))))
        .collect();
    let mut text = format!("{}\n{}", ratios.finish(), figures.finish());
    if !spreads.is_empty() {
        text += &format!("\nRounds are apart by, at worst, of the median: {}.", spreads.join(", "));
    }
    text
}

/// Each policy, and its ratio to that of rates.
pub(super) fn paced(results: &Rounds, plan: &Plan, alone: f64, rate: f64) -> String {
    let mut table = Table::new([
        "policy",
        "stated load of the sets, greatest over mean",
        "writes done of the sets, greatest over mean",
        "done of what was due, %",
        "mean µs",
        "p50 µs",
        "p99 µs",
        "p99 over that of `rate`",
    ]);
    for policy in &plan.policies {
        let get = |column: &str| results.median(&format!("{PACED} {column}"), policy);
        let p99 = format!("{PACED} p99_us");
        table.row([
            policy.clone(),
            figure(get("rates_skew")),
            figure(get("writes_skew")),
            figure(get("per_second").map(|done| 100.0 * done / rate)),
            figure(get("mean_us")),
            figure(get("p50_us")),
            figure(get("p99_us")),
            figure(results.ratio(&p99, policy, (&p99, "rate"))),
        ]);
    }
    format!(
        "One source alone makes {} writes a second, all in one queue set; the devices together are to make {}, which \
         is {:.0} % of what four sets can do. A write is late from when it was due. Whoever has more than one set can do \
         falls behind, and its lateness grows for as long as the run goes on.\n\n{}",
        figure(Some(alone)),
        figure(Some(rate)),
        plan.demand * 100.0,
        table.finish()
    )
}
