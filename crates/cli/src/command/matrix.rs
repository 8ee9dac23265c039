//! Matrices: in a directory, or behind the server that has them open.

use crate::arguments::{AddGroup, Looked, Matrix, Replace, Retire, Tended};
use crate::ask::Asked;
use crate::failure::{Cause, Failure, NO, Outcome, UNUSABLE, USAGE};
use crate::json;
use crate::progress::Bar;
use crate::remote;
use crate::terms;
use coreplane::Store;
use coreplane::admin::{CopyOptions, MatrixStore, Work};
use coreplane_engine::Vacancy;
use coreplane_server::administration::{matrix_status, outcome_of};
use serde_json::Value;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a matrix that is open here is asked whether its devices have been looked at.
const LOOKED_EVERY: Duration = Duration::from_millis(5);
/// The same for one behind a server, and the longest time for which it is asked: a device may hang.
const ASKED_EVERY: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(matrix: &Matrix) -> Outcome {
    match matrix {
        Matrix::Status(looked) => status(looked),
        Matrix::Replace(Replace { tended, device, fresh, limit }) => {
            let options = CopyOptions { bytes_per_second_max: *limit, is_fresh: *fresh };
            let mut words = vec!["REPLACE".to_owned(), device.to_string()];
            words.extend(fresh.then(|| "FRESH".to_owned()));
            let done = work(tended, words, *limit, |_| Work::Replace(*device, options));
            done.map_err(|failure| match failure.cause {
                Cause::Occupied(Vacancy::Fresh) => {
                    failure.with_hint("`--fresh` removes what is there and makes one")
                }
                Cause::Occupied(Vacancy::Retire) => {
                    failure.with_hint("`coreplane matrix retire` takes it out")
                }
                _ => failure,
            })
        }
        Matrix::Retire(Retire { tended, device }) => {
            let words = vec!["RETIRE".to_owned(), device.to_string()];
            work(tended, words, None, |_| Work::Retire(*device))
        }
        Matrix::AddGroup(AddGroup { tended, limit }) => {
            let options = CopyOptions { bytes_per_second_max: *limit, is_fresh: false };
            work(tended, vec!["ADDGROUP".to_owned()], *limit, |matrix| match matrix.is_moving() {
                true => Work::FinishMoves(options),
                false => Work::AddGroup(options),
            })
        }
        Matrix::Scrub(Looked { tended, device }) => {
            let mut words = vec!["SCRUB".to_owned()];
            words.extend(device.iter().flat_map(|it| ["DEVICE".to_owned(), it.to_string()]));
            work(tended, words, None, |_| Work::Scrub(*device))
        }
    }
}

fn matrix_of<'s>(store: &'s Store, tended: &Tended) -> Result<&'s Arc<MatrixStore>, Failure> {
    let message = || format!("{} is no matrix", tended.pool.path().display());
    store.matrix().ok_or_else(|| Failure::new(USAGE, message()))
}

fn status(looked: &Looked) -> Outcome {
    let tended = &looked.tended;
    let mut status = if let Some(mut server) = Asked::connect(&tended.behind)? {
        told(&mut server)?
    } else {
        let store = tended.pool.look()?;
        // The records were not counted in the background.
        let counted = store.counted();
        let status = matrix_of(&store, tended).map(|matrix| {
            while !matrix.status().is_looked_at {
                std::thread::sleep(LOOKED_EVERY);
            }
            matrix_status(matrix)
        });
        store.close()?;
        let mut status = status?;
        status["records"] = counted?.0.into();
        status
    };
    if let Some(place) = &looked.device {
        narrow(&mut status, &place.to_string())?;
    }
    let mut out = io::stdout().lock();
    if tended.pool.json {
        json::write_line(&mut out, &status)?;
    } else {
        show(&mut out, &status)?;
    }
    Ok(0)
}

/// The status of a matrix behind a server, which begins to look at the devices when it is asked, and does not wait.
fn told(server: &mut Asked) -> Result<Value, Failure> {
    let since = Instant::now();
    loop {
        let status = remote::told(server, &["MATRIX", "STATUS"])?;
        if !status["damage"]["devices"].is_null() || since.elapsed() > PATIENCE {
            return Ok(status);
        }
        std::thread::sleep(ASKED_EVERY);
    }
}

/// Removes the entries of other devices.
fn narrow(status: &mut Value, place: &str) -> Result<(), Failure> {
    let start = format!("{place}: ");
    if let Some(devices) = status["devices"].as_array_mut() {
        devices.retain(|device| device["device"] == place);
        if devices.is_empty() {
            let message = format!("there is no place {place} in this matrix");
            return Err(Failure::new(UNUSABLE, message));
        }
    }
    for of in ["/departures", "/shortened", "/damage/devices"] {
        if let Some(devices) = status.pointer_mut(of).and_then(Value::as_array_mut) {
            devices.retain(|device| device["device"] == place);
        }
    }
    if let Some(removed) = status["removed"].as_array_mut() {
        removed.retain(|it| it == place);
    }
    if let Some(damaged) = status["damaged"].as_array_mut() {
        damaged.retain(|text| text.as_str().is_some_and(|text| text.starts_with(&start)));
    }
    Ok(())
}

fn show(out: &mut impl Write, status: &Value) -> io::Result<()> {
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let bytes = |value: &Value| terms::human(value.as_u64().unwrap_or(0));
    for device in list("devices") {
        let (place, state) = (text(&device["device"]), text(&device["state"]));
        if let Some(engine) = device["engine"].as_str() {
            let (free, all) = (bytes(&device["free_bytes"]), bytes(&device["pool_bytes"]));
            write!(out, "{place:<8} {state:<8} {engine}, {free} of {all} free")?;
            if device["queue_bytes"].as_u64() > Some(0) {
                let (waits, most) =
                    (bytes(&device["queue_bytes"]), bytes(&device["queue_bytes_max"]));
                write!(out, ", {waits} of {most} wait for it")?;
            }
            writeln!(out)?;
        } else {
            writeln!(out, "{place:<8} {state}")?;
        }
    }
    for damaged in list("damaged") {
        let damaged = text(&damaged);
        let (place, how) = damaged.split_once(": ").unwrap_or((&damaged, ""));
        writeln!(out, "{place:<8} is left out: {how} (`replace --fresh` fills a new one)")?;
    }
    for place in list("removed") {
        let place = text(&place);
        let how = "was removed from its place, and goes on until the matrix is closed";
        writeln!(out, "{place:<8} {how} (`replace --fresh` makes one there)")?;
    }
    for it in list("shortened") {
        let (place, len, all) = (text(&it["device"]), bytes(&it["bytes"]), bytes(&it["expected"]));
        let how = format!("was cut short: {len} of {all} are left");
        writeln!(out, "{place:<8} {how} (`retire`, then `replace --fresh`)")?;
    }
    for it in list("departures") {
        let (device, at, why) = (text(&it["device"]), &it["at_ms"], text(&it["error"]));
        writeln!(out, "{device:<8} went at {at} ms: {why}")?;
    }
    show_damage(out, &status["damage"])?;
    for (group, slots) in list("slots").iter().enumerate() {
        writeln!(out, "group {group:<2} {slots} slots")?;
    }
    if status["slots_moving"] != 0 {
        let moving = &status["slots_moving"];
        writeln!(out, "moving   {moving} slots (`coreplane matrix add-group` goes on)")?;
    }
    let work = &status["work"];
    if !work.is_null() {
        let (done, total) = (text(&work["done"]), text(&work["total"]));
        let how =
            if work["going_on"] == true { format!("{done} of {total}") } else { "over".to_owned() };
        writeln!(out, "work     {}: {how}", text(&work["work"]))?;
    }
    let of = |name: &str| text(&status[name]);
    let (shape, prototype, ack, epoch) = (of("shape"), of("prototype"), of("ack"), of("epoch"));
    writeln!(out, "matrix   {shape}, {prototype}, ack {ack}, epoch {epoch}")?;
    let degraded = if status["degraded"] == true { "  (degraded)" } else { "" };
    writeln!(out, "records  {}{degraded}", status["records"])
}

fn show_damage(out: &mut impl Write, damage: &Value) -> io::Result<()> {
    if damage["devices"].is_null() {
        writeln!(out, "whether devices have lost records is being looked at")?;
    }
    for device in damage["devices"].as_array().into_iter().flatten() {
        let (place, leaves) = (device["device"].as_str().unwrap_or_default(), &device["leaves"]);
        writeln!(out, "{place:<8} has lost records of {leaves} leaves (`scrub` heals it)")?;
    }
    let (keys, ranges) = (&damage["keys"], &damage["ranges"]);
    if keys.as_u64() > Some(0) {
        writeln!(out, "{keys} keys are indeterminate (`scrub` decides them)")?;
    }
    if ranges.as_u64() > Some(0) {
        writeln!(out, "{ranges} ranges of keys are lost (`--accept-loss` accepts what is there)")?;
    }
    Ok(())
}

/// Runs the work here, or on the server.
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
            remote::work(server, &words)?
        }
        None => {
            let store = tended.pool.open()?;
            let matrix = matrix_of(&store, tended)?;
            let done = matrix.run(work(matrix), &|progress| bar.show(progress));
            store.close()?;
            outcome_of(&done?)
        }
    };
    drop(bar);
    let is_damaged = ["repaired", "settled", "rewritten", "lost", "indeterminate", "unreadable"]
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
