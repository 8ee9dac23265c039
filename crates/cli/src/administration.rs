//! A matrix behind a server: what clients can have done for it.

use coreplane::{
    Doing, Done, Doubt, FillOptions, InDoubt, Loss, MatrixStatus, MatrixStore, Position, Progress,
    Scrubbed, Standing, Work,
};
use coreplane_server::Administration;
use serde_json::{Value, json};
use std::sync::Arc;

/// A matrix that a server serves.
#[derive(Debug)]
pub(crate) struct Administered(pub(crate) Arc<MatrixStore>);

impl Administration for Administered {
    fn run(&self, words: &[&str]) -> Result<String, String> {
        let work = match words {
            [word] if word.eq_ignore_ascii_case("status") => {
                return Ok(status(&self.0.status()).to_string());
            }
            [word] if word.eq_ignore_ascii_case("scrub") => Work::Scrub,
            [word, rest @ ..] if word.eq_ignore_ascii_case("addgroup") => {
                let options = fill_options(rest)?;
                if self.0.is_moving() {
                    Work::FinishMoves(options)
                } else {
                    Work::AddGroup(options)
                }
            }
            [word, place, rest @ ..] if word.eq_ignore_ascii_case("replace") => {
                let place: Position = place.parse()?;
                Work::Replace(place, fill_options(rest)?)
            }
            _ => {
                return Err("try MATRIX STATUS, MATRIX REPLACE device [FRESH] [LIMIT bytes], \
                            MATRIX ADDGROUP [LIMIT bytes] or MATRIX SCRUB"
                    .to_owned());
            }
        };
        self.0.begin(work).map_err(|error| error.to_string())?;
        Ok("begun".to_owned())
    }

    fn figures(&self) -> Vec<(String, String)> {
        let status = self.0.status();
        let mut figures = vec![
            ("groups".to_owned(), status.slots.len().to_string()),
            ("degraded".to_owned(), u8::from(status.is_degraded).to_string()),
            ("slots_moving".to_owned(), status.slots_moving.to_string()),
            ("epoch".to_owned(), self.0.epoch().to_string()),
        ];
        for (position, standing) in &status.devices {
            figures.push((format!("{position}_standing"), standing_name(*standing).to_owned()));
        }
        if let Some(doing) = &status.doing {
            figures.push(("work".to_owned(), doing.work.to_owned()));
            figures.push(("work_going_on".to_owned(), u8::from(doing.done.is_none()).to_string()));
            if let Some(Progress { done, total, .. }) = doing.progress {
                figures.push(("work_done".to_owned(), done.to_string()));
                figures.push(("work_total".to_owned(), total.to_string()));
            }
        }
        figures
    }
}

fn fill_options(words: &[&str]) -> Result<FillOptions, String> {
    let mut options = FillOptions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case("fresh") {
            options.is_fresh = true;
        } else if word.eq_ignore_ascii_case("limit") {
            let limit = words.next().and_then(|word| word.parse().ok());
            options.bytes_per_second_max = Some(limit.ok_or("LIMIT wants bytes in a second")?);
        } else {
            return Err(format!("`{word}` is none of FRESH, LIMIT"));
        }
    }
    Ok(options)
}

/// What a device is to its group, in a word.
pub(crate) fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Current => "current",
        Standing::Absent => "absent",
        Standing::Joining => "joining",
    }
}

/// As JSON.
pub(crate) fn status(status: &MatrixStatus) -> Value {
    let devices: Vec<Value> = status
        .devices
        .iter()
        .map(|(position, standing)| {
            json!({"device": position.to_string(), "standing": standing_name(*standing)})
        })
        .collect();
    let damaged: Vec<String> =
        status.damaged.iter().map(|(place, how)| format!("{place}: {how}")).collect();
    let departures: Vec<Value> = status
        .departures
        .iter()
        .map(|it| json!({"device": it.device.to_string(), "at_ms": it.at.0, "error": it.why}))
        .collect();
    let InDoubt { devices: of_devices, keys, ranges } = &status.in_doubt;
    let of_devices: Vec<Value> = of_devices
        .iter()
        .map(|(place, leaves)| json!({"device": place.to_string(), "leaves": leaves}))
        .collect();
    json!({
        "devices": devices,
        "damaged": damaged,
        "departures": departures,
        "losses": status.losses.iter().map(loss).collect::<Vec<Value>>(),
        "in_doubt": {"devices": of_devices, "keys": keys, "ranges": ranges},
        "degraded": status.is_degraded,
        "slots": status.slots,
        "slots_moving": status.slots_moving,
        "work": status.doing.as_ref().map(doing),
    })
}

fn loss(loss: &Loss) -> Value {
    let names = |positions: &[Position]| -> Vec<String> {
        positions.iter().map(Position::to_string).collect()
    };
    json!({
        "group": loss.group,
        "missing": names(&loss.missing),
        "kept": names(&loss.kept),
        "epoch": loss.epoch,
        "mark": loss.mark,
        "lost": loss.what,
    })
}

fn doing(doing: &Doing) -> Value {
    let mut object = json!({"work": doing.work, "going_on": doing.done.is_none()});
    if let Some(progress) = &doing.progress {
        object["stage"] = progress.stage.into();
        object["done"] = progress.done.into();
        object["total"] = progress.total.into();
    }
    match &doing.done {
        Some(Ok(outcome)) => object["outcome"] = done(outcome),
        Some(Err(error)) => object["error"] = error.as_str().into(),
        None => {}
    }
    object
}

/// Keys of which nobody knows what was written last, and ranges of those that may have been.
fn in_doubt(scrubbed: &Scrubbed) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let range = |it: &Doubt| {
        let end = it.end.as_ref().map_or(String::new(), |end| format!(" to \"{}\"", text(end)));
        format!("from \"{}\"{end}", text(&it.start))
    };
    let keys = scrubbed.in_doubt.iter().map(|key| text(key));
    keys.chain(scrubbed.uncertain.iter().map(range)).collect()
}

/// As JSON.
pub(crate) fn done(done: &Done) -> Value {
    match done {
        Done::Filled(filled) => {
            let seconds = filled.elapsed.as_secs_f64();
            json!({
                "records": filled.records,
                "bytes": filled.bytes,
                "seconds": seconds,
                "bytes_per_second": (filled.bytes as f64 / seconds.max(1e-9)) as u64,
            })
        }
        Done::Scrubbed(scrubbed) => {
            let lost: Vec<String> =
                scrubbed.lost.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            let repaired: Vec<String> = scrubbed.repaired.iter().map(Position::to_string).collect();
            let unreadable: Vec<String> =
                scrubbed.unreadable.iter().map(|(place, why)| format!("{place}: {why}")).collect();
            let settled: Vec<String> = scrubbed.settled.iter().map(Position::to_string).collect();
            json!({
                "records": scrubbed.records,
                "repaired": repaired,
                "settled": settled,
                "lost": lost,
                "in_doubt": in_doubt(scrubbed),
                "unreadable": unreadable,
            })
        }
    }
}
