//! The page: ratios first.

use super::Plan;
use super::contender::Medium;
use super::load::Work;
use crate::Rounds;
use crate::table::{Table, figure, judged};

/// What a cell is called.
pub(super) fn cell(work: Work, connections: usize, depth: usize) -> String {
    let work = if work == Work::Write { "write" } else { "read" };
    format!("{work}, {connections} conn., depth {depth}")
}

fn cells(plan: &Plan) -> Vec<String> {
    let of = |work| {
        plan.connections.iter().flat_map(move |connections| {
            plan.depths.iter().map(move |depth| cell(work, *connections, *depth))
        })
    };
    of(Work::Write).chain(of(Work::Read)).collect()
}

/// Ours over the others', and what each did.
pub(super) fn text(results: &Rounds, plan: &Plan, names: &[String], medium: Medium) -> String {
    let others: Vec<&String> = names.iter().filter(|name| *name != "coreplane").collect();
    let headings = others.iter().map(|name| format!("coreplane/{name}"));
    let mut ratios = Table::new(
        ["4 KiB at random".to_owned()]
            .into_iter()
            .chain(headings)
            .chain(["goal: of nbdkit".to_owned(), "verdict".to_owned()]),
    );
    let mut rates =
        Table::new(["thousands a second".to_owned()].into_iter().chain(names.iter().cloned()));
    let mut times =
        Table::new(["p50, p99 in µs".to_owned()].into_iter().chain(names.iter().cloned()));
    let mut prices = Table::new(
        ["processor µs an operation: server, client".to_owned()]
            .into_iter()
            .chain(names.iter().cloned()),
    );
    for cell in cells(plan) {
        let rate = format!("{cell} per_second");
        let over = |name: &str| results.ratio(&rate, "coreplane", (&rate, name));
        let [_, goal, verdict] = judged(over("nbdkit"), 1.0);
        let row = others.iter().map(|name| figure(over(name)));
        ratios.row([cell.clone()].into_iter().chain(row).chain([goal, verdict]));
        let get = |column: &str, name: &str| results.median(&format!("{cell} {column}"), name);
        let of_all = |show: &dyn Fn(&str) -> String| {
            let row = names.iter().map(|name| show(name));
            [cell.clone()].into_iter().chain(row).collect::<Vec<_>>()
        };
        let both = |one: &str, other: &str, name: &str| {
            format!("{}, {}", figure(get(one, name)), figure(get(other, name)))
        };
        rates.row(of_all(&|name| figure(get("per_second", name).map(|rate| rate / 1e3))));
        times.row(of_all(&|name| both("p50_us", "p99_us", name)));
        prices.row(of_all(&|name| both("server_us", "client_us", name)));
    }
    let spreads: Vec<String> = names
        .iter()
        .filter_map(|name| Some(format!("{name} {}", figure(Some(results.spread(name)?)))))
        .collect();
    let reading = match medium {
        Medium::Memory => MEMORY,
        Medium::File => FILE,
    };
    let mut text = [ratios, rates, times, prices].map(Table::finish).join("\n");
    text += &format!("\n{reading}\n");
    if !spreads.is_empty() {
        text += &format!("\nRounds are apart by, at worst, of the median: {}.", spreads.join(", "));
    }
    text
}

const MEMORY: &str = "A write of ours is flushed and fenced, and its sector has a checksum, which a read looks at; nbdkit's \
     memory is its process's, and gone with it. nbdkit+malloc keeps the bytes in one piece instead of a sparse table. The \
     floor moves bytes between socket and memory, and nothing else. The loop device has a thread for each request under \
     way; its processor time is the kernel's, and where the calls are made, the client's.";

const FILE: &str = "Each write is durable when it is answered: FUA over NBD, O_DSYNC on the loop device. Reads come from the \
     page cache of servers, and from the disk where a loop device goes past it.";
