//! Reports about a matrix, and about the work that is done for it.

use super::report::{exit_code, key_of, remedy_name, vacancy_name};
use coreplane::Ack;
use coreplane::admin::{
    DamageSummary, Doing, Done, Failed, KeyRange, Loss, MatrixFacts, MatrixStore, MemberState,
    Position, Progress, Scrubbed,
};
use serde_json::{Map, Value, json};

/// The state of the devices, for `INFO`: names and values.
pub(super) fn figures(matrix: &MatrixStore) -> Vec<(String, String)> {
    let (slots, slots_moving) = matrix.slots();
    let mut figures = vec![
        ("groups".to_owned(), slots.len().to_string()),
        ("degraded".to_owned(), u8::from(matrix.is_degraded()).to_string()),
        ("slots_moving".to_owned(), slots_moving.to_string()),
    ];
    for (name, value) in matrix_facts(matrix) {
        figures.push((name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    }
    for (position, state) in matrix.member_states() {
        figures.push((format!("{position}_state"), state_name(state).to_owned()));
    }
    if let Some(doing) = &matrix.doing() {
        figures.push(("work".to_owned(), doing.work.to_owned()));
        figures.push(("work_going_on".to_owned(), u8::from(doing.done.is_none()).to_string()));
        if let Some(Progress { done, total, .. }) = doing.progress {
            figures.push(("work_done".to_owned(), done.to_string()));
            figures.push(("work_total".to_owned(), total.to_string()));
        }
    }
    figures
}

/// The state of a device in its group, in a word.
fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Current => "current",
        MemberState::Absent => "absent",
        MemberState::Joining => "joining",
    }
}

/// The number of copies that a write waits for, in a word.
fn ack_name(ack: Ack) -> &'static str {
    match ack {
        Ack::First => "first",
        Ack::Majority => "majority",
        Ack::All => "all",
    }
}

/// Facts about a matrix, as JSON.
pub fn matrix_facts(matrix: &MatrixStore) -> Map<String, Value> {
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

/// The figures of a device about its size and its health.
const OF_DEVICES: [&str; 7] = [
    "pool_bytes",
    "live_bytes",
    "free_bytes",
    "damaged_pages",
    "queue_bytes",
    "queue_bytes_max",
    "queue_waits",
];

/// Facts about a matrix and its state, as JSON.
pub fn matrix_status(matrix: &MatrixStore) -> Value {
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
    // Null while it is unknown.
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
        object.extend(matrix_facts(matrix));
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
    let done = doing.done.as_ref().map(|done| done.as_ref().map(outcome_of));
    let done = done.as_ref().map(|done| done.as_ref().map_err(|failed| *failed));
    told_of_work((doing.number, doing.work), doing.progress.as_ref(), done)
}

/// The report about work, which has a number and a name: its progress, and its result.
pub(super) fn told_of_work(
    (number, name): (u64, &str),
    progress: Option<&Progress>,
    done: Option<Result<&Value, &Failed>>,
) -> Value {
    let mut object = json!({"number": number, "work": name, "going_on": done.is_none()});
    if let Some(progress) = progress {
        object["stage"] = progress.stage.into();
        object["done"] = progress.done.into();
        object["total"] = progress.total.into();
    }
    match done {
        Some(Ok(outcome)) => object["outcome"] = outcome.clone(),
        Some(Err(failed)) => {
            object["error"] = failed.message.as_str().into();
            object["code"] = exit_code(failed.remedy).into();
            object["remedy"] = remedy_name(failed.remedy).into();
            object["vacancy"] = failed.vacancy.map(vacancy_name).into();
        }
        None => {}
    }
    object
}

/// Keys whose last write is unknown, and ranges that may contain such keys.
fn indeterminate(scrubbed: &Scrubbed) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let range = |it: &KeyRange| {
        let end = it.end.as_ref().map_or(String::new(), |end| format!(" to \"{}\"", text(end)));
        format!("from \"{}\"{end}", text(&it.start))
    };
    let keys = scrubbed.indeterminate.iter().map(|key| text(key));
    keys.chain(scrubbed.lost_ranges.iter().map(range)).collect()
}

/// The result of work, as JSON.
pub fn outcome_of(done: &Done) -> Value {
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
        let told = outcome_of(&Done::Scrubbed(scrubbed));
        assert_eq!(told["lost"], json!([{"key": "a"}, {"key_hex": "ff00"}]));
        assert_eq!((&told["settled"], &told["repaired"]), (&json!(["g0d0"]), &json!(["g0d1"])));
    }
}
