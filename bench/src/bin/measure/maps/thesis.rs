//! The table of the thesis's section 4.2: insert, read and delete, ten writes sharing a commit.
//!
//! The thesis says: a state of 20,000 keys of 10 bytes, a commit every ten modifications, means. It says of the
//! values of its other tests that they have some 10 bytes, and nothing of these.

use super::{Contender, Part, bounded};
use crate::flags::Flags;
use crate::table::{Table, figure};
use crate::{Outcome, Rounds};

pub(super) const FLAGS: [&str; 4] = ["keys", "value", "group", "cycles"];

/// Other engines, in the same loop.
const BESIDE: [&str; 2] = ["scmkv", "bptree"];

/// Columns of a line.
const COLUMNS: [&str; 3] = ["insert_ns", "read_ns", "delete_ns"];

/// What is printed: nanoseconds of an insert, a read and a delete.
const PRINTED: [(&str, [f64; 3]); 5] = [
    ("cmap (pmemkv)", [9397.0, 1767.0, 6201.0]),
    ("stree (pmemkv)", [4192.0, 389.0, 1740.0]),
    ("tree3 (pmemkv)", [4958.0, 319.0, 2857.0]),
    ("list", [884.0, 340.0, 612.0]),
    ("btrees", [3097.0, 500.0, 3839.0]),
];

/// Which of our engines is to be no slower than which that is printed.
const GOALS: [(&str, &str); 2] = [("list", "list"), ("cow-tree", "btrees")];

/// Bytes of the pool of each contender: nothing is cleaned.
const POOL: u64 = 2 << 30;

/// The part, as the flags say.
pub(super) fn part(flags: &Flags, engines: &[String]) -> Outcome<Part> {
    let keys: u64 = flags.get("keys", 20_000, 2_000)?;
    let value: u64 = flags.get("value", 10, 10)?;
    let group: u64 = flags.get("group", 10, 10)?;
    let cycles: u64 = flags.get("cycles", 10, 2)?;
    let options = [
        ("records", keys),
        ("key-size", 10),
        ("value-size", value),
        ("group", group),
        ("cycles", cycles),
        ("size", POOL),
    ];
    let beside = BESIDE.into_iter().filter(|name| !engines.iter().any(|it| it == name));
    let contenders = engines
        .iter()
        .map(String::as_str)
        .chain(beside)
        .map(|engine| Contender::new(engine.to_owned(), engine, "commits", &options, 300))
        .collect();
    Ok(Part {
        name: "table",
        title: "The table of the thesis (4.2)",
        note: format!(
            "{keys} keys of 10 B with values of {value} B (the thesis does not say how long its values are), one thread; \
             all inserted into an empty store, read and deleted, in orders of their own; a commit every {group} \
             writes; means over {cycles} cycles after one that does not count; a fresh pool on the mount (memory that \
             stands in for persistent memory: real flushes and fences)"
        ),
        contenders,
        report,
    })
}

fn report(results: &Rounds, names: &[&str]) -> String {
    let mut goals = Table::new(["engine", "what", "ns", "promised", "verdict"]);
    for (engine, printed) in GOALS.iter().filter(|(engine, _)| names.contains(engine)) {
        let Some((_, bounds)) = PRINTED.iter().find(|(name, _)| name == printed) else { continue };
        for (column, bound) in COLUMNS.iter().zip(bounds) {
            let what = [*engine, column.trim_end_matches("_ns")].map(str::to_owned);
            goals.row(what.into_iter().chain(bounded(results.median(column, engine), *bound)));
        }
    }
    let mut table = Table::new([
        "contender",
        "insert, ns",
        "read, ns",
        "delete, ns",
        "fences a write",
        "pages cleaned",
    ]);
    for name in names {
        let more = ["fences_per_write", "pages_cleaned"];
        let cells = COLUMNS.iter().chain(&more).map(|what| figure(results.median(what, name)));
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    let mut printed = Table::new(["as printed", "insert, ns", "read, ns", "delete, ns"]);
    for (name, figures) in PRINTED {
        let cells = figures.map(|ns| figure(Some(ns)));
        printed.row(std::iter::once(name.to_owned()).chain(cells));
    }
    format!(
        "{}\n{}\nAs printed in the thesis, another machine (Intel Optane DC persistent memory), not measured here; \
         pmemkv commits each operation by itself, which the thesis says too:\n\n{}",
        goals.finish(),
        table.finish(),
        printed.finish()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_held_against_what_is_printed_of_theirs() {
        let mut results = Rounds::default();
        let ours = [("list", [800.0, 341.0, 612.0]), ("cow-tree", [3000.0, 1.0, 3840.0])];
        for (engine, figures) in ours {
            for (column, ns) in COLUMNS.iter().zip(figures) {
                results.add(column, engine, ns);
            }
        }
        let text = report(&results, &["list", "cow-tree", "scmkv"]);
        for row in [
            "| list | insert | 800 | ≤ 884 | met |",
            "| list | read | 341 | ≤ 340 | **missed** |",
            "| list | delete | 612 | ≤ 612 | met |",
            "| cow-tree | delete | 3840 | ≤ 3839 | **missed** |",
            "| scmkv | – | – | – | – | – |",
            "| tree3 (pmemkv) | 4958 | 319 | 2857 |",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        assert!(!report(&results, &["scmkv"]).contains("| list | insert"));
    }

    #[test]
    fn others_are_beside_once() {
        let flags = Flags::parse(&[], &[]).unwrap();
        let part = part(&flags, &["list".to_owned(), "bptree".to_owned()]).unwrap();
        let names: Vec<&str> = part.contenders.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["list", "bptree", "scmkv"]);
    }
}
