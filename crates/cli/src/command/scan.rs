//! Listing of records, in the order of their keys where the engine has one.

use crate::arguments::Scan;
use crate::ask::{self, Answer, Asked};
use crate::command::records::each_record;
use crate::failure::{Failure, Outcome, REFUSED};
use crate::json;
use coreplane::Entry;
use coreplane_engine::{Ordered, StorageEngine, end_of_prefix};
use std::io::{self, BufWriter, Write};

/// Records that are requested from a server at a time.
const AT_A_TIME: u64 = 1024;

pub(crate) fn run(scan: &Scan) -> Outcome {
    let within = Within::of(scan)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let done = if let Some(server) = Asked::connect(&scan.tended.behind)? {
        by_server(scan, &within, server, &mut out)
    } else {
        let store = scan.tended.pool.look()?;
        let engine = &**store.engine();
        let done = match engine.ordered() {
            Some(ordered) => in_order(scan, &within, ordered, &mut out),
            None => in_any_order(scan, &within, engine, &mut out),
        };
        store.close()?;
        done
    };
    let flushed = out.flush();
    done?;
    flushed?;
    Ok(0)
}

/// The keys to be shown.
struct Within {
    prefix: Vec<u8>,
    start: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
}

impl Within {
    fn of(scan: &Scan) -> Result<Self, Failure> {
        let bound = |given: &Option<String>| scan.notation.bound(given.as_deref());
        let prefix = bound(&scan.prefix)?.unwrap_or_default();
        Ok(Self { prefix, start: bound(&scan.start)?, end: bound(&scan.end)? })
    }

    /// The first key that may be shown, and the first key beyond; none if the range is empty.
    fn bounds(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let Self { prefix, start, end } = self;
        let start = start.as_deref().unwrap_or_default().max(prefix).to_vec();
        let end = match (end.clone(), end_of_prefix(prefix)) {
            (Some(end), Some(other)) => Some(end.min(other)),
            (end, other) => end.or(other),
        };
        end.as_ref().is_none_or(|end| start < *end).then_some((start, end))
    }
}

fn in_order(
    scan: &Scan,
    within: &Within,
    ordered: &dyn Ordered,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Some((start, end)) = within.bounds() else { return Ok(()) };
    let limit = scan.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let mut shown = Ok(());
    ordered.scan(&start, end.as_deref(), scan.reverse, limit, &mut |entry| {
        shown = show(scan, &entry, out);
        shown.is_ok()
    })?;
    shown
}

fn in_any_order(
    scan: &Scan,
    within: &Within,
    engine: &dyn StorageEngine,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if scan.start.is_some() || scan.end.is_some() || scan.reverse {
        let message = format!(
            "--start, --end and --reverse need keys in order, which engine {} has not; bptree has",
            engine.name()
        );
        return Err(Failure::new(REFUSED, message));
    }
    let mut left = scan.limit.unwrap_or(u64::MAX);
    each_record(engine, &mut |entry| {
        if left > 0 && entry.key.starts_with(&within.prefix) {
            left -= 1;
            show(scan, entry, out)?;
        }
        Ok(left > 0)
    })
}

/// Requests one page after the other from the server.
fn by_server(
    scan: &Scan,
    within: &Within,
    mut server: Asked,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Some((start, end)) = within.bounds() else { return Ok(()) };
    let mut min = [b"[", start.as_slice()].concat();
    let mut max = end.map_or_else(|| b"+".to_vec(), |end| [b"(", end.as_slice()].concat());
    let mut left = scan.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let limit = left.min(AT_A_TIME).to_string();
        let mut words =
            vec![&b"RANGE"[..], &min, &max, b"LIMIT", limit.as_bytes(), b"WITHEXPIRIES"];
        words.extend(scan.reverse.then_some(&b"REV"[..]));
        words.extend((!scan.keys_only).then_some(&b"WITHVALUES"[..]));
        let answer = server.ask(&words)?;
        let strange = || server.failed(&"it answers RANGE in another way");
        let Answer::List(parts) = answer else { return Err(strange()) };
        let [next, Answer::List(records)] = &parts[..] else { return Err(strange()) };
        for record in records.chunks(if scan.keys_only { 2 } else { 3 }) {
            let (key, value, at) = match record {
                [Answer::Bytes(key), Answer::Number(at)] => (key, &b""[..], at),
                [Answer::Bytes(key), Answer::Bytes(value), Answer::Number(at)] => {
                    (key, &value[..], at)
                }
                _ => return Err(strange()),
            };
            show(scan, &ask::entry(key, value, *at), out)?;
            left -= 1;
        }
        let Some(next) = next.bytes() else { return Ok(()) };
        if scan.reverse { max = next.to_vec() } else { min = next.to_vec() }
    }
    Ok(())
}

fn show(scan: &Scan, entry: &Entry<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    if scan.tended.pool.json {
        return json::write_line(out, &scan.notation.entry(entry, scan.keys_only));
    }
    write!(out, "{}", scan.notation.shown(entry.key))?;
    if let Some(record) = entry.record.filter(|_| !scan.keys_only) {
        write!(out, "\t{}", record.value.to_cow().escape_ascii())?;
    }
    Ok(writeln!(out)?)
}
