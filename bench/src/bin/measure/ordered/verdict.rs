//! The goals of the ordered engine, and whether they are met.

use super::{COLUMNS, Class, THREADS, what};
use crate::Rounds;
use crate::table::{Table, figure, judged};

/// Times the best peer, in what writes.
const WRITES: f64 = 3.0;
/// Times LMDB, in what reads.
const READS: f64 = 1.0;
/// Times one thread, on two.
const TWO: f64 = 1.6;

/// Of which engine all this was promised; of others the ratios are shown.
const PROMISED: &str = "bptree";

/// Rows of each engine: ours, what it is held against, ratio, what was promised, verdict.
pub(super) fn table(class: Class, engines: &[String], peers: &[String], rounds: &Rounds) -> String {
    let mut text = String::new();
    for ours in engines {
        let mut table = Table::new([
            "phase",
            "threads",
            "ours, M/s",
            "held against, M/s",
            "ratio",
            "promised",
            "verdict",
            "of the floor",
        ]);
        for threads in THREADS {
            for (column, phase, _) in COLUMNS {
                let name = what(column, threads);
                let lmdb = class.peer("lmdb");
                let (rival, goal) = match phase {
                    "load" | "a" => (rounds.best(&name, peers.iter().map(String::as_str)), WRITES),
                    _ => (rounds.median(&name, &lmdb).map(|rate| (rate, lmdb.as_str())), READS),
                };
                let Some((theirs, whose)) = rival else {
                    continue;
                };
                let us = rounds.median(&name, ours);
                let ratio = us.map(|us| us / theirs);
                let held = format!("{} ({whose})", figure(Some(theirs)));
                let floor = rounds.ratio(&name, ours, (&name, "floor-dram"));
                let row = [column.to_owned(), threads.to_string(), figure(us), held];
                let goal = verdict(ours, ratio, goal);
                table.row(row.into_iter().chain(goal).chain([figure(floor)]));
            }
        }
        for (column, ..) in COLUMNS {
            let (one, two) = (what(column, 1), what(column, 2));
            let ratio = rounds.ratio(&two, ours, (&one, ours));
            let held = format!("{} (one thread)", figure(rounds.median(&one, ours)));
            let row = [column.to_owned(), "2".to_owned(), figure(rounds.median(&two, ours)), held];
            table.row(row.into_iter().chain(verdict(ours, ratio, TWO)));
        }
        text += &format!("Ours: {ours}.\n\n{}\n", table.finish());
    }
    text
}

/// Cells of a ratio: itself, the goal, the verdict.
fn verdict(ours: &str, ratio: Option<f64>, goal: f64) -> [String; 3] {
    if ours == PROMISED { judged(ratio, goal) } else { [figure(ratio), "–".into(), "–".into()] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_against_whom_they_name() {
        let mut rounds = Rounds::default();
        for (column, name, rate) in [
            ("load 1t", "bptree", 1.0),
            ("load 1t", "lmdb+power", 0.1),
            ("load 1t", "rocksdb+power", 0.4),
            ("load 2t", "bptree", 1.7),
            ("load 2t", "rocksdb+power", 0.5),
            ("E uniform 1t", "bptree", 0.2),
            ("E uniform 1t", "lmdb+power", 0.1),
            ("E uniform 1t", "rocksdb+power", 0.9),
        ] {
            rounds.add(column, name, rate);
        }
        let peers = ["lmdb+power".to_owned(), "rocksdb+power".to_owned()];
        rounds.add("load 1t", "list", 0.2);
        let engines = ["bptree".to_owned(), "list".to_owned()];
        let text = table(Class::Power, &engines, &peers, &rounds);
        let row = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(
            row("| load | 1 |").contains("(rocksdb+power) | 2.50 | ≥ 3 | **missed**"),
            "{text}"
        );
        assert!(row("| load | 2 |").contains("(rocksdb+power) | 3.40 | ≥ 3 | met"), "{text}");
        assert!(
            text.contains("| load | 2 | 1.70 | 1.00 (one thread) | 1.70 | ≥ 1.6 | met"),
            "{text}"
        );
        assert!(row("| E uniform | 1 |").contains("(lmdb+power) | 2.00 | ≥ 1 | met"), "{text}");
        assert!(row("| C uniform | 2 |").contains("not measured"), "{text}");
        let (_, list) = text.split_once("Ours: list.").unwrap();
        assert!(list.contains("(rocksdb+power) | 0.50 | – | – |"), "{text}");
    }
}
