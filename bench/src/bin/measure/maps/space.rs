//! Space, DRAM and flushed bytes while every record is written over.
//!
//! A store that cleans only when pages become short uses what its pool has: in a large one its use says
//! nothing. So pools are as large as so many times the bytes of the newest records; what is promised is kept if
//! there is one in which no write is refused and no more is in use.

use super::{Contender, Part, bounded};
use crate::flags::Flags;
use crate::table::{Table, figure};
use crate::{Outcome, Rounds};

pub(super) const FLAGS: [&str; 4] = ["space-keys", "times", "pools", "groups"];

/// At most so many bytes in use for one of the newest records; of a tree, for one of the records and nodes that are alive.
const GOAL: f64 = 2.5;

/// Bytes of a record of 16/100 B with its header.
const RECORD: u64 = 136;

/// The part, as the flags say.
pub(super) fn part(flags: &Flags, engines: &[String]) -> Outcome<Part> {
    let keys: u64 = flags.get("space-keys", 100_000, 50_000)?;
    let times: u64 = flags.get("times", 100, 5)?;
    let pools: Vec<f64> = flags.list("pools", "2,2.5,4", "2.5")?;
    let groups: Vec<u64> = flags.list("groups", "1,10", "10")?;
    let limit = 120 + keys * times / 20_000;
    let mut contenders = Vec::new();
    for engine in engines {
        for times_larger in &pools {
            for group in &groups {
                let options = [
                    ("records", keys),
                    ("times", times),
                    ("group", *group),
                    ("size", ((keys * RECORD) as f64 * times_larger) as u64),
                ];
                let name = format!("{engine}, pool {times_larger}, commit every {group}");
                let contender = Contender::new(name, engine, "turnover", &options, limit);
                contenders.push(Contender { is_cached: true, ..contender });
            }
        }
    }
    Ok(Part {
        name: "space",
        title: "Bytes in use, DRAM and bytes flushed",
        note: format!(
            "{keys} records of 16/100 B, {times} overwrites of each, in an order that is drawn anew for each pass, one thread; \
             pools of so many times the bytes of the newest records ({RECORD} each, with the header); appends through \
             the caches, so that all that is written is flushed and counted"
        ),
        contenders,
        report,
    })
}

fn report(results: &Rounds, names: &[&str]) -> String {
    let what = "bytes in use for one of the newest records; cow-tree: for one that is alive";
    let mut goals = Table::new(["engine", what, "promised", "verdict"]);
    let mut engines: Vec<&str> = names.iter().map(|name| engine_of(name)).collect();
    engines.dedup();
    for engine in engines {
        let own = || names.iter().filter(|name| engine_of(name) == engine);
        let median = |what, name: &&str| results.median(what, name);
        let of = |name: &&str| match engine {
            "cow-tree" => Some(median("in_use_bytes", name)? / median("live_bytes", name)?),
            _ => median("in_use_per_newest", name),
        };
        let least = own()
            .filter(|name| results.greatest("refused_puts", name) == Some(0.0))
            .filter_map(of)
            .min_by(f64::total_cmp);
        let mut judged = bounded(least, GOAL);
        if least.is_none() && own().any(|name| of(name).is_some()) {
            judged[2] = "**missed**: every pool refused writes".to_owned();
        }
        goals.row(std::iter::once(engine.to_owned()).chain(judged));
    }
    let columns = [
        ("in_use_per_newest", "in use for one of the newest, bytes", 1.0),
        ("live_bytes", "alive as the engine counts, MB", 1e-6),
        ("dram_per_record", "DRAM a key, bytes", 1.0),
        ("rss_per_record", "the process's memory a key, bytes", 1.0),
        ("flushed_per_put", "flushed a put, bytes", 1.0),
        ("copied_per_put", "copied by the cleaner a put, bytes", 1.0),
        ("puts_per_s", "k puts/s", 1e-3),
        ("refused_puts", "refused", 1.0),
    ];
    let heads = columns.iter().map(|(_, head, _)| *head);
    let mut table = Table::new(std::iter::once("contender").chain(heads));
    for name in names {
        let cells = columns
            .iter()
            .map(|(what, _, scale)| figure(results.median(what, name).map(|found| found * scale)));
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    format!(
        "{}\nThe least of the pools in which no write was refused in any round.\n\n{}",
        goals.finish(),
        table.finish()
    )
}

/// The engine of a contender.
fn engine_of(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_refuses_does_not_count() {
        let mut results = Rounds::default();
        let names = ["a, pool 2, commit every 1", "a, pool 4, commit every 1", "b, pool 2"];
        for (name, in_use, refused) in
            [(names[0], 1.9, 0.0), (names[0], 1.9, 1.0), (names[1], 2.6, 0.0), (names[2], 2.5, 0.0)]
        {
            results.add("in_use_per_newest", name, in_use);
            results.add("refused_puts", name, refused);
        }
        let text = report(&results, &names);
        assert!(text.contains("| a | 2.60 | ≤ 2.5 | **missed** |"), "{text}");
        assert!(text.contains("| b | 2.50 | ≤ 2.5 | met |"), "{text}");
        for (what, bytes) in [("in_use_bytes", 39.0), ("live_bytes", 20.0), ("refused_puts", 0.0)] {
            results.add(what, "cow-tree, pool 3", bytes);
        }
        let text = report(&results, &["cow-tree, pool 3"]);
        assert!(text.contains("| cow-tree | 1.95 | ≤ 2.5 | met |"), "{text}");
        let text = report(&results, &names[..1]);
        assert!(text.contains("| a | – | ≤ 2.5 | **missed**: every pool"), "{text}");
        assert!(report(&Rounds::default(), &names).contains("| a | – | ≤ 2.5 | not measured |"));
    }

    #[test]
    fn every_engine_has_every_pool_and_group() {
        let flags = Flags::parse(&[], &[]).unwrap();
        let part = part(&flags, &["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(part.contenders.len(), 12);
        assert!(part.contenders[0].arguments.contains(&"27200000".to_owned()));
    }
}
