//! How long a put takes while pages are cleaned and a snapshot is read.

use super::{Contender, Part, bounded};
use crate::flags::Flags;
use crate::table::{Table, figure};
use crate::{Outcome, Rounds};

pub(super) const FLAGS: [&str; 5] =
    ["latency-pool", "latency-puts", "fullness", "room", "put-rate"];

/// Percent of a pool's records. While a snapshot is held a tree has to write ways anew for what it moves: fuller ones than
/// this refuse writes beside snapshots that follow each other without a pause. A list at that is not cleaned at all.
const OF_TREE: u64 = 40;
const OF_OTHERS: u64 = 70;

/// The 99.9 % beside cleaning and a snapshot may be at most so many times those without.
const GOAL: f64 = 3.0;

/// The part, as the flags say.
pub(super) fn part(flags: &Flags, engines: &[String]) -> Outcome<Part> {
    let pool: u64 = flags.get("latency-pool", 64, 8)?;
    let puts: u64 = flags.get("latency-puts", 1_000_000, 50_000)?;
    let given: u64 = flags.get("fullness", 0, 0)?;
    let fullness = |engine: &str| match (given, engine) {
        (0, "cow-tree") => OF_TREE,
        (0, _) => OF_OTHERS,
        (given, _) => given,
    };
    let room: u64 = flags.get("room", 32, 16)?;
    let put_rate: u64 = flags.get("put-rate", 0, 0)?;
    let limit = 300 + puts / 5_000 + (2 * puts).checked_div(put_rate).unwrap_or_default();
    let contender = |engine: &str, name: String, put_rate: u64| {
        let (full, rate) = (("fullness", fullness(engine)), ("put-rate", put_rate));
        let options = [("size", pool << 20), ("operations", puts), full, ("room", room), rate];
        Contender::new(name, engine, "interference", &options, limit)
    };
    let contenders = engines.iter().flat_map(|engine| {
        let at_rate = (put_rate > 0)
            .then(|| contender(engine, format!("{engine}, {put_rate} a second"), put_rate));
        std::iter::once(contender(engine, engine.clone(), 0)).chain(at_rate)
    });
    let contenders = contenders.collect();
    let full: Vec<String> =
        engines.iter().map(|engine| format!("{engine} {} %", fullness(engine))).collect();
    Ok(Part {
        name: "latency",
        title: "Puts beside the cleaner and a snapshot",
        note: format!(
            "{puts} overwrites of 16/100 B, evenly chosen, each durable when it returns and timed, one thread. Quiet: a pool of {} MiB, in \
             which nothing is cleaned. Busy: a pool of {pool} MiB, so full of what a load can put in, the newest records and as \
             many again that a snapshot may keep: {}. It is cleaned, while another thread reads snapshots from end to end. On \
             2 processors the two threads have one each, and nothing is left for anything else: the kernel, or \
             a thread of the store's own, takes from them. Each put begins when the last has ended, so that fewer puts of \
             the faster case meet an interrupt of the kernel{}",
            pool * room,
            full.join(", "),
            match put_rate {
                0 => String::new(),
                rate => format!(
                    "; at {rate} a second as many do in both, and a put is timed from when it was due"
                ),
            }
        ),
        contenders,
        report,
    })
}

fn report(results: &Rounds, names: &[&str]) -> String {
    let mut goals =
        Table::new(["engine", "p99.9 quiet, µs", "p99.9 busy, µs", "ratio", "promised", "verdict"]);
    let mut table = Table::new([
        "engine",
        "beside",
        "k puts/s",
        "p50, µs",
        "p99.9, µs",
        "max, ms",
        "refused",
        "pages cleaned",
        "snapshots read",
        "records read, M",
    ]);
    for name in names {
        let [quiet, busy] = ["quiet", "busy"].map(|beside| format!("{beside} p999_ns"));
        let ratio = results.ratio(&busy, name, (&quiet, name)).filter(|_| is_fair(results, name));
        let times =
            [quiet, busy].map(|what| figure(results.median(&what, name).map(|ns| ns * 1e-3)));
        let mut judged = bounded(ratio, GOAL);
        if results.greatest("busy refused_puts", name).is_some_and(|refused| refused > 0.0) {
            judged[2] = "**missed**: writes were refused".to_owned();
        }
        let cells = times.into_iter().chain(judged);
        goals.row(std::iter::once((*name).to_owned()).chain(cells));
        for beside in ["quiet", "busy"] {
            let of = |what: &str, scale: f64| {
                let found = results.median(&format!("{beside} {what}"), name);
                figure(found.map(|found| found * scale))
            };
            table.row([
                (*name).to_owned(),
                beside.to_owned(),
                of("puts_per_s", 1e-3),
                of("p50_ns", 1e-3),
                of("p999_ns", 1e-3),
                of("max_ns", 1e-6),
                of("refused_puts", 1.0),
                of("pages_cleaned", 1.0),
                of("snapshots", 1.0),
                of("snapshot_records", 1e-6),
            ]);
        }
    }
    format!(
        "{}\nNot measured, too, if the quiet pool was cleaned (give it more --room), or the busy one was not, or no \
         snapshot was read to its end.\n\n{}",
        goals.finish(),
        table.finish()
    )
}

/// True if the quiet case was quiet in all rounds, and the busy one busy.
fn is_fair(results: &Rounds, name: &str) -> bool {
    let is_quiet = results.greatest("quiet pages_cleaned", name) == Some(0.0);
    let is_busy = |what: &str| results.median(what, name).is_some_and(|found| found > 0.0);
    is_quiet && is_busy("busy pages_cleaned") && is_busy("busy snapshots")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_told_only_if_both_cases_were_what_they_are_called() {
        let mut results = Rounds::default();
        for (name, cleaned_when_quiet) in [("a", 0.0), ("b", 5.0), ("c", 0.0), ("d", 0.0)] {
            let slow = if name == "c" { 3100.0 } else { 2900.0 };
            results.add("busy refused_puts", name, if name == "d" { 1.0 } else { 0.0 });
            for (what, found) in [
                ("quiet p999_ns", 1000.0),
                ("busy p999_ns", slow),
                ("quiet pages_cleaned", cleaned_when_quiet),
                ("busy pages_cleaned", 9.0),
                ("busy snapshots", 2.0),
            ] {
                results.add(what, name, found);
            }
        }
        let text = report(&results, &["a", "b", "c", "d"]);
        assert!(text.contains("| a | 1.00 | 2.90 | 2.90 | ≤ 3 | met |"), "{text}");
        assert!(text.contains("| b | 1.00 | 2.90 | – | ≤ 3 | not measured |"), "{text}");
        assert!(text.contains("| c | 1.00 | 3.10 | 3.10 | ≤ 3 | **missed** |"), "{text}");
        assert!(text.contains("| d | 1.00 | 2.90 | 2.90 | ≤ 3 | **missed**: writes"), "{text}");
    }
}
