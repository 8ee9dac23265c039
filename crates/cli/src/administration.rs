//! A matrix behind a server: what clients can have done for it.

use crate::failure::code_of;
use crate::json;
use coreplane::admin::{
    CopyOptions, DamageSummary, Doing, Done, KeyRange, Loss, MatrixFacts, MatrixStore, MemberState,
    Position, Progress, Scrubbed, Work,
};
use coreplane::{Ack, Remedy};
use coreplane_server::Administration;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A matrix that a server serves.
#[derive(Debug)]
pub(crate) struct Administered(pub(crate) Arc<MatrixStore>);

impl Administration for Administered {
    fn run(&self, words: &[&str]) -> Result<String, String> {
        let work = match words {
            [word] if word.eq_ignore_ascii_case("status") => {
                return Ok(status(&self.0).to_string());
            }
            [word] if word.eq_ignore_ascii_case("scrub") => Work::Scrub(None),
            [word, device, place]
                if word.eq_ignore_ascii_case("scrub") && device.eq_ignore_ascii_case("device") =>
            {
                Work::Scrub(Some(place.parse().map_err(refused)?))
            }
            [word, place] if word.eq_ignore_ascii_case("retire") => {
                Work::Retire(place.parse().map_err(refused)?)
            }
            [word, rest @ ..] if word.eq_ignore_ascii_case("addgroup") => {
                let options = fill_options(rest).map_err(refused)?;
                if self.0.is_moving() {
                    Work::FinishMoves(options)
                } else {
                    Work::AddGroup(options)
                }
            }
            [word, place, rest @ ..] if word.eq_ignore_ascii_case("replace") => {
                let place: Position = place.parse().map_err(refused)?;
                Work::Replace(place, fill_options(rest).map_err(refused)?)
            }
            _ => {
                return Err("ERR try MATRIX STATUS, MATRIX REPLACE device [FRESH] [LIMIT bytes], \
                            MATRIX RETIRE device, MATRIX ADDGROUP [LIMIT bytes] or MATRIX SCRUB [DEVICE device]"
                    .to_owned());
            }
        };
        self.0.begin(work).map_err(|error| match error.remedy() {
            Remedy::Repair => format!("UNUSABLE {error}"),
            _ => format!("ERR {error}"),
        })?;
        Ok("begun".to_owned())
    }

    fn figures(&self) -> Vec<(String, String)> {
        let (slots, slots_moving) = self.0.slots();
        let mut figures = vec![
            ("groups".to_owned(), slots.len().to_string()),
            ("degraded".to_owned(), u8::from(self.0.is_degraded()).to_string()),
            ("slots_moving".to_owned(), slots_moving.to_string()),
        ];
        for (name, value) in facts(&self.0) {
            figures.push((name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
        for (position, state) in self.0.member_states() {
            figures.push((format!("{position}_state"), state_name(state).to_owned()));
        }
        if let Some(doing) = &self.0.doing() {
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

/// What a client said wrongly.
fn refused(what: String) -> String {
    format!("ERR {what}")
}

fn fill_options(words: &[&str]) -> Result<CopyOptions, String> {
    let mut options = CopyOptions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case("fresh") {
            options.is_fresh = true;
        } else if word.eq_ignore_ascii_case("limit") {
            let limit = words.next().and_then(|word| word.parse().ok()).filter(|limit| *limit > 0);
            options.bytes_per_second_max = Some(limit.ok_or("LIMIT wants bytes in a second")?);
        } else {
            return Err(format!("`{word}` is none of FRESH, LIMIT"));
        }
    }
    Ok(options)
}

/// What a device is to its group, in a word.
pub(crate) fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Current => "current",
        MemberState::Absent => "absent",
        MemberState::Joining => "joining",
    }
}

/// How many copies a write waits for, in a word.
fn ack_name(ack: Ack) -> &'static str {
    match ack {
        Ack::First => "first",
        Ack::Majority => "majority",
        Ack::All => "all",
    }
}

/// What a matrix is, as JSON.
pub(crate) fn facts(matrix: &MatrixStore) -> Map<String, Value> {
    let MatrixFacts { shape, ack, prototype, epoch, engines } = matrix.facts();
    let mut names: Vec<&str> = engines.iter().map(|(_, engine)| *engine).collect();
    names.sort_unstable();
    names.dedup();
    let texts = [
        ("shape", shape.to_string()),
        ("ack", ack_name(ack).to_owned()),
        ("prototype", prototype.name().to_owned()),
        ("device_engine", names.join(" and ")),
    ];
    let mut facts: Map<String, Value> =
        texts.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
    facts.insert("epoch".to_owned(), epoch.into());
    facts
}

/// What a device tells of its size and its health.
const OF_DEVICES: [&str; 7] = [
    "pool_bytes",
    "live_bytes",
    "free_bytes",
    "damaged_pages",
    "queue_bytes",
    "queue_bytes_max",
    "queue_waits",
];

/// What a matrix is and how it is, as JSON.
pub(crate) fn status(matrix: &MatrixStore) -> Value {
    let (status, engines, stats) = (matrix.status(), matrix.facts().engines, matrix.stats());
    let device = |(position, state): &(Position, MemberState)| {
        let name = position.to_string();
        let engine = engines.iter().find(|(there, _)| there == position).map(|(_, engine)| engine);
        let mut object = json!({"device": name, "state": state_name(*state), "engine": engine});
        let told = stats.devices.iter().filter(|device| device.name == name);
        for (name, value) in told.flat_map(|device| &device.figures) {
            if OF_DEVICES.contains(name) {
                object[*name] = (*value).into();
            }
        }
        object
    };
    let damaged: Vec<String> =
        status.damaged.iter().map(|(place, how)| format!("{place}: {how}")).collect();
    let departures: Vec<Value> = status
        .departures
        .iter()
        .map(|it| json!({"device": it.device.to_string(), "at_ms": it.at.0, "error": it.why}))
        .collect();
    let DamageSummary { devices: of_devices, keys, ranges } = &status.damage;
    let with_lost_ranges = |(place, leaves): &(Position, usize)| json!({"device": place.to_string(), "leaves": leaves});
    // Null while nobody knows.
    let of_devices =
        status.is_looked_at.then(|| of_devices.iter().map(with_lost_ranges).collect::<Vec<_>>());
    let mut object = json!({
        "devices": status.devices.iter().map(device).collect::<Vec<Value>>(),
        "damaged": damaged,
        "removed": status.removed.iter().map(Position::to_string).collect::<Vec<String>>(),
        "shortened": status.shortened.iter().map(shortened).collect::<Vec<Value>>(),
        "departures": departures,
        "losses": status.losses.iter().map(loss).collect::<Vec<Value>>(),
        "damage": {"devices": of_devices, "keys": keys, "ranges": ranges},
        "degraded": status.is_degraded,
        "slots": status.slots,
        "slots_moving": status.slots_moving,
        "work": status.doing.as_ref().map(doing),
        "records": stats.records,
        "pool_bytes": stats.pool_bytes,
        "live_bytes": stats.live_bytes,
        "free_bytes": stats.free_bytes,
        "dram_bytes": stats.dram_bytes,
    });
    if let Some(object) = object.as_object_mut() {
        object.extend(facts(matrix));
    }
    object
}

fn shortened((place, len, expected): &(Position, u64, u64)) -> Value {
    json!({"device": place.to_string(), "bytes": len, "expected": expected})
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
        "watermark": loss.watermark,
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
        Some(Err(failed)) => {
            object["error"] = failed.message.as_str().into();
            object["code"] = code_of(failed.remedy).into();
        }
        None => {}
    }
    object
}

/// Keys of which nobody knows what was written last, and ranges of those that may have been.
fn indeterminate(scrubbed: &Scrubbed) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let range = |it: &KeyRange| {
        let end = it.end.as_ref().map_or(String::new(), |end| format!(" to \"{}\"", text(end)));
        format!("from \"{}\"{end}", text(&it.start))
    };
    let keys = scrubbed.indeterminate.iter().map(|key| text(key));
    keys.chain(scrubbed.lost_ranges.iter().map(range)).collect()
}

/// As JSON.
pub(crate) fn done(done: &Done) -> Value {
    match done {
        Done::Copied(filled) => {
            let seconds = filled.elapsed.as_secs_f64();
            let lost: Vec<Value> = filled.lost.iter().map(|key| key_of(key)).collect();
            json!({
                "records": filled.records,
                "bytes": filled.bytes,
                "seconds": seconds,
                "bytes_per_second": (filled.bytes as f64 / seconds.max(1e-9)) as u64,
                "lost": lost,
            })
        }
        Done::Retired(place) => json!({"retired": place.to_string()}),
        Done::Scrubbed(scrubbed) => {
            let lost: Vec<Value> = scrubbed.lost.iter().map(|key| key_of(key)).collect();
            let places = |of: &[Position]| of.iter().map(Position::to_string).collect::<Vec<_>>();
            let unreadable: Vec<String> =
                scrubbed.unreadable.iter().map(|(place, why)| format!("{place}: {why}")).collect();
            json!({
                "records": scrubbed.records,
                "repaired": places(&scrubbed.repaired),
                "settled": places(&scrubbed.settled),
                "rewritten": places(&scrubbed.rewritten),
                "lost": lost,
                "indeterminate": indeterminate(scrubbed),
                "unreadable": unreadable,
            })
        }
    }
}

/// A key as an object: under `key`, or `key_hex` if it is no UTF-8.
fn key_of(key: &[u8]) -> Value {
    let mut object = Map::new();
    json::put_bytes(&mut object, "key", key);
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_told_with_its_keys_whole() {
        let place = |device| Position { group: 0, device };
        let scrubbed = Scrubbed {
            records: 3,
            repaired: vec![place(1)],
            lost: vec![b"a".to_vec(), vec![0xff, 0]],
            settled: vec![place(0)],
            ..Scrubbed::default()
        };
        let told = done(&Done::Scrubbed(scrubbed));
        assert_eq!(told["lost"], json!([{"key": "a"}, {"key_hex": "ff00"}]));
        assert_eq!((&told["settled"], &told["repaired"]), (&json!(["g0d0"]), &json!(["g0d1"])));
    }
}
