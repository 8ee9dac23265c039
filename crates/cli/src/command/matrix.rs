//! Matrices: in a directory, or behind the server that has them open.

use crate::administration::{self, standing_name};
use crate::arguments::{AddGroup, Matrix, Replace, Tended};
use crate::ask::Asked;
use crate::failure::{Failure, NO, Outcome, USAGE};
use crate::json;
use crate::progress::Bar;
use coreplane::{FillOptions, InDoubt, MatrixStatus, MatrixStore, Store, Work};
use serde_json::Value;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// How often a server is asked how far it is.
const ASKED_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(matrix: &Matrix) -> Outcome {
    match matrix {
        Matrix::Status(tended) => status(tended),
        Matrix::Replace(Replace { tended, device, fresh, limit }) => {
            let options = FillOptions { bytes_per_second_max: *limit, is_fresh: *fresh };
            let mut words = vec!["REPLACE".to_owned(), device.to_string()];
            words.extend(fresh.then(|| "FRESH".to_owned()));
            work(tended, words, *limit, |_| Work::Replace(*device, options))
        }
        Matrix::AddGroup(AddGroup { tended, limit }) => {
            let options = FillOptions { bytes_per_second_max: *limit, is_fresh: false };
            work(tended, vec!["ADDGROUP".to_owned()], *limit, |matrix| match matrix.is_moving() {
                true => Work::FinishMoves(options),
                false => Work::AddGroup(options),
            })
        }
        Matrix::Scrub(tended) => work(tended, vec!["SCRUB".to_owned()], None, |_| Work::Scrub),
    }
}

fn matrix_of<'s>(store: &'s Store, tended: &Tended) -> Result<&'s Arc<MatrixStore>, Failure> {
    let message = || format!("{} is no matrix", tended.pool.path().display());
    store.matrix().ok_or_else(|| Failure::new(USAGE, message()))
}

fn status(tended: &Tended) -> Outcome {
    let mut out = io::stdout().lock();
    if let Some(mut server) = Asked::connect(&tended.behind)? {
        let text = server.text(&["MATRIX", "STATUS"])?;
        writeln!(out, "{text}")?;
        return Ok(0);
    }
    let store = tended.pool.look()?;
    let (status, records) = (matrix_of(&store, tended)?.status(), store.engine().len()?);
    store.close()?;
    if tended.pool.json {
        let mut object = administration::status(&status);
        object["records"] = records.into();
        json::write_line(&mut out, &object)?;
        return Ok(0);
    }
    show(&mut out, &status, records)?;
    Ok(0)
}

fn show(out: &mut impl Write, status: &MatrixStatus, records: u64) -> io::Result<()> {
    for (position, standing) in &status.devices {
        writeln!(out, "{position:<8} {}", standing_name(*standing))?;
    }
    for (position, how) in &status.damaged {
        writeln!(out, "{position:<8} is left out: {how} (`replace --fresh` fills a new one)")?;
    }
    for it in &status.departures {
        writeln!(out, "{:<8} went at {} ms: {}", it.device, it.at.0, it.why)?;
    }
    for (position, leaves) in &status.in_doubt.devices {
        writeln!(out, "{position:<8} has lost records of {leaves} leaves (`scrub` heals it)")?;
    }
    let InDoubt { keys, ranges, .. } = status.in_doubt;
    if keys > 0 {
        writeln!(out, "in doubt {keys} keys (`scrub` makes up for it)")?;
    }
    if ranges > 0 {
        writeln!(out, "in doubt {ranges} ranges of keys (`--accept-loss` accepts what is there)")?;
    }
    for (group, slots) in status.slots.iter().enumerate() {
        writeln!(out, "group {group:<2} {slots} slots")?;
    }
    if status.slots_moving > 0 {
        let moving = status.slots_moving;
        writeln!(out, "moving   {moving} slots (`coreplane matrix add-group` goes on)")?;
    }
    writeln!(out, "records  {records}{}", if status.is_degraded { "  (degraded)" } else { "" })
}

/// Has it done here, or by the server.
fn work(
    tended: &Tended,
    mut words: Vec<String>,
    limit: Option<u64>,
    work: impl Fn(&MatrixStore) -> Work,
) -> Outcome {
    let bar = Bar::new("", 0, false);
    let done = match Asked::connect(&tended.behind)? {
        Some(server) => {
            words.extend(limit.iter().flat_map(|limit| ["LIMIT".to_owned(), limit.to_string()]));
            words.insert(0, "MATRIX".to_owned());
            by_server(server, &words)?
        }
        None => {
            let store = tended.pool.open()?;
            let matrix = matrix_of(&store, tended)?;
            let done = matrix.run(work(matrix), &|progress| bar.show(progress));
            store.close()?;
            administration::done(&done?)
        }
    };
    drop(bar);
    let is_damaged = ["repaired", "settled", "lost", "in_doubt", "unreadable"]
        .iter()
        .any(|name| !is_empty(done.get(name)));
    let mut out = io::stdout().lock();
    if tended.pool.json {
        json::write_line(&mut out, &done)?;
    } else {
        for (name, value) in done.as_object().into_iter().flatten() {
            writeln!(out, "{name:<17} {value}")?;
        }
    }
    Ok(if is_damaged { NO } else { 0 })
}

fn is_empty(list: Option<&Value>) -> bool {
    list.and_then(Value::as_array).is_none_or(Vec::is_empty)
}

/// Has a server begin it, and waits until it is done.
fn by_server(mut server: Asked, words: &[String]) -> Result<Value, Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    server.text(&words)?;
    loop {
        let text = server.text(&["MATRIX", "STATUS"])?;
        let status: Value = serde_json::from_str(&text).map_err(|error| server.failed(&error))?;
        let work = &status["work"];
        if let Some(error) = work["error"].as_str() {
            return Err(server.failed(&error));
        }
        if work["going_on"] == false {
            return Ok(work["outcome"].clone());
        }
        if work.is_null() {
            return Err(server.failed(&"it was started anew meanwhile: begin again"));
        }
        std::thread::sleep(ASKED_EVERY);
    }
}
